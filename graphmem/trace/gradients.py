"""How gradients are summed, cast and stored: in place, by stealing, or as a copy.

These rules of the C++ engine decide which backward operations allocate, so each function mirrors
one of PyTorch's and names it. All of them run real ATen operations, which the trace records.

The C++ rules check by `use_count()` whether a tensor is *uniquely held*. Here a gradient in a list
has one more Python reference, for the call that checks, and one piece of fake memory with one
tensor on it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from graphmem.caller.tensors import leaf_of
from graphmem.frames import acts_for_the_program
from graphmem.graph import OwnerKind
from graphmem.trace.graph_task import Node, is_accumulate_grad
from graphmem.trace.python_functions import grad_dtypes_of, name_of
from graphmem.trace.recorder import Recorder
from graphmem.trace.transform_levels import is_of_transform
from graphmem.trace.wrapper_tensors import is_wrapper
from graphmem.virtual_device.sparse import parts_of

_IN_LIST = 2  # the list's own reference and getrefcount's argument
_ONE_TENSOR = 2  # the tensor's reference to its storage and the storage's Python wrapper


class GradientRules:
    """The engine's rules for gradients.

    Args:
        subclass_like: what `at::isTensorSubclassLike` returns in the predicted run: False on a GPU;
            True in a run observed by a dispatch mode, where the engine never sums in place
            (torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`).
    """

    def __init__(self, recorder: Recorder, *, subclass_like: bool = False) -> None:
        self._recorder = recorder
        self.subclass_like = subclass_like

    def add_to_buffer(self, buffer: list[Any], position: int, outputs: list[Any], i: int) -> None:
        """`InputBuffer::add`: take the first gradient as it is, sum later ones into it.

        The first is moved out of `outputs[i]`, so that no other reference keeps it; one that was
        summed stays there until its node is done.
        """
        if outputs[i] is None:
            return
        if buffer[position] is None:
            buffer[position], outputs[i] = outputs[i], None
        elif self._can_accumulate_in_place(buffer, position, outputs[i]):
            buffer[position].add_(outputs[i])
        else:
            buffer[position] = buffer[position] + outputs[i]

    def _can_accumulate_in_place(self, buffer: list[Any], position: int, new: torch.Tensor) -> bool:
        """`can_accumulate_inplace`; neither tensor may be one of Python's, such as a `DTensor`."""
        if torch.is_grad_enabled() or self.subclass_like or buffer[position]._is_zerotensor():
            return False
        if is_of_transform(buffer[position]):
            return False
        if is_wrapper(type(buffer[position])) or is_wrapper(type(new)):
            return False
        return (
            is_uniquely_held(buffer, position)
            and is_non_overlapping_and_dense(buffer[position])
            and self._holds_storage_alone(buffer[position])
        )

    def _holds_storage_alone(self, tensor: torch.Tensor) -> bool:
        memory = tensor.untyped_storage()
        if torch._C._storage_Use_Count(memory._cdata) > _ONE_TENSOR:
            return False
        storage = self._recorder.storage_of(tensor)
        if storage is None:
            return True
        return self._recorder.fake_memories(storage) == 1 and not any(
            owner.kind is OwnerKind.SAVED_TENSOR and owner.end is None for owner in storage.owners
        )

    def fit(
        self, gradients: list[Any], i: int, node: Node, position: int, maker: Node | None = None
    ) -> None:
        """`validate_outputs` (torch/csrc/autograd/engine.cpp) for one gradient.

        The new gradient replaces the old one in the list at once, so that nothing holds the latter.

        Args:
            gradients: the results of a node.
            i: which of them.
            node: the next node.
            position: its input, whose `_input_metadata` has shape, dtype and device.
            maker: the node whose results they are; None for a caller's.

        Raises:
            RuntimeError: a function or a hook gave a gradient of another shape, or elsewhere.
        """
        expected = node._input_metadata[position]
        shape, dtype = torch.Size(expected.shape), _dtype_for(node, position, expected.dtype)
        if gradients[i].shape != shape:
            if not _is_expandable_to(shape, gradients[i].shape):
                found = f"got {list(gradients[i].shape)} but expected shape compatible with"
                _refuse(maker, i, f"{found} {list(shape)}")
            gradients[i] = sum_to(gradients[i], shape)
        if dtype is not None and gradients[i].dtype != dtype:
            if gradients[i].is_complex() and not dtype.is_complex:
                gradients[i] = torch.real(gradients[i])
            gradients[i] = gradients[i].to(dtype)
        if gradients[i].device != expected.device:
            if gradients[i].dim():
                devices = f"expected device {expected.device} but got {gradients[i].device}"
                _refuse(maker, i, devices)
            gradients[i] = gradients[i].to(expected.device)

    def accumulate(self, variable: torch.Tensor, gradients: list[Any], expected_refs: int) -> None:
        """`AccumulateGrad::accumulateGrad` for a dense gradient, which is removed from the list.

        Case 1.1 steals, case 1.5 copies, case 2.3 adds in place, case 3.2 adds out of place
        (torch/csrc/autograd/functions/accumulate_grad.h).
        """
        if variable.grad is None:
            self._store_first(variable, gradients, expected_refs)
        elif torch.is_grad_enabled():
            variable.grad = variable.grad + gradients[0]
        elif _is_out_of_place_sum(variable.grad, gradients[0]):
            variable.grad = gradients[0] + variable.grad
        else:
            variable.grad += gradients[0]

    def _store_first(
        self, variable: torch.Tensor, gradients: list[Any], expected_refs: int
    ) -> None:
        if (
            not torch.is_grad_enabled()
            and is_uniquely_held(gradients, 0, expected_refs)
            and _may_be_kept(gradients[0], variable)
        ):
            variable.grad = gradients[0].detach()
        elif gradients[0].is_sparse:
            variable.grad = gradients[0].clone()
        else:
            variable.grad = clone_obey_contract(gradients[0], variable)


def _dtype_for(node: Node, position: int, dtype: torch.dtype) -> torch.dtype | None:
    """The dtype of an input's gradient: its own unless `grad_dtype` says otherwise; None is any."""
    if is_accumulate_grad(node):
        leaf: Any = leaf_of(node)
        own = getattr(leaf, "grad_dtype", leaf.dtype) if leaf.is_leaf else leaf.dtype
        return own if own != leaf.dtype else dtype  # 2.9 has no `grad_dtype`
    return grad_dtypes_of(node).get(position, dtype)


def _is_expandable_to(shape: torch.Size, other: torch.Size) -> bool:
    """`is_expandable_to` (aten/src/ATen/ExpandUtils.h)."""
    pairs = zip(reversed(shape), reversed(other), strict=False)
    return len(shape) <= len(other) and all(size in (1, wanted) for size, wanted in pairs)


@acts_for_the_program
def _refuse(maker: Node | None, i: int, why: str) -> None:
    """Raise the error for a gradient that does not fit (`format_error`, `validate_outputs`)."""
    returned = "" if maker is None else f"Function {name_of(maker)} returned an "
    raise RuntimeError(f"{returned}invalid gradient at index {i} - {why}")


def _may_be_kept(gradient: torch.Tensor, variable: torch.Tensor) -> bool:
    """Whether a gradient has the layout that the variable's `.grad` must have."""
    if gradient.is_sparse:
        return all(part.is_contiguous() for part in parts_of(gradient))
    return obeys_layout_contract(gradient, variable)


def _is_out_of_place_sum(held: torch.Tensor, new: torch.Tensor) -> bool:
    return held.is_sparse and not new.is_sparse


def is_uniquely_held(gradients: list[Any], position: int, expected_refs: int = 1) -> bool:
    """`impl::is_tensor_stealable` (torch/csrc/autograd/variable.h) for an entry of a list."""
    # Compiled code's CUDA graph keeps its results for its next replay (ATen/CachedTensorUtils.h).
    expected_refs += torch._C._is_cached_tensor(gradients[position])  # type: ignore[attr-defined]
    others = sys.getrefcount(gradients[position]) - _IN_LIST
    return others <= expected_refs - 1 and gradients[position]._use_count() <= 1


def is_non_overlapping_and_dense(tensor: torch.Tensor) -> bool:
    """`TensorImpl::compute_non_overlapping_and_dense`: a permutation of a contiguous tensor."""
    if tensor.is_contiguous():
        return True
    dims = sorted(
        (stride, size)
        for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
        if size != 1
    )
    expected = 1
    for stride, size in dims:
        if stride != expected:
            return False
        expected *= size
    return True


def obeys_layout_contract(gradient: torch.Tensor, variable: torch.Tensor) -> bool:
    """`utils::obeys_layout_contract` (torch/csrc/autograd/utils/grad_layout_contract.h)."""
    if not is_non_overlapping_and_dense(variable):
        return gradient.is_contiguous()
    dims = zip(gradient.shape, gradient.stride(), variable.stride(), strict=True)
    return all(stride == wanted if size != 1 else stride != 0 for size, stride, wanted in dims)


def clone_obey_contract(gradient: torch.Tensor, variable: torch.Tensor) -> torch.Tensor:
    """`utils::clone_obey_contract` (torch/csrc/autograd/utils/grad_layout_contract.h)."""
    if is_non_overlapping_and_dense(variable):
        like = gradient.new_empty_strided(variable.shape, variable.stride())
        return like.copy_(gradient)
    return gradient.clone(memory_format=torch.contiguous_format)


def sum_to(tensor: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """`at::sum_to` (aten/src/ATen/ExpandUtils.h): sum a broadcast gradient to the input's shape."""
    if not shape:
        return tensor.sum()
    leading = tensor.dim() - len(shape)
    dims = [
        *range(leading),
        *(i for i in range(leading, tensor.dim()) if shape[i - leading] == 1 != tensor.shape[i]),
    ]
    if dims:
        tensor = tensor.sum(dims, keepdim=True)
    return tensor.view(shape) if leading else tensor


def search_for_nan(gradients: list[Any]) -> None:
    """`isnan(output)._is_any_true()`, in anomaly mode: a bool for each element.

    torch/csrc/autograd/engine.cpp, `evaluate_function`, after `release_variables`; the answer is a
    value on the device, which a trace does not know.
    """
    if not (torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()):
        return
    with torch.no_grad():
        for gradient in gradients:
            if gradient is not None and not gradient.is_sparse:
                mask = torch.isnan(gradient)
                found = torch._is_any_true(mask)
                del found, mask  # in the order in which the temporaries of one expression are freed
