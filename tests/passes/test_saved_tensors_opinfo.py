"""An independent suite: PyTorch's own samples for its operators (`op_db`).

For every operator that supports autograd, what the pass `saved_tensors` reports for a sample
equals what the real autograd graph holds on the CPU: nodes, fields, shapes, dtypes, and which
tensors share a storage. docs/passes.md says how many were compared, and names the exclusions.

`make test` compares every fourth operator, `make test-all` every one.
GRAPHMEM_OPINFO_SAMPLES sets how many samples of each operator are compared, or "all".
"""

from __future__ import annotations

import os
import warnings
from itertools import islice
from typing import Any

import pytest
import torch

from graphmem.errors import InputError
from tests.support.saved_by_autograd import held_by_autograd, loss_of, reported

pytest.importorskip("expecttest")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

_ASKED = os.environ.get("GRAPHMEM_OPINFO_SAMPLES", "1")
SAMPLES = None if _ASKED == "all" else int(_ASKED)

_DATA = "PyTorch's meta kernel, or its own code, reads the data of an input"
_NO_META = "PyTorch has no meta kernel for it or for its derivative"
_SPARSE = "its inputs are sparse: they have no strides to copy"
EXCLUDED = {
    "combinations": _DATA,
    "cov": f"{_DATA} (with weights)",
    "index_fill": f"{_DATA} (with a tensor as the value)",
    "istft": _DATA,
    "linalg_lstsq": _DATA,
    "linalg_lstsq_grad_oriented": _DATA,
    "masked_select": _DATA,
    "nn_functional_fractional_max_pool3d": _NO_META,
    "nn_functional_gaussian_nll_loss": _DATA,
    "nn_functional_multi_margin_loss": _NO_META,
    "nn_functional_multilabel_margin_loss": _NO_META,
    "repeat_interleave": f"{_DATA} (with a tensor of repeats)",
    "sparse_mm_reduce": _SPARSE,
    "sparse_sampled_addmm": _SPARSE,
    "tensor_split": f"{_DATA} (with a tensor of indices)",
    "to_sparse": _NO_META,
}
"""Operators with samples that cannot be traced; the other samples are compared."""

OTHERWISE = {
    # docs/exactness.md: traced for the CPU, `ctc_loss` keeps lengths that are tensors as tensors
    # (`areAnyTensorSubclassLike`, native/LossCTC.cpp); on a card they are lists, as in a run.
    "nn_functional_ctc_loss",
}
"""Operators that only a trace for the CPU, not for a card, differentiates by another node."""


def dtype_of(operator: Any) -> torch.dtype | None:
    """float32, else the first dtype with gradients on the CPU."""
    supported = operator.supported_backward_dtypes("cpu")
    wanted = (torch.float32, torch.float64, torch.complex64)
    return next((dtype for dtype in wanted if dtype in supported), None)


OPERATORS = [
    each
    for each in op_db
    if each.supports_autograd
    and dtype_of(each) is not None
    and each.formatted_name not in OTHERWISE
]


def samples_of(operator: Any) -> list[Any]:
    torch.manual_seed(0)
    # `sample_inputs` itself searches the stack for the test, which takes longer than the test.
    samples = operator.sample_inputs_func(operator, "cpu", dtype_of(operator), requires_grad=True)
    return list(islice(samples, SAMPLES))


CASES = [
    pytest.param(each, marks=pytest.mark.slow if i % 4 else [], id=str(each.formatted_name))
    for i, each in enumerate(OPERATORS)
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("operator", CASES)
def test_reported_tensors_are_those_autograd_holds(operator: Any) -> None:
    for sample in samples_of(operator):
        try:
            loss = loss_of(operator, sample)
        except LookupError:  # no result of this sample has a gradient
            continue
        try:
            found = reported(operator, sample)
        except (InputError, RuntimeError):
            if operator.formatted_name in EXCLUDED:
                continue
            raise

        assert sorted(held_by_autograd(loss), key=str) == sorted(found, key=str)
