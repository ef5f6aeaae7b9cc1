"""The threads that a program starts, as they end with it.

(1) Python waits at a program's end for its threads, but for daemons (`threading._shutdown`), and
    first has the workers of pools finish what was submitted, as others that have registered for it.
(2) What stops a program in one of its threads, `--max-steps` or a refusal, stops all of it: the
    main thread is interrupted, which may wait for that thread's results.
(3) Threads that outlive the program end silently where they miss the card. Those of a stopped
    program may wait for ever, so the command's process does not wait for them
    (`graphmem.cli.leaving`).
"""

from __future__ import annotations

import concurrent.futures.thread as pools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from graphmem.caller.turns import interrupting, is_watched
from graphmem.errors import InputError
from graphmem.live.session import EnoughSteps
from graphmem.user_errors import note_place, place_of
from graphmem.virtual_device.patching import replaced

_STOPS = (EnoughSteps, InputError)


class ProgramThreads:
    """The threads that a program starts.

    Attributes:
        stopped_by: what stopped the program in a thread, without its frames, which would keep
            tensors.
    """

    def __init__(self) -> None:
        """Count the threads that are alive from now on."""
        self._others = set(threading.enumerate())
        self._called_later = list(threading._threading_atexits)  # type: ignore[attr-defined]
        self._lock = threading.Lock()
        self._is_running = False
        self.stopped_by: EnoughSteps | InputError | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Follow the program's threads, and wait for them as Python does at its end."""
        self._is_running = True
        start = threading.Thread.start

        def follow_and_start(thread: Any) -> None:
            if is_watched():
                thread._invoke_excepthook = self._ending(thread._invoke_excepthook)
            start(thread)

        with replaced([(threading.Thread, "start", follow_and_start)]), _interruptible():
            try:
                with self._waited_for():
                    yield
            except KeyboardInterrupt:
                if self.stopped_by is not None:
                    raise self.stopped_by from None
                raise
            finally:
                with self._lock:
                    self._is_running = False

    @contextmanager
    def _waited_for(self) -> Iterator[None]:
        """Wait for the threads, but for those of a program that was stopped."""
        try:
            yield
        except (*_STOPS, KeyboardInterrupt):
            raise
        except BaseException:
            self._wait()
            raise
        else:
            self._wait()

    def _ending(self, tell: Callable[[Any], None]) -> Callable[[Any], None]:
        """What a thread calls that an exception has ended, in place of `tell`, which prints it."""

        def end(thread: Any) -> None:
            error = sys.exc_info()[1]
            if isinstance(error, _STOPS):
                self._stop(error)
            elif self._is_running:
                tell(thread)

        return end

    def _stop(self, error: EnoughSteps | InputError) -> None:
        """Clause (2)."""
        with self._lock:
            if self.stopped_by is not None:
                return
            self.stopped_by = error
            note_place(error, place_of(error))
            error.__traceback__ = error.__context__ = error.__cause__ = None
            main = threading.main_thread().ident
            if self._is_running and main is not None:
                signal.pthread_kill(main, interrupting())

    def _wait(self) -> None:
        """Clause (1)."""
        left = self._left()
        if not left:
            return
        with _closing_pools(left):
            for call in reversed(threading._threading_atexits):  # type: ignore[attr-defined]
                if call not in self._called_later:
                    call()
            while left:
                left[0].join()
                left = self._left()

    def _left(self) -> list[threading.Thread]:
        """Those that are alive and no daemons."""
        others = {*self._others, threading.current_thread()}
        return [each for each in threading.enumerate() if each not in others and not each.daemon]


@contextmanager
def _interruptible() -> Iterator[None]:
    """Have the main thread's signal interrupt it."""
    number = interrupting()
    if number is signal.SIGINT:
        yield
        return
    before = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def _closing_pools(left: list[threading.Thread]) -> Iterator[None]:
    """Have those that are workers of pools end once they have done what was submitted.

    `_python_exit` of concurrent/futures/thread.py and process.py, for the program's own pools.
    """
    workers: Any = pools
    processes = sys.modules.get("concurrent.futures.process")
    workers._shutdown = True
    try:
        for each in left:
            if each in workers._threads_queues:
                workers._threads_queues[each].put(None)
        if processes is not None and any(each in processes._threads_wakeups for each in left):
            processes._python_exit()
        yield
    finally:  # other programs may run in this process
        workers._shutdown = False
        if processes is not None:
            processes._global_shutdown = False  # type: ignore[attr-defined]
