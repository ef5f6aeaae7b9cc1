"""The results of `_foreach_sqrt` and its like, which PyTorch's cache of fake results leaves out.

That has no lists (`_validate_output_for_cache_entry`, torch/_subclasses/fake_tensor.py), so that
each step of an optimizer would compute hundreds of results one by one, for a tenth of a millisecond
each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch._subclasses.fake_tensor import FakeTensor, extract_tensor_metadata
from torch.utils._pytree import tree_leaves


class _Result(NamedTuple):
    """One of the results, as PyTorch's cache describes it."""

    metadata: Any
    inplace_idx: None = None
    view_idx: None = None


def listed(func: Any, result: Any, args: Sequence[Any]) -> list[_Result] | None:
    """Describe a list of results; None if they are not those of a loop over tensors."""
    if not (type(result) is list and str(func).startswith("aten._foreach_")):
        return None
    taken = {each.untyped_storage()._cdata for each in tree_leaves(args) if _is_fake(each)}
    own = {each.untyped_storage()._cdata for each in result if _is_fake(each)}
    if len(own) < len(result) or not own.isdisjoint(taken):
        return None
    return [_Result(extract_tensor_metadata(each)) for each in result]


def _is_fake(value: Any) -> bool:
    return type(value) is FakeTensor
