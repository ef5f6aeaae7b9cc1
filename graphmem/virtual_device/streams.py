"""Streams and events of the virtual GPU.

`torch.cuda.Stream` and `torch.cuda.Event` are PyTorch's own classes: torch/cuda/streams.py is
executed again over the two base classes defined here, since a CPU build lacks them and those of a
CUDA build need a driver. Streams are numbered as in c10/cuda/CUDAStream.cpp: 0 is the default
stream, the others come from pools of 32, round robin.

Assumptions: work takes no time on the device, so an event has happened as soon as it is recorded,
unless `torch.cuda._sleep` keeps its stream busy (`DeviceClock`). `elapsed_time` is the time that
passed on the host between two events, plus the time that the stream slept.

A stream's handle (`cuda_stream`) is its number, or the pointer of an external stream.
"""

from __future__ import annotations

import itertools
import time
from abc import ABCMeta
from types import ModuleType
from typing import Any

import torch
import torch.cuda.graphs
import torch.cuda.streams

from graphmem.virtual_device.device_memory import DEFAULT_STREAM, DeviceMemory
from graphmem.virtual_device.messages import SharedEventError
from graphmem.virtual_device.patching import Replacement, replaced, run_again
from graphmem.virtual_device.slow_device import Progress
from graphmem.virtual_device.stream_captures import Capture

_CUDA = 1  # c10::DeviceType::CUDA
_STREAMS_IN_POOL = 32  # kStreamsPerPool
_PRIORITIES = 4  # max_compile_time_stream_priorities
_FIRST_EVENT, _EVENT_BYTES = 0x5_0000_0000, 0x40  # addresses of events, each its own
_CYCLES_OF_A_MILLISECOND = 1_000_000  # of a clock of 1 GHz: an assumption

_TorchStream: Any = torch.Stream
_TorchEvent: Any = torch.Event


def stream_replacements(memory: DeviceMemory) -> list[Replacement]:
    """List the replacements of the classes and functions of streams and events."""
    bases = [
        (torch._C, "_CudaStreamBase", _stream_base(memory)),
        (torch._C, "_CudaEventBase", _event_base(memory)),
        (torch._C, "_has_cuda", True),
    ]
    with replaced(bases):
        own = run_again(torch.cuda.streams)
    return [
        *bases,
        *((torch._C, name, function) for name, function in _functions(memory, own).items()),
        *(
            (module, name, getattr(own, name))
            for module in (torch.cuda, torch.cuda.streams)
            for name in ("Stream", "ExternalStream", "Event")
        ),
        (GenericStream, "of_cuda", own.Stream),
        (GenericEvent, "of_cuda", own.Event),
        (torch, "Stream", GenericStream),
        (torch, "Event", GenericEvent),
        (torch.Tensor, "record_stream", _record_stream_of(memory)),
    ]


def _stream_base(of_memory: DeviceMemory) -> type:
    pools = [itertools.cycle(range(_STREAMS_IN_POOL)) for _ in range(_PRIORITIES)]

    class Base(CudaStreamBase):
        memory = of_memory
        numbers = pools

    return Base


def _event_base(of_memory: DeviceMemory) -> type:
    class Base(CudaEventBase):
        memory = of_memory
        handles = itertools.count(_FIRST_EVENT, _EVENT_BYTES)

    return Base


def _functions(memory: DeviceMemory, own: ModuleType) -> dict[str, Any]:
    clock, captures = memory.clock, memory.captures

    def packed(handle: int) -> tuple[int, int, int]:
        return handle, memory.devices.own, _CUDA

    def set_current(stream_id: int = 0, device_index: int = 0, device_type: int = _CUDA) -> None:
        memory.current_stream = stream_id

    def current(device: int = 0) -> Any:
        index = memory.devices.own
        return own.Stream(stream_id=memory.current_stream, device_index=index, device_type=_CUDA)

    def synchronize() -> None:
        captures.check_idle()
        clock.wait_for_all()
        memory.host_waits()

    def sleep(cycles: int) -> None:
        clock.queue(memory.current_stream, cycles / _CYCLES_OF_A_MILLISECOND)

    return {
        "_cuda_getCurrentStream": lambda device: packed(memory.current_stream),
        "_cuda_getDefaultStream": lambda device: packed(DEFAULT_STREAM),
        "_cuda_getStreamFromExternal": lambda pointer, device: packed(pointer),
        "_cuda_getCurrentRawStream": lambda device: memory.current_stream,
        "_cuda_setStream": set_current,
        "_cuda_synchronize": synchronize,
        "_cuda_sleep": sleep,
        "_accelerator_getStream": current,
        "_accelerator_setStream": lambda stream: set_current(stream.stream_id),
        "_accelerator_synchronizeDevice": lambda device: synchronize(),
    }


class _OfAnyDevice(ABCMeta):
    """Metaclass: makes the virtual GPU's class for CUDA, PyTorch's own for other devices.

    Up to torch 2.5 `torch.cuda.Stream` has an abstract base, too (torch/_streambase.py).
    """

    own: Any
    of_cuda: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "own" not in vars(cls):
            return super().__call__(*args, **kwargs)
        if args and not isinstance(args[0], bool):
            kwargs["device"], args = args[0], args[1:]
        device = kwargs.pop("device", None)
        is_cuda = device is None or isinstance(device, int) or torch.device(device).type == "cuda"
        if is_cuda or "stream_id" in kwargs:
            return cls.of_cuda(*args, **kwargs)
        return cls.own(device, *args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        if "own" in vars(cls):
            return isinstance(instance, cls.own)
        return super().__instancecheck__(instance)


class GenericStream(_TorchStream, metaclass=_OfAnyDevice):  # type: ignore[misc]
    """`torch.Stream` while the virtual GPU is on."""

    own = _TorchStream
    of_cuda: Any = None


class CudaStreamBase(GenericStream):
    """Base class of `torch.cuda.Stream`, as in torch/csrc/cuda/Stream.cpp."""

    memory: DeviceMemory
    numbers: list[Any]

    def __new__(
        cls,
        priority: int = 0,
        stream_id: int = 0,
        device_index: int = 0,
        device_type: int = 0,
        stream_ptr: int = 0,
    ) -> Any:
        """Return the stream with this number or pointer, else the next one of a pool."""
        handle = stream_ptr or stream_id
        if not (handle or device_index or device_type):
            pool = max(0, min(-priority, _PRIORITIES - 1))
            handle = next(cls.numbers[pool]) << 5 | (pool + 1) << 1 | 1  # `makeStreamId`
        index = cls.memory.devices.own
        return _TorchStream.__new__(cls, stream_id=handle, device_index=index, device_type=_CUDA)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._before: list[int] = []

    @property
    def cuda_stream(self) -> int:
        """The handle."""
        return int(self.stream_id)

    native_handle = cuda_stream

    @property
    def priority(self) -> int:
        """0, or below for a higher priority."""
        return min(0, 1 - (self.stream_id >> 1 & 15)) if self.stream_id & 1 else 0

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority."""
        return 0, 1 - _PRIORITIES

    def is_capturing(self) -> bool:
        """Whether the stream's work is being captured into a CUDA graph."""
        return self.memory.captures.graph_of(self.cuda_stream) is not None

    def query(self) -> bool:
        """Whether all of its work is done."""
        clock = self.memory.clock
        return clock.done_at(self.cuda_stream) <= clock.now

    def synchronize(self) -> None:
        """Wait until all of its work is done."""
        clock = self.memory.clock
        clock.wait_until(clock.done_at(self.cuda_stream))
        self.memory.host_waits(self.memory.mark(self.cuda_stream))

    def __enter__(self) -> Any:
        self._before.append(self.memory.current_stream)
        self.memory.current_stream = self.cuda_stream
        return self

    def __exit__(self, *exception: object) -> None:
        self.memory.current_stream = self._before.pop()


class GenericEvent(_TorchEvent, metaclass=_OfAnyDevice):  # type: ignore[misc]
    """`torch.Event` while the virtual GPU is on."""

    own = _TorchEvent
    of_cuda: Any = None


class CudaEventBase(GenericEvent):
    """Base class of `torch.cuda.Event`, as in torch/csrc/cuda/Event.cpp."""

    memory: DeviceMemory
    handles: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make what C++ sees as a CPU event, on which nothing waits."""
        return _TorchEvent.__new__(cls, "cpu")

    def __init__(self, enable_timing: bool = False, *args: Any, **kwargs: Any) -> None:
        self._is_timed = enable_timing
        self._done_at: float | None = None
        self._recorded_at = 0.0
        self._capture: Capture | None = None
        self._marked: Progress = {}
        self.cuda_event = 0

    @property
    def device(self) -> torch.device:
        """The device of the process."""
        return torch.device("cuda", self.memory.devices.own)

    @property
    def event_id(self) -> int:
        """The handle; 0 until the event is recorded."""
        return self.cuda_event

    def record(self, stream: Any = None) -> None:
        """Record the event: it happens when the stream has finished its work so far."""
        handle = self.memory.current_stream if stream is None else stream.stream_id
        self.cuda_event = self.cuda_event or next(self.handles)
        self._done_at = self.memory.clock.done_at(handle)
        self._marked = self.memory.mark(handle)
        self._capture = self.memory.captures.graph_of(handle)
        self._recorded_at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Make a stream wait for the event."""
        if self._done_at is not None:
            handle = self.memory.current_stream if stream is None else stream.stream_id
            self.memory.clock.delay(handle, self._done_at)
            self.memory.slow.wait(handle, self._marked)
            self.memory.captures.join(handle, self._capture)

    def query(self) -> bool:
        """Whether the event has happened, or was never recorded."""
        return self._done_at is None or self._done_at <= self.memory.clock.now

    def synchronize(self) -> None:
        """Wait for the event."""
        if self._done_at is not None:
            self.memory.clock.wait_until(self._done_at)
            self.memory.host_waits(self._marked)

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds between two events.

        Raises:
            ValueError, RuntimeError: as in aten/src/ATen/cuda/CUDAEvent.h.
        """
        if not (self._is_timed and end._is_timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._done_at is None or end._done_at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end.query()):
            raise RuntimeError("CUDA error: device not ready")
        on_host = (end._recorded_at - self._recorded_at) * 1000
        return float(end._done_at - self._done_at + on_host)

    def ipc_handle(self) -> Any:
        """Refuse."""
        raise SharedEventError()


def _record_stream_of(memory: DeviceMemory) -> Any:
    on_other_devices = torch.Tensor.record_stream

    def record_stream(tensor: torch.Tensor, stream: Any) -> None:
        if tensor.device.type != "cuda":
            on_other_devices(tensor, stream)
            return
        memory.run.settle()
        block = memory.run.block_of(tensor)
        if block is not None:
            memory.record_stream(block, stream.stream_id)

    return record_stream
