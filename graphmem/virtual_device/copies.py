"""Copies of fake tensors: what a card allocates for the same copies, in the same order.

(1) A parameter is cloned, without its gradient and its attributes (torch/nn/parameter.py,
    `Parameter.__deepcopy__`).
(2) For any other tensor the whole storage is copied, once for all the tensors that share it; then
    an empty tensor of one element is made, which swaps its own storage for the copied one
    (torch/_tensor.py, `Tensor.__deepcopy__`; torch/storage.py, `UntypedStorage.__deepcopy__`).
(3) The gradient and the user's attributes are copied along; graphmem's notes on a tensor are not.
(4) `copy.copy` makes another tensor of the same storage (torch/_utils.py, `_rebuild_tensor_v2`). It
    asks `__reduce_ex__` as `pickle` does, which is refused: there is no data to write. In a live
    program that is `live/serialization.py`.

PyTorch's own methods would clone both kinds, and copy every attribute of a fake tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.virtual_device.messages import SaveInTraceError
from graphmem.virtual_device.notes import Note
from graphmem.virtual_device.patching import Replacement


def copies(*, is_live: bool = False) -> list[Replacement]:
    """List the attributes to replace; a live program's tensors can be saved."""
    shallow: list[Replacement] = [] if is_live else [(FakeTensor, "__reduce_ex__", _reduced)]
    return [(FakeTensor, "__deepcopy__", _copied), *shallow]


class _Unsaved:
    """A tensor that may be passed on, but not written."""

    def __init__(self, tensor: FakeTensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> NoReturn:
        raise SaveInTraceError


def _reduced(tensor: FakeTensor, protocol: Any) -> tuple[Callable[..., Any], tuple[_Unsaved]]:
    return _of_same_storage, (_Unsaved(tensor),)


def _of_same_storage(unsaved: _Unsaved) -> torch.Tensor:
    """Clause (4)."""
    tensor = unsaved.tensor
    if getattr(tensor, "_is_param", False):
        return torch.nn.Parameter(tensor.data, tensor.requires_grad)
    made = tensor.data.requires_grad_(tensor.requires_grad)
    made.__dict__.update(_own(tensor, made))
    return made


def _own(tensor: FakeTensor, made: torch.Tensor) -> dict[str, Any]:
    """The user's attributes of a tensor."""
    return {name: value for name, value in vars(tensor).items() if is_users(name, value, made)}


def _copied(tensor: FakeTensor, memo: dict[Any, Any]) -> Any:
    """Copy a tensor and what belongs to it.

    Raises:
        RuntimeError: the tensor is not a leaf.
    """
    if id(tensor) in memo:
        return memo[id(tensor)]
    if getattr(tensor, "_is_param", False):
        made: Any = tensor.data.clone(memory_format=torch.preserve_format)
        memo[id(tensor)] = torch.nn.Parameter(made, tensor.requires_grad)
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError(_NO_LEAF)
    with torch.no_grad():
        made = tensor.clone() if tensor.is_sparse else _of_storage(tensor, memo)
        made.requires_grad_(tensor.requires_grad)
        if tensor.grad is not None:
            made.grad = copy.deepcopy(tensor.grad, memo)
    memo[id(tensor)] = made
    made.__dict__.update(copy.deepcopy(_own(tensor, made), memo))
    return made


def _of_storage(tensor: FakeTensor, memo: dict[Any, Any]) -> torch.Tensor:
    """Copy the storage and view the copy as the tensor views the original."""
    copies: dict[int, torch.UntypedStorage] = memo.setdefault("torch", {})
    memory = tensor.untyped_storage()
    known = copies.get(memory._cdata)
    made = None
    if known is None:
        made = _copy_of(tensor)
        known = copies[memory._cdata] = made.untyped_storage()
    viewed = tensor.new_empty([])
    if made is not None and made.dtype is tensor.dtype:
        return made
    viewed.set_(known, tensor.storage_offset(), tensor.size(), tensor.stride())
    return viewed


def _copy_of(tensor: FakeTensor) -> torch.Tensor:
    """A tensor on a copy of the whole storage: a clone where the tensor covers all of it."""
    memory = tensor.untyped_storage()
    is_whole = memory.nbytes() == tensor.numel() * tensor.element_size()
    if is_whole and tensor.numel():
        return tensor.clone(memory_format=torch.preserve_format)
    bytes_of = tensor.new_empty([0], dtype=torch.uint8).set_(memory)
    return bytes_of.clone()


def is_users(name: str, value: Any, made: torch.Tensor) -> bool:
    """Whether an attribute of a fake tensor is the user's, and none that its copy has anyway."""
    return not isinstance(value, Note) and name not in vars(made)


_NO_LEAF = (
    "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at "
    "the moment.  If you were attempting to deepcopy a module, this may be because of a "
    "torch.nn.utils.weight_norm usage, see https://github.com/pytorch/pytorch/pull/103001"
)
