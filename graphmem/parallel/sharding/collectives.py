"""Temporary buffers of tensor, sequence, context and expert parallelism.

Clauses:
  (1) tensor parallelism alone sums in place, without a buffer;
  (2) with sequence parallelism, a product with a divided axis gathers its other operands along the
      sequence, and makes a whole result that is then reduced and scattered; both are freed after
      the product (Megatron-LM, megatron/core/tensor_parallel/layers.py,
      `LinearWithGradAccumulationAndAsyncCommunication`, gathers the input again in the backward
      pass and keeps only its share);
  (3) with context parallelism, attention gathers the keys and values of all positions while it
      runs, and has their whole gradients before they are scattered (Llama 3, arXiv:2407.21783,
      section 3.3.2; `AttnFuncWithCPAndKVAllGather` of TransformerEngine); if it is written out,
      each product gathers those that it needs (`attention`). Ring attention would hold those of two
      ranks at a time;
  (4) with expert parallelism, an all-to-all holds the sent and the received data at once, before
      the experts run and after them (`experts`, clauses 2 and 3). What the experts keep of it is in
      the trace.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphmem.graph import Op
from graphmem.parallel.axes.attention import Part
from graphmem.parallel.axes.dimensions import Dimensions
from graphmem.parallel.rank.allocations import Allocation
from graphmem.parallel.rank.rank import Rank
from graphmem.parallel.sharding.shard_sizes import ShardSizes
from graphmem.report.categories import COMMUNICATION


def buffers(rank: Rank, dimensions: Dimensions, shares: ShardSizes) -> Iterator[Allocation]:
    """Yield the allocations that collectives add to a rank's own.

    Args:
        rank: the rank that allocates.
        dimensions: the trace's axes.
        shares: the sizes under the rank's layout.
    """
    if rank.layout.sequence_parallel:
        for index in dimensions.all_products:
            op = rank.graph.ops[index]
            yield from _during(rank, op, _gathered_along_sequence(op, dimensions, shares), "whole")
    if rank.layout.context > 1:
        for index, keys in dimensions.attentions.items():
            op = rank.graph.ops[index]
            yield from _during(rank, op, _all_positions(keys, rank, shares), "keys and values")
    if rank.layout.expert > 1:
        for exchange in dimensions.exchanges:
            for index, storages in (
                (exchange.first, exchange.dispatched),
                (exchange.last, exchange.combined),
            ):
                nbytes = sum(shares.nbytes(rank.graph.storages[each]) for each in storages)
                for what in ("tokens sent", "tokens received"):
                    yield from _during(rank, rank.graph.ops[index], nbytes, what)


def _gathered_along_sequence(op: Op, dimensions: Dimensions, shares: ShardSizes) -> int:
    """Clause (2)."""
    touched = dict.fromkeys((*dimensions.reads.get(op.index, ()), *op.births))
    if not any(shares.is_divided(each) for each in touched):
        return 0
    return sum(shares.gathered(each) for each in touched if shares.is_along_sequence(each))


def _all_positions(keys: tuple[Part, ...], rank: Rank, shares: ShardSizes) -> int:
    """Clause (3)."""
    return rank.layout.context * sum(map(shares.part, keys))


def _during(rank: Rank, op: Op, nbytes: int, what: str) -> Iterator[Allocation]:
    if not nbytes:
        return
    event = rank.traced.event_of(op)
    ends = max((rank.traced.birth[each] for each in op.births), default=event)
    for chunk in rank.chunks_of(op):
        for micro in range(rank.layout.micro_batches):
            yield Allocation(
                nbytes,
                rank.moment(op.phase, chunk, micro, event - 0.3),
                rank.moment(op.phase, chunk, micro, ends + 0.3),
                what,
                category=COMMUNICATION,
                micro=micro,
            )
