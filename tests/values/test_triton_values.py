"""What Triton kernels of integers compute, and what of it cannot be known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

pytest.importorskip("triton")

KERNELS = """
import torch, triton, triton.language as tl

@triton.jit
def histogram(counts, choices, n, E: tl.constexpr, B: tl.constexpr):
    places = tl.program_id(0) * B + tl.arange(0, B)
    chosen = tl.load(choices + places, mask=places < n, other=0)
    tl.atomic_add(counts + chosen, tl.full([B], 1, tl.int32), mask=places < n)

@triton.jit
def tiles(offsets, counts, E: tl.constexpr, TILE: tl.constexpr):
    experts = tl.arange(0, E)
    each = (tl.load(counts + experts) + TILE - 1) // TILE
    tl.store(offsets + experts, tl.cumsum(each, 0) - each)
    tl.store(offsets + E, tl.sum(each, 0))

@triton.jit
def scale(numbers, counts, B: tl.constexpr):
    places = tl.arange(0, B)
    tl.store(numbers + places, tl.load(counts + places).to(tl.float32))

def known(*numbers):
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")

def empty(n, dtype=torch.int32):
    return torch.empty(n, dtype=dtype, device="cuda")

counts, offsets = torch.zeros(4, dtype=torch.int32, device="cuda"), empty(5)
"""


def run_program(text: str, folder: Path, run_graphmem: Callable[..., Outcome]) -> Outcome:
    (folder / "script.py").write_text(KERNELS + text)
    outcome = run_graphmem("run", "--gpu", "h100-80gb", str(folder / "script.py"))
    assert outcome.exit_code == 0
    return outcome


def test_kernels_that_count_choices_tell_how_many_tiles_there_are(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """Nine choices by two programs; tiles of two, of which each expert fills its last in part."""
    counted = """
choices = known(0, 0, 0, 1, 3, 3, 3, 3, 3)
histogram[lambda meta: (triton.cdiv(9, meta["B"]),)](counts, choices, 9, E=4, B=8)
tiles[(1,)](offsets, counts, E=4, TILE=2)
print(counts.tolist(), offsets.tolist())
"""
    outcome = run_program(counted, tmp_path, run_graphmem)

    assert outcome.stdout == "[3, 1, 0, 5] [0, 2, 3, 3, 6]\n"
    assert "assuming" not in outcome.stderr


def test_what_was_read_before_a_kernel_wrote_into_it_stays(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """A copy is made before the second launch, and the launch is run only when it is read."""
    twice = """
choices = known(2)
histogram[(1,)](counts, choices, 1, E=4, B=8)
before = counts.clone()
histogram[(1,)](counts, choices, 1, E=4, B=8)
choices.zero_()
histogram[(1,)](counts, choices, 1, E=4, B=8)
print(before.tolist(), counts.tolist())
"""
    outcome = run_program(twice, tmp_path, run_graphmem)

    assert outcome.stdout == "[0, 0, 1, 0] [1, 0, 2, 0]\n"


def test_equal_launches_run_once_and_their_results_are_apart(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    again = """
made = []
for _ in range(2):
    counts = torch.zeros(4, dtype=torch.int32, device="cuda")
    histogram[(1,)](counts, known(1), 1, E=4, B=8)
    made.append(counts)
    counts += 1
print([each.tolist() for each in made])
"""
    outcome = run_program(again, tmp_path, run_graphmem)

    assert outcome.stdout == "[[1, 2, 1, 1], [1, 2, 1, 1]]\n"


@pytest.mark.parametrize("chosen", [4, 99_999_999])
def test_a_kernel_that_would_touch_other_memory_is_not_run(
    chosen: int, tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """On a card it is an illegal access, or worse; here it must not touch graphmem's memory."""
    astray = f"""
histogram[(1,)](counts, known({chosen}), 1, E=4, B=8)
print(counts.tolist())
"""
    outcome = run_program(astray, tmp_path, run_graphmem)

    assert "assuming every element of counts" in outcome.stderr


@pytest.mark.parametrize(
    "launch",
    [
        "written = empty(2048)\ntiles[(1,)](written, counts, E=4, TILE=2)",
        "written = empty(2048)\nhistogram[(1,)](written, known(0), 1, E=4, B=8)",
        "written = counts + 0\nhistogram[(2000,)](written, known(0), 1, E=4, B=8)",
    ],
    ids=["written in part", "loads what nothing wrote", "too many programs"],
)
def test_what_cannot_be_known_is_told(
    launch: str, tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """Memory of more than 1,024 integers from `empty` is unknown (values/limits.py, `TABLE`)."""
    outcome = run_program(f"{launch}\nprint(written[-1].item())", tmp_path, run_graphmem)

    assert "assuming written = 0 (nothing is computed)" in outcome.stderr


def test_kernels_of_other_numbers_are_not_run(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """What a product or a loss computes costs nothing here."""
    scaled = """
numbers = empty(4, torch.float32)
scale[(1,)](numbers, counts, B=4)
print(numbers[0].item())
"""
    outcome = run_program(scaled, tmp_path, run_graphmem)

    assert "assuming numbers = 1.0" in outcome.stderr
