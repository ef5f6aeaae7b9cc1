"""The assumption about a metric that Lightning's callbacks watch: it improves each time.

`ModelCheckpoint(monitor=…)` saves, and `EarlyStopping` goes on, if a value on the card is better
than the best so far (`check_monitor_top_k` and `_evaluate_stopping_criteria` in
lightning/pytorch/callbacks of 2.6). The n-th value that a callback sees is taken as 1 + 1/n if it
is to be small and as 1 - 1/n if it is to be large, unless it is known.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch

from graphmem import constructors
from graphmem.trace.reads import Reads
from graphmem.values.rules import Rule
from graphmem.virtual_device.libraries.imports import prepared
from graphmem.virtual_device.patching import replaced

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_DECIDING = {
    "model_checkpoint": ("ModelCheckpoint", "check_monitor_top_k"),
    "early_stopping": ("EarlyStopping", "_evaluate_stopping_criteria"),
}


@contextmanager
def improving(reads: Reads) -> Iterator[None]:
    """Assume that watched metrics improve while the context is open."""
    seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    with ExitStack() as stack:
        for package in _PACKAGES:
            for file, (name, method) in _DECIDING.items():

                def prepare(
                    module: ModuleType, name: str = name, method: str = method
                ) -> AbstractContextManager[None]:
                    callback = getattr(module, name)
                    decide = _deciding(getattr(callback, method), reads, seen)
                    return replaced([(callback, method, decide)])

                stack.enter_context(prepared(f"{package}.callbacks.{file}", prepare))
        yield


def _deciding(
    decide: Callable[..., Any], reads: Reads, seen: weakref.WeakKeyDictionary[Any, int]
) -> Callable[..., Any]:
    def decided(callback: Any, *args: Any, **kwargs: Any) -> Any:
        values = (each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor))
        for current in values:
            seen[callback] = count = seen.get(callback, 0) + 1
            number = 1 + 1 / count if callback.mode == "min" else 1 - 1 / count
            with torch._C._DisableTorchDispatch():  # this is not the program's operation
                value = constructors.full(current.shape, number, device="cpu")
            rule = Rule(f"`{callback.monitor}`", "better each time", "the card does no arithmetic")
            reads.known.assume(current, value, rule)
        return decide(callback, *args, **kwargs)

    return decided
