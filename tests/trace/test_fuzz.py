"""A trace of a random program allocates and frees what a real run does.

A few fixed seeds; `python -m tests.fuzz --programs 2000 --reduce` runs many, `--wide` of more
kinds, and `--compile aot_eager` compiles them.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.fuzz import compiled
from tests.fuzz.comparison import compare, program_that_runs, training_step
from tests.support import unobserved

SEEDS = [pytest.param(seed, marks=pytest.mark.slow if seed % 2 else []) for seed in range(12)]
COMPILED_SEEDS = (0, 4, 6)
COMPILED_FAULTS = {
    "gradients are dropped one by one": [
        "v0 = x * 1",
        "kept.append(v0)",
        "v1 = F.embedding(order, v0)",
        "v2 = v1.cumsum(0)",
        "loss = v0.square().mean() + v2.square().mean() + v1.square().mean()",
        "loss.backward()",
    ],
    "a copy of a view copies its whole storage": [
        "v0 = x * 1",
        "v0[0] = 1",
        "loss = v0.square().mean() + (v0 @ v0).square().mean()",
        "loss.backward(inputs=[x])",
    ],
    "a function's backward leaves gradients enabled": [
        "v1 = F.silu(x * 1)",
        "v2 = F.max_pool1d(v1[None], 3, 1, 1)[0]",
        "v3 = TwoResults.apply(v2)[0]",
        "loss = v3.square().mean() + v1.square().mean() + v2.square().mean()",
        "loss.backward(inputs=[x])",
    ],
    "AOTAutograd leaves out the hooks of checkpointing": [
        "v0 = x * 1",
        "v1 = checkpoint(torch.sin, v0, use_reentrant=False)",
        "v2 = torch.func.grad(lambda a: (a * v1).square().sum())(v1)",
        "loss = v2.square().mean() + v1.square().mean()",
        "loss.backward()",
    ],
}
"""Programs that were once traced wrongly, reduced."""

FREED_FAULTS = {
    "a node behind a kept graph, made before the walk": [
        "v0 = x * 1",
        "v1 = (v0 + 1) * v0",
        "v2 = v1 * 3",
        "v3 = v1 + 1",
        "v4 = torch.autograd.grad(v2.sum(), [x], retain_graph=True)[0]",
        "loss = v0.square().mean()",
        "loss.backward()",
    ],
    "a node behind a kept graph, made after the walk": [
        "v0 = x * 1",
        "v1 = (v0 + 1) * v0",
        "v2 = torch.autograd.grad((v1 * 3).sum(), [x], create_graph=True)[0]",
        "v3 = v1.repeat(2, 1)[:6]",
        "loss = v0.square().mean()",
        "loss.backward()",
    ],
    "a node that the program looks at when it was walked": [
        "v0 = x * 1",
        "v1 = F.cross_entropy(v0, order) * v0[order]",
        "v2 = torch.lerp(v1, v0.relu(), 0.3)",
        "v3 = torch.autograd.grad(v2.square().sum(), [x], create_graph=True)[0]",
        "v1.register_hook(lambda g: g * 2)",
        "loss = v0.square().mean()",
        "loss.backward()",
    ],
}
"""Programs whose saved tensors were once freed in another order, reduced."""

_SECOND = [
    "slope = torch.autograd.grad(v1.square().sum(), x, create_graph=True)[0]",
    "loss = slope.square().mean()",
    "loss.backward()",
]
WIDE_FAULTS = {
    "several hooks before a node": [
        "v0 = x * 1",
        *["v0.grad_fn.register_prehook(lambda go: doubled(go))"] * 2,
        "loss = v0.square().mean()",
        "loss.backward()",
    ],
    "several hooks after a node": [
        "v0 = x * 1",
        *["v0.grad_fn.register_hook(lambda gi, go: doubled(gi))"] * 2,
        "loss = v0.square().mean()",
        "loss.backward()",
    ],
}
"""Wide programs that were once traced wrongly."""
UNOBSERVED_FAULTS = {
    "a target's second derivative by the binary cross entropy": [  # in the other of two blocks
        "v0 = x.sigmoid()",
        "v1 = F.binary_cross_entropy(v0, 1 - v0)",
        *_SECOND,
    ],
    "the second derivative of masked_scatter": [  # an observed run sees one operation
        "v1 = (x * 1).masked_scatter(torch.ones(6, 6, dtype=torch.bool), x * 2)",
        *_SECOND,
    ],
}
"""The same, where only an unobserved run's sizes can be compared."""


@pytest.mark.parametrize("lines", WIDE_FAULTS.values(), ids=WIDE_FAULTS)
def test_a_wide_program_that_was_wrong_is_traced_as_it_runs(lines: list[str]) -> None:
    outcome = compare(lines, wide=True)
    assert outcome.verdict == "equal", outcome.details


@pytest.mark.parametrize("lines", UNOBSERVED_FAULTS.values(), ids=UNOBSERVED_FAULTS)
def test_a_wide_program_takes_as_many_bytes_as_it_does(lines: list[str]) -> None:
    make = partial(training_step, lines, wide=True)
    real, traced = unobserved.profiled_events(make, 2), unobserved.traced_events(make, 2)
    assert [(each.kind, each.nbytes) for each in traced] == [
        (each.kind, each.nbytes) for each in real
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_is_traced_as_it_runs(seed: int) -> None:
    lines = program_that_runs(seed)
    outcome = compare(lines)
    assert not outcome.is_fault, "\n".join([*lines, outcome.details])


@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2, 3))])
def test_a_wide_random_program_is_traced_as_it_runs(seed: int) -> None:
    lines = program_that_runs(seed, wide=True)
    outcome = compare(lines, wide=True)
    assert not outcome.is_fault, "\n".join([*lines, outcome.details])


@pytest.mark.parametrize(
    ("seed", "backend"),
    [
        pytest.param(seed, backend, marks=pytest.mark.slow if (i + j) % 2 else [])
        for i, seed in enumerate(COMPILED_SEEDS)
        for j, backend in enumerate(compiled.BACKENDS)
    ],
)
def test_a_compiled_program_is_traced_as_it_runs(seed: int, backend: str) -> None:
    lines = program_that_runs(seed)
    outcome = compiled.compare(lines, backend)
    assert outcome.verdict == "equal", "\n".join([*lines, outcome.details])


@pytest.mark.parametrize("seed", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_backward_pass_that_is_compiled_as_a_whole(seed: int) -> None:
    lines = program_that_runs(seed)
    outcome = compiled.compare(lines, "aot_eager", whole=True)
    assert outcome.verdict == "equal", "\n".join([*lines, outcome.details])


@pytest.mark.parametrize("lines", COMPILED_FAULTS.values(), ids=COMPILED_FAULTS)
def test_a_program_that_was_wrong_is_traced_as_it_runs(lines: list[str]) -> None:
    outcome = compiled.compare(lines, "aot_eager")
    assert outcome.verdict == "equal", outcome.details


@pytest.mark.parametrize("lines", FREED_FAULTS.values(), ids=FREED_FAULTS)
def test_a_graph_that_is_never_walked_is_freed_as_it_is(lines: list[str]) -> None:
    outcome = compare(lines)
    assert outcome.verdict == "equal", outcome.details
