"""Models that variables hold and nothing calls, such as an average of the weights.

A model is known, and its parameters have names, once it is called. These have the names of the
variables that hold them, in a few steps as in `trainer.ema.shadow`, or that the function holds
which graphmem calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakSet

import torch

from graphmem.graph import OwnerKind
from graphmem.trace.holders import closure_of, named_values
from graphmem.trace.location import Location, below, without_wrappers
from graphmem.trace.naming import MOST_ITEMS, is_initialised, items_of
from graphmem.trace.quantised import parts_of
from graphmem.trace.recorder import Recorder

STEPS = 2
"""From a variable to a model, as in `self.critics[0]`."""


def name_uncalled(recorder: Recorder, location: Location) -> None:
    """Name what the models have that nothing has called."""
    for path, model in uncalled_models(location, WeakSet()):
        for kind, name, tensor in parts_of_model(model):
            storage = recorder.storage_of(tensor)
            if storage is not None and not is_part(recorder, storage.id):
                recorder.label(storage.id, kind, below(path, name))


def uncalled_models(
    location: Location, found: WeakSet[torch.nn.Module]
) -> Iterator[tuple[str, torch.nn.Module]]:
    """The models that were never called, with what holds each; those in `found` are left out."""
    variables = ((variable.name, value) for variable, value in named_values(location))
    for variable in chain(variables, _held_by_functions(location)):
        level = [variable]
        for _ in range(STEPS + 1):
            for path, model in level:
                is_model = isinstance(model, torch.nn.Module) and is_initialised(model)
                if is_model and not location.knows(model) and model not in found:
                    found.add(model)
                    yield path.removeprefix("self."), model
            level = list(held_by(level))


def held_by(level: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """What values hold, each with its path."""
    found = (item for path, each in level for item in items_of(each, path, of_objects=True))
    return islice(found, MOST_ITEMS)


def _held_by_functions(location: Location) -> Iterator[tuple[str, Any]]:
    for function in location.functions:
        if isinstance(function, MethodType):
            yield "self", function.__self__
        elif isinstance(function, FunctionType):
            yield from closure_of(function).items()


def parts_of_model(model: torch.nn.Module) -> Iterator[tuple[OwnerKind, str, torch.Tensor]]:
    """A model's parameters and buffers, or their parts on this rank, with their kinds and names."""
    parameters = ((OwnerKind.PARAMETER, *each) for each in model.named_parameters())
    buffers = ((OwnerKind.BUFFER, *each) for each in model.named_buffers())
    for kind, name, tensor in chain(parameters, buffers):
        for path, part in parts_of(tensor):
            yield kind, without_wrappers(name) + path, part


def is_part(recorder: Recorder, number: int) -> bool:
    """Whether a storage is known as a parameter or buffer."""
    storage = recorder.graph.storages[number]
    return any(map(storage.owned_as, (OwnerKind.PARAMETER, OwnerKind.BUFFER)))
