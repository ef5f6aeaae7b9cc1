"""Run nodes written in Python as `PyNode` does (torch/csrc/autograd/python_function.cpp).

Six things that `PyNode` knows cannot be read from Python, so they are noted when they are set:
which arguments are tensors, whether missing gradients become zeros, the shapes and dtypes of the
forward pass's results, the dtypes of their gradients (`set_output_grad_dtype`), the stream that was
current when they were returned, and which of the tensors that it saves are arguments.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import compress
from typing import Any, Protocol

import torch
from torch.autograd.function import Function, FunctionCtx

from graphmem.frames import acts_for_the_program
from graphmem.torch_releases import (
    ARGUMENTS_HOLD_GRADIENTS,
    FUNCTION_APPLY_IS_BUILT_IN,
    installed_release,
)
from graphmem.trace.replayed_views import Edges
from graphmem.virtual_device.patching import Replacement

_MATERIALIZES = "_graphmem_materializes"
_ARE_TENSORS = "_graphmem_are_tensors"
_RESULTS = "_graphmem_results"
_STREAM = "_graphmem_stream"
_GRAD_DTYPES = "_graphmem_grad_dtypes"
_DEEPEST = 4  # lists within lists; one may contain itself
_set_dtypes: Any = getattr(FunctionCtx, "set_output_grad_dtype", None)  # since 2.14


class FunctionObserver(Protocol):
    """Is told when Python functions have returned."""

    def current_stream(self) -> int:
        """The handle of the stream on which operations run now."""

    def note_context(self, node: Any) -> None:
        """A function that autograd differentiates has returned; its context is this node."""


class _OfThread(threading.local):
    """A thread's running functions, innermost last, with the versions of their arguments."""

    def __init__(self) -> None:
        self.running: list[tuple[int, dict[int, int], type, bool]] = []


_OF_THREAD = _OfThread()


def is_argument(tensor: torch.Tensor, node: int) -> bool:
    """Whether a tensor saved by a Python function's node is one of the function's arguments.

    A tensor that the function has written into is a result.
    """
    running = _OF_THREAD.running
    if not running or running[-1][0] != node:
        return False
    return running[-1][1].get(id(tensor)) == tensor._version


def running_function() -> type | None:
    """The innermost Python function whose `apply` runs in this thread."""
    running = _OF_THREAD.running
    return running[-1][2] if running else None


def is_differentiated() -> bool:
    """Whether gradients are enabled here, or where a running Python function was applied.

    A function runs without them: a reentrant checkpoint calls modules so, which train.
    """
    running = _OF_THREAD.running
    return torch.is_grad_enabled() or bool(running and running[0][3])


def stream_of(node: Any) -> int | None:
    """The stream of a Python function's results (`InputMetadata`); None for other nodes."""
    stream: int | None = getattr(node, _STREAM, None)
    return stream


def grad_dtypes_of(node: Any) -> dict[int, torch.dtype | None]:
    """The dtypes of gradients that a Python function has set, by its results' positions."""
    dtypes: dict[int, torch.dtype | None] = getattr(node, _GRAD_DTYPES, {})
    return dtypes


def replacements(observer: FunctionObserver) -> list[Replacement]:
    """The attributes to replace so that `apply` has what it needs later."""
    original_apply: Any = vars(Function)["apply"]

    def apply_and_note(cls: type, *args: Any, **kwargs: Any) -> Any:
        number = torch._C._autograd._get_sequence_nr()
        _OF_THREAD.running.append((number, _versions(args), cls, torch.is_grad_enabled()))
        try:
            results = original_apply.__get__(None, cls)(*args, **kwargs)
        finally:
            _OF_THREAD.running.pop()
        node = _note_results(results if isinstance(results, tuple) else (results,), observer)
        if node is not None and node._forward_cls is cls:
            setattr(node, _ARE_TENSORS, [isinstance(value, torch.Tensor) for value in args])
        return results

    return [
        (Function, "apply", classmethod(_holding_arguments_alike(apply_and_note))),
        (FunctionCtx, "set_materialize_grads", _set_materialize_grads),
        *([(FunctionCtx, "set_output_grad_dtype", _set_output_grad_dtype)] if _set_dtypes else ()),
    ]


def _holding_arguments_alike(function: Any) -> Any:
    """A callable that holds references to its arguments exactly as PyTorch's `apply` does.

    The caller of a `partial`, which is written in C, holds them as long as it runs.
    """
    is_built_in = FUNCTION_APPLY_IS_BUILT_IN.holds_in(installed_release())
    held: Any = partial(function) if is_built_in else function
    held.__name__ = "apply"  # so Dynamo knows `call = Exp.apply` (variables/builder.py)
    return held


def _versions(args: tuple[Any, ...]) -> dict[int, int]:
    tensors = (value for value in args if isinstance(value, torch.Tensor))
    return {id(tensor): tensor._version for tensor in tensors if not tensor.is_inference()}


def _note_results(results: tuple[Any, ...], observer: FunctionObserver) -> Any:
    tensors = [value if isinstance(value, torch.Tensor) else None for value in results]
    for tensor in tensors:
        node: Any = None if tensor is None else tensor.grad_fn
        if isinstance(node, torch._C._FunctionBase):
            setattr(node, _RESULTS, [_look_of_zeros(node, each) for each in tensors])
            setattr(node, _STREAM, observer.current_stream())
            observer.note_context(node)
            return node
    return None


def _look_of_zeros(node: Any, result: torch.Tensor | None) -> tuple[Any, ...] | None:
    """What stands in for a result's missing gradient; None if nothing does.

    Compiled functions leave out those of results that need none (`PyNode::to_py_args`, torch/csrc/
    autograd/python_function.cpp; runtime_wrappers.py of AOTAutograd sets the flag).
    """
    if result is None or not (result.requires_grad or node._materialize_non_diff_grads):
        return None
    return result.shape, result.dtype, result.device


def _set_materialize_grads(context: Any, value: bool) -> None:
    context.materialize_grads = value
    setattr(context, _MATERIALIZES, value)


def _set_output_grad_dtype(context: Any, *dtypes: torch.dtype | None) -> None:
    _set_dtypes(context, *dtypes)
    setattr(context, _GRAD_DTYPES, dict(enumerate(dtypes)))


def apply(node: Any, gradients: list[Any], edges: Edges, *, keep: bool) -> list[Any]:
    """Call a function's backward.

    Args:
        node: the node.
        gradients: those of its results; removed from the list before the call, so that only the
            arguments hold them, which up to 2.12 the engine holds as well.
        edges: the targets of its results.
        keep: leave the gradients in the list, for hooks that run later.
    """
    arguments = list(_materialized(node, gradients))
    if not keep and ARGUMENTS_HOLD_GRADIENTS.holds_in(installed_release()):
        gradients[:] = [None] * len(gradients)
    # Compiled functions, from 2.13 on, empty the list that they are called with.
    is_boxed = getattr(node._forward_cls, "boxed_grads_call", False)
    result = node.apply_boxed(arguments) if is_boxed else node.apply(*arguments)
    del arguments
    results = result if isinstance(result, tuple) else (result,)
    are_tensors = getattr(node, _ARE_TENSORS, None)
    return (
        _per_tensor(node, results, edges)
        if are_tensors is None
        else _checked(node, results, are_tensors)
    )


def _materialized(node: Any, gradients: list[Any]) -> list[Any]:
    if not getattr(node, _MATERIALIZES, True):
        return gradients
    looks = getattr(node, _RESULTS, None)
    if looks is None:
        looks = [(like.shape, like.dtype, like.device) for like in node._input_metadata]
    return [
        torch.zeros(look[0], dtype=look[1], device=look[2])
        if gradient is None and look
        else gradient
        for gradient, look in zip(gradients, looks, strict=True)
    ]


@acts_for_the_program
def _checked(node: Any, results: tuple[Any, ...], are_tensors: list[bool]) -> list[Any]:
    """The results for tensor arguments, as `PyNode::apply` and `to_variable_list` check them."""
    wanted = len(are_tensors)
    if all(value is None for value in results[wanted:]):
        results = results[:wanted]
    if len(results) != wanted:
        raise RuntimeError(
            f"function {name_of(node)} returned an incorrect number of gradients "
            f"(expected {wanted}, got {len(results)})"
        )
    for i, (value, is_tensor) in enumerate(zip(results, are_tensors, strict=True)):
        if not is_tensor and value is not None:
            raise RuntimeError(
                f"function {name_of(node)} returned a gradient different than None at position "
                f"{i + 1}, but the corresponding forward input was not a Variable"
            )
        if value is not None and not isinstance(value, torch.Tensor):
            raise RuntimeError(f"expected Variable or None (got {type(value).__name__})")
    return list(compress(results, are_tensors))


def _per_tensor(node: Any, results: tuple[Any, ...], edges: Edges) -> list[Any]:
    """The results for tensor arguments; other arguments have none."""
    needed = zip(results, node.needs_input_grad, strict=False)
    left = deque((value, needs) for value, needs in needed if needs or value is not None)
    outputs: list[Any] = []
    for following, _ in edges:
        # No edge: a tensor that needs no gradient, although there may be one for it.
        takes_next = left and left[0][1] == (following is not None)
        outputs.append(left.popleft()[0] if takes_next else None)
    return outputs


def kept_by(node: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a Python function has put into its context, as `ctx.x = x`, with names."""
    for name, value in vars(node).items():
        yield from _tensors_in(value, name)


def _tensors_in(value: object, name: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth == _DEEPEST:
        return
    elif isinstance(value, list | tuple):
        for position, each in enumerate(value):
            yield from _tensors_in(each, f"{name}[{position}]", depth + 1)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _tensors_in(each, f"{name}[{key!r}]", depth + 1)


def name_of(node: Any) -> str:
    """A node's name, also of a program's `Function` that keeps a `name` of its own in its context.

    The context is the node (torch/autograd/function.py, `BackwardCFunction`), so `ctx.name = "wq"`
    hides the method; Lingua's probe does so.
    """
    name: str = type(node).name(node)
    return name
