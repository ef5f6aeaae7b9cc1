"""What `torch.cuda` answers while the virtual GPU is on: one device, of the named kind."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.cuda.amp.common
import torch.optim.optimizer as torch_optimizer
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._device import _device_constructors

from graphmem.gpus import Gpu
from graphmem.virtual_gpu.patching import Replacement

_FACTORIES = (
    "arange as_tensor asarray empty empty_like empty_strided eye full full_like linspace logspace "
    "ones ones_like rand rand_like randint randint_like randn randn_like randperm scalar_tensor "
    "tensor tril_indices triu_indices zeros zeros_like"
).split()
_RNG_STATE_BYTES = 16  # a seed and an offset, aten/src/ATen/cuda/CUDAGeneratorImpl.cpp


def replacements(gpu: Gpu) -> list[Replacement]:
    """The attributes to replace so that code written for a card believes in one."""
    cuda = torch.cuda
    # `with torch.device(…)` knows the factories by identity, and keeps those of its first use.
    _device_constructors()
    return [
        *((cuda, name, answer) for name, answer in _answers(gpu).items()),
        (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        # torch.optim takes its foreach path for tensors of these types only, a FakeTensor is none.
        (
            torch_optimizer,
            "_foreach_supported_types",
            [torch.Tensor, torch.nn.Parameter, FakeTensor],
        ),
        (torch.Tensor, "cuda", _tensor_cuda),
        (torch.Tensor, "to", _with_device_index(torch.Tensor.to, positions=(1,))),
        (torch.Tensor, "pin_memory", lambda tensor, device=None: tensor),
        (torch._C._nn, "_parse_to", _with_device_index(torch._C._nn._parse_to, positions=(0,))),
        *((torch, name, _with_device_index(getattr(torch, name))) for name in _FACTORIES),
        (FakeTensor, "__format__", _format),
    ]


def _answers(gpu: Gpu) -> dict[str, Any]:
    properties = SimpleNamespace(
        name=gpu.title,
        total_memory=gpu.memory_bytes,
        major=gpu.compute_capability[0],
        minor=gpu.compute_capability[1],
        multi_processor_count=gpu.multiprocessors,
        max_threads_per_multi_processor=gpu.max_threads_per_multiprocessor,
        warp_size=32,
    )
    has_bf16 = gpu.compute_capability[0] >= 8

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def rng_state(*args: Any) -> torch.Tensor:
        return torch.zeros(_RNG_STATE_BYTES, dtype=torch.uint8, device="cpu")

    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_initialized": lambda: True,
        "_lazy_init": nothing,
        "set_device": nothing,
        "synchronize": nothing,
        "empty_cache": nothing,
        "ipc_collect": nothing,
        "manual_seed": nothing,
        "manual_seed_all": nothing,
        "get_device_name": lambda device=None: gpu.title,
        "get_device_capability": lambda device=None: gpu.compute_capability,
        "get_device_properties": lambda device=None: properties,
        "is_bf16_supported": lambda including_emulation=True: has_bf16 or including_emulation,
        "is_tf32_supported": lambda: has_bf16,
        "get_rng_state": rng_state,
        "set_rng_state": nothing,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "is_current_stream_capturing": lambda: False,
    }


def _tensor_cuda(tensor: torch.Tensor, device: Any = None, *args: Any, **kwargs: Any) -> Any:
    return tensor.to(torch.device("cuda", _index_of(device)), *args, **kwargs)


def _index_of(device: Any) -> int:
    if device is None:
        return 0
    return device if isinstance(device, int) else (torch.device(device).index or 0)


def _with_device_index(function: Any, positions: tuple[int, ...] = ()) -> Callable[..., Any]:
    """Let a device be given by its index, which PyTorch resolves with the accelerator's help."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if type(kwargs.get("device")) is int:
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        for position in positions:
            if len(args) > position and type(args[position]) is int:
                device = torch.device("cuda", args[position])
                args = (*args[:position], device, *args[position + 1 :])
        return function(*args, **kwargs)

    return call


def _format(tensor: torch.Tensor, spec: str) -> str:
    """Scalars print as their (assumed) value, as `Tensor.__format__` does for plain tensors."""
    return format(tensor.item() if not tensor.dim() else str(tensor), spec)
