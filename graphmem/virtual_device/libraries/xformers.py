"""xformers without its binary: its Python runs, over PyTorch's own attention kernels.

`xformers.ops.memory_efficient_attention` calls `aten._flash_attention_forward` and
`aten._efficient_attention_forward` (xformers/ops/fmha/flash.py and cutlass.py of 0.0.35), for which
graphmem has rules, or flash-attn's extension where that is installed. What the wheel's binary
(`_C.so`) has besides are kernels for sparse weights; it is linked with CUDA's libraries, and where
these are missing xformers notes that it was not built for CUDA, and refuses every tensor on a card.

It looks up the type of a mask in lists, which have tensors as such (`SUPPORTED_ATTN_BIAS_TYPES` of
cutlass.py, `_is_bias_type_supported_in_BMK` of common.py); those on the virtual card are of another
type.

Releases before 0.0.34 bring attention kernels of their own (`xformers/flash_attn_3/_C.so`), which
have no rules: such a release is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from graphmem.silenced import silenced
from graphmem.virtual_device.libraries.imports import executed_by, run_own_code
from graphmem.virtual_device.package_releases import check_release

_LOADER = "xformers._cpp_lib"
_KERNEL = "xformers.ops.fmha.cutlass"
_INPUTS = "xformers.ops.fmha.common"
_OLDEST = "0.0.34"


@contextmanager
def standing_in() -> Iterator[None]:
    """Let xformers be imported as on a machine with a card."""
    with (
        executed_by(_LOADER, _load),
        executed_by(_KERNEL, _accept_masks),
        executed_by(_INPUTS, _accept_masks_of_one_head),
    ):
        yield


def _load(module: ModuleType) -> None:
    """Run the code of the module that loads the binary, whether or not it can.

    Raises:
        InputError: the release has kernels without rules.
    """
    check_release("xformers", _OLDEST)
    with silenced(logging.getLogger("xformers")):  # it warns that the binary could not be loaded
        run_own_code(module)
    module._built_with_cuda = True  # type: ignore[attr-defined]


def _accept_masks(module: ModuleType) -> None:
    """Run the code of the memory-efficient kernel, and let it take the virtual card's tensors."""
    run_own_code(module)
    kernels: Any = module
    for kernel in (kernels.FwOp, kernels.BwOp):
        kernel.SUPPORTED_ATTN_BIAS_TYPES = (*kernel.SUPPORTED_ATTN_BIAS_TYPES, FakeTensor)


def _accept_masks_of_one_head(module: ModuleType) -> None:
    """Run the code that checks operands; those without a dimension of heads may have a tensor."""
    run_own_code(module)
    inputs: Any = module
    is_supported = inputs._is_bias_type_supported_in_BMK
    inputs._is_bias_type_supported_in_BMK = lambda kind: kind is FakeTensor or is_supported(kind)
