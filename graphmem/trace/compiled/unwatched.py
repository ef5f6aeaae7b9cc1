"""PyTorch's compiler at work: what it runs on the way is no part of the program.

Dynamo, AOTAutograd and Inductor trace the program on fake tensors of their own. Meanwhile nothing
is recorded, nothing is noted as saved, and gradients (AOTAutograd's joint graph is made by
`torch.autograd.grad`) are walked by an engine that tells nobody.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import MethodDescriptorType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from graphmem.trace.backward import Backward
from graphmem.trace.gradients import GradientRules
from graphmem.trace.node_hooks import NodeHooks
from graphmem.trace.recorder import Recorder
from graphmem.trace.replayed_views import ReplayedViews
from graphmem.trace.saved_tensors import SavedTensors
from graphmem.virtual_gpu.patching import replaced, suspended

_REPRESENT = FakeTensor.__repr__


def _is_method(owner: Any, name: str) -> bool:
    return (
        owner is torch.Tensor
        and name != "data_ptr"
        and isinstance(getattr(torch._C.TensorBase, name, None), MethodDescriptorType)
    )


class Unwatched:
    """Steps aside for the compiler, and comes back."""

    def __init__(
        self,
        mode: TorchDispatchMode,
        hooks: NodeHooks,
        fake_mode: FakeTensorMode,
        device: torch.device,
    ) -> None:
        """What is to step aside.

        Args:
            mode: records what the program does.
            hooks: those of autograd's nodes, which the compiler's own nodes may have as well.
            fake_mode: the mode of the program's tensors.
            device: where they are.
        """
        self._mode = mode
        self._is_open = False
        nobodys = Recorder(device)
        # The tensors of a compiler's trace are wrappers, which the engine never sums in place.
        rules = GradientRules(nobodys, subclass_like=True)
        saved = SavedTensors(nobodys, fake_mode)
        self._engine = Backward(rules, saved, hooks, ReplayedViews(), _Nobody())

    def running(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the compiler that runs unwatched."""

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.opened():
                return function(*args, **kwargs)

        return run

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Watch nothing while the context is open."""
        if self._is_open:
            yield
            return
        self._is_open = True
        is_in_backward = torch._C._current_graph_task_id() >= 0
        try:
            with (
                _disable_current_modes(),
                _without_saved_tensor_hooks(),
                replaced([(FakeTensor, "__repr__", _REPRESENT)]),  # nothing is read
                suspended(_is_method),  # Dynamo knows C's methods of tensors by themselves
                self._engine.alone(),
            ):
                yield
        finally:
            self._is_open = False
            if is_in_backward:  # the engine's thread has no frames of the program, to be held
                gc.collect()

    def on_card(self, factory: Callable[..., Any]) -> Callable[..., Any]:
        """A factory whose tensors are recorded where the compiler makes real ones.

        Dynamo runs some of the program while it traces, such as what makes an optimizer's state.
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
        """Record what the compiler itself runs on the card while the context is open."""
        with _disable_current_modes(), self._mode:
            yield


def _may_be_on_card(device: Any) -> bool:
    """Whether a factory's argument leaves it open; the kernels of fake tensors ask for "meta"."""
    return device is None or isinstance(device, int) or torch.device(device).type == "cuda"


@contextmanager
def _without_saved_tensor_hooks() -> Iterator[None]:
    autograd: Any = torch._C._autograd
    hooks = []
    while (pair := autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(pair)
        autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            autograd._push_saved_tensors_default_hooks(pack, unpack)


class _Nobody:
    """An observer of backward passes that is not interested."""

    def begin_backward(self) -> None:
        return None

    def enter_backward(self) -> None:
        return None

    def leave_backward(self) -> None:
        return None

    def run_node(self, node: Any, *, keeps_graph: bool = False) -> None:
        return None

    def failed(self, error: Exception, roots: list[Any]) -> None:
        return None
