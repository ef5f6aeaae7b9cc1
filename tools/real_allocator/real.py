"""The real allocator: `NativeCachingAllocator` of a libc10_cuda.so, called from Python.

There is one in a process, on the first libcudart that was loaded. So torch must not be imported,
and each case has a process of its own (cases.py). Its settings are those that the environment
variable PYTORCH_CUDA_ALLOC_CONF had when the process began.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from tools.real_allocator.allocator import RefusedError, Restored
from tools.real_allocator.card import Card
from tools.real_allocator.driver import CALLS, NVML
from tools.real_allocator.libraries import ALLOCATOR, CAPTURES_ARE_MARKED_SINCE, PEERS, Libraries
from tools.real_allocator.stats import read_stats

_TEXT_BYTES = 8192  # as in driver/calls.cpp
_STATS_BYTES = 4096  # likewise
_MOST_ADDRESSES = 4096  # more than twice as many as there are steps


class RealAllocator:
    """An `Allocator` (allocator.py)."""

    def __init__(self, libraries: Libraries, driver: Path, card: Card) -> None:
        """Load the libraries, and begin.

        Args:
            libraries: those of a build of torch.
            driver: the folder with the pretended CUDA.
            card: the card that this CUDA has.
        """
        self._libraries = libraries
        self._card = card  # C++ calls it
        self._runtime = _load(driver / libraries.runtime)
        self._runtime.pretend_card(ctypes.byref(card.answers))
        _load(driver / NVML)
        _load(libraries.c10)
        library = _load(libraries.cuda)
        self._calls = ctypes.CDLL(str(driver / CALLS))
        self._allocator = ctypes.c_void_p.in_dll(library, ALLOCATOR)
        self._text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call("call_init", "init")
        if hasattr(library, PEERS):
            library[PEERS](ctypes.c_int64(1))  # one card, so no peers

    def set_fraction(self, fraction: float) -> None:
        """Let it take only this part of the card (`setMemoryFraction`)."""
        self._call("call_set_fraction", "setMemoryFraction", ctypes.c_double(fraction))

    def malloc(self, size: int, stream: int) -> int:
        """Hand out a block (`malloc`)."""
        address = ctypes.c_void_p()
        arguments = ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_void_p(stream)
        self._call("call_malloc", "malloc", *arguments)
        return address.value or 0

    def free(self, address: int) -> None:
        """Take a block back (`free`)."""
        self._call("call_free", "free", ctypes.c_void_p(address))

    def empty_cache(self) -> None:
        """Return unused memory to the driver (`emptyCache`)."""
        self._call("call_empty_cache", "emptyCache")

    def begin_pool(self, number: int) -> None:
        """Send requests to a private pool (`beginAllocateToPool`)."""
        self._call("call_begin_pool", "beginAllocateToPool", ctypes.c_uint64(number))

    def end_pool(self, number: int) -> None:
        """Stop sending requests there (`endAllocateToPool`)."""
        self._call("call_on_pool", "endAllocateToPool", ctypes.c_uint64(number))

    def release_pool(self, number: int) -> None:
        """Take one user off a private pool (`releasePool`)."""
        self._call("call_on_pool", "releasePool", ctypes.c_uint64(number))

    def checkpoint(self, number: int) -> None:
        """Note the state of a private pool (`getCheckpointState`)."""
        self._call("call_get_state", "getCheckpointState", ctypes.c_uint64(number))

    def restore(self, state: int) -> Restored:
        """Give a private pool a state again (`setCheckpointPoolState`)."""
        answer = (ctypes.c_size_t * _MOST_ADDRESSES)()
        self._call("call_set_state", "setCheckpointPoolState", ctypes.c_size_t(state), answer)
        self._call("call_on_device", "resetPeakStats")
        freed, in_use, *addresses = answer
        return Restored(sorted(addresses[:freed]), sorted(addresses[freed : freed + in_use]))

    def capture(self, on: int) -> None:
        """Begin or end the capture of a graph (`markCaptureBegin`, `markCaptureEnd`)."""
        self._runtime.pretend_capture(on)
        if self._libraries.release >= CAPTURES_ARE_MARKED_SINCE:
            self._call("call_on_device", "markCaptureBegin" if on else "markCaptureEnd")

    def stats(self) -> dict[str, int]:
        """Every statistic (`getDeviceStats`)."""
        stats = ctypes.create_string_buffer(_STATS_BYTES)
        self._calls.get_device_stats(self._method("getDeviceStats"), self._allocator, stats)
        return read_stats(stats.raw, self._libraries.release)

    def _call(self, function: str, method: str, *arguments: object) -> None:
        """Call a method through its function in driver/calls.cpp."""
        threw = self._calls[function](self._method(method), self._allocator, self._text, *arguments)
        if threw:
            text = self._text.value.decode()
            raise RefusedError(text.partition("\nException raised from")[0])  # a C++ stack follows

    def _method(self, name: str) -> ctypes.c_void_p:
        """Its address: the variable's lies in the same library."""
        return ctypes.c_void_p(ctypes.addressof(self._allocator) + self._libraries.distance(name))


def _load(path: Path) -> ctypes.CDLL:
    """Load a library for those after it, its functions to be bound when they are first called.

    `CDLL` itself would bind all at once, and so need all of libcudart.
    """
    loader = ctypes.CDLL(None)
    loader.dlopen.restype = ctypes.c_void_p
    loader.dlerror.restype = ctypes.c_char_p
    handle = loader.dlopen(str(path).encode(), os.RTLD_LAZY | os.RTLD_GLOBAL)
    if handle is None:
        raise OSError(loader.dlerror().decode())
    return ctypes.CDLL(str(path), handle=handle)
