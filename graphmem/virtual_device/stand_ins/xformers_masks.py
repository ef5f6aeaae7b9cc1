"""xformers' masks without tensors (xformers/ops/fmha/attn_bias.py of 0.0.35).

What one of these lacks, such as `materialize`, is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NoReturn, Self

import torch

from graphmem.virtual_device.messages import NoStandInPartError

INSTALL = "pip install --no-deps xformers"


def _refuse(owner: str, name: str) -> NoReturn:
    if name.startswith("_"):  # Python and libraries look for these where they may be missing
        raise AttributeError(name)
    raise NoStandInPartError("xformers", f"{owner}.{name}", INSTALL)


class _InPart(type):
    def __getattr__(cls, name: str) -> NoReturn:
        _refuse(cls.__name__, name)


class AttentionBias(metaclass=_InPart):
    """What every mask is."""

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(type(self).__name__, name)


class LowerTriangularMask(AttentionBias):
    """No row attends to later ones; the device is for masks with a tensor."""

    def __init__(self, device: Any = None) -> None:
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

    def split(self, tensor: torch.Tensor, batches: Sequence[int] | None) -> list[torch.Tensor]:
        """The sequences of a packed tensor, as many together as each batch has."""
        if self.seqstart_py[-1] != tensor.shape[1] or tensor.shape[0] != 1:
            raise ValueError(
                f"Invalid `torch.Tensor` of shape {tensor.shape}, expected format "
                f"(B, M, *) with B=1 and M={self.seqstart_py[-1]}\n seqstart: {self.seqstart_py}"
            )
        sizes = batches or [1] * (len(self.seqstart_py) - 1)
        ends = [self.seqstart_py[each] for each in accumulate(sizes, initial=0)]
        rows = [end - start for start, end in pairwise(ends)]
        parts = zip(sizes, tensor.split(rows, dim=1), strict=True)
        return [part.reshape([size, -1, *part.shape[2:]]) for size, part in parts]


class BlockDiagonalMask(AttentionBias):
    """Packed sequences, each of which attends to itself."""

    def __init__(
        self,
        q_seqinfo: Sequences,
        k_seqinfo: Sequences,
        _batch_sizes: Sequence[int] | None = None,
    ) -> None:
        self.q_seqinfo, self.k_seqinfo = q_seqinfo, k_seqinfo
        self._batch_sizes = _batch_sizes

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None, *, device: Any = None
    ) -> Self:
        """Pack sequences of these lengths; equal lengths of keys share one tensor."""
        queries = Sequences.of(q_seqlen, device)
        is_shared = kv_seqlen is None or list(kv_seqlen) == list(q_seqlen)
        return cls(queries, queries if is_shared else Sequences.of(kv_seqlen or (), device))

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[torch.Tensor]) -> tuple[Self, torch.Tensor]:
        """Pack batches of sequences, and copy them into one tensor."""
        lengths = [each.shape[1] for each in tensors for _ in range(each.shape[0])]
        mask = cls.from_seqlens(lengths)
        mask._batch_sizes = [each.shape[0] for each in tensors]
        return mask, _packed(tensors)

    @classmethod
    def from_tensor_lists_qkv(
        cls,
        tensors_q: Sequence[torch.Tensor],
        tensors_k: Sequence[torch.Tensor],
        tensors_v: Sequence[torch.Tensor] | None = None,
    ) -> tuple[Self, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Pack batches of sequences, whose keys may have other lengths than their queries."""
        queries, keys = (
            [each.shape[1] for each in tensors for _ in range(each.shape[0])]
            for tensors in (tensors_q, tensors_k)
        )
        mask = cls.from_seqlens(queries, keys)
        mask._batch_sizes = [each.shape[0] for each in tensors_q]
        values = None if tensors_v is None else _packed(tensors_v)
        return mask, _packed(tensors_q), _packed(tensors_k), values

    def split(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors that `from_tensor_list` packed."""
        assert self.q_seqinfo is self.k_seqinfo
        return self.split_queries(tensor)

    def split_queries(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The batches of packed queries."""
        return self.q_seqinfo.split(tensor, self._batch_sizes)

    def split_kv(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The batches of packed keys or values."""
        return self.k_seqinfo.split(tensor, self._batch_sizes)

    def make_causal(self) -> BlockDiagonalCausalMask:
        """The same, without attention to later rows."""
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """Packed sequences whose rows do not attend to later ones."""


def _packed(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.reshape([1, -1, *each.shape[2:]]) for each in tensors], dim=1)
