"""Copies between the host and the card that cannot be one transfer.

aten/src/ATen/native/cuda/Copy.cu, `copy_requires_temporaries` and `copy_kernel_cuda`:
(1) Two tensors with the same dtype and layout, without gaps, are one transfer.
(2) Otherwise the side on the card is made contiguous first (or is filled from a contiguous one
    afterwards). Types are converted on the host, or on the card if the copy is non-blocking.
In fixtures/cuda/scripts, offload_save_pin shows copies of transposed tensors into pinned memory,
and parameter_golf non-blocking copies of 16-bit tokens that become 64 bits wide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from graphmem.graph import TensorOut
from graphmem.kernel_program import Free, Scratch, Step, Take
from graphmem.tensor_iterator import is_dense

from .call import Call, Rule, during
from .layout import is_contiguous, item_bytes, numel


def _into(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    yield from _transfer(call, call.tensor("self"), call.tensor("src"))


def _to(call: Call) -> Iterator[Step]:
    """`_to_copy` (native/TensorConversions.cpp) makes its result and copies into it.

    Without a device it stays where it is. A result in `preserve_format` has the strides of a dense
    source. Both hold whatever was assigned to the source's `data` since the graph described it, as
    `Module.to(memory_format=...)` and moving a module do (recording resnet18_last_bf16).
    """
    yield from call.outputs()
    device = call.value("device")
    if device is None or torch.device(device).type == "meta":  # which has no data to transfer
        return
    source = call.tensor("self")
    keeps = call.value("memory_format") in (None, torch.preserve_format)
    for result in call.op.outputs:
        is_alike = keeps and is_dense(source.shape, source.stride)
        if not is_alike or source.dtype != result.dtype:
            yield from _transfer(call, result, source)


def _transfer(call: Call, target: TensorOut, source: TensorOut) -> Iterator[Step]:
    crosses = (target.storage is None) is not (source.storage is None)
    if not crosses or not numel(target) or not numel(source) or _is_one_run(target, source):
        return
    on_card = bool(call.value("non_blocking")) and target.dtype != source.dtype
    if target.storage is None:
        yield from _to_host(target, source, converts=on_card)
    elif on_card or not is_contiguous(target):
        dtype = source.dtype if on_card else target.dtype
        yield from during([Scratch("what came over", numel(target) * item_bytes(dtype))])


def _to_host(target: TensorOut, source: TensorOut, *, converts: bool) -> Iterator[Step]:
    converted = Scratch("converted", numel(source) * item_bytes(target.dtype))
    is_copied = not is_contiguous(source) or source.shape != target.shape
    if converts:
        yield Take(converted)
    if is_copied:
        dtype = target.dtype if converts else source.dtype
        whole = Scratch("contiguous copy", numel(target) * item_bytes(dtype))
        yield Take(whole)
        if converts:
            yield Free(converted)
        yield Free(whole)
    elif converts:
        yield Free(converted)


def _is_one_run(target: TensorOut, source: TensorOut) -> bool:
    """`TensorIterator::is_contiguous` of two operands of one dtype."""
    if target.dtype != source.dtype or target.shape != source.shape:
        return False
    dims = zip(target.shape, target.stride, source.stride, strict=True)
    is_alike = all(size == 1 or one == other for size, one, other in dims)
    return is_alike and is_dense(source.shape, source.stride)


RULES: Mapping[str, Rule] = {"aten.copy_": _into, "aten._to_copy": _to}
"""The rules, by operator."""
