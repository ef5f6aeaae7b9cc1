"""Which calls of a function its `while` loops have, by line; the first line is the `def`.

From Python 3.12 on, the code that runs when a statement catches an exception stands at the end of a
function, and ends with a jump back, as a loop does.
"""

from __future__ import annotations

import dis
from types import CodeType

import pytest

from graphmem.trace.loop_tests import while_loop_around

FUNCTIONS: dict[str, tuple[str, set[int]]] = {
    "a with in a for loop": (
        """
for batch in batches:
    with autocast():
        loss = model(batch)
    losses.append(loss.item())""",
        set(),
    ),
    "a with, and what follows": (
        """
with open(path) as file:
    file.write(text)
save(model)""",
        set(),
    ),
    "a try, and what follows": (
        """
try:
    step()
except ValueError:
    undo()
save(model)""",
        set(),
    ),
    "a with in a while loop": (
        """
while loss() > 1:
    with autocast():
        step()
    count()""",
        {2, 3, 4, 5},
    ),
    "a while loop that ends in a try": (
        """
for batch in batches:
    while loss() > 1:
        try:
            step()
        except ValueError:
            pass
    losses.append(loss.item())""",
        {3, 5},
    ),
    "a while loop that only exceptions continue": (
        """
while True:
    try:
        return step()
    except ValueError:
        undo()""",
        {4, 6},
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_while_loop_has_its_own_calls(name: str) -> None:
    source, expected = FUNCTIONS[name]
    body = source.replace("\n", "\n    ").strip()
    module = compile(f"def function():\n    {body}", "function.py", "exec")
    code = next(each for each in module.co_consts if isinstance(each, CodeType))

    found = {
        each.positions.lineno
        for each in dis.get_instructions(code)
        if each.opname == "CALL" and each.positions is not None
        if while_loop_around(code, each.offset) is not None
    }

    assert found == expected
