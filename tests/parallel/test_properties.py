"""Conservation: shards add up to the whole, and more sharding never takes more at rest."""

from __future__ import annotations

import importlib
import math
import sys
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphmem.analysis import Request
from graphmem.errors import InputError
from graphmem.graph import PhaseName
from graphmem.parallel.axes.axis import Axis, regroup, unify
from graphmem.parallel.layout import Layout, Precision, Schedule, Sharding
from graphmem.parallel.messages import (
    ExpertDegreeError,
    TooManyStagesError,
    UnevenBatchError,
    UnevenSequenceError,
    UnevenTensorSplitError,
    WrongStagesError,
)
from graphmem.parallel.planner import Planner, RankPlan
from graphmem.parallel.rank.schedule import Turn, in_flight, turns
from graphmem.parallel.search.search import Searcher
from graphmem.parallel.sharding.buckets import assign
from graphmem.parallel.sharding.shard_sizes import ShardSizes
from graphmem.parallel.tracing import planner_for
from tests.support.places import FIXTURES
from tests.support.sizes import KEPT_WORKSPACES

AT_REST = ("parameter", "gradient", "optimizer_state")
LLAMA = {"vocab": 1000, "batch": 4, "seq": 64, "width": 64, "layers": 4, "heads": 8, "ffn": 96}


@cache
def planner(precision: Precision = Precision.TRACED) -> Planner:
    if str(FIXTURES) not in sys.path:
        sys.path.append(str(FIXTURES))
    llama: Any = importlib.import_module("llama")
    request = Request(gpu="h100", steps=2, env=KEPT_WORKSPACES)
    return planner_for(lambda: llama.build(**LLAMA), request, precision)[1]


POWERS = st.sampled_from([1, 2, 4])
LAYOUTS = st.builds(
    Layout,
    data=st.integers(1, 5),
    tensor=POWERS,
    pipeline=POWERS,
    context=POWERS,
    sharding=st.sampled_from(Sharding),
    micro_batches=POWERS,
    schedule=st.sampled_from([Schedule.GPIPE, Schedule.ONE_F_ONE_B]),
    bucket_view=st.booleans(),
    reshard_after_forward=st.booleans(),
)
A_FEW = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))


@A_FEW
@given(degree=POWERS, context=POWERS)
def test_tensor_parallel_shards_add_up_to_each_parameter(degree: int, context: int) -> None:
    """Each parameter is divided evenly or whole on each rank; context never divides them."""
    made = planner()
    shares = ShardSizes(made.graph, made.dimensions, Layout(tensor=degree, context=context))
    divided = made.dimensions.divisible()

    for storage in made.graph.storages:
        if storage.owners and storage.owners[-1].kind == "parameter":
            axes = made.dimensions.of_storage[storage.id]
            is_divided = any(atom in divided for axis in axes for atom in axis.atoms())
            ways = degree if is_divided else 1
            assert shares.nbytes(storage) * ways == storage.nbytes


@A_FEW
@given(layout=LAYOUTS)
def test_stages_together_hold_every_parameter_once(layout: Layout) -> None:
    """Over the pipeline's ranks, unsharded; the fixture's head is not tied to its embedding."""
    made = planner()
    one = Layout(pipeline=layout.pipeline, micro_batches=layout.micro_batches)
    expected = made.plan(Layout())[0].timeline.most["parameter"]

    found = [each.timeline.most["parameter"] for each in made.plan(one)]

    assert sum(found) == expected


@A_FEW
@given(ranks=st.integers(2, 9), sharding=st.sampled_from(["zero-2", "zero-3", "fsdp"]))
def test_shards_of_all_ranks_add_up_to_the_whole_and_padding(ranks: int, sharding: str) -> None:
    """Of optimizer state, gradients and, from ZeRO-3 on, parameters.

    The root's stay gathered from the forward to the backward pass: embedding, norm and head.
    """
    made = planner()
    kind = Sharding(sharding)
    shared = AT_REST if kind.shares_parameters else AT_REST[1:]
    whole = made.plan(Layout())[0].timeline.most

    layout = Layout(data=ranks, sharding=kind)
    (plan,) = made.plan(layout)
    rank, held = made.hold(layout, made.stages(layout), 0)
    gradients = (each for each in held.allocations if each.category == "gradient")
    # most["gradient"] may have a gradient that is not reduced yet
    most = plan.timeline.most | {
        "gradient": sum(each.nbytes for each in gradients if rank.in_last_step(each.born[0]))
    }

    rows, width = (-(-LLAMA[each] // ranks) * ranks for each in ("vocab", "width"))
    root = 4 * (2 * rows * LLAMA["width"] + width) if kind.shares_parameters else 0
    on_all_ranks = ranks * (sum(most[category] for category in shared) - root)
    assert on_all_ranks - plan.padding == sum(whole[category] for category in shared)


def at_rest(plan: RankPlan) -> int:
    return sum(plan.timeline.most.get(category, 0) for category in AT_REST)


@A_FEW
@given(layout=LAYOUTS, precision=st.sampled_from(Precision))
def test_higher_zero_stages_never_need_more_at_rest(layout: Layout, precision: Precision) -> None:
    """DDP, ZeRO-1, ZeRO-2, ZeRO-3, on every stage; a shard is padded by less than a row."""
    made = planner(precision)
    orders = (Sharding.REPLICATED, Sharding.ZERO_1, Sharding.ZERO_2, Sharding.ZERO_3)
    fields = {
        "data": layout.data,
        "tensor": layout.tensor,
        "pipeline": min(layout.pipeline, 2),
        "micro_batches": min(layout.micro_batches, 2),
        "precision": precision,
    }

    levels = [made.plan(Layout(**fields, sharding=sharding)) for sharding in orders]

    rows = sum(3 * 4 * max(LLAMA.values()) for _ in made.graph.parameters)
    for less, more in pairwise(levels):
        for before, after in zip(less, more, strict=True):
            assert at_rest(after) <= at_rest(before) + (rows if layout.data > 1 else 0)


@A_FEW
@given(layout=LAYOUTS)
def test_categories_sum_to_the_peak(layout: Layout) -> None:
    for plan in planner().plan(layout):
        assert sum(plan.timeline.at_peak.values()) == plan.timeline.peak
        assert plan.timeline.at_peak["rounding"] >= 0
        assert plan.timeline.reserved >= plan.timeline.peak


@A_FEW
@given(layout=LAYOUTS)
def test_the_estimate_is_near_the_replay(layout: Layout) -> None:
    """The search's estimate stays within a sixth of the subsequent replay."""
    made = planner()
    searcher = Searcher(made)

    seen = searcher.look_at(layout)

    ranks = made.plan(layout)
    sent = max(sum(each.bytes for each in plan.traffic) for plan in ranks)
    peak = max(plan.timeline.peak for plan in ranks)
    assert seen.traffic == sent
    assert seen.peak == pytest.approx(peak, rel=1 / 6)


@given(
    stages=st.integers(1, 6),
    rounds=st.integers(1, 4),
    chunks=st.integers(1, 3),
    schedule=st.sampled_from(Schedule),
    data=st.data(),
)
def test_every_micro_batch_goes_forward_and_then_back(
    stages: int, rounds: int, chunks: int, schedule: Schedule, data: st.DataObject
) -> None:
    """Once through each chunk on each rank, with no more waiting than are in flight."""
    interleaved = schedule is Schedule.INTERLEAVED and stages > 1
    count = rounds * stages if interleaved else rounds
    layout = Layout(
        pipeline=stages,
        micro_batches=count,
        schedule=schedule if stages > 1 else Schedule.ONE_F_ONE_B,
        interleave=chunks if interleaved else 1,
    )
    rank = data.draw(st.integers(0, stages - 1))

    order = turns(layout, rank)

    expected = {
        Turn(phase, chunk, micro)
        for phase in (PhaseName.FORWARD, PhaseName.BACKWARD)
        for chunk in range(layout.interleave)
        for micro in range(count)
    }
    assert set(order) == expected
    assert len(order) == len(expected)
    for turn in order:
        if turn.phase is PhaseName.BACKWARD:
            before = Turn(PhaseName.FORWARD, turn.chunk, turn.micro)
            assert order.index(before) < order.index(turn)
    if layout.schedule is Schedule.ONE_F_ONE_B:
        assert in_flight(layout, rank) == min(count, stages - rank)
    if layout.schedule is Schedule.GPIPE:
        assert in_flight(layout, rank) == count


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_views_keep_the_product_of_sizes(factors: list[int], data: st.DataObject) -> None:
    """However often an axis is reshaped, its atoms multiply to its size."""
    size = math.prod(factors)
    axis = Axis(size)
    other = data.draw(st.permutations(factors))

    for sizes in (factors, other):
        made = regroup([axis], sizes)
        if made is not None:
            unify(Axis(size, made), axis)

    assert math.prod(atom.size for atom in axis.atoms()) == size
    assert axis.local_size({}) == size


@given(st.lists(st.integers(1, 50)), st.integers(1, 60), st.integers(1, 60))
def test_buckets_hold_all_gradients(sizes: list[int], first: int, rest: int) -> None:
    """Every bucket except the last reaches its limit."""
    buckets = assign([("float32", size) for size in sizes], [first, rest])

    assert sum(buckets) == sum(sizes)
    limits = [first, *([rest] * len(buckets))]
    assert all(n >= limit for n, limit in zip(buckets[:-1], limits, strict=False))


@pytest.mark.parametrize(
    ("layout", "error", "hint"),
    [
        (Layout(tensor=3), UnevenTensorSplitError, "--tp 2"),
        (Layout(pipeline=5, micro_batches=4), TooManyStagesError, "--pp 4"),
        (Layout(micro_batches=3), UnevenBatchError, "--micro-batches 2"),
        (Layout(context=3), UnevenSequenceError, "2"),
        (Layout(data=4, expert=3), ExpertDegreeError, "--ep 2"),
        (Layout(pipeline=2, stages=(1, 1)), WrongStagesError, "2,2"),
    ],
)
def test_impossible_layouts_name_the_nearest_possible_one(
    layout: Layout, error: type[InputError], hint: str
) -> None:
    with pytest.raises(error) as caught:
        planner().plan(layout)

    assert hint in str(caught.value.hint)


def elements(made: Planner) -> int:
    return sum(
        math.prod(each.shape)
        for each in made.graph.storages
        if any(owner.kind == "parameter" for owner in each.owners)
        and each.device == made.graph.device
    )


def test_master_copies_take_18_bytes_a_parameter() -> None:
    """bf16 weights 2, fp32 gradients 4, fp32 weights and moments 3 x 4."""
    made = planner(Precision.BF16_MASTER)
    count = elements(made)

    (plan,) = made.plan(Layout(precision=Precision.BF16_MASTER))

    found = [plan.timeline.most[category] for category in AT_REST]
    assert found == [2 * count, 4 * count, 12 * count]


def test_an_offloaded_optimizer_is_on_the_host() -> None:
    """fp32 weights and moments, and the gradients that it reads, which are pinned."""
    made = planner(Precision.BF16_MASTER)
    count = elements(made)
    layout = Layout(precision=Precision.BF16_MASTER, offload=frozenset({"optimizer"}))

    (plan,) = made.plan(layout)

    assert "optimizer_state" not in plan.timeline.most
    assert (plan.host.optimizer_state, plan.host.gradients) == (12 * count, 4 * count)
    assert plan.host.pinned == 4 * count
