"""The fake tensor mode of a trace."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
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
_WHOLE = frozenset({int})
_HOST = torch.device("cpu")


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
        self._wrap = _wrapping(self)

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

    def _get_output_tensor_from_cache_entry(
        self, state: Any, entry: Any, key: Any, func: Any, args: Any
    ) -> Any:
        """PyTorch's, for what it makes of nearly all entries: a dense tensor, or a view of one."""
        looks = entry.metadata
        if looks is None or entry.inplace_idx is not None or not self._is_plainly_made(looks):
            return super()._get_output_tensor_from_cache_entry(state, entry, key, func, args)
        with torch._C._DisableTorchDispatch():
            memory = torch.empty_strided(
                looks.shape,
                looks.stride,
                dtype=looks.dtype,
                device="meta",
                requires_grad=looks.requires_grad,
            )
            if func.is_view:
                storage = args[entry.view_idx].untyped_storage()
                memory.set_(storage, looks.storage_offset, looks.shape, looks.stride)
        return self._wrap(memory, looks.device)

    def _is_plainly_made(self, looks: Any) -> bool:
        return (
            looks.layout is torch.strided
            and self.shape_env is None
            and not (looks.is_conj or looks.is_neg)
            and set(map(type, looks.shape)) <= _WHOLE
        )

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


def _wrapping(mode: VirtualFakeMode) -> Callable[[torch.Tensor, torch.device], FakeTensor]:
    """What makes a fake tensor of a tensor without data, as the constructor does.

    That takes longer than all else that answers from the cache: it normalises what it is given and
    sets each attribute by name. They are what they are in the first fake tensor of the mode.
    """
    with torch._C._DisableTorchDispatch():
        memory = torch.empty(0, device="meta")
    attributes = dict(vars(FakeTensor(mode, memory, _HOST)))
    kept = weakref.ref(mode)
    place = next((name for name, value in attributes.items() if value == _HOST), None)
    if place is None or attributes.pop("fake_mode", None) is not mode:
        return lambda memory, device: FakeTensor(kept(), memory, device)
    is_unsafe = mode._allow_unsafe_data_ptr_access
    guard = "warn_deprecated" if is_unsafe else "throw"
    forbid_data = getattr(torch._C, f"_set_{guard}_on_mutable_data_ptr")
    make = torch.Tensor._make_subclass

    def wrap(memory: torch.Tensor, device: torch.device) -> FakeTensor:
        tensor: FakeTensor = make(
            FakeTensor,
            memory,
            memory.requires_grad,
            dispatch_device=True,
            device_for_backend_keys=device,
        )
        forbid_data(tensor)
        vars(tensor).update(attributes, fake_mode=kept())
        vars(tensor)[place] = device
        return tensor

    return wrap


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
