"""The variables that can end a loop: those that its tests name, read off its bytecode.

(1) A line of the loop that compares or branches is a *test*. Its names are those it loads.
(2) A test with a call or an attribute may depend on a size: `len(ids) < 300`, `ids.shape[1]`,
    `is_finished(ids)`. `tokens[-1] != 2` does not.
(3) A tested bool was set elsewhere: `done = is_finished(ids)`. The line that sets it counts as a
test, with all that it sets: `observation, reward, done, _ = environment.step(action)`. So does
the line that sets a bool on it: `done = terminated | truncated`.
(4) `next` and caught exceptions end a loop without a test: every variable counts, with its size.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import CodeType
from typing import Any

from graphmem.trace.bytecode import cached_by_code, reached, successors

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
        found, ahead = set(self.sized), list(self.names)
        while ahead:
            name = ahead.pop()
            if _is_bool(variables.get(name)):
                setting = self.set_by.get(name, frozenset())
                ahead += setting - found
                found |= setting
        return frozenset(found)


@cached_by_code
def tests_of(code: CodeType, loop: frozenset[int]) -> Tests:
    """The tests of a loop, given as its instructions."""
    lines: dict[int | None, list[dis.Instruction]] = {}
    for each in dis.get_instructions(code):
        if each.offset in loop and each.positions is not None:
            lines.setdefault(each.positions.lineno, []).append(each)
    tests = [line for line in lines.values() if any(map(_is_test, line))]
    asking = [line for line in tests if any(each.opname in _ASKS for each in line)]
    loaded = [_names(line, "LOAD_") for line in lines.values()]
    set_by: dict[str, frozenset[str]] = {}
    for line, names in zip(lines.values(), loaded, strict=True):
        for name in _names(line, "STORE_"):
            set_by[name] = set_by.get(name, frozenset()) | names | _names(line, "STORE_")
    return Tests(
        _union(_names(line, "LOAD_") for line in tests),
        _union(_names(line, "LOAD_") for line in asking),
        set_by,
        "next" in _union(loaded) or _catches(code),
    )


def _is_bool(value: object) -> bool:
    """Whether a value is a bool of Python's or NumPy's, which is no subclass."""
    return type(value).__name__ in ("bool", "bool_")


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


def while_loop_around(code: CodeType, offset: int) -> frozenset[int] | None:
    """The instructions of the innermost loop around an offset, if a `while` loop."""
    around = [loop for loop in _loops_of(code) if offset in loop[0]]
    if not around:
        return None
    loop, is_for = min(around, key=lambda each: len(each[0]))
    return None if is_for else loop


def loops_around(code: CodeType, offset: int) -> frozenset[int]:
    """The instructions of the outermost loop around an offset, of any kind; none without a loop."""
    return max(
        (loop for loop, _ in _loops_of(code) if offset in loop), key=len, default=frozenset()
    )


@cached_by_code
def names_set(code: CodeType, instructions: frozenset[int]) -> frozenset[str]:
    """The names that some instructions set."""
    return _names(
        (each for each in dis.get_instructions(code) if each.offset in instructions), "STORE_"
    )


@cached_by_code
def yields(code: CodeType, instructions: frozenset[int]) -> bool:
    """Whether any of them hands a value to whoever resumes the generator."""
    found = (each for each in dis.get_instructions(code) if each.offset in instructions)
    return any(each.opname == "YIELD_VALUE" for each in found)


@cached_by_code
def _loops_of(code: CodeType) -> tuple[tuple[frozenset[int], bool], ...]:
    """The instructions of each loop with their caches, and whether it is a `for` loop.

    A jump back closes a loop if nothing but its target leads to it. From Python 3.12 on, what runs
    when a `with` or `try` catches an exception stands at the end of the function, and jumps back to
    what follows the statement.

    `f_lasti` is in a cache while a called function in Python runs (`frame->prev_instr = next_instr
    - 1` after `JUMPBY(INLINE_CACHE_ENTRIES_CALL)`, Python/ceval.c of 3.11).
    """
    names: dict[int, str] = {}
    jumps: dict[int, list[int]] = {}
    before: list[int] = []  # the jump back of a long loop goes to the EXTENDED_ARGs of its FOR_ITER
    for each in dis.get_instructions(code):
        names |= dict.fromkeys([*before, each.offset], each.opname)
        before = [*before, each.offset] if each.opname == "EXTENDED_ARG" else []
        if "JUMP_BACKWARD" in each.opname and "INTERRUPT" not in each.opname:
            jumps.setdefault(each.argval, []).append(each.offset)
    following = _following(code)
    leading: dict[int, list[int]] = {offset: [] for offset in following}
    for offset, after in following.items():
        for successor in after:
            leading[successor].append(offset)
    loops = []
    for head, ends in jumps.items():
        elsewhere = reached(following, 0, head)
        bodies = [reached(leading, end, head) for end in ends if end not in elsewhere]
        if bodies:
            body = _with_caches({head}.union(*bodies), following)
            loops.append((body, names[head] == "FOR_ITER"))
    return tuple(loops)


def _with_caches(chosen: set[int], instructions: Iterable[int]) -> frozenset[int]:
    """The code units of some instructions: each one's own, and those up to the next one."""
    offsets = list(instructions)
    units = (range(*pair, 2) for pair in pairwise([*offsets, offsets[-1] + 2]))
    return frozenset(unit for part in units if part.start in chosen for unit in part)


def _following(code: CodeType) -> dict[int, list[int]]:
    """The instructions that may run after each one, with those that catch its exceptions."""
    following = successors(code)
    bytecode: Any = dis.Bytecode(code)  # typeshed does not know its exception table
    for start, end, catch, *_ in bytecode.exception_entries:
        for offset in following.keys() & range(start, end):
            following[offset].append(catch)
    return following
