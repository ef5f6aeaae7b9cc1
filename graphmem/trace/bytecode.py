"""The bytecode of a function: which of its instructions may run after each other."""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping
from types import CodeType
from typing import TypeVar

_Result = TypeVar("_Result")

_LEAVES = frozenset(
    {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
    | {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
)


def cached_by_code(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Cache by the identity of the code: Dynamo's may have constants that cannot be hashed."""
    found: dict[tuple[Hashable, ...], tuple[CodeType, _Result]] = {}

    @functools.wraps(function)
    def call(code: CodeType, *rest: Hashable) -> _Result:
        key = (id(code), *rest)
        if key not in found:
            found[key] = code, function(code, *rest)
        return found[key][1]

    return call


def successors(code: CodeType) -> dict[int, list[int]]:
    """The offsets of what may run after each instruction, exceptions left aside."""
    instructions = list(dis.get_instructions(code))
    following: dict[int, list[int]] = {}
    for each, successor in zip(instructions, [*instructions[1:], None], strict=True):
        after = following[each.offset] = []
        if successor is not None and each.opname not in _LEAVES:
            after.append(successor.offset)
        if each.opcode in dis.hasjrel:
            after.append(each.argval)
    return following


def reached(ways: Mapping[int, Iterable[int]], start: int, avoided: int | None = None) -> set[int]:
    """Where the ways lead from an instruction without the avoided one."""
    found: set[int] = set()
    ahead = [start]
    while ahead:
        offset = ahead.pop()
        if offset != avoided and offset not in found:
            found.add(offset)
            ahead.extend(ways[offset])
    return found
