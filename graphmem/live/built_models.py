"""Names for models that are never called, such as that of a script which only builds it.

A model is named when it is called, or at the end of its program if it exists then. One that a
function has built and left gets the names that it had when it was moved to the card, or when an
iteration began while a variable held it, as an average of the weights.

A model whose parts alone are called, as NeMo's `self.encoder(…)` in a method of the model, is the
one that was moved as a whole, or whose method runs, as a copy's that was made on the card: its
parts have their names in that.

Not covered: a model that is made on the card, by `with torch.device("cuda")`, and left.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from itertools import chain
from types import FrameType
from typing import Any

import torch

from graphmem.graph import OwnerKind
from graphmem.trace.location import below
from graphmem.trace.naming import variables_of
from graphmem.trace.recorder import Recorder
from graphmem.trace.uncalled_models import is_part, parts_of_model
from graphmem.virtual_device.patching import Replacement


class BuiltModels:
    """Notes every model that is moved."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._names: dict[int, tuple[OwnerKind, str]] = {}
        self._moved: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._depth = 0

    def replacement(self) -> Replacement:
        """`Module._apply`, by which `to`, `cuda` and `half` move a module and its children."""
        move: Any = torch.nn.Module._apply

        def move_and_note(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                return move(module, *args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self._moved[id(module)] = weakref.ref(module)
                    self.note(module)

        return torch.nn.Module, "_apply", move_and_note

    def models(self) -> list[torch.nn.Module]:
        """The models that were moved and still exist."""
        return [model for moved in list(self._moved.values()) if (model := moved()) is not None]

    def whole(self, part: torch.nn.Module) -> torch.nn.Module:
        """The largest known model that a part with tensors belongs to, or the part itself."""
        if any(True for _ in chain(part.parameters(), part.buffers())):
            for model in chain(self.models(), _with_methods_that_run()):
                if any(each is part for each in model.modules()):
                    part = model
        return part

    def note(self, module: torch.nn.Module, root: str = "") -> None:
        """Note the names of what a model has, below a root's."""
        for kind, name, tensor in parts_of_model(module):
            storage = self._recorder.storage_of(tensor)
            if storage is not None:
                self._names[storage.id] = kind, below(root, name)

    def finish(self) -> None:
        """Name what no call has named."""
        for number, (kind, name) in self._names.items():
            if not is_part(self._recorder, number):
                self._recorder.label(number, kind, name)


def _with_methods_that_run() -> Iterator[torch.nn.Module]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        first = frame.f_code.co_varnames[0] if frame.f_code.co_argcount else ""
        found = variables_of(frame).get(first)
        if isinstance(found, torch.nn.Module):
            yield found
        frame = frame.f_back
