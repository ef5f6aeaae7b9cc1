"""A limit on the time of the code under analysis: `--timeout`.

The limit raises an exception in the main thread, at the running line. It is not an `Exception`, so
that a training script which catches those still ends; if something catches it anyway, it is raised
again. Importing torch does not count.

Not covered: native code that does not return to Python; `graphmem check` then kills its process.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from graphmem.errors import InputError
from graphmem.user_errors import place_of

_AGAIN = 2.0


class TookTooLongError(InputError):
    """`--timeout` is over."""

    def __init__(self, seconds: float, at: str) -> None:
        super().__init__(
            f"not finished after {seconds:g} s{at}",
            hint="raise --timeout, or run less: --set for a build(), --max-steps for a script",
        )


class TimeUp(BaseException):
    """The time limit is reached."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Limit the time of the context's body; None for no limit. Only for the main thread.

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
    """The error that names the limit and, if known, the running line."""
    at = f", at {place}" if place else ""
    return TookTooLongError(seconds, at)


def _end(number: int, frame: FrameType | None) -> None:
    raise TimeUp
