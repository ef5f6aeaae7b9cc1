"""What a collective returns: a work that is done at once, and its future.

Each callback of a future of tensors on the card, and of the futures that callbacks make, runs in
the next stream of the pool (`invokeCallback`, aten/src/ATen/core/ivalue_inl.h): what it allocates
belongs to that stream, where a product takes a workspace of its own. PowerSGD's hook multiplies in
two callbacks for each bucket, so workspaces add up over the iterations (`ddp_powersgd`,
fixtures/cuda/ranks).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d
from torch.futures import Future

from graphmem.frames import Origin, origin_of
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import WORKS_OF_PYTHON_ARE_HELD

Tensors = Sequence[torch.Tensor]
Arrival = Callable[[], object]

_Work: Any = c10d.Work


class CardFuture(Future):  # type: ignore[type-arg]
    """A future that is done, with tensors on the card."""

    def then(self, callback: Callable[[Any], Any]) -> Any:
        """The future of what a callback returns; it runs at once."""
        made: Any = CardFuture()
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                made.set_result(callback(self))
        except Exception as error:  # noqa: BLE001 - `wait` raises it
            made.set_exception(error)
        return made

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """Run a callback at once."""
        with torch.cuda.stream(torch.cuda.Stream()):
            callback(self)


class MessageStream:
    """The stream on which NCCL sends and receives, which the host knows nothing of until it waits.

    Attributes:
        stream_id: its number, below zero (graphmem/virtual_device/slow_device.py).
    """

    _numbers = itertools.count(-1, -1)

    def __init__(self) -> None:
        self.stream_id = next(self._numbers)

    def take(self, tensors: Tensors) -> Any:
        """Use tensors after what the current stream does so far, and return an event for its end.

        `syncStream` and `recordStream` of `pointToPoint`,
        torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp.
        """
        begun, done = torch.cuda.Event(), torch.cuda.Event()
        begun.record()
        begun.wait(self)  # type: ignore[arg-type]
        for tensor in tensors:
            tensor.record_stream(self)  # type: ignore[arg-type]
        done.record(self)  # type: ignore[arg-type]
        return done


_OF_GROUPS = {str(Path(__file__).with_name(f"{name}.py")) for name in ("group", "noted", "works")}
UNWAITED: dict[int, Any] = {}
"""What C++ will wait for, and would forever: before torch 2.7 it holds no object of Python."""


def _is_for_cpp() -> bool:
    """Whether C++ called the group; PyTorch's Python, and graphmem's, hold their works."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename in _OF_GROUPS:
        frame = frame.f_back
    file = frame.f_code.co_filename
    return origin_of(file) is not Origin.GRAPHMEM and file != distributed_c10d.__file__


class DoneWork(_Work):  # type: ignore[misc]
    """A collective that is done at once, but holds tensors until it is waited for.

    Attributes:
        held: the tensors, and lists of them.
        arrivals: called when it is waited for.
        done: the event at the end of a message on the card; the stream that waits waits for it.
    """

    def __init__(self, result: Tensors, held: list[Any]) -> None:
        super().__init__()
        self._result = list(result)
        self.held = held
        self._future: Any = None
        self.arrivals: list[Arrival] = []
        self.done: Any = None
        if not WORKS_OF_PYTHON_ARE_HELD.holds_in(installed_release()) and _is_for_cpp():
            UNWAITED[id(self)] = self

    def wait(self, timeout: Any = None) -> bool:
        """Receive the values that other ranks sent, and release the tensors held."""
        UNWAITED.pop(id(self), None)
        while self.arrivals:
            self.arrivals.pop(0)()
        if self.done is not None:
            self.done.wait()
        self.held.clear()
        return True

    def synchronize(self) -> None:
        """`wait`, which never blocks here."""
        self.wait()

    def is_completed(self) -> bool:
        """Always true."""
        return True

    is_success = is_completed

    def exception(self) -> None:
        """Always None."""

    def result(self) -> list[torch.Tensor]:
        """The tensors that were written."""
        return self._result

    def get_future(self) -> Any:
        """A future of the tensors that were written."""
        if self._future is None:
            self._future = CardFuture() if any(map(is_on_card, self._result)) else Future()
            self._future.set_result(self._result)
        return self._future

    getFuture = get_future  # noqa: N815 - its name in C++


def is_on_card(held: Any) -> bool:
    """Whether this is a tensor on the card."""
    return isinstance(held, torch.Tensor) and held.is_cuda
