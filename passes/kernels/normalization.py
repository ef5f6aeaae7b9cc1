"""Layer, RMS and group norm.

(1) Non-contiguous inputs are copied first, but the incoming gradient of layer norm after the
outputs are allocated (aten/src/ATen/native/cuda/layer_norm_kernel.cu, group_norm_kernel.cu,
native/group_norm.cpp).
(2) The weight's gradient over many short rows is summed in two steps: partial sums, then a column
sum of them into new results, which replace those allocated first
(`ConfigureAndLaunchGammaBetaBackwardKernel`; pytorch PR #148605, torch 2.8).
(3) Group norm also allocates per-channel factors in both passes; the rows of Liger
(docs/sources.md, "Norms") show all five of the backward pass at its peak.
(4) A channels-last tensor has kernels of its own since torch 2.15: they always use the factors of
the forward pass, and never those of the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from graphmem.graph import TensorOut
from graphmem.kernel_program import Free, Output, Scratch, Step, Take
from graphmem.torch_releases.differences import (
    GROUP_NORM_KEEPS_STATISTICS_TWICE,
    GROUP_NORM_TAKES_CHANNELS_LAST,
    ONE_POSITION_HAS_NO_SUMS,
    PARTIAL_SUMS_OF_NORMS,
)

from .call import Call, Rule, during
from .layout import (
    accumulate_bytes,
    is_contiguous,
    is_half,
    is_laid_out,
    item_bytes,
    suggests_channels_last,
)
from .reduction import contiguous_copy, reduced

_PARTIAL_SUMS_ABOVE_ROWS = 65_536
_BLOCK_COLUMNS = 32
_BLOCK_ROWS = 32
_LARGEST_GRID = 32_768


def _layer_norm(call: Call) -> Iterator[Step]:
    copies = _copies(call, ("input", "weight"))
    yield from during(copies, call.outputs())


def _layer_norm_backward(call: Call) -> Iterator[Step]:
    tensor = call.tensor("input")
    columns = math.prod(call.value("normalized_shape"))
    rows = math.prod(tensor.shape) // max(1, columns)
    yield from during(_copies(call, ("input", "weight")), _gradients(call, rows, columns))


def _gradients(call: Call, rows: int, columns: int) -> Iterator[Step]:
    """The gradients in order; those of weight and bias by clause (2) if it applies."""
    first = int(bool(call.value("output_mask")[0]))
    births = len(call.op.births)
    copies = _copies(call, ("grad_out",))
    if rows and births > first and _has_partial_sums(call, rows, columns):
        yield from map(Output, range(first))
        yield from _in_two_steps(call, range(first, births), rows, columns, copies)
    else:
        yield from call.outputs()
        yield from during(copies)


def _has_partial_sums(call: Call, rows: int, columns: int) -> bool:
    gpu = call.runtime.gpu
    return (
        PARTIAL_SUMS_OF_NORMS.holds_in(call.runtime.release)
        and rows > _PARTIAL_SUMS_ABOVE_ROWS
        and columns // _BLOCK_COLUMNS < gpu.multiprocessors // 2
    )


def _in_two_steps(
    call: Call, births: range, rows: int, columns: int, copies: list[Scratch]
) -> Iterator[Step]:
    grid = -(-columns // _BLOCK_COLUMNS)
    blocks = min(_LARGEST_GRID // grid, -(-rows // _BLOCK_ROWS))
    dtype = call.op.outputs[-1].dtype
    size = item_bytes(dtype)
    dropped = [Scratch("gradient that is replaced", columns * size) for _ in births]
    partial_sums = [Scratch("partial sums of rows", blocks * columns * size) for _ in births]
    summed = TensorOut((blocks, columns), dtype, None, (columns, 1))
    yield from map(Take, (*dropped, *copies, *partial_sums))
    for birth, replaced in zip(births, dropped, strict=True):
        yield Output(birth)
        yield from reduced(call, summed, [0])
        yield Free(replaced)
    yield from map(Free, reversed((*copies, *partial_sums)))


def _group_norm(call: Call) -> Iterator[Step]:
    """Clause (3): factors and offsets of each channel if there is a weight or a bias."""
    has_affine = call.value("weight") is not None or call.value("bias") is not None
    held: list[Scratch] = []
    if _keeps_statistics_twice(call):
        per_group = _groups(call) * _accumulator(call)
        held = [Scratch(f"groups' {what} in float32", per_group) for what in ("mean", "rstd")]
    if (has_affine and call.value("HxW") > 1) or _in_channels_last(call):
        per_channel = _channels(call) * _accumulator(call)
        held += [Scratch(f"channels' {what}", per_channel) for what in ("factors", "offsets")]
    yield from during(_group_norm_copies(call, ("input",)), (*call.outputs(), *during(held)))


def _group_norm_backward(call: Call) -> Iterator[Step]:
    """Clause (3); the channels' factors are declared first, and so are freed last."""
    size = _accumulator(call)
    per_channel, per_group = _channels(call) * size, _groups(call) * size
    by_channel = _in_channels_last(call)
    sums: list[Scratch] = []
    returns_early = ONE_POSITION_HAS_NO_SUMS.holds_in(call.runtime.release)
    if call.value("HxW") > 1 or by_channel or not returns_early:
        sums = [Scratch(f"channels' sums of {what}", per_channel) for what in ("x * dy", "dy")]
    groups: list[Scratch] = []
    channels: list[Scratch] = []
    if call.value("output_mask")[0]:
        groups = [Scratch("groups' factors", per_group), Scratch("groups' offsets", per_group)]
    has_weight = call.value("weight") is not None
    if groups and has_weight and call.value("HxW") > 1 and not by_channel:
        channels = [Scratch("channels' factors", per_channel)]
    frees = map(Free, (*reversed(groups), *channels))
    steps = (*call.outputs(), *during(sums, (*map(Take, groups + channels), *frees)))
    yield from during(_group_norm_copies(call, ("grad_out", "input")), steps)


def _keeps_statistics_twice(call: Call) -> bool:
    release = call.runtime.release
    in_half = is_half(call.tensor("input").dtype)
    return in_half and GROUP_NORM_KEEPS_STATISTICS_TWICE.holds_in(release)


def _takes_channels_last(call: Call) -> bool:
    return GROUP_NORM_TAKES_CHANNELS_LAST.holds_in(call.runtime.release)


def _in_channels_last(call: Call) -> bool:
    """Clause (4); a contiguous tensor of one channel or one position is channels-last as well."""
    tensor = call.tensor("input")
    if not _takes_channels_last(call) or len(tensor.shape) not in (4, 5):
        return False
    return suggests_channels_last(tensor) or 1 in (tensor.shape[1], call.value("HxW"))


def _group_norm_copies(call: Call, names: tuple[str, ...]) -> list[Scratch]:
    channels_last = _takes_channels_last(call) and suggests_channels_last(call.tensor("input"))
    return [
        contiguous_copy(call.tensor(name), name)
        for name in names
        if not is_laid_out(call.tensor(name), channels_last=channels_last)
    ]


def _groups(call: Call) -> int:
    count: int = call.value("N") * call.value("group")
    return count


def _channels(call: Call) -> int:
    count: int = call.value("N") * call.value("C")
    return count


def _accumulator(call: Call) -> int:
    return accumulate_bytes(call.tensor("input").dtype)


def _copies(call: Call, names: tuple[str, ...]) -> list[Scratch]:
    """Clause (1)."""
    tensors = [(name, call.optional(name)) for name in names]
    return [
        contiguous_copy(tensor, name)
        for name, tensor in tensors
        if tensor is not None and not is_contiguous(tensor)
    ]


RULES: Mapping[str, Rule] = {
    "aten.native_layer_norm": _layer_norm,
    "aten.native_layer_norm_backward": _layer_norm_backward,
    "aten._fused_rms_norm": _layer_norm,
    "aten._fused_rms_norm_backward": _layer_norm_backward,
    "aten.native_group_norm": _group_norm,
    "aten.native_group_norm_backward": _group_norm_backward,
}
