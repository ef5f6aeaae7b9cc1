"""Bytes that a rank sends in one step, by collective.

They are the bytes that one rank sends in a ring, which is also the least that any algorithm can do
(Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms"; NCCL tests, PERFORMANCE.md):

- all-reduce of n bytes over r ranks: 2 (r - 1) / r * n
- all-gather to n bytes, reduce-scatter of n bytes: (r - 1) / r * n
- all-to-all of n bytes: (r - 1) / r * n
- send to one neighbour: n

How often: DDP reduces gradients once a step; ZeRO-1 and 2 reduce-scatter gradients and all-gather
parameters; ZeRO-3 and FSDP gather parameters in the forward pass, again in the backward pass those
of what runs in it, but for FSDP's root, which stays gathered (`fully_shard`), and reduce-scatter
gradients (Rajbhandari et al. 2019, arXiv:1910.02054, section 7), for each micro-batch. Tensor
parallelism all-reduces what `meetings` (`tensor_parallel`) yields, sequence parallelism gathers and
scatters it (arXiv:2205.05198, section 4.2.2); of a cross entropy's divided classes, three numbers
for each token are left out. Context parallelism gathers keys and values in the forward pass, and
again in the backward pass, because only a rank's own were saved, and reduce-scatters their
gradients (`AttnFuncWithCPAndKVAllGather`,
transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py). Expert parallelism
sends each layer's tokens to the experts and back in the forward and in the backward pass
(`experts`, clauses 2 and 3).
"""

from __future__ import annotations

from collections.abc import Iterator

from graphmem.graph import OwnerKind
from graphmem.parallel.layout import Layout, Precision, Sharding
from graphmem.parallel.rank.rank import Rank
from graphmem.parallel.schema import Traffic
from graphmem.parallel.sharding.fsdp import ROOT
from graphmem.parallel.sharding.parameters import BYTES_OF, FP32_BYTES
from graphmem.parallel.sharding.shard_sizes import ShardSizes


def ring_all_reduce(nbytes: int, ranks: int) -> int:
    """Bytes that one rank sends to sum n bytes over all ranks."""
    return 2 * (ranks - 1) * nbytes // ranks


def ring_gather(nbytes: int, ranks: int) -> int:
    """Bytes that one rank sends in an all-gather to, or a reduce-scatter of, n bytes."""
    return (ranks - 1) * nbytes // ranks


def gathered_again(in_backward: frozenset[str], layout: Layout) -> frozenset[str]:
    """Of the units that run in the backward pass, those that are gathered for it once more."""
    if not (layout.sharding.shares_parameters and layout.reshard_after_forward):
        return frozenset()
    return in_backward - ({ROOT} if layout.sharding is Sharding.FSDP else set())


def traffic_of(rank: Rank, shares: ShardSizes) -> Iterator[Traffic]:
    """Yield everything that a pipeline rank sends in one step."""
    yield from _of_data_parallelism(rank, shares)
    yield from _of_tensor_parallelism(rank, shares)
    yield from _of_context_parallelism(rank, shares)
    yield from _of_expert_parallelism(rank, shares)
    yield from _of_pipeline(rank, shares)


def _of_data_parallelism(rank: Rank, shares: ShardSizes) -> Iterator[Traffic]:
    """Traffic of weights; experts are reduced and gathered among their fewer replicas."""
    layout = rank.layout
    sums: dict[str, list[int]] = {}
    again = gathered_again(rank.units_of_backward, layout)
    for storage in rank.graph.storages:
        owner = storage.owned_as(OwnerKind.PARAMETER)
        if owner is None or not rank.holds(owner.name):
            continue
        whose = " of experts" if owner.name in rank.experts and layout.expert > 1 else ""
        both = sums.setdefault(whose, [0, 0])
        nbytes = shares.nbytes(storage)
        both[0] += 2 * nbytes if rank.unit_of(owner.name) in again else nbytes
        if rank.graph.parameters.get(owner.name, True):
            wide = layout.precision is Precision.BF16_MASTER
            element = BYTES_OF.get(storage.dtype, FP32_BYTES)
            both[1] += nbytes * FP32_BYTES // element if wide else nbytes
    for whose, (gathered, gradients) in sums.items():
        ranks = layout.sharding_ranks // (layout.expert if whose else 1)
        if ranks > 1:
            yield from _of_replicas(layout, whose, ranks, gathered, gradients)


def _of_replicas(
    layout: Layout, whose: str, ranks: int, gathered: int, gradients: int
) -> Iterator[Traffic]:
    what = f"gradients{whose}"
    if layout.sharding is Sharding.REPLICATED:
        sent = ring_all_reduce(gradients, ranks)
        yield Traffic(what, "all-reduce", ranks, sent, f"2({ranks}-1)/{ranks} x {gradients:,}")
        return
    times = layout.micro_batches if layout.sharding.shares_parameters else 1
    sent = times * ring_gather(gradients, ranks)
    yield Traffic(
        what, "reduce-scatter", ranks, sent, f"{times} x ({ranks}-1)/{ranks} x {gradients:,}"
    )
    sent = times * ring_gather(gathered, ranks)
    formula = f"{times} x ({ranks}-1)/{ranks} x {gathered:,}"
    yield Traffic(f"parameters{whose}", "all-gather", ranks, sent, formula)


def _of_expert_parallelism(rank: Rank, shares: ShardSizes) -> Iterator[Traffic]:
    layout = rank.layout
    ranks = layout.expert
    if ranks == 1:
        return
    tokens = sum(shares.nbytes(rank.graph.storages[each]) for each in rank.exchanged_storages())
    times = layout.micro_batches
    yield Traffic(
        "tokens to experts and back",
        "all-to-all",
        ranks,
        times * ring_gather(tokens, ranks),
        f"{times} x ({ranks}-1)/{ranks} x {tokens:,}",
    )


def _of_tensor_parallelism(rank: Rank, shares: ShardSizes) -> Iterator[Traffic]:
    layout = rank.layout
    ranks = layout.tensor
    if ranks == 1:
        return
    gathers = layout.sequence_parallel
    met = sum(map(shares.gathered, rank.met_storages(parts=gathers)))
    how = "all-gather and reduce-scatter" if gathers else "all-reduce"
    ring, times = (ring_gather, "") if gathers else (ring_all_reduce, "2")
    yield Traffic(
        "activations of tensor parallelism",
        how,
        ranks,
        layout.micro_batches * ring(met, ranks),
        f"{layout.micro_batches} x {times}({ranks}-1)/{ranks} x {met:,}",
    )


def _of_context_parallelism(rank: Rank, shares: ShardSizes) -> Iterator[Traffic]:
    layout = rank.layout
    ranks = layout.context
    if ranks == 1:
        return
    keys = sum(map(shares.part, rank.keys_and_values()))
    times = 3 * layout.micro_batches
    gathered = keys * ranks
    yield Traffic(
        "keys and values",
        "all-gather and reduce-scatter",
        ranks,
        times * ring_gather(gathered, ranks),
        f"{times} x ({ranks}-1)/{ranks} x {gathered:,}",
    )


def _of_pipeline(rank: Rank, shares: ShardSizes) -> Iterator[Traffic]:
    layout: Layout = rank.layout
    if layout.pipeline == 1:
        return
    sent = sum(shares.nbytes(rank.graph.storages[each]) for each in rank.sent_storages())
    yield Traffic(
        "activations and their gradients between stages",
        "send",
        2,
        layout.micro_batches * sent,
        f"{layout.micro_batches} x {sent:,}",
    )
