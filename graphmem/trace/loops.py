"""Loops that can never end, because what would end them is not computed.

`while True: ...; if loss.item() < 0.01: break` ends on a card, and not here: a loss reads as 1.
A loop of the user's is told once it came back to the same instruction `ROUNDS` times while nothing
known changed: neither a number, a text or a length among the variables of its function and of
`self`, nor a tensor whose values are known. A `for` loop ends with what it loops over; so does a
`while` loop that counts.

Not covered: a loop that reads nothing off the card (`--timeout` ends it), and one that counts for
ever.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterable, Iterator, Sized
from types import CodeType, FrameType
from typing import Any

import torch

from graphmem.errors import InputError
from graphmem.frames import Origin, origin_of, short_path
from graphmem.trace.naming import variables_of
from graphmem.values.known import KnownValues

ROUNDS = 100
"""How often a loop may come back without change."""

_FEW = 64
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class _Visits:
    """What is noted on a frame as its trace function, which is never called without a debugger."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[tuple[Any, ...], int]] = {}

    def __call__(self, *event: Any) -> None:
        return None


class Loops:
    """Counts how often the user's `while` loops come round."""

    def __init__(self, known: KnownValues) -> None:
        self._known = known

    def check(self, frames: Iterable[FrameType]) -> None:
        """The program reads a value off the card.

        Args:
            frames: the user's own frames on the stack.

        Raises:
            InputError: a loop among them has come round too often.
        """
        if sys.gettrace() is not None:  # a debugger's: people step through, and change things
            return
        for frame in frames:
            is_own = origin_of(frame.f_code.co_filename) is Origin.USER
            if is_own and _is_in_while(frame.f_code, frame.f_lasti):
                self._visit(frame)

    def _visit(self, frame: FrameType) -> None:
        visits = frame.f_trace
        if not isinstance(visits, _Visits):
            visits = frame.f_trace = _Visits()
        state = tuple(self._state(frame))
        before, rounds = visits.seen.get(frame.f_lasti, (None, 0))
        rounds = rounds + 1 if state == before else 1
        visits.seen[frame.f_lasti] = (state, rounds)
        if rounds <= ROUNDS:
            return
        where = f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"
        raise InputError(
            f"the loop around {where} does not end: in {ROUNDS} rounds nothing known changed",
            hint=f"say what ends it, such as --assume {where}=0, or bound it by a count",
        )

    def _state(self, frame: FrameType) -> Iterator[tuple[str, Any]]:
        variables = variables_of(frame)
        for name, value in variables.items():
            yield name, self._sketch(value)
        for name, value in list(getattr(variables.get("self"), "__dict__", {}).items()):
            yield name, self._sketch(value)

    def _sketch(self, value: Any) -> Any:
        """What shows that a variable changed."""
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, torch.Tensor):
            return self._sketch_tensor(value)
        if isinstance(value, Sized) and not isinstance(value, type):
            try:
                return type(value), len(value)
            except Exception:  # noqa: BLE001 - whatever a class of the user's does
                return type(value)
        return type(value)

    def _sketch_tensor(self, tensor: torch.Tensor) -> Any:
        known = self._known.of(tensor)
        if known is None:
            return tuple(tensor.shape)
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            few = known.tensor.detach().reshape(-1)[:_FEW] if known.tensor.numel() else known.tensor
            return tuple(tensor.shape), tuple(few.tolist())


def _is_in_while(code: CodeType, offset: int) -> bool:
    """Whether the innermost loop around an instruction is a `while` loop."""
    around = [loop for loop in _loops_of(code) if loop[0] <= offset <= loop[1]]
    return bool(around) and not min(around, key=lambda loop: loop[1] - loop[0])[2]


@functools.cache
def _loops_of(code: CodeType) -> tuple[tuple[int, int, bool], ...]:
    """First and last instruction of each loop, and whether it is a `for` loop."""
    names: dict[int, str] = {}
    last: dict[int, int] = {}
    for instruction in dis.get_instructions(code):
        names[instruction.offset] = instruction.opname
        if "JUMP_BACKWARD" in instruction.opname and "INTERRUPT" not in instruction.opname:
            last[instruction.argval] = instruction.offset
    return tuple((head, end, names[head] == "FOR_ITER") for head, end in last.items())
