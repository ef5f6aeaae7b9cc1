"""Compare what real autograd holds for a sample of an operator with graphmem's report."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graphmem import TrainingStep
from graphmem.gpus import find_gpu
from graphmem.passes.saved_tensors import SAVED_TENSORS, SavedTensors
from graphmem.runtime import Runtime
from graphmem.trace import TraceOptions, trace

RUNTIME = Runtime(find_gpu("a100"), "2.13.0")
Holds = list[tuple[str, str, tuple[int, ...], str, int | None]]
"""Node, field, shape, dtype, and a number shared by tensors in the same storage."""


def loss_of(operator: Callable[..., Any], sample: Any) -> torch.Tensor:
    """The sum of every result that has a gradient.

    Raises:
        LookupError: no result has a gradient.
    """
    result = operator(sample.input, *sample.args, **sample.kwargs)
    outputs = [
        tensor
        for tensor in pytree.tree_leaves(result)
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad
    ]
    if not outputs:
        raise LookupError("no result has a gradient")
    sums = [(each.abs() if each.is_complex() else each).sum() for each in outputs]
    return torch.stack([each.to(torch.float64) for each in sums]).sum()


def is_number(shape: tuple[int, ...], dtype: str) -> bool:
    """Whether a saved tensor may be a Python number, which autograd hides from hooks.

    `SavedVariable` (torch/csrc/autograd/saved_variable.cpp) does not pack a wrapped number. It
    takes eight bytes on the host, in Python's precision.
    """
    return not shape and dtype in ("float64", "int64", "complex128", "bool")


def held_by_autograd(loss: torch.Tensor) -> Holds:
    """Read every node reachable from a loss, newest first."""
    held: list[tuple[str, str, torch.Tensor]] = []
    for node in sorted(_reachable(loss.grad_fn), key=lambda node: -node._sequence_nr()):
        for field in sorted(name for name in dir(node) if name.startswith("_raw_saved_")):
            name = field.removeprefix("_raw_saved_")
            saved = getattr(node, f"_saved_{name}", None)
            if name == "tensors" and hasattr(node, "saved_tensors"):
                saved = node.saved_tensors
            is_list = isinstance(saved, (tuple, list))
            for position, tensor in enumerate(saved if is_list else [saved]):
                if tensor is not None:
                    label = f"{name}[{position}]" if is_list else name
                    held.append((node.name(), label, tensor))
    storages = _Numbers()
    found: Holds = []
    for node_name, label, tensor in held:
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        if not is_number(shape, dtype):
            found.append((node_name, label, shape, dtype, storages.of(_memory(tensor))))
    return found


def reported(operator: Callable[..., Any], sample: Any) -> Holds:
    """Trace the same on fake CPU tensors and read the annotation."""

    def build() -> TrainingStep:
        copy = _on_fake_tensors(sample)
        return TrainingStep(step=lambda: loss_of(operator, copy).backward())

    graph = trace(build, gpu=None, options=TraceOptions(steps=1))
    annotation: SavedTensors = SAVED_TENSORS.run(graph, RUNTIME, {})
    storages = _Numbers()
    found: Holds = []
    for _, held in itertools.groupby(
        sorted(annotation.tensors, key=lambda saved: -saved.node), key=lambda saved: saved.node
    ):
        for saved in sorted(held, key=lambda saved: saved.field):
            assert saved.tensor is not None
            if is_number(saved.tensor.shape, saved.tensor.dtype):
                continue
            number = storages.of(saved.storage)
            found.append((saved.name, saved.field, saved.tensor.shape, saved.tensor.dtype, number))
    return found


def _reachable(root: Any) -> Iterator[Any]:
    seen = {root}
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)


def _memory(tensor: torch.Tensor) -> int | None:
    if tensor.layout is not torch.strided or not tensor.untyped_storage().nbytes():
        return None
    return tensor.untyped_storage()._cdata


class _Numbers:
    """Numbers objects in the order of their first appearance."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def of(self, thing: Any) -> int | None:
        return None if thing is None else self._known.setdefault(thing, len(self._known))


def _on_fake_tensors(sample: Any) -> Any:
    """The sample with each tensor replaced by a new one of the same geometry."""
    copies: dict[int, torch.Tensor] = {}

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in copies:
            if value.numel() == 1:  # stays real in a trace and may be read
                made = value.detach().clone()
            else:
                made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            copies[id(value)] = made.requires_grad_(value.requires_grad)
        return copies[id(value)]

    return type(sample)(
        pytree.tree_map(copied, sample.input),
        args=pytree.tree_map(copied, tuple(sample.args)),
        kwargs=pytree.tree_map(copied, dict(sample.kwargs)),
    )
