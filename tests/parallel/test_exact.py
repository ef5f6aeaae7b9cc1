"""Layouts compared with traces of what a rank would run: equal to the byte, allocator included."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from torch import nn

from graphmem import TrainingStep
from graphmem.analysis import Request, runtime_of, traced_step
from graphmem.graph import StepGraph
from graphmem.kernel_program import Program
from graphmem.parallel.layout import Layout
from graphmem.parallel.planner import Planner
from graphmem.parallel.sharding.shard_sizes import ShardSizes
from graphmem.pipeline import run_passes
from graphmem.simulate import simulate
from tests.support.places import FIXTURES
from tests.support.sizes import KEPT_WORKSPACES

REQUEST = Request(gpu="h100", steps=2)
LLAMA: dict[str, Any] = {
    "vocab": 4096,
    "batch": 2,
    "seq": 256,
    "width": 256,
    "layers": 2,
    "heads": 8,
    "kv_heads": 4,
    "ffn": 512,
}
GPT2: dict[str, Any] = {
    "vocab": 1000,
    "batch": 8,
    "seq": 128,
    "width": 128,
    "layers": 2,
    "heads": 4,
}
SCALAR_BLOCK = 512
"""The block of a scalar."""


@cache
def fixture(name: str) -> Any:
    if str(FIXTURES) not in sys.path:
        sys.path.append(str(FIXTURES))
    return importlib.import_module(name)


def traced(
    build: Callable[[], TrainingStep], request: Request = REQUEST
) -> tuple[StepGraph, dict[int, Program]]:
    step = traced_step(build, request)
    return step.graph, run_passes(step.graph, step.runtime)["kernel_memory"].programs


@cache
def traced_fixture(name: str, **settings: Any) -> tuple[StepGraph, dict[int, Program]]:
    """Traced once for all tests; no test changes it."""
    return traced(lambda: fixture(name).build(**settings))


def planner(name: str, settings: dict[str, Any]) -> Planner:
    return Planner(*traced_fixture(name, **settings), runtime_of(REQUEST))


def simulated(build: Callable[[], TrainingStep], request: Request = REQUEST) -> tuple[int, int]:
    """Peaks of allocated and reserved bytes of a trace."""
    timeline = simulate(*traced(build, request))
    return timeline.peak()[0].allocated, max(moment.reserved for moment in timeline.moments)


def planned(made: Planner, layout: Layout) -> tuple[int, int]:
    """Peaks of allocated and reserved bytes of a plan's first rank."""
    timeline = made.plan(layout)[0].timeline
    return timeline.peak, timeline.reserved


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gpt2", GPT2),
        ("llama", LLAMA),
        ("llama", {**LLAMA, "checkpoint": "non-reentrant"}),
        ("mlp", {}),
        ("moe", {"vocab": 500, "seq": 64, "width": 64, "layers": 1, "ffn": 128}),
    ],
)
def test_one_gpu_is_the_trace_itself(name: str, settings: dict[str, Any]) -> None:
    """Conservation: a layout of one rank holds the same bytes at the same moments."""
    graph, programs = traced_fixture(name, **settings)
    timeline = simulate(graph, programs)
    moment = timeline.peak()[0]
    alive: dict[str, int] = {}
    for storage in timeline.alive_at(moment):
        category = storage.category_at(moment.tick)
        alive[category] = alive.get(category, 0) + storage.nbytes

    found = Planner(graph, programs, runtime_of(REQUEST)).plan(Layout())[0].timeline

    assert found.peak == moment.allocated
    assert found.reserved == max(each.reserved for each in timeline.moments)
    assert {name: n for name, n in found.at_peak.items() if name != "rounding"} == alive


def test_micro_batches_are_gradient_accumulation() -> None:
    """Cut into four, the batch of 8 runs as `accumulate=4` runs a batch of 2.

    That loop divides the loss by 4 and keeps the model's output, the undivided loss: two more
    scalars, if the peak is where both live. All else is equal.
    """
    kept = replace(REQUEST, env=KEPT_WORKSPACES)
    small = {**GPT2, "batch": 2}
    real = simulated(lambda: replace(fixture("gpt2").build(**small), accumulate=4), kept)

    whole = Planner(*traced(lambda: fixture("gpt2").build(**GPT2), kept), runtime_of(kept))
    allocated, reserved = planned(whole, Layout(micro_batches=4))

    assert (allocated + 2 * SCALAR_BLOCK, reserved) == real


def test_gradients_of_later_micro_batches_are_temporaries() -> None:
    """They are added to the first one's: no rank has more gradients than parameters."""
    for rank in planner("gpt2", GPT2).plan(Layout(pipeline=2, micro_batches=4)):
        assert rank.phase == "backward"
        assert rank.timeline.most["gradient"] == rank.timeline.most["parameter"]


def one_rank_of_llama(ways: int, **changes: Any) -> TrainingStep:
    """A tensor-parallel rank's model, written by hand: fewer heads, features and classes."""
    sizes = {**LLAMA, **changes}
    sizes["vocab"] //= ways
    sizes["ffn"] //= ways
    step: TrainingStep = fixture("llama").build(**sizes)
    assert step.model is not None
    for layer in step.model.layers:  # type: ignore[union-attr] # a ModuleList
        attention = layer.self_attn
        own = LLAMA["heads"] // ways * attention.channels
        shared = LLAMA["kv_heads"] // ways * attention.channels
        attention.q_proj = nn.Linear(LLAMA["width"], own, bias=False)
        attention.k_proj = nn.Linear(LLAMA["width"], shared, bias=False)
        attention.v_proj = nn.Linear(LLAMA["width"], shared, bias=False)
        attention.o_proj = nn.Linear(own, LLAMA["width"], bias=False)
    return step


@pytest.mark.parametrize(
    "changes", [{}, {"autocast": None}, {"checkpoint": "non-reentrant"}, {"norm": "written_out"}]
)
def test_tensor_parallel_rank_is_what_a_rank_would_run(changes: dict[str, Any]) -> None:
    """Every storage of the rank has the bytes of the handwritten rank's."""
    layout = Layout(tensor=2)
    graph, programs = traced(lambda: one_rank_of_llama(2, **changes))
    whole = planner("llama", {**LLAMA, **changes})
    shares = ShardSizes(whole.graph, whole.dimensions, layout)

    assert [shares.nbytes(each) for each in whole.graph.storages] == [
        each.nbytes for each in graph.storages
    ]
    timeline = simulate(graph, programs)
    reserved = max(moment.reserved for moment in timeline.moments)
    assert planned(whole, layout) == (timeline.peak()[0].allocated, reserved)


def one_rank_of_gpt2(ways: int, **changes: Any) -> TrainingStep:
    """The same for GPT-2: fused queries, keys and values, and a head tied to the embedding."""
    sizes = {**GPT2, **changes}
    sizes["vocab"] //= ways
    step: TrainingStep = fixture("gpt2").build(**sizes)
    assert step.model is not None
    width = GPT2["width"]
    for block in step.model.h:  # type: ignore[union-attr] # a ModuleList
        block.attn.heads //= ways
        block.attn.c_attn = nn.Linear(width, 3 * width // ways, bias=False)
        block.attn.c_proj = nn.Linear(width // ways, width, bias=False)
        block.mlp.c_fc = nn.Linear(width, 4 * width // ways, bias=False)
        block.mlp.c_proj = nn.Linear(4 * width // ways, width, bias=False)
    return step


@pytest.mark.parametrize("attention", ["written_out", "sdpa"])
def test_fused_projections_are_divided_by_heads(attention: str) -> None:
    whole = planner("gpt2", {**GPT2, "attention": attention})
    own = simulated(lambda: one_rank_of_gpt2(2, attention=attention))

    assert planned(whole, Layout(tensor=2)) == own


def test_tensor_parallelism_leaves_recurrent_layers_whole() -> None:
    """They are not divided; the head after them is, like any other."""
    sizes = {"vocab": 100, "width": 32, "batch": 2, "seq": 8}
    made = planner("lstm", sizes)

    assert {column.weight for column in made.dimensions.columns} == {
        "embedding.weight",
        "head.weight",
    }


def test_a_middle_stage_sends_both_ways() -> None:
    """Each micro-batch: the stream of 1 x 256 x 256 in fp32 forward and its gradient back.

    Also the targets, 256 int64, which the first stage has and the last one reads.
    """
    stream, targets = 256 * 256 * 4, 256 * 8
    made = planner("llama", {**LLAMA, "layers": 4, "autocast": None})

    ranks = made.plan(Layout(pipeline=4, micro_batches=2))

    sent = [sum(each.bytes for each in rank.traffic) for rank in ranks]
    onwards = 2 * (stream + targets)
    assert sent == [onwards, onwards + 2 * stream, onwards + 2 * stream, 2 * stream]


def test_context_parallel_rank_has_fewer_positions() -> None:
    """Apart from attention's keys a rank of 4 runs a sequence a quarter as long.

    Rotary tables are buffers of the whole sequence on each rank: 3/4 of 256 x 32 fp32, twice.
    """
    tables = 2 * (256 - 64) * 32 * 4
    allocated, _ = simulated(lambda: fixture("llama").build(**{**LLAMA, "seq": 64}))
    whole = planner("llama", LLAMA)
    layout = Layout(context=4)
    shares = ShardSizes(whole.graph, whole.dimensions, layout)

    stages = whole.stages(layout)
    rank, held = whole.hold(layout, stages, 0)
    from graphmem.parallel.rank.timeline import replay

    own = [piece for piece in held.allocations if piece.category != "communication"]
    found = replay(rank, own, whole.runtime.new_allocator(bounded=False))

    assert shares.nbytes(whole.graph.storages[0]) == whole.graph.storages[0].nbytes
    assert found.peak == allocated + tables


def test_sequence_parallelism_divides_what_tensor_parallelism_leaves_whole() -> None:
    """Sequence parallelism divides what tensor parallelism leaves whole: saved norms and sums."""
    whole = planner("llama", LLAMA)
    tensor = ShardSizes(whole.graph, whole.dimensions, Layout(tensor=2))
    sequence = ShardSizes(whole.graph, whole.dimensions, Layout(tensor=2, sequence_parallel=True))

    residual = [
        each
        for each in whole.graph.storages
        if each.shape == (2, 256, 256) and whole.graph.op_of(each) is not None
    ]

    assert residual
    for storage in residual:
        assert tensor.nbytes(storage) == storage.nbytes
        assert sequence.nbytes(storage) == storage.nbytes // 2


@pytest.mark.parametrize("attention", ["written_out", "sdpa"])
def test_attention_gathers_keys_and_values_of_all_positions(attention: str) -> None:
    """K and V of 8 x 128 x 128 in bf16; two layers, each of which gathers both twice and reduces.

    Unfused, two products forward and four backward each need one; fused attention needs two
    forward, and backward those and their gradients. In each of two traced steps.
    """
    one = 8 * 128 * 128 * 2
    made = planner("gpt2", {**GPT2, "attention": attention})
    layout = Layout(context=4)

    _, held = made.hold(layout, made.stages(layout), 0)
    (plan,) = made.plan(layout)

    buffers = [each.nbytes for each in held.allocations if each.what == "keys and values"]
    step = [one] * 6 if attention == "written_out" else [2 * one, 4 * one]
    assert sorted(buffers) == sorted(step * 2 * 2)
    (sent,) = (each.bytes for each in plan.traffic if each.what == "keys and values")
    assert sent == 3 * (2 * 2 * one) * 3 // 4
