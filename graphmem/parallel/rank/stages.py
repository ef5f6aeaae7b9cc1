"""Divide a model's blocks into pipeline stages.

A stage is a range of blocks; everything before the first block (an embedding) is on the first
stage, everything after the last (a norm, a head, the loss) on the last. With interleaving a rank
holds several such ranges, its chunks: rank r of p has the chunks r, r + p, r + 2p, ... of p * v.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphmem.parallel.layout import Layout
from graphmem.parallel.messages import TooManyStagesError, WrongStagesError
from graphmem.parallel.rank.blocks import Blocks


@dataclass(frozen=True)
class Stages:
    """The chunks of a pipeline.

    Attributes:
        sizes: the number of blocks of each chunk, in the order in which a micro-batch visits them.
        of_block: the chunk of each block; the first item is for everything before the first block,
            the last for everything after the last.
    """

    sizes: tuple[int, ...]
    of_block: tuple[int, ...]

    def of_op(self, blocks: Blocks) -> list[int]:
        """The chunk of each operation."""
        return [self.of_block[block + 1] for block in blocks.of_op]


def chunks_of(layout: Layout, rank: int) -> range:
    """The chunks of a pipeline rank."""
    return range(rank, layout.pipeline * layout.interleave, layout.pipeline)


def divide(blocks: Blocks, weights: Sequence[int], layout: Layout) -> Stages:
    """Divide blocks into stages: as the layout says, else with the lightest heaviest stage.

    Args:
        blocks: the model's blocks.
        weights: bytes before the first block, of each block, and after the last:
            `blocks.count + 2` numbers.
        layout: gives the degree of pipeline parallelism.

    Raises:
        InputError: there are more stages than blocks, or the given ones do not add up to all
            blocks.
    """
    count = layout.pipeline * layout.interleave
    if count == 1:
        return Stages((blocks.count,), (0,) * (blocks.count + 2))
    if count > blocks.count:
        what = f"{layout.pipeline} stages"
        if layout.interleave > 1:
            what += f" of {layout.interleave} chunks"
        raise TooManyStagesError(
            what,
            blocks.count,
            blocks.name or "the model",
            max(1, blocks.count // layout.interleave),
        )
    sizes = layout.stages or _balanced(weights, count)
    if len(sizes) != count or sum(sizes) != blocks.count or min(sizes) < 1:
        raise WrongStagesError(
            ", ".join(map(str, sizes)),
            count,
            blocks.count,
            blocks.name,
            ",".join(map(str, _balanced(weights, count))),
        )
    of_block = [chunk for chunk, size in enumerate(sizes) for _ in range(size)]
    return Stages(tuple(sizes), (0, *of_block, count - 1))


def _balanced(weights: Sequence[int], count: int) -> tuple[int, ...]:
    """The sizes of ranges of at least one block each whose heaviest is as light as possible.

    Bisects the weight that no range may exceed; within that, earlier ranges are longer.
    """
    inner = list(weights[1:-1])
    inner[0] += weights[0]
    inner[-1] += weights[-1]
    low, high = max(inner), sum(inner)
    while low < high:
        middle = (low + high) // 2
        if len(_greedy(inner, middle, count)) <= count:
            high = middle
        else:
            low = middle + 1
    return tuple(_greedy(inner, low, count))


def _greedy(weights: Sequence[int], limit: int, count: int) -> list[int]:
    """Ranges within a limit, each as long as possible while every later one has a block."""
    sizes = [0]
    filled = 0
    for i, weight in enumerate(weights):
        left = len(weights) - i
        too_full = filled + weight > limit
        needed = count - len(sizes) >= left
        if sizes[-1] and (too_full or needed):
            sizes.append(0)
            filled = 0
        sizes[-1] += 1
        filled += weight
    return sizes
