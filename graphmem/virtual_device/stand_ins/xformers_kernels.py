"""Which of PyTorch's attention kernels xformers takes, and its errors (xformers 0.0.35, ops/fmha/).

(1) Operands that do not fit together are a ValueError (`Inputs.validate_inputs`, common.py).
(2) The first kernel with nothing against it is taken, FlashAttention before the memory-efficient
    one (`_dispatch_fw_priority_list` and `_run_priority_list`, dispatch.py). Without any, what is
    against each is the error.
(3) What may be against one: `not_supported_reasons` of `AttentionOpBase` (common.py) and of
    `FwOp` in flash.py and cutlass.py. The backward pass has a kernel of the same kind: its reasons
    are those, and in the memory-efficient one the alignment of keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from graphmem.virtual_device.stand_ins.xformers_masks import (
    BlockDiagonalCausalMask,
    BlockDiagonalMask,
    LowerTriangularMask,
)

_MASKS: set[type] = {type(None), LowerTriangularMask, BlockDiagonalMask, BlockDiagonalCausalMask}
_HINT = (
    "HINT: To use an `attn_bias` with a sequence length that is not a multiple of 8, you need to "
    "ensure memory is aligned by slicing a bigger tensor. Example: use `attn_bias = "
    "torch.zeros([1, 1, 5, 8])[:,:,:,:5]` instead of `torch.zeros([1, 1, 5, 5])`"
)


@dataclass(frozen=True)
class AttentionKernel:
    """What an operator's class says of it."""

    name: str
    oldest: tuple[int, int]
    newest: tuple[int, int] | None
    dtypes: tuple[torch.dtype, ...]
    widest: int
    biases: frozenset[type]


FLASH = AttentionKernel("fa2{}", (8, 0), None, (torch.half, torch.bfloat16), 256, frozenset(_MASKS))
EFFICIENT = AttentionKernel(
    *("cutlass{}-pt", (5, 0), (9, 0), (torch.float, torch.half, torch.bfloat16), 65536),
    biases=frozenset({*_MASKS, torch.Tensor}),
)


def taken(q: Any, k: Any, v: Any, bias: Any, p: float, trains: bool) -> AttentionKernel:
    """Clause (2).

    Raises:
        ValueError: the operands do not fit together.
        NotImplementedError: no kernel takes them.
    """
    _validate(q, k, v, bias)
    against = {kernel: list(_against(kernel, q, k, v, bias)) for kernel in (FLASH, EFFICIENT)}
    found = next((kernel for kernel, reasons in against.items() if not reasons), None)
    if found is None:
        raise _no_operator("forward", (q, k, v, bias, p), against)
    if trains and found is EFFICIENT and not p:  # with dropout it is taken without a look
        against[EFFICIENT] = list(_misaligned("key", k, _alignment(q)))
        if against[EFFICIENT]:
            raise _no_operator("backward", (q, k, v, bias, p), against)
    return found


def _no_operator(
    which: str, given: tuple[Any, ...], against: dict[AttentionKernel, list[str]]
) -> NotImplementedError:
    q, k, v, bias, p = given
    lines = [
        f"No operator found for `memory_efficient_attention_{which}` with inputs:",
        f"     query       : shape={tuple(q.shape)} ({q.dtype})",
        f"     key         : shape={tuple(k.shape)} ({k.dtype})",
        f"     value       : shape={tuple(v.shape)} ({v.dtype})",
        f"     attn_bias   : {_type(bias)}",
        f"     p           : {p}",
    ]
    for kernel, reasons in against.items():
        name = kernel.name.format(which[0].upper())
        lines.append(f"`{name}` is not supported because:")
        lines.extend(f"    {reason}" for reason in reasons)
    return NotImplementedError("\n".join(lines))


def _against(kernel: AttentionKernel, q: Any, k: Any, v: Any, bias: Any) -> Iterator[str]:
    """Clause (3)."""
    width, of_values = q.shape[-1], v.shape[-1]
    if kernel is FLASH and width != of_values:
        yield "query.shape[-1] != value.shape[-1]"
    if max(width, of_values) > kernel.widest:
        yield f"max(query.shape[-1], value.shape[-1]) > {kernel.widest}"
    yield from _against_card(kernel, q)
    if q.dtype not in kernel.dtypes:
        yield f"dtype={q.dtype} (supported: {set(kernel.dtypes)})"
    if _type(bias) not in kernel.biases:
        yield f"attn_bias type is {_type(bias)}"
    if q.dtype is torch.bfloat16 and torch.cuda.get_device_capability(q.device) < (8, 0):
        yield "bf16 is only supported on A100+ GPUs"
    yield from _misaligned("query", q, 8 if kernel is FLASH else _alignment(q))
    if kernel is FLASH:
        yield from _not_square(q, k, bias)
        return
    yield from _misaligned("value", v, _alignment(q))
    if isinstance(bias, torch.Tensor):
        yield from _misaligned_bias(bias)


def _against_card(kernel: AttentionKernel, q: Any) -> Iterator[str]:
    card = torch.cuda.get_device_capability(q.device)
    required, found = "requires device with capability", f"but your GPU has capability {card}"
    if card < kernel.oldest:
        yield f"{required} >= {kernel.oldest} {found} (too old)"
    elif kernel.newest is not None and card > kernel.newest:
        yield f"{required} <= {kernel.newest} {found} (too new)"


def _type(bias: Any) -> type:
    return torch.Tensor if isinstance(bias, torch.Tensor) else type(bias)


def _alignment(q: Any) -> int:
    """`_minimum_gemm_alignment`."""
    card, is_half = torch.cuda.get_device_capability(q.device), q.element_size() == 2
    if card >= (8, 0) or (card >= (7, 0) and is_half):
        return 8 if is_half else 4
    return 1


def _misaligned(name: str, tensor: Any, alignment: int) -> Iterator[str]:
    """`check_lastdim_alignment_stride1`."""
    stride = tensor.stride()
    if tensor.shape[-1] % alignment:
        yield f"{name}.shape[-1] % {alignment} != 0"
    elif stride[-2] % alignment:
        yield f"{name}.stride(-2) % {alignment} != 0 ({name}.stride() = {stride})"
    if stride[-1] > 1:
        advice = "you should call `.contiguous()` on the input"
        yield f"{name}.stride(-1) > 1 ({name}.stride() = {stride}) - {advice}"


def _misaligned_bias(bias: Any) -> Iterator[str]:
    """`_check_bias_alignment`: each row begins at a multiple of 16 bytes."""
    alignment, stride = 128 // torch.finfo(bias.dtype).bits, bias.stride()
    misaligned = [each for each in stride[:-1] if each % alignment]
    for _ in misaligned:
        yield f"attn_bias.stride(-2) % {alignment} != 0 (attn_bias.stride() = {stride})"
    if misaligned:
        yield _HINT
    if stride[-1] > 1:
        advice = "you should call `.contiguous()` on the bias"
        yield f"attn_bias.stride(-1) > 1 (attn_bias.stride() = {stride}) - {advice}"


def _not_square(q: Any, k: Any, bias: Any) -> Iterator[str]:
    """`_check_needs_no_topleft`: a causal mask needs as many keys as queries."""
    if isinstance(bias, BlockDiagonalCausalMask):
        if bias.q_seqinfo.seqstart_py != bias.k_seqinfo.seqstart_py:
            yield "Only support BlockDiagonalCausalMask if equal numbers of keys and queries"
    elif isinstance(bias, LowerTriangularMask) and q.shape[1] != k.shape[1]:
        yield "Only support LowerTriangularMask if equal number ofkeys and queries"


def _validate(q: Any, k: Any, v: Any, bias: Any) -> None:
    """Clause (1), of four dimensions."""
    shapes = f"\n  query.shape: {q.shape}\n  key.shape  : {k.shape}\n  value.shape: {v.shape}"
    if k.dtype != q.dtype or v.dtype != q.dtype:
        raise ValueError(
            "Query/Key/Value should either all have the same dtype, or "
            "(in the quantized case) Key/Value should have dtype torch.int32"
        )
    expected = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    if isinstance(bias, torch.Tensor) and bias.shape != expected:
        message = f"Invalid shape for attention bias: {bias.shape} (expected {expected})"
        raise ValueError(message + shapes)
    if isinstance(bias, BlockDiagonalMask) and any(each.shape[0] != 1 for each in (q, k, v)):
        raise ValueError(f"Expected batch_size=1 when using block-diagonal bias{shapes}")
    of_keys = (q.shape[0], k.shape[1], *q.shape[2:])
    if k.shape != of_keys or v.shape[:-1] != of_keys[:-1]:
        raise ValueError(f"Incompatible shapes for attention inputs:{shapes}")
