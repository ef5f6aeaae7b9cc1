"""What is known of random numbers that are not carried (`limits.DRAWN`), as a benchmark's logits.

Clauses:
  (1) what `topk` or `argmax` chooses among numbers that a card draws from the program's seed is
      found from the numbers themselves;
  (2) numbers of a continuous distribution, with a seed or without, equal no known ones, nor those
      of another draw: a gradient from `randn_like` is not 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem import constructors
from graphmem.values.arguments import tensors
from graphmem.values.card_draws import Draw
from graphmem.values.held import KNOWN, HeldValues, KnownTensor
from graphmem.values.layouts import is_dense
from graphmem.values.memory import RealMemory, geometry_of, laid_out
from graphmem.values.rules import Outputs, Rule

aten = torch.ops.aten

WHY = "the card rounds sines and logarithms otherwise"
_UNEQUAL = Rule("whether random numbers equal others", "they do not", "a card draws its own")
_FEW = 1 << 16
"""The most elements of an answer."""

CONTINUOUS = frozenset(
    overload
    for name in ("randn", "randn_like", "normal", "normal_", "exponential_", "cauchy_")
    for overload in map(partial(getattr, getattr(aten, name)), getattr(aten, name).overloads())
)
"""Operators that draw from a continuous distribution without bounds."""

_EQUAL = {aten.eq.Tensor: False, aten.eq.Scalar: False, aten.ne.Tensor: True, aten.ne.Scalar: True}
COMPARED = frozenset(_EQUAL)
"""The operations that may compare random numbers with others."""


class DrawnScores:
    """Remembers what was drawn, and computes it when something is chosen from it."""

    def __init__(self) -> None:
        """Start without numbers."""
        self._held = HeldValues()

    def note(self, target: torch.Tensor, draw: Draw | None) -> None:
        """Remember that random numbers fill a storage, and what they are if that is known."""
        nbytes, geometry = target.untyped_storage().nbytes(), geometry_of(target)
        if not target.is_floating_point() or nbytes != target.nbytes or not is_dense(target):
            return

        def compute() -> torch.UntypedStorage | None:
            return None if draw is None else laid_out(draw(), nbytes, geometry)

        self._held.postpone(target, RealMemory(nbytes, compute=compute), KNOWN)

    def compared(
        self,
        func: Any,
        args: tuple[Any, ...],
        result: Any,
        known: Callable[[torch.Tensor], KnownTensor | None],
    ) -> tuple[Rule, Outputs] | None:
        """Clause (2); unknown numbers may be computed from the random ones, and equal them."""
        if func not in _EQUAL or not 0 < result.numel() <= _FEW:
            return None
        first, second = args
        is_same = second is first  # as `isfinite` compares them
        if is_same or not any(map(self._is_drawn, args)):
            return None
        others = [each for each in tensors(args) if not self._is_drawn(each)]
        if any(known(each) is None for each in others):
            return None
        answer = constructors.full(result.shape, _EQUAL[func], device="cpu")
        return _UNEQUAL, [(result, answer)]

    def _is_drawn(self, operand: Any) -> bool:
        return isinstance(operand, FakeTensor) and self._held.saved(operand) is not None

    def chosen(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: tuple[Rule, Outputs]
    ) -> tuple[Rule, Outputs] | None:
        """What an operation chooses by its first operand, if that still has what was drawn [1].

        Args:
            func: the operator.
            args: its arguments.
            kwargs: its arguments by name.
            made: what a rule says that it chooses.
        """
        scores = self._held.of(args[0]) if isinstance(args[0], FakeTensor) else None
        if scores is None:
            return None
        rule, ((output, assumed),) = made
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            results = [*tensors([func(scores.tensor, *args[1:], **kwargs)])]
        found = [each for each in results if not each.is_floating_point()]
        rule = rule._replace(value="by the numbers that the card draws from the seed", why=WHY)
        return rule, [(output, found[0].to(assumed.dtype))]

    def forget(self, memory: torch.UntypedStorage) -> None:
        """Forget the numbers in some memory."""
        self._held.forget_memory(memory)

    def forget_written(self, targets: Iterable[torch.Tensor]) -> None:
        """Forget the numbers of tensors that are written into."""
        if self._held.is_empty:  # most programs have none
            return
        for target in targets:
            self._held.forget(target)
