"""`--no-compile`: `torch.compile` returns its argument, and the program runs eagerly.

Functions compiled before the program began, such as by a decorator in an imported module, pass on
their compiler at each call; as in the stance "force_eager", there is none.

`torch.cond` and its kin have Dynamo find what their functions close over, and compile nothing
(torch/_higher_order_ops): that is left as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from graphmem.trace.compiled.dynamo import passing_compilers
from graphmem.virtual_device.patching import Replacement, replaced

_HIGHER_ORDER = "torch._higher_order_ops."


def replacements(asked: Callable[[], None]) -> list[Replacement]:
    """The attributes to replace.

    Args:
        asked: called when the program requests compilation.
    """
    compile_: Any = torch.compile

    def run_eagerly(model: Any = None, **options: Any) -> Any:
        if str(getattr(model, "__module__", "")).startswith(_HIGHER_ORDER):
            return run_as_it_was(model, options)
        asked()
        return (lambda function: function) if model is None else model

    def run_as_it_was(function: Any, options: dict[str, Any]) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with replaced(as_it_was):
                return compile_(function, **options)(*args, **kwargs)

        return call

    def nothing_compiles(callback: Any) -> None:
        if callback not in (None, False):
            asked()

    found: list[Replacement] = [(torch, "compile", run_eagerly)]
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None:
        found.append(passing_compilers(frames, nothing_compiles))
    as_it_was = [(owner, name, getattr(owner, name)) for owner, name, _ in found]
    return found
