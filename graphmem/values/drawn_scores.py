"""Choices among random numbers that a card draws from the program's seed: a benchmark's logits.

Random numbers other than integers are not carried (`limits.DRAWN`), but what `topk` or `argmax`
chooses among them is found from the numbers themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.values.arguments import tensors
from graphmem.values.card_draws import Draw
from graphmem.values.held import KNOWN, HeldValues
from graphmem.values.layouts import is_dense
from graphmem.values.memory import RealMemory, geometry_of, laid_out
from graphmem.values.rules import Outputs, Rule

WHY = "the card rounds sines and logarithms otherwise"


class DrawnScores:
    """Remembers what was drawn, and computes it when something is chosen from it."""

    def __init__(self) -> None:
        """Start without numbers."""
        self._held = HeldValues()

    def note(self, draw: Draw) -> None:
        """Remember numbers that fill a storage."""
        target = draw.target
        nbytes, geometry = target.untyped_storage().nbytes(), geometry_of(target)
        if not target.is_floating_point() or nbytes != target.nbytes or not is_dense(target):
            return
        values = draw.values

        def compute() -> torch.UntypedStorage:
            return laid_out(values(), nbytes, geometry)

        self._held.postpone(target, RealMemory(nbytes, compute=compute), KNOWN)

    def chosen(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: tuple[Rule, Outputs]
    ) -> tuple[Rule, Outputs] | None:
        """What an operation chooses by its first operand, if that still has what was drawn.

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
