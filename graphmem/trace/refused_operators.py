"""The error for an operator that cannot be followed."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from graphmem.errors import InputError
from graphmem.graph import Source
from graphmem.trace.messages import (
    DataDependentShapeError,
    DataDependentValueError,
    NestedTensorError,
    NoMetaKernelError,
    SparseOperatorError,
)
from graphmem.trace.operands import tensors_of

EXPLAINED = (
    UnsupportedOperatorException,
    DynamicOutputShapeException,
    DataDependentOutputException,
)
"""The exceptions that fake tensors raise for unsupported operations."""


def explain(
    error: Exception, func: Any, args: tuple[Any, ...], source: Source | None
) -> InputError:
    """Explain which operator cannot be followed, at which line, and what to do."""
    where = at(source)
    if has_sparse(args):
        return SparseOperatorError(func, where)
    if "nested_tensor" in func._schema.name:
        return NestedTensorError(where)
    if isinstance(error, UnsupportedOperatorException):
        return NoMetaKernelError(func, where)
    if isinstance(error, DynamicOutputShapeException):
        return DataDependentShapeError(func, where)
    return DataDependentValueError(func, where)


def has_sparse(args: tuple[Any, ...]) -> bool:
    """Whether an operand is not strided."""
    return any(tensor.layout is not torch.strided for tensor in tensors_of(args))


def lacks_sparse_kernel(error: RuntimeError, args: tuple[Any, ...]) -> bool:
    """Whether an operation has no kernel for fake sparse tensors.

    A CUDA build then calls the card's kernel, which needs a driver (c10/cuda/CUDAFunctions.cpp,
    `device_count_ensure_non_zero`).
    """
    is_missing = isinstance(error, NotImplementedError) or "NVIDIA driver" in str(error)
    return is_missing and has_sparse(args)


def at(source: Source | None) -> str:
    """A source line as the end of a sentence."""
    return "" if source is None else f" at {source.in_words}"
