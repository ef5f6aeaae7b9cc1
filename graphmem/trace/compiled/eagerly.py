"""`--no-compile`: `torch.compile` returns its argument, and the program runs eagerly.

Functions compiled before the program began, such as by a decorator in an imported module, ask
`torch._dynamo.eval_frame._callback_from_stance` at each call for their compiler; the answer is
that of the stance "force_eager": none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from graphmem.virtual_device.patching import Replacement


def replacements(asked: Callable[[], None]) -> list[Replacement]:
    """The attributes to replace.

    Args:
        asked: called when the program requests compilation.
    """

    def run_eagerly(model: Any = None, **options: Any) -> Any:
        asked()
        return (lambda function: function) if model is None else model

    def nothing_compiles(callback: Any) -> None:
        if callback not in (None, False):
            asked()

    found: list[Replacement] = [(torch, "compile", run_eagerly)]
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None:
        found.append((frames, "_callback_from_stance", nothing_compiles))
    return found
