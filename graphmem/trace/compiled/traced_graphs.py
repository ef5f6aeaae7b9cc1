"""A program that calls `make_fx` with fake tensors of its own: nothing of it is on the card.

With `tracing_mode` "fake" or "symbolic", `_MakefxTracer` (torch/fx/experimental/proxy_tensor.py)
makes a fake mode unless its inputs have one. The card's tensors have the trace's: it is no such.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from torch._guards import detect_fake_mode
from torch._subclasses import fake_tensor
from torch.fx.experimental import proxy_tensor

from graphmem.trace.compiled import dynamo
from graphmem.trace.compiled.unwatched import Unwatched
from graphmem.virtual_device.fake_mode import VirtualFakeMode
from graphmem.virtual_device.patching import Replacement, replaced

_TRACER = proxy_tensor._MakefxTracer


def replacement(unwatched: Unwatched) -> Replacement:
    """The attribute to replace.

    Args:
        unwatched: stops recording while the program is traced.
    """
    trace = _TRACER.trace

    @functools.wraps(trace)
    def trace_unwatched(tracer: Any, function: Callable[..., Any], *args: Any) -> Any:
        if tracer.tracing_mode == "real" or not _is_on_card(args):
            return trace(tracer, function, *args)
        utils = importlib.import_module("torch._dynamo.utils")
        as_real = [
            (utils, "detect_fake_mode", _unless_the_cards(detect_fake_mode)),
            # Sizes are symbols unless the tensor is a fake one (torch/_subclasses/meta_utils.py).
            (
                fake_tensor,
                "maybe_get_fake_mode",
                _unless_the_cards(fake_tensor.maybe_get_fake_mode),
            ),
        ]
        with unwatched.opened(), replaced([*as_real, *dynamo.fake_constants(unwatched)]):
            return trace(tracer, function, *args)

    return _TRACER, "trace", trace_unwatched


def _is_on_card(args: Any) -> bool:
    return isinstance(detect_fake_mode(args), VirtualFakeMode)


def _unless_the_cards(mode_of: Callable[..., Any]) -> Callable[..., Any]:
    def mode_but_the_cards(tensors: Any = None) -> Any:
        mode = mode_of(tensors)
        return None if isinstance(mode, VirtualFakeMode) else mode

    return mode_but_the_cards
