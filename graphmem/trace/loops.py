"""Detect loops that never end, because the value that would end them is not computed.

`while True: ...; if loss.item() < 0.01: break` ends on a card, but not here, where a loss reads as
1. A user's loop is reported once it has returned to the same instruction `ROUNDS` times without a
known change in anything that could end it: among the variables of its function and of `self` that
its tests name (`tests_of`), no number, string or known value, and no length, content of an array or
a list, or number of an object if a test depends on one, as on `environment.step(action)`; and no
test reads a clock. So a loop that appends each loss to a list, or each token to a tensor, is
reported as well. A `for` loop ends with its iterable, and a `while` loop that counts within `MOST`
rounds. What only a loop around it sets tells that the loop was left. Several reads in one call are
one round of the caller's loop, as in a training loop that evaluates. A loop that yields ends when
its caller resumes it no more, so the caller's loop counts, and what the generator counts with it.
A loop of a library counts where it reads by itself, as a solver's does that halves its step until
an error is small; trainers leave that to their functions.
A distribution draws until each number is accepted (torch/distributions/von_mises.py), which takes
some 20 rounds on a card; its loop is reported after `ROUNDS`. So is a `while_loop` in compiled
code, whose wrapper reads its condition in each round (torch/_inductor/codegen/wrapper.py,
`codegen_while_loop`).

Not covered: a loop that reads nothing off the card (`--timeout` ends it).
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import islice
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import torch

from graphmem.frames import Origin, origin_of, short_path
from graphmem.trace.loop_tests import (
    Tests,
    loops_around,
    names_set,
    tests_of,
    while_loop_around,
    yields,
)
from graphmem.trace.messages import EndlessLoopError
from graphmem.trace.naming import variables_of
from graphmem.values.known import KnownValues

ROUNDS = 100
"""How many rounds a loop may run without a change."""

MOST = 10_000
"""How many rounds it may run in all: a loop that only counts does not end by its reads."""

_FEW = 64
_MANY = 1 << 16
_CLOCKS = frozenset({"monotonic", "perf_counter", "time"})
_WRAPPERS = "torchinductor_"
_DISTRIBUTIONS = "/torch/distributions/"
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class _Visit(NamedTuple):
    """How often a loop returned to an instruction: in all, and since its state changed.

    `around` is what loops around it have set, and `call` the user's function that the instruction
    called at the last visit.
    """

    state: tuple[Any, ...] | None = None
    around: tuple[Any, ...] | None = None
    call: _Visits | None = None
    unchanged: int = 0
    rounds: int = 0


class _Visits:
    """A frame's visits, stored as its trace function, which is never called without a debugger."""

    def __init__(self) -> None:
        self.seen: dict[int, _Visit] = {}

    def __call__(self, *event: Any) -> None:
        return None


class Loops:
    """Counts the rounds of `while` loops."""

    def __init__(self, known: KnownValues) -> None:
        self._known = known

    def check(self, frames: Iterable[FrameType]) -> None:
        """Count a round: the program is reading a value off the card.

        Args:
            frames: the frames on the stack, innermost first.

        Raises:
            InputError: a loop of the user's, of a library that reads in it, or of a distribution,
                has run too many rounds.
        """
        if sys.gettrace() is not None:  # a debugger: people step through, and change things
            return
        call: _Visits | None = None
        resumed: tuple[Any, ...] = ()
        is_reading = True
        for frame in frames:
            is_library = _is_library(frame)
            counts = is_library and is_reading
            is_reading = is_reading and not (is_library or _is_user(frame))
            if not (counts or _is_distribution(frame) or _is_user(frame) or _is_compiled(frame)):
                continue
            visits = frame.f_trace
            if not isinstance(visits, _Visits):
                visits = frame.f_trace = _Visits()
            before = visits.seen.get(frame.f_lasti, _Visit())
            if _has_rounds(frame) and (call is None or call is not before.call):
                visits.seen[frame.f_lasti] = self._visit(frame, before, call, resumed)
            if frame.f_code.co_flags & inspect.CO_GENERATOR:  # in one frame for all rounds
                call, resumed = None, (*resumed, *self._counted(frame))
            else:
                call, resumed = visits, ()

    def _visit(
        self, frame: FrameType, before: _Visit, call: _Visits | None, resumed: tuple[Any, ...]
    ) -> _Visit:
        variables = variables_of(frame)
        state = (*self._state(frame, variables), *resumed)
        around = tuple(self._set_around(frame, variables))
        if around != before.around:  # it was left, and begins again
            before = _Visit()
        unchanged = before.unchanged + 1 if state == before.state else 1
        if unchanged > ROUNDS:
            self._refuse(frame, f"in {ROUNDS} rounds, nothing known that could end it has changed")
        most = ROUNDS if _is_distribution(frame) else MOST
        if before.rounds >= most:
            self._refuse(frame, f"it ran {most:,} rounds")
        return _Visit(state, around, call, unchanged, before.rounds + 1)

    def _refuse(self, frame: FrameType, why: str) -> NoReturn:
        where = _line(frame)
        caller: FrameType | None = frame
        while caller is not None and not _is_user(caller):
            caller = caller.f_back
        asked = where if caller is None else _line(caller)
        # What a library reads by itself has the library's line; a draw is the user's.
        answer = f"{where.rpartition('/')[2]}=0" if _is_library(frame) else ""
        raise EndlessLoopError(asked if _is_compiled(frame) else where, asked, why, answer)

    def _state(self, frame: FrameType, variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        loop = while_loop_around(frame.f_code, frame.f_lasti)
        tests = tests_of(frame.f_code, loop)
        if not _CLOCKS.isdisjoint(tests.names):
            yield "clock", time.perf_counter()
        yield from self._tested(variables, tests)
        yield from self._tested(dict(getattr(variables.get("self"), "__dict__", {})), tests)

    def _set_around(
        self, frame: FrameType, variables: Mapping[str, Any]
    ) -> Iterator[tuple[str, Any]]:
        """What loops around the innermost one set, and it does not; objects by their addresses."""
        code = frame.f_code
        loop = while_loop_around(code, frame.f_lasti) or frozenset()
        names = names_set(code, loops_around(code, frame.f_lasti) - loop) - names_set(code, loop)
        for name, value in variables.items() if names else ():
            if name in names:
                yield name, value if isinstance(value, _PLAIN) else id(value)

    def _counted(self, frame: FrameType) -> Iterator[tuple[str, Any]]:
        """The numbers that a generator's loops set."""
        names = names_set(frame.f_code, loops_around(frame.f_code, frame.f_lasti))
        for name, value in variables_of(frame).items():
            if name in names and isinstance(value, _PLAIN):
                yield name, value

    def _tested(self, variables: Mapping[str, Any], tests: Tests) -> Iterator[tuple[str, Any]]:
        sized = tests.sized_among(variables)
        for name, value in variables.items():
            if name in sized:
                yield name, self._sketch(value)
            elif name in tests.names:
                yield name, self._sketch_without_size(value)

    def _sketch_without_size(self, value: Any) -> Any:
        """The state of a value whose size does not matter; of a list, its last number."""
        if isinstance(value, torch.Tensor):
            return self._known_numbers(value)
        if isinstance(value, (list, tuple)):
            return value[-1] if value and isinstance(value[-1], _PLAIN) else None
        return self._sketch(value)

    def _sketch(self, value: Any, depth: int = 2) -> Any:
        """A value that changes when a variable does."""
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, torch.Tensor):
            return tuple(value.shape), self._known_numbers(value)
        if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
            return hash(value.flat[:_MANY].tobytes())
        if isinstance(value, (dict, list, tuple)) and depth:
            items = value.values() if isinstance(value, dict) else value
            few = tuple(self._sketch(each, depth - 1) for each in islice(items, _FEW))
            return type(value), len(value), few
        if isinstance(value, Sized) and not isinstance(value, type):
            try:
                return type(value), len(value)
            except Exception:  # noqa: BLE001 - a user's class may raise anything
                return type(value)
        own = list(getattr(value, "__dict__", {}).values())
        return type(value), tuple(each for each in own if isinstance(each, _PLAIN))

    def _known_numbers(self, tensor: torch.Tensor) -> tuple[Any, ...] | None:
        known = self._known.of(tensor)
        if known is None:
            return None
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            few = known.tensor.detach().reshape(-1)[:_FEW] if known.tensor.numel() else known.tensor
            return tuple(few.tolist())


def _has_rounds(frame: FrameType) -> bool:
    """Whether the innermost loop is a `while` loop, and its function's own to end."""
    loop = while_loop_around(frame.f_code, frame.f_lasti)
    return loop is not None and not yields(frame.f_code, loops_around(frame.f_code, frame.f_lasti))


def _is_user(frame: FrameType) -> bool:
    return origin_of(frame.f_code.co_filename) is Origin.USER


def _is_library(frame: FrameType) -> bool:
    return origin_of(frame.f_code.co_filename) is Origin.LIBRARY


def _is_compiled(frame: FrameType) -> bool:
    return _WRAPPERS in frame.f_code.co_filename


def _is_distribution(frame: FrameType) -> bool:
    return _DISTRIBUTIONS in frame.f_code.co_filename


def _line(frame: FrameType) -> str:
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"
