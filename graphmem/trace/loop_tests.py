"""What a loop can end by: the variables that its tests name, read off its bytecode.

(1) A line of the loop that compares or branches is a *test*. Its names are what it loads.
(2) A test that calls something, or takes an attribute, may ask for a size: `len(ids) < 300`,
    `ids.shape[1]`, `is_finished(ids)`. `tokens[-1] != 2` does not.
(3) A truth value that is tested was set elsewhere: `done = is_finished(ids)`. The line that set it
    counts as a test.
(4) `next` and what is caught end a loop without a test: everything counts, with its size.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

_COMPARES = frozenset({"COMPARE_OP", "CONTAINS_OP", "IS_OP"})
_ASKS = frozenset({"CALL", "CALL_FUNCTION_EX", "CALL_KW", "LOAD_ATTR", "LOAD_METHOD"})
_CATCHES = frozenset({"CHECK_EXC_MATCH", "CHECK_EG_MATCH"})


@dataclass(frozen=True)
class Tests:
    """Names of variables and attributes.

    Attributes:
        names: that tests name.
        sized: of these, those whose size may be asked for.
        set_by: for a name, those on the lines that set it.
        any_ends: the loop may end by anything.
    """

    names: frozenset[str]
    sized: frozenset[str]
    set_by: Mapping[str, frozenset[str]]
    any_ends: bool

    def sized_among(self, variables: Mapping[str, Any]) -> frozenset[str]:
        """The variables whose size may be asked for."""
        if self.any_ends:
            return frozenset(variables)
        flags = [name for name in self.names if isinstance(variables.get(name), bool)]
        return self.sized.union(*(self.set_by.get(flag, frozenset()) for flag in flags))


@functools.cache
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
    """What instructions load or store; some of later versions do so with several."""
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
    """First and last instruction of the innermost loop around one, if it is a `while` loop."""
    around = [loop for loop in _loops_of(code) if loop[0] <= offset <= loop[1]]
    if not around:
        return None
    first, last, is_for = min(around, key=lambda loop: loop[1] - loop[0])
    return None if is_for else (first, last)


@functools.cache
def _loops_of(code: CodeType) -> tuple[tuple[int, int, bool], ...]:
    """First and last instruction of each loop, and whether it is a `for` loop."""
    names: dict[int, str] = {}
    last: dict[int, int] = {}
    before: list[int] = []  # a long loop is jumped back to where its FOR_ITER is extended
    for instruction in dis.get_instructions(code):
        names |= dict.fromkeys([*before, instruction.offset], instruction.opname)
        before = [*before, instruction.offset] if instruction.opname == "EXTENDED_ARG" else []
        if "JUMP_BACKWARD" in instruction.opname and "INTERRUPT" not in instruction.opname:
            last[instruction.argval] = instruction.offset
    return tuple((head, end, names[head] == "FOR_ITER") for head, end in last.items())
