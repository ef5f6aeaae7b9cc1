"""Tell the modules of several models apart.

A module has its qualified name within its model, and two models may have modules of one name, such
as the `main.0` of a GAN's generator and of its discriminator. Their names then begin with the
variable that holds the model: `netG.main.0`. Models count that were called or that an optimizer
trains: a copy that is just kept, such as an average of weights, changes no name. A model that was
called before the second one was known keeps its names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count
from typing import Any
from weakref import WeakSet

import torch

from graphmem.trace.holders import named_values
from graphmem.trace.location import Location, without_wrappers
from graphmem.trace.uncalled_models import STEPS, held_by, uncalled_models

_PARALLEL = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


class RootNames:
    """Names the models of a program."""

    def __init__(
        self,
        location: Location,
        built: Callable[[], list[torch.nn.Module]] = list,
        made: Iterable[torch.optim.Optimizer] = (),
    ) -> None:
        """Know no model.

        Args:
            location: knows the models that were called.
            built: the models that were moved to the card.
            made: every optimizer that exists.
        """
        self._location = location
        self._built = built
        self._made = made
        self._found = WeakSet[torch.nn.Module]()

    def name(self, model: torch.nn.Module) -> str:
        """What the names of a model's modules begin with; "" if no other model has such names."""
        names = _names(model)
        if not names:  # a loss, which may be made anew in each step
            return ""
        others = (root for _, root in self._location.roots)
        for other in (*others, *self.trained()):
            if not names.isdisjoint(_names(other)) and _are_apart(model, other):
                return self._unused(model)
        return ""

    def uncalled(self) -> Iterator[torch.nn.Module]:
        """The models that variables hold and that were never called, each once."""
        return (model for _, model in uncalled_models(self._location, self._found))

    def trained(self) -> list[torch.nn.Module]:
        """The models on the card that have parameters in an optimizer."""
        parameters = self._parameters()
        return [each for each in self._built() if _has_some(each, parameters)]

    def is_trained(self, model: torch.nn.Module) -> bool:
        """Whether a model has parameters in an optimizer."""
        return _has_some(model, self._parameters())

    def _parameters(self) -> set[int]:
        groups = (group for each in list(self._made) for group in each.param_groups)
        return {id(each) for group in groups for each in group["params"]}

    def _unused(self, model: torch.nn.Module) -> str:
        taken = {name for name, _ in self._location.roots}
        kind = type(model).__name__
        numbered = (f"{kind}_{number}" for number in count(2))
        names = chain(self._variables(model), [kind], numbered)
        return next(name for name in names if name not in taken)

    def _variables(self, model: torch.nn.Module) -> Iterator[str]:
        """The variables and attributes that hold a model, those that live longest first.

        A function's argument, or a loop's variable, may hold one model after another.
        """
        model = _of_compiled(model)
        for variable, value in named_values(self._location):
            level = [(variable.name, value)]
            for _ in range(STEPS + 1):
                found = (name for name, each in level if _of_compiled(each) is model)
                yield from (name.removeprefix("self.") for name in found)
                level = list(held_by(level))


def _has_some(model: torch.nn.Module, parameters: set[int]) -> bool:
    return not parameters.isdisjoint(map(id, model.parameters()))


def _of_compiled(value: Any) -> Any:
    """The model that `torch.compile` has wrapped, or the value itself."""
    return getattr(value, "_orig_mod", value) if isinstance(value, torch.nn.Module) else value


def _names(model: torch.nn.Module) -> set[str]:
    """The names of a model's modules, also without the `module` of what runs it in parallel.

    An optimizer's model is known as it was before it was wrapped.
    """
    within = _names(model.module) if isinstance(model, _PARALLEL) else set()
    return within | _names_as_it_is(model)


def _names_as_it_is(model: torch.nn.Module) -> set[str]:
    """The names of a model's modules, and of the parameters and buffers that it has itself."""
    paths = (without_wrappers(path) for path, _ in model.named_modules())
    own = chain(model.named_parameters(recurse=False), model.named_buffers(recurse=False))
    return {*filter(None, paths), *(name for name, _ in own)}


def _are_apart(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether neither of two models is a part of the other, as of a wrapper."""
    return all(each is not other for each in one.modules()) and all(
        each is not one for each in other.modules()
    )
