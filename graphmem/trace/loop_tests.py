"""The variables that can end a loop: those that its tests name, read off its bytecode.

(1) A line of the loop that compares or branches is a *test*. Its names are those it loads.
(2) A test with a call or an attribute may depend on a size: `len(ids) < 300`, `ids.shape[1]`,
    `is_finished(ids)`. `tokens[-1] != 2` does not.
(3) A tested bool was set elsewhere: `done = is_finished(ids)`. The line that sets it counts as a
test.
(4) `next` and caught exceptions end a loop without a test: every variable counts, with its size.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, TypeVar

_Result = TypeVar("_Result")

_COMPARES = frozenset({"COMPARE_OP", "CONTAINS_OP", "IS_OP"})
_ASKS = frozenset({"CALL", "CALL_FUNCTION_EX", "CALL_KW", "LOAD_ATTR", "LOAD_METHOD"})
_CATCHES = frozenset({"CHECK_EXC_MATCH", "CHECK_EG_MATCH"})


@dataclass(frozen=True)
class Tests:
    """The variables and attributes that can end a loop.

    Attributes:
        names: those that tests name.
        sized: those among them whose size may matter.
        set_by: for each name, the names on the lines that set it.
        any_ends: whether anything may end the loop.
    """

    names: frozenset[str]
    sized: frozenset[str]
    set_by: Mapping[str, frozenset[str]]
    any_ends: bool

    def sized_among(self, variables: Mapping[str, Any]) -> frozenset[str]:
        """The variables whose size may matter."""
        if self.any_ends:
            return frozenset(variables)
        flags = [name for name in self.names if isinstance(variables.get(name), bool)]
        return self.sized.union(*(self.set_by.get(flag, frozenset()) for flag in flags))


def _cached_by_code(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Cache by the identity of the code: Dynamo's may have constants that cannot be hashed."""
    found: dict[tuple[int, ...], tuple[CodeType, _Result]] = {}

    @functools.wraps(function)
    def call(code: CodeType, *instructions: int) -> _Result:
        key = (id(code), *instructions)
        if key not in found:
            found[key] = code, function(code, *instructions)
        return found[key][1]

    return call


@_cached_by_code
def tests_of(code: CodeType, first: int, last: int) -> Tests:
    """The tests of the loop between two instructions."""
    lines: dict[int | None, list[dis.Instruction]] = {}
    for each in dis.get_instructions(code):
        if first <= each.offset <= last and each.positions is not None:
            lines.setdefault(each.positions.lineno, []).append(each)
    tests = [line for line in lines.values() if any(map(_is_test, line))]
    asking = [line for line in tests if any(each.opname in _ASKS for each in line)]
    loaded = [_names(line, "LOAD_") for line in lines.values()]
    set_by: dict[str, frozenset[str]] = {}
    for line, names in zip(lines.values(), loaded, strict=True):
        for name in _names(line, "STORE_"):
            set_by[name] = set_by.get(name, frozenset()) | names
    return Tests(
        _union(_names(line, "LOAD_") for line in tests),
        _union(_names(line, "LOAD_") for line in asking),
        set_by,
        "next" in _union(loaded) or _catches(code),
    )


def _is_test(instruction: dis.Instruction) -> bool:
    return (
        instruction.opname in _COMPARES
        or "JUMP_IF" in instruction.opname
        or ("POP_JUMP" in instruction.opname)
    )


def _names(line: Iterable[dis.Instruction], kind: str) -> frozenset[str]:
    """The names that instructions load or store; newer Pythons' may do so with several at once."""
    found: set[str] = set()
    for each in line:
        if kind in each.opname and "CONST" not in each.opname:
            found.update(each.argval if isinstance(each.argval, tuple) else (str(each.argval),))
    return frozenset(found)


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*sets)


def _catches(code: CodeType) -> bool:
    return any(each.opname in _CATCHES for each in dis.get_instructions(code))


def while_loop_around(code: CodeType, offset: int) -> tuple[int, int] | None:
    """First and last instruction of the innermost loop around an offset, if a `while` loop."""
    around = [loop for loop in _loops_of(code) if loop[0] <= offset <= loop[1]]
    if not around:
        return None
    first, last, is_for = min(around, key=lambda loop: loop[1] - loop[0])
    return None if is_for else (first, last)


@_cached_by_code
def _loops_of(code: CodeType) -> tuple[tuple[int, int, bool], ...]:
    """First and last instruction of each loop, and whether it is a `for` loop."""
    names: dict[int, str] = {}
    last: dict[int, int] = {}
    before: list[int] = []  # the jump back of a long loop goes to the EXTENDED_ARGs of its FOR_ITER
    for instruction in dis.get_instructions(code):
        names |= dict.fromkeys([*before, instruction.offset], instruction.opname)
        before = [*before, instruction.offset] if instruction.opname == "EXTENDED_ARG" else []
        if "JUMP_BACKWARD" in instruction.opname and "INTERRUPT" not in instruction.opname:
            last[instruction.argval] = instruction.offset
    return tuple((head, end, names[head] == "FOR_ITER") for head, end in last.items())
