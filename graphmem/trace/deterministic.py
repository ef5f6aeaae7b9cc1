"""A trace under `torch.use_deterministic_algorithms(True)`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from graphmem.trace.data_dependent import DataDependentMode
from graphmem.virtual_device.nondeterministic import REFUSED, check_determinism


class DeterministicMode(DataDependentMode):
    """A trace that refuses the operations that a card then refuses."""

    def __init__(self, *watchers: Any) -> None:
        super().__init__(*watchers)
        for func in REFUSED:
            self._handlers[func] = partial(self._checked, self._handlers[func])

    def _checked(
        self,
        run: Callable[..., Any],
        func: Any,
        types: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if torch.are_deterministic_algorithms_enabled():
            check_determinism(func, args)
        return run(func, types, args, kwargs)
