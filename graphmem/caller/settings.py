"""Torch's settings, of the whole process or of a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.modules.module as module_hooks
import torch.optim.optimizer as optimizer_hooks

from graphmem.torch_releases import PRECISIONS_HAVE_NAMES, installed_release

Setting = tuple[Callable[[], Any], Callable[[Any], object]]

_DEVICE_TYPES = ("cpu", "cuda")


class TorchSettings:
    """The values of torch's settings, to restore later."""

    def __init__(self) -> None:
        self._before = [(get, put, get()) for get, put in _all_settings()]
        self._device = _device_context()
        self._has_device = hasattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context")
        self._function_modes = torch._C._len_torch_function_stack()
        self._hooks = [(hooks, dict(hooks)) for hooks in _global_hooks()]

    def put_back(self) -> None:
        """Restore the settings."""
        self._put_back_device()
        for get, put, value in self._before:
            if get() != value:
                put(value)
        for hooks, before in self._hooks:
            if hooks != before:
                hooks.clear()
                hooks.update(before)

    def _put_back_device(self) -> None:
        """Restore `torch.set_default_device`, which keeps a mode on this thread's stack."""
        if _device_context() is not self._device:
            device = None if self._device is None else self._device.device
            torch.set_default_device(device)
            if not self._has_device:  # 2.9's `get_default_device` fails if there is a None
                del torch._GLOBAL_DEVICE_CONTEXT.device_context
        while torch._C._len_torch_function_stack() > self._function_modes:
            torch.overrides._pop_mode()


def _device_context() -> Any:
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


def _global_hooks() -> Iterator[Any]:
    for module in (module_hooks, optimizer_hooks):
        for name, value in vars(module).items():
            if name.startswith("_global_") and isinstance(value, dict):
                yield value


def _all_settings() -> Iterator[Setting]:
    yield torch.get_default_dtype, torch.set_default_dtype
    yield torch.get_num_threads, torch.set_num_threads
    yield torch.is_grad_enabled, torch.set_grad_enabled
    yield from _precisions()
    yield _deterministic, _set_deterministic
    yield _anomaly, lambda value: torch.autograd.set_detect_anomaly(*value)
    yield _print_options, lambda value: vars(torch._tensor_str.PRINT_OPTS).update(value)
    yield torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled
    for kind in _DEVICE_TYPES:
        yield _of_autocast(torch.is_autocast_enabled, torch.set_autocast_enabled, kind)
        yield _of_autocast(torch.get_autocast_dtype, torch.set_autocast_dtype, kind)
    backends = torch.backends
    for owner, names in (
        (backends.cudnn, ("enabled", "benchmark", "deterministic")),
        (torch.__future__, ("_overwrite_module_params_on_conversion",)),
        (torch.__future__, ("_swap_module_params_on_conversion",)),
    ):
        for name in names:
            yield _attribute(owner, name)
    yield backends.cuda.flash_sdp_enabled, backends.cuda.enable_flash_sdp
    yield backends.cuda.mem_efficient_sdp_enabled, backends.cuda.enable_mem_efficient_sdp
    yield backends.cuda.math_sdp_enabled, backends.cuda.enable_math_sdp
    yield backends.cuda.cudnn_sdp_enabled, backends.cuda.enable_cudnn_sdp
    yield torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled


def _precisions() -> Iterator[Setting]:
    """The precision settings of fp32 products, in both APIs; the newer, which decide, come last.

    A program that uses both makes the older ones unreadable (aten/src/ATen/Context.cpp).
    """
    backends: Any = torch.backends
    yield _unless_mixed(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
    for owner in (backends.cudnn, backends.cuda.matmul):
        yield _unless_mixed(*_attribute(owner, "allow_tf32"))
    if not PRECISIONS_HAVE_NAMES.holds_in(installed_release()):
        return
    for owner in (backends, backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        yield _attribute(owner, "fp32_precision")


def _unless_mixed(get: Callable[[], Any], put: Callable[[Any], object]) -> Setting:
    def get_or_none() -> Any:
        try:
            return get()
        except RuntimeError:
            return None

    def put_if_known(value: Any) -> object:
        return None if value is None else put(value)

    return get_or_none, put_if_known


def _attribute(owner: Any, name: str) -> Setting:
    def put(value: Any) -> None:
        # A program may have frozen these flags (`torch.backends.disable_global_flags`).
        with torch.backends.__allow_nonbracketed_mutation():
            setattr(owner, name, value)

    return lambda: getattr(owner, name), put


def _of_autocast(get: Any, put: Any, kind: str) -> Setting:
    return lambda: get(kind), lambda value: put(kind, value)


def _deterministic() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch._C._get_deterministic_fill_uninitialized_memory(),
    )


def _set_deterministic(value: tuple[bool, bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])
    torch._C._set_deterministic_fill_uninitialized_memory(value[2])


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _print_options() -> dict[str, Any]:
    return dict(vars(torch._tensor_str.PRINT_OPTS))


@contextmanager
def of_a_new_program() -> Iterator[None]:
    """Let a program begin as it would in a fresh process.

    An analysis may be requested under `no_grad`, in inference mode or under autocast.
    """
    with torch.inference_mode(False), torch.enable_grad():
        for kind in _DEVICE_TYPES:
            torch.set_autocast_enabled(kind, False)
        yield
