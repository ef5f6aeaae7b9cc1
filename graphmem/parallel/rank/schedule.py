"""The order in which one pipeline rank runs its forward and backward passes.

Sources: GPipe (arXiv:1811.06965), 1F1B as `forward_backward_pipelining_without_interleaving` and
the interleaved schedule as `forward_backward_pipelining_with_interleaving` of Megatron-LM
(megatron/core/pipeline_parallel/schedules.py); torch.distributed.pipelining.schedules has the same
orders under the names ScheduleGPipe, Schedule1F1B and ScheduleInterleaved1F1B.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graphmem.graph import PhaseName
from graphmem.parallel.layout import Layout, Schedule


@dataclass(frozen=True, slots=True)
class Turn:
    """One pass of one micro-batch through one chunk of a rank's model.

    Attributes:
        phase: forward or backward.
        chunk: the number of the rank's chunk, from 0; there is only one without interleaving.
        micro: the number of the micro-batch.
    """

    phase: PhaseName
    chunk: int
    micro: int


def turns(layout: Layout, rank: int) -> list[Turn]:
    """The turns that a pipeline rank runs in one step, in order.

    Args:
        layout: gives the schedule, the pipeline's degree and the micro-batches.
        rank: the rank in the pipeline, from 0.
    """
    count = layout.micro_batches
    if layout.schedule is Schedule.GPIPE and layout.pipeline > 1:
        forward = [Turn(PhaseName.FORWARD, 0, micro) for micro in range(count)]
        return forward + [Turn(PhaseName.BACKWARD, 0, micro) for micro in range(count)]
    if layout.interleave > 1:
        return list(_interleaved(layout, rank))
    warm_up = min(layout.pipeline - rank - 1, count)
    forwards = [Turn(PhaseName.FORWARD, 0, micro) for micro in range(count)]
    backwards = [Turn(PhaseName.BACKWARD, 0, micro) for micro in range(count)]
    return list(_one_forward_one_backward(forwards, backwards, warm_up))


def _interleaved(layout: Layout, rank: int) -> Iterator[Turn]:
    stages, chunks = layout.pipeline, layout.interleave
    total = layout.micro_batches * chunks
    warm_up = min((stages - rank - 1) * 2 + (chunks - 1) * stages, total)
    if layout.micro_batches == stages:
        warm_up = total
    forwards, backwards = [], []
    for turn in range(total):
        group, within = divmod(turn, stages * chunks)
        chunk, micro = within // stages, group * stages + within % stages
        forwards.append(Turn(PhaseName.FORWARD, chunk, micro))
        backwards.append(Turn(PhaseName.BACKWARD, chunks - 1 - chunk, micro))
    return _one_forward_one_backward(forwards, backwards, warm_up)


def _one_forward_one_backward(
    forwards: list[Turn], backwards: list[Turn], warm_up: int
) -> Iterator[Turn]:
    yield from forwards[:warm_up]
    steady = len(forwards) - warm_up
    for i in range(steady):
        yield forwards[warm_up + i]
        yield backwards[i]
    yield from backwards[steady:]


def in_flight(layout: Layout, rank: int) -> int:
    """The most forward passes of a rank that wait for their backward pass, over all its chunks."""
    most = waiting = 0
    for turn in turns(layout, rank):
        waiting += 1 if turn.phase is PhaseName.FORWARD else -1
        most = max(most, waiting)
    return most
