"""Memory that deterministic algorithms fill where others leave it as it was found.

aten/src/ATen/native/Resize.h, `fill_resize_deterministic_`: a tensor that grows is filled through a
view, which begins as a tensor of one element and then takes over the storage. Results that `empty`
makes are filled in place. Which kernels make an empty result and resize it was seen with torch
2.13.0 on a pretended card (docs/exactness.md), with all operators of PyTorch's own database.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphmem.kernel_program import Output, Program, Scratch, Step
from graphmem.op_states import Determinism

from .call import Call, during
from .layout import item_bytes

_RESIZED = frozenset(
    f"aten.{name}"
    for name in (
        *("abs", "arange", "bucketize", "complex", "polar", "where", "index_select", "embedding"),
        *("logical_and", "logical_not", "logical_or", "logical_xor", "searchsorted", "nonzero"),
        *("std", "std_mean", "var", "var_mean", "kthvalue", "mode", "multinomial", "addbmm"),
        *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_pdist_forward", "soft_margin_loss"),
        *("glu_backward", "mish_backward", "_prelu_kernel_backward", "_scaled_mm"),
        "logsumexp",
    )
)
"""Operators whose results are resized; of several, all."""


def fill(call: Call, dtype: str) -> list[Step]:
    """The element with which filling begins, if memory is filled."""
    if call.op.determinism is not Determinism.FILLED:
        return []
    return [*during([Scratch("an element, to fill memory", item_bytes(dtype))])]


def filled(call: Call, program: Program) -> Program:
    """The program of an operation, with the filling of its results."""
    if call.name not in _RESIZED or call.op.determinism is not Determinism.FILLED:
        return program
    return tuple(_with_fills(call, program))


def _with_fills(call: Call, program: Program) -> Iterator[Step]:
    dtypes = {out.storage: out.dtype for out in call.op.outputs}
    for step in program:
        yield step
        if isinstance(step, Output):
            yield from fill(call, dtypes[call.op.births[step.birth]])
