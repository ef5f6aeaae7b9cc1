"""The truth value with which a program goes on, where the other one raises an error, or warns.

Read off the bytecode: a conditional jump uses what is read, and everything that its one way leads
to ends in `raise`, as after `assert` and `if …: raise`; or it begins with a call of something like
`warnings.warn`, as where torchmetrics finds no negative samples; or it only prints before it meets
the other way, as where HiFi-GAN finds samples out of range.
"""

from __future__ import annotations

import dis
import itertools
import re
from collections.abc import Iterable, Mapping
from types import CodeType, FrameType
from typing import Any

from graphmem.frames import Origin, origin_of
from graphmem.trace.bytecode import cached_by_code, reached, successors

_BETWEEN = frozenset({"CACHE", "TO_BOOL", "EXTENDED_ARG", "NOT_TAKEN"})
"""What may stand between a read and its jump, or behind that: `TO_BOOL` from Python 3.13 on."""
_GOES_ON = frozenset({"RETURN_VALUE", "RETURN_CONST", "YIELD_VALUE", "RERAISE"})
_NAMES = re.compile("LOAD_(GLOBAL|NAME|DEREF|FAST.*)")
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_LEAVES = re.compile("JUMP|FOR_ITER|RETURN|YIELD|RAISE|SEND")
_STATEMENT = re.compile(f"{_LEAVES.pattern}|STORE|DELETE|IMPORT|POP_TOP")
_ENDS_A_LOOP = frozenset({"StopIteration", "StopAsyncIteration"})


def passing_value(frames: Iterable[FrameType]) -> bool | None:
    """The value that the program needs where it is reading; None if it goes on with either.

    Args:
        frames: those of the stack, innermost first.
    """
    for frame in frames:
        if origin_of(frame.f_code.co_filename) is not Origin.GRAPHMEM:
            return _passing(frame.f_code, frame.f_lasti)
    return None


@cached_by_code
def _passing(code: CodeType, offset: int) -> bool | None:
    instructions = {each.offset: each for each in dis.get_instructions(code)}
    reading = max(each for each in instructions if each <= offset)  # else a cache of its own
    here, *later = (
        each
        for each in instructions.values()
        if each.offset >= reading and each.opname not in _BETWEEN
    )
    jump = here if "JUMP" in here.opname else later[0]  # until Python 3.12 the jump itself may read
    if "POP_JUMP" not in jump.opname or not jump.opname.endswith(("_TRUE", "_FALSE")):
        return None
    ways = successors(code)
    taken = [*ways[jump.offset]]
    if jump.opname.endswith("_FALSE"):
        taken.reverse()
    if_not, if_so = (_raises(instructions, ways, way) for way in taken)
    if if_not == if_so:
        if_not, if_so = (_warns(instructions, way) for way in taken)
    if if_not == if_so:
        pairs = (taken, reversed(taken))
        if_not, if_so = (_only_prints(instructions, way, other) for way, other in pairs)
    return None if if_not == if_so else if_not


def _raises(
    instructions: Mapping[int, dis.Instruction], ways: Mapping[int, Iterable[int]], start: int
) -> bool:
    """Whether all that an instruction leads to ends in `raise`, and no iterator is at its end."""
    return all(
        offset >= start
        and instructions[offset].opname not in _GOES_ON
        and str(instructions[offset].argval) not in _ENDS_A_LOOP
        for offset in reached(ways, start)
    )


def _warns(instructions: Mapping[int, dis.Instruction], start: int) -> bool:
    """Whether what comes first is a call of something like `warnings.warn`."""
    ahead = (each for offset, each in instructions.items() if offset >= start)
    first, *later = filter(_counts, ahead)
    if _NAMES.fullmatch(first.opname) is None:
        return False
    path = itertools.takewhile(lambda each: each.opname in _ATTRIBUTES, later)
    return "warn" in str([first, *path][-1].argval)


def _only_prints(instructions: Mapping[int, dis.Instruction], start: int, other: int) -> bool:
    """Whether a way does nothing but print before it goes on like the other one."""
    ahead, goes_on = (
        [each for offset, each in instructions.items() if offset >= way and _counts(each)]
        for way in (start, other)
    )
    has_printed = False
    while _NAMES.fullmatch(ahead[0].opname) and ahead[0].argval == "print":
        end = next(n for n, each in enumerate(ahead) if _STATEMENT.search(each.opname))
        if ahead[end].opname != "POP_TOP":
            return False
        ahead, has_printed = ahead[end + 1 :], True
    return has_printed and _until_it_leaves(ahead) == _until_it_leaves(goes_on)


def _until_it_leaves(way: list[dis.Instruction]) -> list[tuple[str, Any]]:
    end = next(n for n, each in enumerate(way) if _LEAVES.search(each.opname))
    return [(each.opname, each.argval) for each in way[: end + 1]]


def _counts(instruction: dis.Instruction) -> bool:
    return instruction.opname not in _BETWEEN | {"PUSH_NULL"}
