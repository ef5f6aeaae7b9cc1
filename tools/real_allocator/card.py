"""The one card of the pretended CUDA, whose memory is graphmem's `Device`."""

from __future__ import annotations

import ctypes

from graphmem.allocator import Device

_BYTES = _ADDRESS = ctypes.c_size_t
_Figure = ctypes.CFUNCTYPE(_BYTES)
_Place = ctypes.CFUNCTYPE(_ADDRESS, _BYTES)
_Vacate = ctypes.CFUNCTYPE(None, _ADDRESS)
_Reserve = ctypes.CFUNCTYPE(ctypes.c_int, _BYTES)
_GiveBack = ctypes.CFUNCTYPE(None, _BYTES)


class Answers(ctypes.Structure):
    """The functions that driver/cudart.cpp calls: its `struct Card`."""

    _fields_ = (
        ("total_bytes", _Figure),
        ("free_bytes", _Figure),
        ("process_bytes", _Figure),
        ("allocate", _Place),
        ("free", _Vacate),
        ("place", _Place),
        ("vacate", _Vacate),
        ("reserve", _Reserve),
        ("give_back", _GiveBack),
    )


class Card:
    """Answers CUDA from a `Device`, and remembers the sizes that cudaFree is not told.

    Attributes:
        answers: for C++; they work as long as this object lives.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._sizes: dict[int, int] = {}
        self.answers = Answers(
            total_bytes=_Figure(lambda: device.total_bytes or 0),
            free_bytes=_Figure(lambda: device.free_bytes or 0),
            process_bytes=_Figure(lambda: device.process_bytes),
            allocate=_Place(self._allocate),
            free=_Vacate(self._free),
            place=_Place(device.place),
            vacate=_Vacate(device.vacate),
            reserve=_Reserve(device.reserve),
            give_back=_GiveBack(device.give_back),
        )

    def _allocate(self, size: int) -> int:
        """cudaMalloc: memory and addresses at once; 0 if there is not enough."""
        if not self._device.reserve(size):
            return 0
        address = self._device.place(size)
        self._sizes[address] = size
        return address

    def _free(self, address: int) -> None:
        self._device.give_back(self._sizes.pop(address))
        self._device.vacate(address)
