"""The fake tensor mode of a trace."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import NoneType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, _BypassDispatchCache

from graphmem.torch_releases import COPIES_TO_DEVICES_KEPT_OFF, installed_release
from graphmem.torch_releases.manifest import check_supported
from graphmem.virtual_gpu.layouts import LAYOUTS, VIEWS, view_of
from graphmem.virtual_gpu.operators import KERNELS

_AS_STRIDED = torch.ops.aten.as_strided.default
_TO_COPY = torch.ops.aten._to_copy.default
_PLAIN = frozenset(
    {bool, float, int, NoneType, str, torch.device, torch.dtype, torch.layout, torch.memory_format}
)


class _OfThread(threading.local):
    in_kernel = False


class VirtualFakeMode(FakeTensorMode):
    """Fake tensors beside real ones of the CPU; an operator without a meta kernel is an error.

    Every trace and every run makes one before it replaces anything of PyTorch's.

    Raises:
        InputError: the installed PyTorch is older than those that graphmem runs on.
    """

    def __init__(self) -> None:
        check_supported(installed_release())
        self._of_thread = _OfThread()
        self._copies_are_kept_off = COPIES_TO_DEVICES_KEPT_OFF.holds_in(installed_release())
        super().__init__(allow_non_fake_inputs=True, allow_fallback_kernels=False)

    def dispatch(
        self, func: Any, types: Any, args: Sequence[object] = (), kwargs: Any = None
    ) -> Any:
        """PyTorch's, but for operators whose results graphmem makes itself."""
        kernel = KERNELS.get(func)
        if kernel is not None:
            return kernel(*args, **(kwargs or {}))
        if func is _TO_COPY and not self._copies_are_kept_off:
            source: Any = args[0]
            if not isinstance(source, FakeTensor):
                args = (self.from_tensor(source), *args[1:])
        return super().dispatch(func, types, args, kwargs)

    def _dispatch_impl(self, func: Any, types: Any, args: Sequence[Any], kwargs: Any) -> Any:
        """PyTorch's, below its cache of results, with the strides that kernels give."""
        if func in VIEWS and args[0].layout is torch.strided:
            return super()._dispatch_impl(_AS_STRIDED, types, (args[0], *view_of(*args)), {})
        result = super()._dispatch_impl(func, types, args, kwargs)
        lay_out = LAYOUTS.get(func)
        return result if lay_out is None else lay_out(func, result, args)

    @property
    def in_kernel_invocation(self) -> bool:
        """Whether this thread is in a kernel, where a tensor says that it is a meta tensor."""
        return self._of_thread.in_kernel

    @in_kernel_invocation.setter
    def in_kernel_invocation(self, value: bool) -> None:
        self._of_thread.in_kernel = value

    @property
    def avoid_device_init(self) -> bool:
        """True, although `torch.cuda.is_available()` says that there is a device.

        No operation may run on it for the sake of constants.
        """
        return True

    def _prep_args_for_hash(self, result: list[Any], args: Any, *rest: Any) -> None:
        """Append what the cache of results knows arguments by.

        PyTorch's own method makes a dataclass for every tensor, which takes a quarter of the time
        of a trace. Nearly all arguments are plain tensors or plain values, which is all that is
        answered here; PyTorch answers for the others, and says what cannot be cached.
        """
        if not isinstance(args, (list, tuple)):
            super()._prep_args_for_hash(result, args, *rest)
            return
        result += (type(args), len(args))
        for arg in args:
            kind = type(arg)
            if kind in _PLAIN:
                result += (kind, arg)
            elif kind is FakeTensor and self._is_plain(arg):
                result.append(_looks(arg))
            elif kind is list or kind is tuple:
                self._prep_args_for_hash(result, arg, *rest)
            elif kind is torch.UntypedStorage:
                raise _BypassDispatchCache("the cache would keep the storage")
            else:
                super()._prep_args_for_hash(result, (arg,), *rest)

    def _is_plain(self, tensor: FakeTensor) -> bool:
        return (
            tensor.fake_mode is self and tensor.constant is None and tensor.layout is torch.strided
        )


def _looks(tensor: FakeTensor) -> tuple[Any, ...]:
    """All that PyTorch's `TensorMetadata` says of a dense tensor of fixed sizes."""
    return (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.untyped_storage().nbytes(),
        tensor.fake_device,
        tensor.requires_grad,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.is_inference(),
    )
