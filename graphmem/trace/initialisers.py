"""`torch.nn.init` on tensors without data.

(1) On the host nothing is counted, and the weights need no values: the function returns its tensor.
(2) On the device a function does what it does on a card. The rejection loops of `trunc_normal_`
(torch/nn/init.py, `_no_grad_trunc_normal_`) end once fewer than half an element is expected to be
out of bounds; how many rounds a card takes is random, and listed as assumed.

Functions are replaced where they are looked up. `_no_grad_trunc_normal_` is called by
`trunc_normal_`, so a library that imported the latter earlier is covered as well.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import init

from graphmem.torch_releases import TRUNCATED_NORMALS_ARE_REDRAWN, installed_release
from graphmem.trace.location import Location
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.patching import Replacement

_MOST_ROUNDS = 1000
_LOOPS_OVER_DATA: dict[str, Callable[[torch.Tensor], bool]] = {
    "orthogonal_": lambda tensor: tensor.dim() >= 2,
    "sparse_": lambda tensor: tensor.dim() == 2,
    "dirac_": lambda tensor: tensor.dim() in (3, 4, 5),
}
"""Functions that factorise, or loop over rows, and the tensors that they accept."""

_FILLS = ("_no_grad_uniform_", "_no_grad_normal_", "_no_grad_fill_", "_no_grad_zero_")


def replacements(recorder: Recorder, location: Location) -> list[Replacement]:
    """The attributes to replace."""

    def is_on_host(tensor: torch.Tensor) -> bool:
        return isinstance(tensor, FakeTensor) and not recorder.is_on_device(tensor)

    def skipped(name: str, accepts: Callable[[torch.Tensor], bool]) -> Replacement:
        original = getattr(init, name)

        @functools.wraps(original)
        def fill(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if is_on_host(tensor) and accepts(tensor):
                return tensor
            filled: torch.Tensor = original(tensor, *args, **kwargs)
            return filled

        return init, name, fill

    def trunc_normal(
        tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: Any = None
    ) -> torch.Tensor:
        if is_on_host(tensor) and std > 0:
            return tensor
        if not isinstance(tensor, FakeTensor) or std <= 0 or not is_redrawn:
            return original(tensor, mean, std, a, b, generator)
        draws = _Truncated(tensor, mean, std, a, b)
        if 0 < draws.inside < 1:
            recorder.assume(
                "rounds of the rejection loop of trunc_normal_",
                f"{draws.rounds}, for {tensor.numel():,} elements",
                "how many numbers are out of bounds is random",
                location.source(),
            )
        with torch.no_grad():
            draws.fill()
        return tensor

    is_redrawn = TRUNCATED_NORMALS_ARE_REDRAWN.holds_in(installed_release())
    original: Callable[..., torch.Tensor] = init._no_grad_trunc_normal_
    return [
        (init, "_no_grad_trunc_normal_", trunc_normal),
        *(skipped(name, lambda tensor: True) for name in _FILLS),
        *(skipped(name, accepts) for name, accepts in _LOOPS_OVER_DATA.items()),
    ]


class _Truncated:
    """`_no_grad_trunc_normal_` with an expected number of rounds.

    Attributes:
        inside: the fraction of numbers that are accepted.
        rounds: how many times numbers are redrawn.
    """

    def __init__(self, tensor: torch.Tensor, mean: float, std: float, a: float, b: float) -> None:
        self._tensor = tensor
        self._mean, self._std = mean, std
        self._low, self._high = a, b
        normal = _below((b - mean) / std) - _below((a - mean) / std)
        self._is_normal = normal > 0.3
        mode = max(a, min(mean, b))
        self._log_peak = -0.5 * ((mode - mean) / std) ** 2
        self.inside = normal
        if not self._is_normal:
            peak = (b - a) * math.exp(self._log_peak)
            self.inside = normal * std * math.sqrt(2 * math.pi) / peak if peak else 0.0
        self.rounds = self._expected_rounds()

    def _expected_rounds(self) -> int:
        left, rounds = self._tensor.numel() * (1 - self.inside), 0
        while left >= 0.5 and rounds < _MOST_ROUNDS:
            left *= 1 - self.inside
            rounds += 1
        return rounds

    def fill(self) -> None:
        """Run the operations that run on a card."""
        if self._is_normal:
            self._draw_normal()
        else:
            self._draw_uniform()

    def _draw_normal(self) -> None:
        tensor = self._tensor
        result = tensor.normal_(self._mean, self._std)
        for round_ in range(self.rounds + 1):
            mask = (result < self._low) | (result > self._high)
            mask.any()
            if round_ < self.rounds:
                drawn = torch.empty_like(result).normal_(self._mean, self._std)
                result = torch.where(mask, drawn, result)
                del drawn
        if tensor is not result:
            tensor.copy_(result)

    def _draw_uniform(self) -> None:
        tensor = self._tensor
        candidates, accepted = torch.empty_like(tensor), torch.empty_like(tensor)
        tensor.uniform_(self._low, self._high)
        candidates.copy_(tensor)
        self._to_log_density(candidates)
        pending = accepted.uniform_().log_().gt(candidates)
        pending.any()
        result = tensor
        for _ in range(self.rounds):
            candidates.uniform_(self._low, self._high)
            result = torch.where(pending, candidates, result)
            self._to_log_density(candidates)
            more = accepted.uniform_().log_().gt(candidates)
            pending = torch.where(pending, more, pending)
            del more
            pending.any()
        if self.rounds:
            tensor.copy_(result)

    def _to_log_density(self, values: torch.Tensor) -> None:
        values.sub_(self._mean).div_(self._std).pow_(2).mul_(-0.5).sub_(self._log_peak)


def _below(x: float) -> float:
    """The standard normal distribution function at `x`."""
    return (1 + math.erf(x / math.sqrt(2))) / 2
