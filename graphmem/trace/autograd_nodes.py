"""Record what each autograd node holds and where its gradients go, as it starts to run."""

from __future__ import annotations

import sys
from typing import Any

from torch.autograd.function import BackwardCFunction

from graphmem.caller.tensors import leaf_of
from graphmem.frames import short_path
from graphmem.graph import AutogradNode, Op, Source
from graphmem.trace.python_functions import name_of
from graphmem.trace.recorder import Recorder
from graphmem.trace.saved_tensors import SavedTensorHooks

_ACCUMULATE_GRAD = "torch::autograd::AccumulateGrad"


class AutogradNodes:
    """Adds each node to the step graph once, before its saved tensors are released."""

    def __init__(self, recorder: Recorder, saved: SavedTensorHooks) -> None:
        self._recorder = recorder
        self._saved = saved
        self._known: set[int] = set()

    def note(self, node: Any, forward: Op | None) -> None:
        """Record a node that is about to run, and the operation that it differentiates.

        `AccumulateGrad` is left out: it saves nothing, and the nodes before it name its leaf.
        """
        number = node._sequence_nr()
        if name_of(node) == _ACCUMULATE_GRAD or number in self._known:
            return
        self._known.add(number)
        self._recorder.graph.autograd_nodes.append(
            AutogradNode(
                number=number,
                name=sys.intern(name_of(node)),
                op=None if forward is None else forward.index,
                next=tuple(self._next(following) for following, _ in node.next_functions),
                saved=tuple(self._saved.describe(node)),
                source=_source_of(node),
            )
        )

    def _next(self, node: Any) -> int | str | None:
        if node is None:
            return None
        if name_of(node) == _ACCUMULATE_GRAD:
            return self._recorder.identity_of(leaf_of(node)) or "a leaf tensor"
        number: int = node._sequence_nr()
        return number


def _source_of(node: Any) -> Source | None:
    """The source line of a custom function's `forward`; None for PyTorch's own formulas."""
    if not isinstance(node, BackwardCFunction):
        return None
    function: Any = type(node)._forward_cls  # type: ignore[attr-defined]
    code = getattr(function.forward, "__code__", None)
    if code is None:
        return None
    return Source(short_path(code.co_filename), code.co_firstlineno, code.co_qualname)
