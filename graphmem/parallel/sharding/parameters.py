"""A parameter on one rank, with its gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from graphmem.graph import Storage
from graphmem.parallel.rank.allocations import Allocation

FP32_BYTES = 4
BYTES_OF = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}


@dataclass
class ParameterOnRank:
    """One parameter of a rank, before data-parallel sharding.

    Attributes:
        shape: its shape after tensor parallelism.
        ranks: over how many ranks it is sharded.
        gradients: the allocations of its gradients.
    """

    name: str
    allocation: Allocation
    shape: tuple[int, ...]
    ranks: int
    gradients: list[Allocation] = field(default_factory=list)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of the traced parameter."""
        assert self.allocation.storage is not None
        return BYTES_OF.get(self.allocation.storage.dtype, FP32_BYTES)

    @property
    def gradient(self) -> Storage:
        """The storage of its first gradient."""
        storage = self.gradients[0].storage
        assert storage is not None
        return storage

    @property
    def numel(self) -> int:
        """Elements before data-parallel sharding."""
        return math.prod(self.shape)


def fullest(parameters: Iterable[ParameterOnRank], count: int) -> set[str]:
    """The parameters of the fullest of `count` ranks."""
    ranks: list[set[str]] = [set() for _ in range(count)]
    filled = [0] * count
    for each in sorted(parameters, key=lambda each: -each.numel):
        emptiest = filled.index(min(filled))
        ranks[emptiest].add(each.name)
        filled[emptiest] += each.numel
    return ranks[filled.index(max(filled))]
