"""Expert parallelism: which rank holds which experts, and what is sent to them and back."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from graphmem import TrainingStep
from graphmem.analysis import Request
from graphmem.parallel.describe import describe
from graphmem.parallel.layout import Layout, Sharding
from graphmem.parallel.messages import NoExpertTensorsError
from graphmem.parallel.planner import Planner
from graphmem.parallel.search.search import Searcher
from graphmem.parallel.sharding.shard_sizes import ShardSizes
from graphmem.parallel.tracing import planner_for
from tests.support.places import FIXTURES

REQUEST = Request(gpu="h100", steps=2)
EXPERTS, WIDTH, FFN, TOP_K = 8, 64, 128, 2
EXPERT_BYTES = 2 * WIDTH * FFN * 4


@cache
def moe(batch: int = 2) -> Planner:
    if str(FIXTURES) not in sys.path:
        sys.path.append(str(FIXTURES))
    fixture: Any = importlib.import_module("moe")
    sizes = {"vocab": 500, "seq": 64, "width": WIDTH, "layers": 1, "ffn": FFN, "top_k": TOP_K}
    return planner_for(lambda: fixture.build(**sizes, batch=batch), REQUEST)[1]


def sent(layout: Layout) -> dict[str, int]:
    (plan,) = moe().plan(layout)
    return {each.what: each.bytes for each in plan.traffic}


def test_expert_ranks_hold_their_own_experts() -> None:
    """Of 8 experts with 2 x 64 x 128 weights each, a rank of 4 holds 2."""
    (whole,) = moe().plan(Layout(data=4))
    (split,) = moe().plan(Layout(data=4, expert=4))

    away = 6 * EXPERT_BYTES
    assert whole.timeline.most["parameter"] - split.timeline.most["parameter"] == away
    assert whole.timeline.most["optimizer_state"] - split.timeline.most["optimizer_state"] == (
        2 * away
    )


def test_tokens_go_to_experts_and_back_forward_and_backward() -> None:
    """Four times 128 tokens x 2 experts x 64 channels of fp32; 3 of 4 parts leave the rank."""
    rows = 128 * TOP_K * WIDTH * 4

    assert sent(Layout(data=4, expert=4))["tokens to experts and back"] == 4 * rows * 3 // 4


def test_two_micro_batches_send_as_many_tokens_as_one() -> None:
    one = sent(Layout(data=4, expert=4))["tokens to experts and back"]

    two = sent(Layout(data=4, expert=4, micro_batches=2))["tokens to experts and back"]

    assert two == one


def test_experts_are_reduced_among_those_that_hold_the_same() -> None:
    """4 of 8 experts over 2 replicas: 2 (2-1) / 2 of their bytes; all else over 4: 2 (4-1) / 4."""
    parameters = moe().plan(Layout())[0].timeline.most["parameter"]
    others = parameters - EXPERTS * EXPERT_BYTES

    found = sent(Layout(data=4, expert=2))

    assert found["gradients of experts"] == 4 * EXPERT_BYTES
    assert found["gradients"] == 2 * 3 * others // 4
    assert sent(Layout(data=4))["gradients"] == 2 * 3 * parameters // 4


def test_an_all_to_all_has_what_it_sends_and_what_it_receives() -> None:
    """In each of two steps four times, of 128 tokens x 2 experts x 64 channels of fp32."""
    rows = 128 * TOP_K * WIDTH * 4
    layout = Layout(data=4, expert=4)

    _, held = moe().hold(layout, moe().stages(layout), 0)

    found = [piece.nbytes for piece in held.allocations if piece.what.startswith("tokens ")]
    assert found == [rows] * 2 * 4 * 2


def test_half_a_batch_has_half_of_each_experts_tokens() -> None:
    """Half of a batch of 4 has the storages of a batch of 2, including data-dependent sizes."""
    shares = ShardSizes(moe(4).graph, moe(4).dimensions, Layout(micro_batches=2))

    assert [shares.nbytes(each) for each in moe(4).graph.storages] == [
        each.nbytes for each in moe(2).graph.storages
    ]


@pytest.mark.parametrize("sharding", [Sharding.REPLICATED, Sharding.FSDP])
def test_an_estimate_sends_what_the_plan_sends(sharding: Sharding) -> None:
    layout = Layout(data=4, expert=2, sharding=sharding, micro_batches=2)

    assert Searcher(moe()).look_at(layout).traffic == sum(sent(layout).values())


class Stacked(nn.Module):
    """Experts in one tensor, each with the same number of rows: capacity 16."""

    def __init__(self, *, batched: bool) -> None:
        super().__init__()
        self.batched = batched
        self.up = nn.Parameter(torch.zeros(4, 32, 48))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.batched:
            return torch.bmm(x, self.up)
        return torch.stack([rows @ weight for rows, weight in zip(x, self.up, strict=True)])


class Model(nn.Module):
    def __init__(self, *, batched: bool) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32, bias=False)
        self.experts = Stacked(batched=batched)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts(self.first(x).view(4, 16, 32)).square().mean()  # type: ignore[no-any-return] # a module's


def stacked(*, batched: bool) -> Planner:
    def build() -> TrainingStep:
        return TrainingStep(
            model=Model(batched=batched),
            inputs=(torch.randn(64, 32),),
            loss=lambda loss: loss,
            optimizer=torch.optim.AdamW,
        )

    return planner_for(build, REQUEST)[1]


def test_experts_in_one_tensor_are_divided_where_a_batched_product_runs_over_them() -> None:
    """Of 4 experts of 32 x 48 a rank of 2 holds 2; the linear layer of 32 x 32 is whole."""
    made = stacked(batched=True)

    (plan,) = made.plan(Layout(data=2, expert=2))

    expected = 2 * 32 * 48 * 4 + 32 * 32 * 4
    assert plan.timeline.most["parameter"] == expected
    assert plan.timeline.most["gradient"] == expected
    tokens = {each.what: each.bytes for each in plan.traffic}["tokens to experts and back"]
    assert tokens == 64 * (32 + 48 + 48 + 32) * 4 // 2


def test_experts_in_one_tensor_that_nothing_batches_are_not_divided() -> None:
    made = stacked(batched=False)

    assert made.dimensions.whole_experts == ["experts.up"]
    with pytest.raises(NoExpertTensorsError):
        made.plan(Layout(data=2, expert=2))


def test_a_plan_with_experts_says_that_routing_is_balanced() -> None:
    layout = Layout(data=4, expert=2)

    plan = describe("moe", moe(), layout, moe().plan(layout))

    assert any("routing is balanced" in note for note in plan.notes)
