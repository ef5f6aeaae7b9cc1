"""Random numbers from a program's own seed are those that the card draws.

The figures are public: what torch prints after `manual_seed` on any card, and the product that
Triton's tutorial on matrix multiplication printed on an A100.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from graphmem.values.philox import Turns
from tests.conftest import Outcome

A100 = 108 * 2048
"""Multiprocessors and threads on each: GA100's data sheet."""


def run_program(text: str, folder: Path, run_graphmem: Callable[..., Outcome]) -> Outcome:
    (folder / "script.py").write_text(f"import torch\n{text}")
    outcome = run_graphmem("run", "--gpu", "a100-80gb", str(folder / "script.py"))
    assert outcome.exit_code == 0
    return outcome


def test_normal_numbers_are_those_that_torch_prints() -> None:
    """`torch.manual_seed(42); torch.randn(2, 2, device="cuda")` in flashinfer's documentation."""
    drawn = Turns.of(4, A100).normal(42, 0)

    assert pytest.approx(drawn.tolist(), abs=1e-4) == [0.1940, 2.1614, -0.1721, 0.8491]


def test_uniform_numbers_go_on_from_the_offset() -> None:
    """TensorRT-LLM's and Triton's examples: `rand` twice after `manual_seed(0)`."""
    first = Turns.of(4, A100)

    assert pytest.approx(first.uniform(0, 0).tolist(), abs=1e-4) == [0.3990, 0.5167, 0.0249, 0.9401]
    assert pytest.approx(first.uniform(0, first.advance).tolist(), abs=1e-4) == [
        0.9722,
        0.7910,
        0.4690,
        0.3300,
    ]


def test_a_tensor_with_more_elements_than_threads_takes_several_of_a_turn() -> None:
    """Triton's tutorial 03 printed `a @ b` of two 512 x 512 in fp16, seed 0, on an A100.

    221,184 threads draw the first elements of 262,144, and then the others from their second
    numbers: on a card with more or fewer the product is another.
    """
    turns = Turns.of(512 * 512, A100)
    a = turns.normal(0, 0).half().float().reshape(512, 512)
    b = turns.normal(0, turns.advance).half().float().reshape(512, 512)
    corners = (a @ b)[[0, 1, -2, -1]][:, [0, 1, -2, -1]]

    printed = torch.tensor(
        [
            [-10.9531, -4.7109, 4.3320, -26.4219],
            [26.8438, 10.0469, -8.5312, 30.7500],
            [-6.1211, -16.8281, 24.7031, 15.0234],
            [-17.0938, -19.0000, -30.2344, -13.2188],
        ]
    )
    torch.testing.assert_close(printed, corners, rtol=2**-9, atol=0.0)  # rounded to fp16


def test_a_seeded_program_reads_the_card_s_numbers(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """The offset goes on by four for each tensor for which one turn is enough."""
    program = """
torch.manual_seed(0)
print(torch.rand(4, device="cuda").tolist())
print(torch.empty(4, device="cuda").uniform_().tolist())
print(torch.cuda.default_generators[0].get_offset())
"""
    outcome = run_program(program, tmp_path, run_graphmem)

    first, second, offset = outcome.stdout.splitlines()
    assert pytest.approx(json.loads(first), abs=1e-4) == [0.3990, 0.5167, 0.0249, 0.9401]
    assert pytest.approx(json.loads(second), abs=1e-4) == [0.9722, 0.7910, 0.4690, 0.3300]
    assert offset == "8"
    assert "assuming random numbers: what the card draws from the seed" in outcome.stderr


def test_a_choice_among_drawn_numbers_is_the_card_s(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """Of 0.1940, 2.1614, -0.1721, 0.8491 (seed 42), the second is the largest, then the last."""
    program = """
torch.manual_seed(42)
scores = torch.randn(2, 2, device="cuda").flatten()
print(scores.topk(2).indices.tolist(), scores.argmax().item(), scores.argmin().item())
scores.neg_()
print(scores.topk(2).indices.tolist())
"""
    outcome = run_program(program, tmp_path, run_graphmem)

    assert outcome.stdout.splitlines() == ["[1, 3] 1 2", "[1, 3]"]  # evenly: one of each half
    assert "by the numbers that the card draws from the seed" in outcome.stderr
    assert "topk chooses: spread evenly" in outcome.stderr


def test_the_user_s_share_of_routing_comes_first(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    program = """
torch.manual_seed(42)
print(torch.randn(64, 8, device="cuda").topk(1).indices.eq(0).sum().item())
"""
    (tmp_path / "script.py").write_text(f"import torch\n{program}")

    outcome = run_graphmem("run", "--assume", "routing=0.5", str(tmp_path / "script.py"))

    assert int(outcome.stdout) == 64 // 2


CAPTURED = """
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    torch.rand(4, device="cuda")
"""
COMPILED = """
torch.compile(lambda x: torch.rand_like(x))(torch.ones(4, device="cuda"))
"""
UNKNOWN = {
    "no seed": "",
    "dropout": "torch.nn.functional.dropout(torch.ones(8, device='cuda'))",
    "a permutation": "torch.randperm(8, device='cuda')",
    "a random seed": "torch.cuda.seed()",
    "another seed's state": "torch.cuda.set_rng_state(torch.ones(16, dtype=torch.uint8))",
    "a captured graph": CAPTURED,
    "a compiled function": COMPILED,
}


@pytest.mark.parametrize("drawn", UNKNOWN.values(), ids=UNKNOWN)
def test_numbers_after_something_else_was_drawn_are_unknown(
    drawn: str, tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """How many numbers that took is not followed: a program's next ones are those of one draw."""
    if "compile" in drawn:
        pytest.importorskip("triton")
    seeded = f"torch.manual_seed(0)\n{drawn}" if drawn else ""
    text = f"{seeded}\nprint(torch.rand(4, device='cuda').tolist())"

    outcome = run_program(text, tmp_path, run_graphmem)

    assert "assuming random numbers: those of one draw" in outcome.stderr


def test_a_checkpoint_draws_its_numbers_again(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """It sets the state back for its second pass, and forward again afterwards."""
    program = """
def drawn(x):
    return torch.randn(4, device="cuda").sum() * x.sum()

torch.manual_seed(0)
x = torch.ones(4, device="cuda", requires_grad=True)
torch.utils.checkpoint.checkpoint(drawn, x, use_reentrant=False).backward()
print(torch.rand(4, device="cuda").tolist())
"""
    outcome = run_program(program, tmp_path, run_graphmem)

    assert pytest.approx(json.loads(outcome.stdout), abs=1e-4) == [0.9722, 0.7910, 0.4690, 0.3300]


def test_attention_without_dropout_draws_nothing(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    program = """
q = torch.ones(1, 2, 64, 64, device="cuda", dtype=torch.float16)
torch.manual_seed(0)
torch.nn.functional.scaled_dot_product_attention(q, q, q)
print(torch.rand(4, device="cuda").tolist())
"""
    outcome = run_program(program, tmp_path, run_graphmem)

    assert pytest.approx(json.loads(outcome.stdout), abs=1e-4) == [0.3990, 0.5167, 0.0249, 0.9401]


def test_a_random_gradient_is_not_one(tmp_path: Path, run_graphmem: Callable[..., Outcome]) -> None:
    """Liger's losses multiply by a gradient other than 1.0, which takes as much again."""
    program = """
y = torch.ones((), device="cuda")
one = torch.tensor(1.0, device="cuda")
random = torch.randn_like(y)
print(torch.equal(random, one), torch.equal(torch.ones_like(y), one), bool(random != 1.0))
print(torch.equal(random, random), torch.equal(random.fill_(1.0), one))
"""
    outcome = run_program(program, tmp_path, run_graphmem)

    assert outcome.stdout.splitlines() == ["False True True", "True True"]
    assert "assuming whether random numbers equal others: they do not" in outcome.stderr
