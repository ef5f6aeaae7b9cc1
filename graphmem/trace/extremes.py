"""What Python's `max` and `min` take where a comparison of values on the card decides.

They compare each argument with the best before it, by `>` and by `<` (`min_max`,
Python/bltinmodule.c):

(1) of a tensor and a number of the program the tensor is taken, as in `max(weights.sum(), 1)`: it
    has the memory, and perhaps a gradient;
(2) of several tensors the last one is taken.

Where the best is a tensor and the next argument is a number, Python asks the tensor the other way
round: `1 > x` is `x < 1`. Read off the bytecode, which names the function that compares.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Iterable
from types import CodeType, FrameType

import torch

from graphmem.frames import Origin, origin_of
from graphmem.trace.bytecode import cached_by_code
from graphmem.values.rules import Rule

aten = torch.ops.aten

_GREATER = (aten.gt.Scalar, aten.gt.Tensor)
_LESS = (aten.lt.Scalar, aten.lt.Tensor)
_WHY = "the card does no arithmetic"


def taken_extreme(frames: Iterable[FrameType], comparison: object) -> tuple[Rule, bool] | None:
    """What is assumed, and the comparison's outcome; None if neither `max` nor `min` asks for it.

    Args:
        frames: those of the stack, innermost first.
        comparison: the operation whose result is read.
    """
    if comparison not in (*_GREATER, *_LESS):
        return None
    frame = next(each for each in frames if not _is_own(each))
    name = _called(frame.f_code, frame.f_lasti)
    if name is None or frame.f_globals.get(name, vars(builtins)[name]) is not vars(builtins)[name]:
        return None
    rule = Rule(f"what `{name}` takes", "a tensor, the last of several", _WHY)
    return rule, (comparison in _GREATER) == (name == "max")


def _is_own(frame: FrameType) -> bool:
    return origin_of(frame.f_code.co_filename) is Origin.GRAPHMEM


@cached_by_code
def _called(code: CodeType, offset: int) -> str | None:
    """`max` or `min`, if the instruction calls it."""
    *before, call = (each for each in dis.get_instructions(code) if each.offset <= offset)
    if call.opname not in ("CALL", "CALL_KW") or call.arg is None:
        return None
    if before[-1].opname == "PRECALL":  # a part of this call in Python 3.11
        before.pop()
    missing = call.arg + 2 + (call.opname == "CALL_KW")  # the function, NULL, and keywords' names
    for each in reversed(before):
        missing -= dis.stack_effect(each.opcode, each.arg)
        if missing <= 0:
            is_extreme = each.opname == "LOAD_GLOBAL" and each.argval in ("max", "min")
            return each.argval if is_extreme and not missing else None
    return None
