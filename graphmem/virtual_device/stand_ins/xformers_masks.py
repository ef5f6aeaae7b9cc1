"""xformers' masks without tensors (xformers/ops/fmha/attn_bias.py of 0.0.35)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import torch


class LowerTriangularMask:
    """No row attends to later ones; arguments, such as a device, are for masks with a tensor."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take what the package's takes."""


@dataclass
class Sequences:
    """`_SeqLenInfo`: where packed sequences start, on the card and as a list."""

    seqstart: torch.Tensor
    max_seqlen: int
    min_seqlen: int
    seqstart_py: list[int]

    @classmethod
    def of(cls, lengths: Sequence[int], device: Any) -> Self:
        """Describe sequences of these lengths."""
        starts = list(accumulate(lengths, initial=0))
        on_card = torch.tensor(starts, dtype=torch.int32, device=device or "cuda")
        return cls(on_card, max(lengths), min(lengths), starts)


@dataclass
class BlockDiagonalMask:
    """Packed sequences, each of which attends to itself."""

    q_seqinfo: Sequences
    k_seqinfo: Sequences

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None, *, device: Any = None
    ) -> Self:
        """Pack sequences of these lengths; equal lengths of keys share one tensor."""
        queries = Sequences.of(q_seqlen, device)
        is_shared = kv_seqlen is None or list(kv_seqlen) == list(q_seqlen)
        return cls(queries, queries if is_shared else Sequences.of(kv_seqlen or (), device))

    def make_causal(self) -> BlockDiagonalCausalMask:
        """The same, without attention to later rows."""
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo)


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """Packed sequences whose rows do not attend to later ones."""
