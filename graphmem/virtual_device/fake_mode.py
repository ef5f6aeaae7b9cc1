"""The fake tensor mode of a trace."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from operator import itemgetter
from types import NoneType
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, _BypassDispatchCache

from graphmem import constructors
from graphmem.torch_releases import COPIES_TO_DEVICES_KEPT_OFF, installed_release
from graphmem.torch_releases.installed_build import NESTED_INTS_ARE_OF_PYTHON
from graphmem.torch_releases.manifest import check_supported
from graphmem.values.held import HeldValues
from graphmem.virtual_device.class_losses import LOSSES, with_longs
from graphmem.virtual_device.layouts import LAYOUTS, VIEWS, view_of
from graphmem.virtual_device.listed_results import listed
from graphmem.virtual_device.missing_kernels import check_kernel
from graphmem.virtual_device.nondeterministic import unasked
from graphmem.virtual_device.operand_checks import check_operands
from graphmem.virtual_device.operators import KERNELS
from graphmem.virtual_device.subclasses import as_plain

_AS_STRIDED = torch.ops.aten.as_strided.default
_TO_COPY = torch.ops.aten._to_copy.default
_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default
_VIEW = torch.ops.aten.view.default
_WHERE = torch.ops.aten.where.self
PLAIN = frozenset(
    {bool, float, int, NoneType, str, torch.device, torch.dtype, torch.layout, torch.memory_format}
)
"""The kinds of arguments that are what they say: no tensor, and nothing that holds others."""
_WHOLE = frozenset({int})
_CONSTANTS = frozenset({int, NoneType})
_UPDATES = frozenset(
    getattr(torch.ops.aten, f"{prefix}{name}{ending}")
    for prefix, names, endings in (
        ("", "add sub mul div addcmul addcdiv lerp", ("", "_")),
        ("_foreach_", "add sub mul div addcmul addcdiv lerp", ("", "_")),
        ("_fused_", "adam adamw adagrad sgd", ("_",)),
    )
    for name in names.split()
    for ending in endings
)
"""What optimizers compute with: of a number, only its type matters to the results."""
_HOST = torch.device("cpu")


class _OfThread(threading.local):
    in_kernel = False
    key: Any = None
    """The running operation's key in PyTorch's cache, if it has one."""


class _Answer(NamedTuple):
    """What an operation returns that has run before.

    Attributes:
        results: descriptions of the results, as entries of PyTorch's cache have them.
        together: makes what is returned of the list of them.
    """

    results: Sequence[Any]
    together: Callable[[list[Any]], Any]


class VirtualFakeMode(FakeTensorMode):
    """Allows real CPU tensors beside fake ones; an operator without a meta kernel is an error.

    Every trace and every run makes one before it replaces anything in PyTorch.

    Attributes:
        wrap: makes a fake tensor of a meta tensor and its device.
        known: the values of its tensors; None if nobody follows them.

    Raises:
        InputError: the installed PyTorch is too old for graphmem.
    """

    def __init__(self) -> None:
        check_supported(installed_release())
        self.known: HeldValues | None = None
        self._of_thread = _OfThread()
        self._copies_are_kept_off = COPIES_TO_DEVICES_KEPT_OFF.holds_in(installed_release())
        super().__init__(allow_non_fake_inputs=True, allow_fallback_kernels=False)
        self.wrap = _wrapping(self)
        self._empty_strided = torch.empty_strided  # a virtual GPU's resolves devices by number
        self._answers: dict[tuple[Any, ...], _Answer] = {}

    def dispatch(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Dispatch as PyTorch does, except for operators with a kernel of graphmem's."""
        kernel = KERNELS.get(func)
        if kernel is not None:
            check_kernel(func, args)
            return kernel(*args, **(kwargs or {}))
        if func is _UNSAFE_VIEW and args[0].layout is torch.strided:
            func = _VIEW  # below autograd they are one, but PyTorch's cache refuses the former
        elif func in LOSSES:
            args = with_longs(func, args)
        elif func is _WHERE and args[0].dtype is torch.uint8:  # which only fake tensors refuse
            args = (args[0].new_empty(args[0].shape, dtype=torch.bool), *args[1:])
        elif func is _TO_COPY and not (
            self._copies_are_kept_off or isinstance(args[0], FakeTensor)
        ):
            args = (self.from_tensor(as_plain(args[0])), *args[1:])
        with torch._C.DisableTorchFunction():  # else each look at a tensor looks for it
            key = self._key_of(func, args, kwargs)
            answer = None if key is None else self._answers.get(key)
            results = () if answer is None else answer.results
            made = [self._made_again(each, args) for each in results]
        if answer is None:
            return self._ask(key, func, types, args, kwargs)
        FakeTensorMode.cache_hits += 1
        return answer.together(made)

    def _key_of(self, func: Any, args: Sequence[Any], kwargs: Any) -> tuple[Any, ...] | None:
        """What PyTorch's key in its cache has (`_cache_key`); None if only PyTorch can tell.

        A trace has no symbolic sizes, so what tells them apart is left out.
        """
        is_used = self.cache_enabled and not self.cache_crosscheck_enabled
        if not is_used or self.shape_env is not None:
            return None
        key = [
            func,
            torch.get_default_dtype(),
            torch._C._get_default_device(),
            torch.is_inference_mode_enabled(),
        ]
        try:
            self._prep_args_for_hash(key, args)
            if kwargs:
                self._prep_args_for_hash(key, kwargs)
        except _BypassDispatchCache:
            return None
        return tuple(key)

    def _ask(
        self, key: tuple[Any, ...] | None, func: Any, types: Any, args: Sequence[Any], kwargs: Any
    ) -> Any:
        """Have PyTorch dispatch, and keep its cache's answer: from now on it is found faster."""
        check_operands(func, args, kwargs)
        of_thread = self._of_thread
        outer, of_thread.key = of_thread.key, None
        try:
            result = super().dispatch(func, types, args, kwargs)
            if result is NotImplemented:  # an argument on the host is of the program's class
                args = as_plain(args)
                kwargs = {name: as_plain(each) for name, each in (kwargs or {}).items()}
                result = super().dispatch(func, types, args, kwargs)
            entry = FakeTensorMode.cache.get(of_thread.key)
        finally:
            of_thread.key = outer
        in_list = listed(func, result, args)
        answer = _Answer(in_list, list) if in_list else _answer_of(entry)
        if key is not None and answer.results and all(map(self._is_plain_answer, answer.results)):
            self._answers[key] = answer
        return result

    def _cache_key(self, *operation: Any) -> Any:
        """Note the key by which PyTorch finds an operation's results."""
        self._of_thread.key = key = super()._cache_key(*operation)
        return key

    def _dispatch_impl(self, func: Any, types: Any, args: Sequence[Any], kwargs: Any) -> Any:
        """Run PyTorch's rule below its cache, and give results the strides of real kernels."""
        if func in VIEWS and args[0].layout is torch.strided:
            return super()._dispatch_impl(_AS_STRIDED, types, (args[0], *view_of(*args)), {})
        with constructors.restored(), unasked():
            result = super()._dispatch_impl(func, types, args, kwargs)
        lay_out = LAYOUTS.get(func)
        return result if lay_out is None else lay_out(func, result, args)

    def _get_output_tensor_from_cache_entry(
        self, state: Any, entry: Any, key: Any, *func_and_args: Any
    ) -> Any:
        """Do what PyTorch does, faster for the usual entry: a dense tensor or a view of one.

        `func_and_args`: up to 2.14 the operator, then its arguments; from 2.15 on the arguments.
        """
        if not self._is_plain_answer(entry):
            return super()._get_output_tensor_from_cache_entry(state, entry, key, *func_and_args)
        return self._made_again(entry, func_and_args[-1])

    def _is_plain_answer(self, entry: Any) -> bool:
        """Whether a result is an argument, a number, None or a dense tensor of fixed sizes."""
        looks = entry.metadata
        if looks is None:
            is_argument = entry.inplace_idx is not None
            return is_argument or type(getattr(entry, "constant_value", entry)) in _CONSTANTS
        return (
            looks.layout is torch.strided
            and self.shape_env is None
            and not (looks.is_conj or looks.is_neg)
            and set(map(type, looks.shape)) <= _WHOLE
        )

    def _made_again(self, entry: Any, args: Sequence[Any]) -> Any:
        """The result of a plain entry."""
        if entry.inplace_idx is not None:
            return args[entry.inplace_idx]
        looks = entry.metadata
        if looks is None:
            return entry.constant_value
        with torch._C._DisableTorchDispatch():
            memory = self._empty_strided(
                looks.shape,
                looks.stride,
                dtype=looks.dtype,
                device="meta",
                requires_grad=looks.requires_grad,
            )
            storage = None
            if entry.view_idx is not None:
                storage = args[entry.view_idx].untyped_storage()
            elif memory.untyped_storage().nbytes() != looks.storage_bytes:
                # `aten.copy` of a view copies its whole storage (`clone_preserve_strides`).
                storage = torch.UntypedStorage(looks.storage_bytes, device="meta")
            if storage is not None:
                memory.set_(storage, looks.storage_offset, looks.shape, looks.stride)
        return self.wrap(memory, looks.device)

    @property
    def in_kernel_invocation(self) -> bool:
        """Whether this thread is in a kernel, where fake tensors claim to be meta tensors."""
        return self._of_thread.in_kernel

    @in_kernel_invocation.setter
    def in_kernel_invocation(self, value: bool) -> None:
        self._of_thread.in_kernel = value

    @property
    def avoid_device_init(self) -> bool:
        """True, although `torch.cuda.is_available()` is true as well.

        No operation may run on the device to make constants.
        """
        return True

    def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> Any:
        """The number of a jagged tensor's offsets itself, as a trace has no symbols for it."""
        if nt_tensor_id is None:
            return super().create_symbolic_nested_int()
        return nested_int(nt_tensor_id)

    def _prep_args_for_hash(self, result: list[Any], args: Any, *rest: Any) -> None:
        """Append the arguments' key in the cache of results.

        PyTorch's own method makes a dataclass for every tensor, which takes a quarter of a trace's
        time. Nearly all arguments are plain tensors or plain values, and only those are handled
        here; PyTorch handles the rest, and decides what cannot be cached.

        A step size differs in each iteration (Adam's, a schedule's): with its value in the key,
        each update of the parameters would be computed anew, and its result kept.
        """
        result += (type(args), len(args))
        if isinstance(args, dict):
            args = (*args, *args.values())
        for arg in args:
            kind = type(arg)
            if kind is float and getattr(result[0], "overloadpacket", None) in _UPDATES:
                result.append(kind)
            elif kind in PLAIN:
                result += (kind, arg)
            elif kind is FakeTensor and self._is_plain(arg):
                result.append(_looks(arg))
            elif kind is list or kind is tuple:
                self._prep_args_for_hash(result, arg, *rest)
            elif kind is torch.UntypedStorage:
                raise _BypassDispatchCache("the cache would keep the storage")
            elif not rest:
                raise _BypassDispatchCache("an argument of another kind")
            else:
                super()._prep_args_for_hash(result, (arg,), *rest)

    def _is_plain(self, tensor: FakeTensor) -> bool:
        return (
            tensor.fake_mode is self and tensor.constant is None and tensor.layout is torch.strided
        )


def nested_int(number: int) -> torch.SymInt:
    """A jagged tensor's size, which equals those of the same number."""
    if not NESTED_INTS_ARE_OF_PYTHON.holds_in(installed_release()):
        return torch._C._get_nested_int(number, 1)
    from torch.nested._internal.nested_int import NestedIntNode

    return torch.SymInt(NestedIntNode(number, 1))


def _answer_of(entry: Any) -> _Answer:
    """The answer in an entry of PyTorch's cache; None, and one that refuses, have no results.

    Before torch 2.6 an entry is itself the description of one result.
    """
    only = (entry,) if hasattr(entry, "inplace_idx") else ()
    is_tuple = getattr(entry, "is_output_tuple", False)
    return _Answer(getattr(entry, "output_infos", only), tuple if is_tuple else itemgetter(0))


def _wrapping(mode: VirtualFakeMode) -> Callable[[torch.Tensor, torch.device], FakeTensor]:
    """A faster `FakeTensor(mode, memory, device)` for a tensor without data.

    The constructor takes longer than the rest of a cache hit: it normalises its arguments and sets
    each attribute by name. Here attributes are copied from the mode's first fake tensor.
    """
    with torch._C._DisableTorchDispatch():
        memory = constructors.empty(0, device="meta")
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
    """The fields of PyTorch's `TensorMetadata`, for a dense tensor of fixed sizes."""
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
