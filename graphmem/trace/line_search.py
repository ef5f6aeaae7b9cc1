"""`torch.optim.LBFGS`, which branches on values that only a real run knows.

Its step takes the most memory if it does not converge, so that is assumed (torch/optim/lbfgs.py):

(1) each loss is lower than the previous one, so `max_iter` or `max_eval` ends the loop;
(2) gradients and changes stay above their tolerances, the direction descends, and curvature is
    positive, so the history grows;
(3) the first point of a strong-Wolfe line search satisfies both conditions;
(4) the sum of the gradient's absolute values is above 1, so the first step is shorter than `lr`,
    and its length is a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.nodes import Node
from graphmem.trace.location import Location
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.patching import Replacement

aten = torch.ops.aten


class LineSearches:
    """Answers the comparisons that LBFGS makes."""

    def __init__(self, recorder: Recorder, location: Location) -> None:
        self._recorder = recorder
        self._location = location
        self._depth = 0

    def replacements(self) -> list[Replacement]:
        """The attributes to replace."""
        take_step: Callable[..., Any] = torch.optim.LBFGS.step

        def step(optimizer: Any, closure: Callable[[], Any]) -> Any:
            self._depth += 1
            try:
                return take_step(optimizer, self._falling(closure))
            finally:
                self._depth -= 1

        return [(torch.optim.LBFGS, "step", step)]

    def _falling(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure with falling losses: all but the first are numbers [clause 1]."""
        evaluations = 0

        def evaluate() -> Any:
            nonlocal evaluations
            depth, self._depth = self._depth, 0
            try:
                loss = closure()
            finally:
                self._depth = depth
            evaluations += 1
            if evaluations == 1 or not isinstance(loss, FakeTensor):
                return loss
            return 1.0 / evaluations

        return evaluate

    def answer(self, tensor: torch.Tensor) -> bool | None:
        """The outcome of a comparison that LBFGS makes; None if the program makes it."""
        if not self._depth:
            return None
        maker = self._recorder.maker_of(tensor)
        if not isinstance(maker, Node):
            return None
        self._recorder.assume(
            "how LBFGS converges",
            "each iteration lowers the loss, none ends the loop before max_iter",
            "the card does no arithmetic",
            self._location.source(),
        )
        compared: Any = maker.args[0]
        threshold: Any = maker.args[1]
        if maker.operator is aten.gt.Scalar:  # `ys > 1e-10`, and `gtd > -tolerance_change`
            return bool(threshold > 0)
        # `min(1.0, 1.0 / sum)`, and `f_new > f + c1 * t * gtd`
        if maker.operator is aten.lt.Scalar:
            return isinstance(compared, Node) and compared.operator is aten.mul.Tensor
        return maker.operator is aten.le.Tensor
