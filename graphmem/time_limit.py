"""The time that the code under analysis may take: `--timeout`.

The end comes as an exception in the main thread, at the line that runs. It is no `Exception`, so
that a training script which catches those does not go on; where something catches it all the same,
it comes again. To import torch does not count.

Not covered: native code that does not come back to Python. `graphmem check` ends its process then.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from graphmem.errors import InputError
from graphmem.user_errors import place_of

_AGAIN = 2.0


class TimeUp(BaseException):
    """The limit is reached."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """End what runs within after so many seconds; None: never. For the main thread alone.

    Raises:
        InputError: it took longer.
    """
    if seconds is None:
        yield
        return
    import graphmem.trace  # noqa: F401

    before = signal.signal(signal.SIGALRM, _end)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    except TimeUp as up:
        raise took_longer(seconds, place_of(up)) from up


def took_longer(seconds: float, place: str) -> InputError:
    """The error that names the limit and, where it is known, the line that ran."""
    at = f", at {place}" if place else ""
    return InputError(
        f"not done after {seconds:g} s{at}",
        hint="a greater --timeout gives it more time; `--set` can make build() smaller",
    )


def _end(number: int, frame: FrameType | None) -> None:
    raise TimeUp
