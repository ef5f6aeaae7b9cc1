"""Everything the caller had before, found through Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from graphmem.caller.generators import Generators, generators_on_the_stack
from graphmem.caller.objects import Objects
from graphmem.caller.scripted import ScriptedModules
from graphmem.caller.settings import TorchSettings
from graphmem.caller.tensors import Tensors
from graphmem.caller.turns import turn, uninterrupted
from graphmem.caller.values import CopiedValues
from graphmem.own_process import is_own_process

_KINDS = frozenset(
    {
        torch.nn.Module,
        torch.optim.Optimizer,
        LRScheduler,
        torch.amp.GradScaler,
        torch.utils.data.DataLoader,
        torch.utils.data.Sampler,
    }
)


class Belongings:
    """A snapshot of the caller's tensors, objects, generators and settings."""

    def __init__(self, *, all_values: bool) -> None:
        """Take the snapshot.

        Args:
            all_values: restore the values of all tensors; otherwise only of those that modules and
                optimizers hold, and the program may write into others.
        """
        with torch._C.DisableTorchFunctionSubclass():  # lazy modules' refuse to be looked at
            self._take(all_values)

    def _take(self, all_values: bool) -> None:
        tensors, objects = _what_there_is()
        self._settings = TorchSettings()
        self.tensors = Tensors(tensors)
        self._objects = Objects(objects, self.tensors)
        self._scripted = ScriptedModules(objects, self.tensors)
        held = [note for note in self.tensors if all_values or note.held is not None]
        self.values = CopiedValues(held)
        for note in held:
            grad_note = None if note.grad is None else self.tensors.note_of(note.grad)
            if grad_note is not None:
                self.values.guard(grad_note)
        self.generators = Generators([*generators_on_the_stack(), *_generators_of(objects)])

    def before(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what an operation on real data is about to change."""
        self.values.before(operation, args, kwargs)
        generator = kwargs.get("generator")
        if generator is not None:
            self.generators.before_draw(generator)

    def put_back(self) -> None:
        """Restore everything that has changed."""
        with ExitStack() as stack, torch._C.DisableTorchFunctionSubclass():
            stack.callback(self.generators.put_back)
            stack.callback(self._undo_changes)
            stack.callback(self._objects.put_back)
            stack.callback(self.values.put_back)
            stack.callback(self._scripted.put_back)
            stack.callback(self._undo_moves)
            stack.callback(self._settings.put_back)

    def _undo_moves(self) -> None:
        for note in self.tensors:
            note.undo_moves()

    def _undo_changes(self) -> None:
        for note in self.tensors:
            note.undo_changes()


@contextmanager
def put_back(*, all_values: bool) -> Iterator[Belongings]:
    """Take a snapshot, and restore it when the context closes, also after an error.

    Args:
        all_values: see `Belongings`.
    """
    found: list[Belongings] = []
    try:
        with uninterrupted():
            found.append(Belongings(all_values=all_values))
        yield found[0]
    finally:
        with uninterrupted():
            for each in found:
                each.put_back()


@dataclass(frozen=True)
class _Frozen:
    """What existed when `freeze` was called, with two marks: one frozen, one made later.

    If the collector lists the first, or misses the second, objects have been (un)frozen since.
    """

    found: tuple[list[torch.Tensor], list[Any]]
    frozen_mark: list[Any]
    later_mark: list[Any]

    def is_apart_from(self, listed: list[Any]) -> bool:
        """Whether a list from the collector has exactly the objects made later."""
        later, frozen = id(self.later_mark), id(self.frozen_mark)
        return {later, frozen}.intersection(map(id, listed)) == {later}


_frozen: list[_Frozen] = []
"""The last one counts; it includes what the others found."""


def freeze() -> None:
    """Note the objects that exist now, once for all processes forked from this one.

    The collector leaves them alone from now on: in a forked process, looking at every object would
    copy the memory pages that they lie in.
    """
    gc.collect()
    _set_aside()


def _set_aside() -> None:
    mark: list[Any] = []
    found = _what_there_is()
    gc.freeze()
    _frozen.append(_Frozen(found, mark, []))


_MANY = 100_000
"""Objects; an analysis of GPT-2 leaves somewhat more."""


def collect() -> None:
    """Collect what earlier analyses left, if the process is graphmem's own: nothing else does.

    What remains the first two times is not looked at again: PyTorch's modules, then those that the
    first analysis imported, and its caches. Later it may be an analysis that is freed in the end.
    """
    if is_own_process():
        with uninterrupted():  # a finaliser that Ctrl-C meets would swallow it
            gc.collect()
            gc.collect()  # what autograd's nodes held, which the first one has freed
            if len(_frozen) < 2:
                _set_aside()


@contextmanager
def clean_turn() -> Iterator[None]:
    """An analysis's turn; what earlier ones left is collected before it loads its target.

    Before the first, that is nothing. What there is then, half a million objects of PyTorch's
    modules, is set aside: each collection would visit it.
    """
    with turn("an analysis"):
        if is_own_process():
            made_since, _, _ = gc.get_count()
            if not _frozen:
                _set_aside()
            elif made_since > _MANY:
                collect()
        yield


def _what_there_is() -> tuple[list[torch.Tensor], list[Any]]:
    """All tensors, and the objects that hold tensors."""
    for each in _frozen[-1:]:
        listed = gc.get_objects()
        if each.is_apart_from(listed):
            tensors, objects = _tensors_and_holders(listed)
            return [*each.found[0], *tensors], [*each.found[1], *objects]
    return _tensors_and_holders(_all_objects())


def _tensors_and_holders(everything: list[Any]) -> tuple[list[torch.Tensor], list[Any]]:
    types = list(map(type, everything))  # the most expensive line: it visits every object
    kinds = set(types)
    of_tensors = {kind for kind in kinds if torch.Tensor in kind.__mro__}
    of_objects = {kind for kind in kinds if not _KINDS.isdisjoint(kind.__mro__)}
    wanted = of_tensors | of_objects
    found = list(compress(everything, map(wanted.__contains__, types)))
    tensors = [each for each in found if type(each) in of_tensors]
    return tensors, [each for each in found if type(each) in of_objects]


def _all_objects() -> list[Any]:
    """All objects that the collector knows, including frozen ones, which it does not list."""
    if not gc.get_freeze_count():
        return gc.get_objects()
    gc.unfreeze()
    try:
        return gc.get_objects()
    finally:
        gc.freeze()


def _generators_of(objects: list[Any]) -> Iterator[Any]:
    for each in objects:
        for value in vars(each).values():
            if isinstance(value, torch.Generator):
                yield value
