"""Suspend the record while PyTorch's compiler works: its own operations are not the program's.

Dynamo, AOTAutograd and Inductor trace the program on their own fake tensors. Meanwhile nothing is
recorded, nothing is noted as saved, and backward passes (`torch.autograd.grad` makes AOTAutograd's
joint graph) are walked by an engine without observers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from gc import collect  # the function itself: `gc.collect` counts as the program's
from types import MethodDescriptorType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from graphmem.trace import hook_stack
from graphmem.trace.backward import Backward
from graphmem.trace.gradients import GradientRules
from graphmem.trace.later_nodes import LaterNodes
from graphmem.trace.node_hooks import NodeHooks
from graphmem.trace.recorder import Recorder
from graphmem.trace.replayed_views import ReplayedViews
from graphmem.trace.saved_tensors import SavedTensorHooks
from graphmem.values.known import KnownValues
from graphmem.virtual_device.device_memory import DEFAULT_STREAM
from graphmem.virtual_device.fake_mode import VirtualFakeMode
from graphmem.virtual_device.patching import replaced, suspended

_REPRESENT = FakeTensor.__repr__


def _is_method(owner: Any, name: str) -> bool:
    return (
        owner is torch.Tensor
        and name != "data_ptr"
        and isinstance(getattr(torch._C.TensorBase, name, None), MethodDescriptorType)
    )


class Unwatched:
    """Suspends the record for the compiler, and resumes it."""

    def __init__(
        self,
        mode: TorchDispatchMode,
        hooks: NodeHooks,
        fake_mode: VirtualFakeMode,
        device: torch.device,
        known: KnownValues,
    ) -> None:
        """Take everything that has to be suspended.

        Args:
            mode: the dispatch mode that records the program.
            hooks: the hooks of autograd's nodes, which the compiler's nodes may have as well.
            fake_mode: the mode of the program's tensors.
            device: the device of those tensors.
            known: their values.
        """
        self._mode = mode
        self._is_open = False
        nobodys = Recorder(device)
        # The tensors of a compiler's trace are wrappers, which the engine never sums in place.
        rules = GradientRules(nobodys, subclass_like=True)
        saved = SavedTensorHooks(nobodys, fake_mode, known)
        later = LaterNodes(saved.release)
        self._engine = Backward(rules, saved, hooks, ReplayedViews(), later, _Nobody())

    def running(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function of the compiler so that it runs unwatched."""

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.opened():
                return function(*args, **kwargs)

        return run

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Record nothing while the context is open."""
        if self._is_open:
            yield
            return
        self._is_open = True
        is_in_backward = torch._C._current_graph_task_id() >= 0
        try:
            with (
                _disable_current_modes(),
                hook_stack.set_aside(),
                replaced([(FakeTensor, "__repr__", _REPRESENT)]),  # printing reads nothing
                suspended(_is_method),  # Dynamo recognises the original C methods of tensors
                self._engine.alone(),
            ):
                yield
        finally:
            self._is_open = False
            if is_in_backward:  # the engine's thread has no frames of the program
                collect()  # also of what an earlier collection has aged: recording triton_compile

    def on_card(self, factory: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a factory so that real tensors are recorded even inside the compiler.

        Dynamo runs parts of the program while it traces, such as the creation of optimizer state.
        """

        @wraps(factory)
        def make(*args: Any, **kwargs: Any) -> Any:
            is_traced = bool(torch._C._len_torch_dispatch_stack())
            if not self._is_open or is_traced or not _may_be_on_card(kwargs.get("device")):
                return factory(*args, **kwargs)
            with self.recorded():
                return factory(*args, **kwargs)

        return make

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the compiler's own operations on the card while the context is open."""
        with _disable_current_modes(), self._mode:
            yield


def _may_be_on_card(device: Any) -> bool:
    """Whether a factory's `device` allows the card; fake tensors' kernels pass "meta"."""
    if isinstance(device, str):
        return device.startswith("cuda")
    return device is None or isinstance(device, int) or device.type == "cuda"


class _Nobody:
    """An observer of backward passes that ignores all events."""

    def begin_backward(self) -> None:
        return None

    def enter_backward(self) -> None:
        return None

    def compiles_whole(self, nodes: Iterable[Any]) -> bool:
        return False

    def leave_backward(self) -> None:
        return None

    def run_node(self, node: Any, *, keeps_graph: bool = False) -> None:
        return None

    def current_stream(self) -> int:
        return DEFAULT_STREAM

    def note_context(self, node: Any) -> None:
        return None

    def failed(self, error: Exception, roots: list[Any]) -> None:
        return None
