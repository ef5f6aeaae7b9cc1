"""`scaled_dot_product_attention` as the named GPU would run it.

A CPU build takes the math path for CUDA tensors. Here a kernel registered for `AutogradCUDA`
chooses the backend by the rules of `sdp_utils.cpp` (aten/src/ATen/native/transformers/cuda) and
calls that backend's real operator, whose meta kernel and derivative every build has. Autocast
has already done its casts, as on a card.

Not covered: strided nested tensors, deterministic mode, and priorities that the program sets with
`torch.nn.attention.sdpa_kernel(..., set_priority=True)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nested._internal import sdpa

from graphmem import constructors
from graphmem.gpus import Gpu
from graphmem.torch_releases import FLASH_STATE_IS_ON_CARD, Release, installed_release
from graphmem.torch_releases.differences import EFFICIENT_ATTENTION_SHARES_KEYS
from graphmem.virtual_device.encoder_layers import FastPaths
from graphmem.virtual_device.operand_checks import check_operands
from graphmem.virtual_device.overriding import decomposed_by
from graphmem.virtual_device.patching import Replacement, replaced

aten = torch.ops.aten

_FLASH_MAX_HEAD_DIM = 256
_FLASH_DIM_MULTIPLE = 8
_CUDNN_MAX_GRID = 65_535
_MASK_ALIGNMENT = 8
_BIAS_TRAINS = 15
_HALF = (torch.float16, torch.bfloat16)

_FLASH = (aten._scaled_dot_product_flash_attention.default, aten._flash_attention_forward.default)
FUSED_ATTENTION = (
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._efficient_attention_forward.default,
    *(() if FLASH_STATE_IS_ON_CARD.holds_in(installed_release()) else _FLASH),
)
"""Operators whose meta kernels differ from a card in what they return: see `as_returned`."""


@contextmanager
def attention_of(gpu: Gpu, torch_release: tuple[int, int]) -> Iterator[None]:
    """Run attention on fake CUDA tensors as `gpu` would while the context is open."""
    prefers_cudnn = _prefers_cudnn(gpu, torch_release)
    takes_cudnn = partial(_takes_cudnn, gpu, torch_release)
    takes_flash = partial(_takes_flash, gpu, torch_release)
    takes_efficient = partial(_takes_efficient, gpu, torch_release)
    additive = partial(_as_additive, torch_release)
    library = torch.library.Library("aten", "IMPL")

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        check_operands(aten.scaled_dot_product_attention.default, (query, key, value, attn_mask))
        is_for_math = attn_mask is not None and attn_mask.stride(-1) != 1
        attn_mask = additive(attn_mask, query.dtype)
        if is_for_math:  # the others need contiguous rows (`check_last_dim_stride_equals_1_dense`)
            return _math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if prefers_cudnn and takes_cudnn(query, key, value, attn_mask, dropout_p, enable_gqa):
            return _cudnn(query, key, value, attn_mask, dropout_p, is_causal, scale)
        if takes_flash(query, key, value, attn_mask, is_causal, enable_gqa):
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if takes_efficient(query, key, value, enable_gqa):
            # a mask that is made here dies once it is padded, as in C++ (recording dpo_fp32)
            attn_mask = _padded_mask(attn_mask, query, key)
            return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
        return _math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    def is_fused(x: torch.Tensor) -> bool:
        if prefers_cudnn and takes_cudnn(x, x, x, None, 0.0, False):
            return True
        return takes_flash(x, x, x, None, False, False) or takes_efficient(x, x, x, False)

    try:
        for key in ("AutogradCUDA", "CUDA"):
            library.impl("scaled_dot_product_attention", attention, key)
        FastPaths(attention, is_fused).implement(library)
        with decomposed_by("scaled_dot_product_attention", attention), replaced(_of_jagged(gpu)):
            yield
    finally:
        library._destroy()


def _of_jagged(gpu: Gpu) -> Iterator[Replacement]:
    """Answer the questions about the card that torch/nested/_internal/sdpa.py asks.

    Of `can_use_flash_attention` and `can_use_efficient_attention` only the checks of card and dtype
    are left; `_select_sdp_backend` checks the shapes itself.
    """

    def flash(params: Any, debug: bool = False) -> bool:
        is_new = gpu.compute_capability >= (8, 0)
        return torch.backends.cuda.flash_sdp_enabled() and is_new and params.query.dtype in _HALF

    def efficient(params: Any, debug: bool = False) -> bool:
        is_on = torch.backends.cuda.mem_efficient_sdp_enabled()
        return is_on and params.query.dtype in _efficient_dtypes(gpu)

    yield sdpa, "can_use_flash_attention", flash
    yield sdpa, "can_use_efficient_attention", efficient


def _prefers_cudnn(gpu: Gpu, torch_release: tuple[int, int]) -> bool:
    """`priority_order`: cuDNN comes first on Hopper and data-centre Blackwell.

    2.9 requires cuDNN 9.9, and 2.10 one newer than 9.15 (its wheel ships 9.10); 2.13 accepts any
    minor version of both architectures (docs/sources.md, "Attention", read in the wheels).
    """
    major, minor = gpu.compute_capability
    if torch_release < (2, 9) or torch_release == (2, 10):
        return False
    return major in (9, 10) and (not minor or torch_release >= (2, 13))


def _takes_cudnn(
    gpu: Gpu,
    torch_release: tuple[int, int],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    enable_gqa: bool,
) -> bool:
    """`can_use_cudnn_attention`: half precision, head sizes a multiple of 8, at most 128 or 256.

    256 is Hopper's. From 2.12 on dropout must be a multiple of 1/16: those wheels contain the
    message, 2.11's does not. cuDNN takes no mask that requires a gradient (`check_attn_mask_shape`;
    recorded on an H100) and no heads with gaps in memory (`check_last_dim_stride_equals_1_dense`;
    unet_bf16).
    """
    largest = 256 if gpu.compute_capability == (9, 0) else 128
    head_dims = (query.shape[-1], key.shape[-1], value.shape[-1])
    batch, heads, length = query.shape[:3] if query.dim() == 4 else (0, 0, 0)
    return (
        torch.backends.cuda.cudnn_sdp_enabled()
        and query.dtype in _HALF
        and query.dim() == 4
        and all(size <= largest and size % 8 == 0 for size in head_dims)
        and key.shape[-2] != 1
        and not (length == 1 and dropout_p > 0)
        and (torch_release < (2, 12) or dropout_p * 16 == int(dropout_p * 16))
        and not (mask is not None and mask.requires_grad)
        and max(batch, heads) <= _CUDNN_MAX_GRID
        and (enable_gqa or _heads_fit(torch_release, query, key, value, False))
        and (_strides_end_in_one(query, key, value) or query.shape[-1] == 1)
    )


def _takes_flash(
    gpu: Gpu,
    torch_release: Release,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    enable_gqa: bool,
) -> bool:
    """`use_flash_attention`: half precision, no mask, equal head sizes up to 256, sm80 or newer."""
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and gpu.compute_capability >= (8, 0)
        and mask is None
        and query.dtype in _HALF
        and query.dim() == 4
        and _heads_fit(torch_release, query, key, value, enable_gqa)
        and query.shape[-1] == key.shape[-1] == value.shape[-1] <= _FLASH_MAX_HEAD_DIM
        and (not is_causal or query.shape[-2] == key.shape[-2])
        and _strides_end_in_one(query, key, value)
    )


def _takes_efficient(
    gpu: Gpu,
    torch_release: Release,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    enable_gqa: bool,
) -> bool:
    """`can_use_mem_efficient_attention`: aligned head sizes, fitting heads, bf16 from sm80.

    Shared keys also need the installed release's meta kernel of their gradients.
    """
    release = min(torch_release, installed_release())
    alignment = 8 if query.dtype in _HALF else 4
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and query.dtype in _efficient_dtypes(gpu)
        and query.dim() == 4
        and (EFFICIENT_ATTENTION_SHARES_KEYS.holds_in(release) or not enable_gqa)
        and _heads_fit(release, query, key, value, enable_gqa)
        and query.shape[-1] % alignment == 0
        and value.shape[-1] % alignment == 0
        and _strides_end_in_one(query, key, value)
    )


def _heads_fit(
    torch_release: Release,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    enable_gqa: bool,
) -> bool:
    """`check_batch_size_and_num_heads_dense`: heads of queries share keys only with `enable_gqa`.

    From 2.14 on a single head of keys and values may be shared without it.
    """
    heads, shared = query.shape[1], key.shape[1]
    may_be_single = EFFICIENT_ATTENTION_SHARES_KEYS.holds_in(torch_release)
    shares = heads % shared == 0 if enable_gqa else may_be_single and shared == 1
    same_batch = query.shape[0] == key.shape[0] == value.shape[0]
    return same_batch and shared == value.shape[1] and (heads == shared or shares)


def _efficient_dtypes(gpu: Gpu) -> tuple[torch.dtype, ...]:
    has_bf16 = gpu.compute_capability >= (8, 0)
    return (torch.float16, torch.float32, *([torch.bfloat16] if has_bf16 else []))


def _strides_end_in_one(*tensors: torch.Tensor) -> bool:
    return all(tensor.stride(-1) == 1 for tensor in tensors)


def _math(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    return _first(
        aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    )


def _cudnn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    needs_grad = _needs_grad(query, key, value)
    return _first(
        aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, needs_grad, dropout_p, is_causal, False, scale=scale
        )
    )


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """Pad head sizes to a multiple of 8 and slice, as `scaled_dot_product_attention` does."""
    head_dim = query.shape[-1]
    scale = head_dim**-0.5 if scale is None else scale
    padding = -head_dim % _FLASH_DIM_MULTIPLE
    if padding:
        query, key, value = (
            torch.nn.functional.pad(tensor, (0, padding)) for tensor in (query, key, value)
        )
    output = _first(
        aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )
    )
    return output[..., :head_dim] if padding else output


def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    needs_grad = _needs_grad(query, key, value)
    output: torch.Tensor = aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, needs_grad, dropout_p, is_causal, scale=scale
    )[0]
    return output


def _first(results: tuple[Any, ...]) -> torch.Tensor:
    """Return the output, and free the rest first to last, as a tuple does in C++."""
    output: torch.Tensor
    output, *others = results
    del results  # since Python 3.14 a function frees its last variable first
    others.reverse()  # Python frees a list's last item first
    return output


def _needs_grad(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _as_additive(
    torch_release: tuple[int, int], mask: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor | None:
    """`convert_boolean_attn_mask` (aten/src/ATen/native/transformers/attention.cpp).

    It was changed for 2.5 (pytorch#130281) and for 2.6 (pytorch#139784).
    """
    if mask is None or mask.dtype != torch.bool:
        return mask
    hidden = float("-inf")
    if torch_release >= (2, 6):
        return torch.where(mask, 0.0, torch.scalar_tensor(hidden, dtype=dtype, device=mask.device))
    if torch_release == (2, 5):
        shown = torch.scalar_tensor(0.0, dtype=dtype, device=mask.device)
        return torch.where(mask.logical_not(), hidden, shown)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), hidden)


def _padded_mask(
    mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor | None:
    """`preprocess_mask`: pad the last size to a multiple of 8, and expand to every head.

    aten/src/ATen/native/transformers/attention.cpp
    """
    if mask is None:
        return None
    last = mask.shape[-1]
    if padding := -last % _MASK_ALIGNMENT:
        mask = torch.nn.functional.pad(mask, (0, padding))[..., :last]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def as_returned(
    fake_mode: FakeTensorMode, func: Any, args: tuple[Any, ...], result: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Correct a fused operator's meta results to what a card returns."""
    if func is aten._scaled_dot_product_cudnn_attention.default:
        output, logsumexp, *others = result
        return (output, logsumexp if args[4] else logsumexp.new_empty(0), *others)
    if torch.cuda.is_current_stream_capturing():
        return result
    return tuple(_drawn_on_host(fake_mode, each) for each in result)


def efficient_gradients(
    fake_mode: FakeTensorMode, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Return the results of `_efficient_attention_backward` (cuda/attention_backward.cu).

    PyTorch's meta kernel lacks the parameter `out`, so that a `scale` collides with the parameter
    after it, and gives gradients the strides of the arguments. It is used only where a bias
    requires a gradient or the gradients share storage.
    """
    func = aten._efficient_attention_backward.default
    if args[_BIAS_TRAINS] or kwargs.get("shared_storage_dqdkdv"):
        returned: Any = fake_mode.dispatch(func, (), args, kwargs)
        return tuple(returned)
    empty = aten.new_empty.default
    return (*(fake_mode.dispatch(empty, (), (each, each.shape), {}) for each in args[1:4]), None)


def _drawn_on_host(fake_mode: FakeTensorMode, result: Any) -> Any:
    """Move the seed or the offset of dropout to the CPU (cuda/attention.cu)."""
    if not isinstance(result, FakeTensor) or (result.dtype, result.dim()) != (torch.int64, 0):
        return result
    with torch._C._DisableTorchDispatch():
        memory = constructors.empty(result.shape, dtype=result.dtype, device="meta")
    return FakeTensor(fake_mode, memory, torch.device("cpu"))
