"""Host tensors that a loss closes over, in graphmem's own training loop.

A loss with labels is usually written `lambda out: cross_entropy(out, labels)`. A hand-written loop
moves the labels with the batch, so graphmem's loop does the same: (1) tensors, and lists, tuples
and dicts of them, in closures, defaults, `partial`s, attributes of callable objects and globals
that the loss names are on the device while the model and the loss run; (2) modules, such as a
criterion with weights, move once.

Not moved: scalars, which a kernel accepts from the host; tensors that require grad, since an
optimizer would not know the copy; anything that the loss reaches in other ways.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from graphmem.frames import is_program, short_path
from graphmem.graph import Source
from graphmem.training_step import TrainingStep

Change = Callable[[Any], Any]


def is_movable(tensor: torch.Tensor) -> bool:
    """Whether a hand-written loop would move a tensor that its loss closes over."""
    return tensor.device.type == "cpu" and tensor.dim() > 0 and not tensor.requires_grad


@dataclass(frozen=True)
class Relabelled:
    """A loss that runs with other tensors in place of those that it closes over.

    Args:
        loss: the loss as the program has it.
        change: makes the other value of a tensor or a nest of them.
    """

    loss: Callable[..., Any]
    change: Change

    def __call__(self, output: Any) -> Any:
        """The loss of an output; a trace calls `loss` itself, since this keeps the output alive."""
        with self.in_place():
            return self.loss(output)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Have the other tensors where the loss finds them, while the context is open."""
        with ClosedOver(self.loss, lambda tensor: tensor.dim() > 0).replaced(self.change):
            yield


@contextmanager
def labels_in_place(step: TrainingStep) -> Iterator[TrainingStep]:
    """A step whose loss is the program's own, with the labels that it is to run with."""
    if not isinstance(step.loss, Relabelled):
        yield step
        return
    with step.loss.in_place():
        yield replace(step, loss=step.loss.loss)


class _Place(NamedTuple):
    """A place that holds a value, and the function that replaces it."""

    name: str
    value: Any
    put: Callable[[Any], object]


class ClosedOver:
    """The tensors, and the modules on the host, that a loss closes over.

    Args:
        loss: the loss, if there is one.
        wanted: which tensors.

    Attributes:
        names: the names of the tensors and modules.
        source: the line that defines the loss; None if unknown.
    """

    def __init__(
        self,
        loss: Callable[..., Any] | None,
        wanted: Callable[[torch.Tensor], bool] = is_movable,
    ) -> None:
        self._wanted = wanted
        self._seen: set[int] = set()
        self._places: list[_Place] = []
        self._modules: dict[str, torch.nn.Module] = {}
        self.source = _source_of(loss)
        if loss is not None:
            self._look_at("the loss", loss, None)

    @property
    def names(self) -> list[str]:
        """The names that the loss uses for the tensors and modules."""
        return list(dict.fromkeys([*(place.name for place in self._places), *self._modules]))

    def move_modules(self, device: torch.device) -> None:
        """Move the modules, once, before the first iteration."""
        for module in self._modules.values():
            module.to(device)

    @contextmanager
    def replaced(self, change: Change) -> Iterator[None]:
        """Have others in the place of the tensors while the context is open.

        Args:
            change: makes the other value of a tensor or a nest of them, such as a copy elsewhere.
        """
        for place in self._places:
            place.put(change(place.value))
        try:
            yield
        finally:
            for place in self._places:
                place.put(place.value)

    def _look_at(self, name: str, value: Any, put: Callable[[Any], object] | None) -> None:
        if id(value) in self._seen:
            return
        if isinstance(value, torch.nn.Module):
            self._seen.add(id(value))
            held = [*value.parameters(), *value.buffers()]
            if any(tensor.device.type == "cpu" for tensor in held):
                self._modules[name] = value
        elif put is not None and _holds(value, self._wanted):
            self._places.append(_Place(name, value, put))
        elif callable(value):
            self._seen.add(id(value))
            self._look_into(value)

    def _look_into(self, function: Any) -> None:
        if isinstance(function, partial):
            self._look_into_partial(function)
        elif isinstance(function, types.MethodType):
            self._look_at(function.__name__, function.__self__, None)
            self._look_into(function.__func__)
        elif isinstance(function, types.FunctionType):
            self._look_into_function(function)
        elif not isinstance(function, (type, types.BuiltinFunctionType)):
            attributes = getattr(function, "__dict__", {})
            for name, value in list(attributes.items()):
                self._look_at(name, value, partial(attributes.__setitem__, name))

    def _look_into_function(self, function: types.FunctionType) -> None:
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            self._look_at(name, value, partial(setattr, cell, "cell_contents"))
        names = code.co_varnames[: code.co_argcount]
        defaults = list(function.__defaults__ or ())
        for position, value in enumerate(defaults):
            name = names[len(names) - len(defaults) + position]
            self._look_at(name, value, partial(_put_default, function, position))
        for name in _named_in(code):
            if name in function.__globals__:
                put = partial(function.__globals__.__setitem__, name)
                self._look_at_global(name, function.__globals__[name], put, function)

    def _look_at_global(
        self, name: str, value: Any, put: Callable[[Any], object], function: types.FunctionType
    ) -> None:
        """Look at a global of the same file: a tensor, a module or a function."""
        is_function = isinstance(value, types.FunctionType)
        if is_function and value.__globals__ is function.__globals__:
            self._look_at(name, value, None)
        elif isinstance(value, (torch.Tensor, torch.nn.Module, list, tuple, dict, partial)):
            self._look_at(name, value, put)

    def _look_into_partial(self, function: partial[Any]) -> None:
        self._look_at("the loss", function.func, None)
        for position, value in enumerate(function.args):
            self._look_at(f"argument {position}", value, partial(_put_argument, function, position))
        for name, value in function.keywords.items():
            self._look_at(name, value, partial(function.keywords.__setitem__, name))


def _holds(value: Any, wanted: Callable[[torch.Tensor], bool]) -> bool:
    if isinstance(value, torch.Tensor):
        return wanted(value)
    if isinstance(value, dict):
        return any(_holds(item, wanted) for item in dict.values(value))
    return isinstance(value, (list, tuple)) and any(_holds(item, wanted) for item in value)


def _put_default(function: types.FunctionType, position: int, value: Any) -> None:
    defaults = list(function.__defaults__ or ())
    defaults[position] = value
    function.__defaults__ = tuple(defaults)


def _put_argument(function: partial[Any], position: int, value: Any) -> None:
    arguments = list(function.args)
    arguments[position] = value
    state = (function.func, tuple(arguments), function.keywords, vars(function))
    function.__setstate__(state)  # type: ignore[attr-defined]


def _named_in(code: types.CodeType) -> Iterator[str]:
    """The globals that a function, or a function inside it, may name."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _named_in(constant)


def _source_of(loss: Any) -> Source | None:
    while isinstance(loss, partial):
        loss = loss.func
    code = getattr(loss, "__code__", None)
    if code is None:
        code = getattr(vars(type(loss)).get("__call__"), "__code__", None)
    if code is None or not is_program(code.co_filename):
        return None
    return Source(short_path(code.co_filename), code.co_firstlineno, code.co_name)
