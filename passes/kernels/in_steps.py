"""Operators that CUDA computes by calls of other operators, whose results are scratch.

  (1) `roll` over several dimensions rolls one after the other (aten/src/ATen/native/
      TensorTransformations.h, `roll_common`; recording timm_swin_tiny_fp32_mixup).
  (2) `isin` with few test elements compares all pairs (aten/src/ATen/native/TensorCompare.cpp,
      `isin_Tensor_Tensor_out`, and cuda/TensorCompare.cpp, `isin_default_kernel_gpu`; recording
      grpo_lora).

Not covered: `isin` with many test elements, which sorts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphmem.kernel_program import Free, Scratch, Step, Take

from .call import Call, Rule, during
from .layout import nbytes, numel
from .reduction import contiguous_copies

_PAIRWISE_FACTOR, _PAIRWISE_POWER = 10.0, 0.145


def _roll(call: Call) -> Iterator[Step]:
    """Clause (1)."""
    tensor, dims = call.tensor("self"), call.value("dims") or ()
    copies = contiguous_copies(tensor)
    if len(dims) < 2 or not numel(tensor):
        yield from during(copies if numel(tensor) else (), call.outputs())
        return
    first, *others = (Scratch("rolled so far", nbytes(tensor)) for _ in dims[1:])
    yield from during(copies, [Take(first)])
    yield from during(others, call.outputs())
    yield Free(first)


def _isin(call: Call) -> Iterator[Step]:
    """Clause (2)."""
    yield from call.outputs()
    elements, tests = numel(call.tensor("elements")), numel(call.tensor("test_elements"))
    if tests < _PAIRWISE_FACTOR * elements**_PAIRWISE_POWER:
        pairs = Scratch("comparison of all pairs", elements * tests)
        yield from during([pairs, Scratch("whether any is equal", elements)])


RULES: Mapping[str, Rule] = {"aten.roll": _roll, "aten.isin": _isin}
