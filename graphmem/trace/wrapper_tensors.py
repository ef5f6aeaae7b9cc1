"""Tensors that hold others, such as `DTensor`: the memory is that of the inner tensors.

Such a class defines how it is taken apart and put together (`__tensor_flatten__`,
`__tensor_unflatten__`; torch/utils/_python_dispatch.py, `is_traceable_wrapper_subclass`). The
storage that it exposes as its own has no memory (`_make_wrapper_subclass`,
torch/csrc/autograd/python_variable.cpp).

A class may ask for the truth of a number on the card to know whether it has one (torchao 0.18,
float8/fsdp_utils.py, `WeightWithDynamicFloat8CastTensor`). Here it is graphmem that takes the
tensor apart, so this is no read of the program, and the answer is yes.

A sharded tensor (torch/distributed/_shard/sharded_tensor/api.py, `ShardedTensor`), as torchrec
gives to an optimizer, defines neither, and most questions about it are errors. It holds the shards
of this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Together = Callable[[Sequence[torch.Tensor]], torch.Tensor]


def is_wrapper(kind: type) -> bool:
    """Whether tensors of a class hold others, and can be put together again."""
    return hasattr(kind, "__tensor_flatten__")


def holds_others(kind: type) -> bool:
    """Whether tensors of a class have no memory of their own."""
    return is_wrapper(kind) or hasattr(kind, "local_shards")


def held_by(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that have memory; the tensor itself if it holds no others."""
    return [held for _, held in paths_within(tensor)]


def paths_within(tensor: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that have memory, each with the attributes that lead to it: ".inner.data"."""
    if not holds_others(type(tensor)):
        yield path, tensor
        return
    if not is_wrapper(type(tensor)):
        for i, shard in enumerate(tensor.local_shards()):
            yield from paths_within(getattr(shard, "tensor", shard), f"{path}.local_shards()[{i}]")
        return
    for name in _taken_apart(tensor)[0]:
        each = getattr(tensor, name)
        if isinstance(each, torch.Tensor):
            yield from paths_within(each, f"{path}.{name}")


def taken_apart(wrapper: Any) -> tuple[list[torch.Tensor], Together]:
    """The tensors inside a wrapper, and a function that makes a similar wrapper from such tensors.

    The function holds neither the wrapper nor the tensors, but everything else that the wrapper
    names, such as the mesh of a `DTensor` from torch 2.13 on.
    """
    kind = type(wrapper)
    names, context = _taken_apart(wrapper)
    inner = {name: getattr(wrapper, name) for name in names}
    held = {name: each for name, each in inner.items() if isinstance(each, torch.Tensor)}
    others = {name: each for name, each in inner.items() if name not in held}
    named, shape, stride = list(held), wrapper.shape, wrapper.stride()

    def put_together(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        inner_tensors = others | dict(zip(named, parts, strict=True))
        made: torch.Tensor = kind.__tensor_unflatten__(inner_tensors, context, shape, stride)
        return made

    return list(held.values()), put_together


class _Truthful(TorchFunctionMode):
    """Every tensor is true."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return True if func is torch.Tensor.__bool__ else func(*args, **(kwargs or {}))


def _taken_apart(wrapper: Any) -> tuple[list[str], Any]:
    with _Truthful():
        names, context = wrapper.__tensor_flatten__()
    return names, context
