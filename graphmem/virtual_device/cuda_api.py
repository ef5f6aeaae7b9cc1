"""`torch.cuda` and `torch.accelerator` while the virtual GPU is on.

PyTorch's own Python calls C functions of `torch._C`, which a CPU build lacks and which need a
driver in a CUDA build. Those functions are replaced, one file per subject: devices, memory,
streams, random numbers, page-locked memory, libraries. PyTorch's Python code stays as it is.

A trace (`graphmem analyze`) and a run share all of it except the memory queries, which a trace
cannot answer while it runs. CUDA counts as initialized from the start.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.cuda.amp.common
import torch.optim.optimizer as torch_optimizer
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.jit import _builtins, _recursive
from torch.utils import _foreach_utils
from torch.utils._device import DeviceContext, _device_constructors

from graphmem.allocator import CachingAllocator
from graphmem.gpus import Gpu
from graphmem.torch_releases import parse_release
from graphmem.values.held import HeldValues
from graphmem.virtual_device.cuda_graphs import graph_replacements
from graphmem.virtual_device.cuda_libraries import library_replacements, refused_pools
from graphmem.virtual_device.data_parallel import data_parallel_replacements
from graphmem.virtual_device.device_guard import is_borrowed
from graphmem.virtual_device.device_memory import DeviceMemory
from graphmem.virtual_device.devices import Devices, device_replacements
from graphmem.virtual_device.fake_mode import VirtualFakeMode
from graphmem.virtual_device.legacy_types import legacy_type_replacements
from graphmem.virtual_device.memory_bindings import memory_bindings, unanswered_bindings
from graphmem.virtual_device.memory_pools import PoolHandles, pool_replacements
from graphmem.virtual_device.nccl import nccl_replacements
from graphmem.virtual_device.patching import Method, Replacement, original_of
from graphmem.virtual_device.pinned_memory import PinnedMemory
from graphmem.virtual_device.profiling import profiler_replacements
from graphmem.virtual_device.random import random_replacements
from graphmem.virtual_device.streams import stream_replacements

FACTORIES = (
    "arange as_tensor asarray empty empty_like empty_strided eye full full_like linspace logspace "
    "ones ones_like rand rand_like randint randint_like randn randn_like randperm scalar_tensor "
    "tensor tril_indices triu_indices zeros zeros_like"
).split()

NEW_ONES = "new_empty new_empty_strided new_full new_ones new_tensor new_zeros".split()
"""Methods that make a tensor like another."""


def replacements(
    gpu: Gpu,
    memory: DeviceMemory | None = None,
    torch_release: tuple[int, int] | None = None,
    pinned: PinnedMemory | None = None,
    *,
    known: HeldValues | None = None,
    is_live: bool = True,
) -> list[Replacement]:
    """List the attributes to replace so that code written for a card sees one.

    Args:
        gpu: the card.
        memory: the device's memory; None makes CUDA graphs and pools errors.
        torch_release: the version of torch to simulate; default: the installed one.
        pinned: counts page-locked memory.
        known: the values of tensors.
        is_live: whether the memory answers queries; otherwise they are errors.
    """
    # `with torch.device(…)` recognizes factories by identity, and caches them on first use.
    _device_constructors()
    is_followed = memory is not None
    memory = memory or DeviceMemory(gpu, CachingAllocator())
    is_live = is_live and is_followed
    bindings = memory_bindings(memory) if is_live else unanswered_bindings(memory)
    release = torch_release or parse_release(torch.__version__)
    if not is_followed:
        pools = refused_pools()
    else:
        handles = PoolHandles()
        pools = [
            *graph_replacements(memory, handles, release, known or HeldValues()),
            *pool_replacements(memory, handles),
        ]
    pinned = pinned or PinnedMemory()
    return [
        *device_replacements(gpu, release, memory.devices),
        *((torch._C, name, function) for name, function in bindings.items()),
        *stream_replacements(memory),
        *pools,
        *random_replacements(memory.devices),
        *pinned.replacements(release),
        *library_replacements(memory, bindings["_accelerator_getMemoryInfo"], pinned),
        *nccl_replacements(release),
        *legacy_type_replacements(),
        *profiler_replacements(),
        *data_parallel_replacements(memory.devices),
        *_enabled_without_a_card(),
        *_devices_by_number(pinned, memory.devices),
        (FakeTensor, "__format__", _format),
        # It makes a tensor on the device: up to 2.11 wherever `torch.cuda.is_available()` is true.
        (fake_tensor, "init_gpu_context", lambda device=None: None),
    ]


def _enabled_without_a_card() -> list[Replacement]:
    """Keep on what checks for a card (autocast, gradient scalers) or plain tensors (foreach)."""
    return [
        (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        *foreach_of_fake_tensors(),
        (torch.cuda, "_check_bf16_tensor_supported", lambda device: True),
    ]


def foreach_of_fake_tensors() -> list[Replacement]:
    """Let optimizers and gradient clipping use their foreach form for fake tensors.

    The lists are those of torch/optim/optimizer.py (`_default_to_fused_or_foreach`) and
    torch/utils/_foreach_utils.py (`_has_foreach_support`, which torch/nn/utils/clip_grad.py calls);
    `torch.distributed.tensor` adds its own type to both.
    """
    own: Any = (torch_optimizer, _foreach_utils)
    return [
        (module, "_foreach_supported_types", [*module._foreach_supported_types, FakeTensor])
        for module in own
    ]


def _devices_by_number(pinned: PinnedMemory, devices: Devices) -> list[Replacement]:
    """Resolve device numbers here, since PyTorch asks the accelerator to."""
    parse_to, to = torch._C._nn._parse_to, torch.Tensor.to
    factories = {name: _pinning(getattr(torch, name), pinned, devices) for name in FACTORIES}
    methods = {name: getattr(torch.Tensor, name) for name in NEW_ONES}
    new_ones = {name: (each, _pinning(each, pinned, devices)) for name, each in methods.items()}

    def to_cuda(tensor: torch.Tensor, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        index = None if device is None else _index_of(device)
        index = devices.current if index is None else index
        return tensor.to(torch.device("cuda", index), *args, **kwargs)

    return [
        (torch.Tensor, "cuda", Method(torch.Tensor.cuda, to_cuda)),
        (torch.Tensor, "to", Method(to, _with_device(to, devices, positions=(1,)))),
        (torch._C._nn, "_parse_to", _with_device(parse_to, devices, positions=(0,))),
        *((torch.Tensor, name, Method(*pair)) for name, pair in new_ones.items()),
        *((torch, name, factory) for name, factory in factories.items()),
        *(_default_device_by_number(devices) if is_borrowed() else []),
        *_originals_for_torchscript(),
    ]


def _default_device_by_number(devices: Devices) -> list[Replacement]:
    """Resolve the device of `torch.device(…)` as a context and of `torch.set_default_device`.

    It is passed on to PyTorch's own factories (`DeviceContext`, torch/utils/_device.py).
    """
    pass_on: Any = DeviceContext.__torch_function__

    def pass_on_number(
        context: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _device_constructors() and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": _resolved(context.device, devices)}
        return pass_on(context, function, types, args, kwargs)

    return [(DeviceContext, "__torch_function__", pass_on_number)]


def _originals_for_torchscript() -> list[Replacement]:
    """Show TorchScript's compiler PyTorch's own functions.

    It recognizes operators by function identity (`_find_builtin`, torch/jit/_builtins.py) and
    reads the source of other functions (`try_compile_fn`, torch/jit/_recursive.py), for example in
    `import torch.distributed.optim`.
    """
    find: Any = _builtins._find_builtin
    compile_function: Any = _recursive.try_compile_fn

    def find_original(function: Any) -> Any:
        return find(original_of(function))

    def compile_original(function: Any, where: Any) -> Any:
        return compile_function(original_of(function), where)

    return [
        (_builtins, "_find_builtin", find_original),
        (_recursive, "_find_builtin", find_original),
        (_recursive, "try_compile_fn", compile_original),
    ]


def _index_of(device: Any) -> int | None:
    return device if isinstance(device, int) else torch.device(device).index


def _with_device(
    function: Any, devices: Devices, positions: tuple[int, ...] = ()
) -> Callable[..., Any]:
    """Let a function take a device by number, and check that the device exists."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _resolved(kwargs["device"], devices)
        for position in positions:
            if len(args) > position and type(args[position]) in _DEVICE_TYPES:
                device = _resolved(args[position], devices)
                args = (*args[:position], device, *args[position + 1 :])
        return function(*args, **kwargs)

    return call


_DEVICE_TYPES = (int, str, torch.device)
_THE_CURRENT_ONE = torch.device("cuda")


@functools.lru_cache(maxsize=64)
def _named(device: str) -> torch.device:
    return torch.device(device)


def _resolved(device: Any, devices: Devices) -> Any:
    if type(device) is int:
        device = torch.device("cuda", device)
    elif type(device) is str:
        device = _named(device)
    if type(device) is torch.device and device.type == "cuda":
        if device == _THE_CURRENT_ONE and (devices.current or is_borrowed()):
            # C++ asks the device guard, which knows the first device only, and up to 2.9 none
            # (aten/src/ATen/native/TensorConversions.cpp, `ensure_has_index`)
            device = torch.device("cuda", devices.current)
        devices.check(device.index or 0)
    return device


def _pinning(function: Any, pinned: PinnedMemory, devices: Devices) -> Callable[..., Any]:
    """Let a factory make page-locked memory, for which a CPU build has no allocator."""
    with_device = _with_device(function, devices)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if args and _is_like_a_tensor(args[0]):  # it may look this function up, as TensorDict does
            made = type(args[0]).__torch_function__(call, (type(args[0]),), args, kwargs)
            if made is not NotImplemented:
                return made
        if not kwargs.pop("pin_memory", False):
            return with_device(*args, **kwargs)
        tensor = with_device(*args, **kwargs)
        pinned.hold(tensor)
        return tensor

    return call


def _is_like_a_tensor(value: Any) -> bool:
    """Whether functions of torch ask a value's class first, although it is no tensor."""
    return hasattr(type(value), "__torch_function__") and not isinstance(value, torch.Tensor)


def _format(tensor: FakeTensor, spec: str) -> str:
    """Scalars print as their (assumed) value, as `Tensor.__format__` does for plain tensors.

    A compiler's fake tensors have none, and print as PyTorch prints them (torch/_tensor.py).
    """
    if not isinstance(tensor.fake_mode, VirtualFakeMode):
        return object.__format__(tensor, spec)
    return format(tensor.item() if not tensor.dim() else str(tensor), spec)
