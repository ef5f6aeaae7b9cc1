"""What a kernel of the program's own writes is not known, and a number that it made is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

pytest.importorskip("triton")

TRITON = """
import torch, triton, triton.language as tl

@triton.jit
def count(out, indices, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(indices + i, mask=i < n) + 1, mask=i < n)

indices = torch.arange(8, device="cuda")
counts = {made}
"""
LAUNCH = "count[(1,)](counts, indices, n=8, B=8)"
CUSTOM = f"""
@torch.library.custom_op("test_unseen_writes::count", mutates_args={{"counts"}})
def counted(counts: torch.Tensor, indices: torch.Tensor) -> None:
    {LAUNCH}

counted(counts, indices)
"""
COMPILED = f"""
@torch.compile
def counted(counts, indices):
    {LAUNCH}
    return counts + 0

counts = counted(counts, indices)
"""
READ = """
print(indices.tolist())
print(counts[-1].item())
"""
DESCRIBED = """
import torch, triton, triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def count(rows, counts, B: tl.constexpr):
    tl.store(counts + tl.arange(0, B), B)

rows = (torch.ones(16, 16, device="cuda", requires_grad=True) * 2).detach()
counts = torch.zeros(8, dtype=torch.long, device="cuda")
count[(1,)](TensorDescriptor.from_tensor(rows, [16, 16]), counts, B=8)
"""
RAW = """
import torch

kernel = torch.cuda._compile_kernel('extern "C" __global__ void fill(long* p, int n) {}', "fill")
counts = torch.zeros(8, dtype=torch.long, device="cuda")
kernel((1, 1, 1), (8, 1, 1), (counts, 8))
print(counts[-1].item())
"""
ZEROS = "torch.zeros(8, dtype=torch.long, device='cuda')"
EMPTY = "torch.empty(8, dtype=torch.long, device='cuda')"


@pytest.mark.parametrize("made", [ZEROS, EMPTY], ids=["zeros", "empty"])
def test_what_a_triton_kernel_in_a_graph_writes_is_unknown_and_what_it_reads_stays_known(
    made: str, tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    outcome = run_program(TRITON.format(made=made) + COMPILED + READ, tmp_path, run_graphmem)

    assert outcome.stdout.splitlines() == ["[0, 1, 2, 3, 4, 5, 6, 7]", "0"]
    assert "assuming counts = 0 (nothing is computed)" in outcome.stderr
    assert "assuming every element of indices" not in outcome.stderr


def test_a_launch_reads_nothing_of_what_a_descriptor_holds(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    outcome = run_program(DESCRIBED, tmp_path, run_graphmem)

    assert "assuming" not in outcome.stderr + outcome.stdout


def test_what_a_kernel_in_cuda_writes_is_unknown(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    outcome = run_program(RAW, tmp_path, run_graphmem)

    assert "assuming counts = 0 (nothing is computed)" in outcome.stderr


def test_entries_of_a_table_that_nothing_wrote_are_zeros(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    table = "import torch\ntable = torch.empty(4, dtype=torch.long, device='cuda')\n"

    outcome = run_program(f"{table}table[1] = 7\nprint(table.tolist())", tmp_path, run_graphmem)

    assert outcome.stdout.splitlines() == ["[0, 7, 0, 0]"]


def run_program(text: str, folder: Path, run_graphmem: Callable[..., Outcome]) -> Outcome:
    (folder / "script.py").write_text(text)
    outcome = run_graphmem("run", "--gpu", "h100-80gb", str(folder / "script.py"))
    assert outcome.exit_code == 0
    return outcome


CAPTURED = """
import torch

count, length = (torch.zeros((), dtype=torch.long, device="cuda") for _ in range(2))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    count += 1
    length = length + 1
count.zero_()
print(count.item())
graph.replay()
print(count.item(), length.item())
"""


def test_what_a_cuda_graph_writes_is_unknown_after_a_replay(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """A card has 1 and 1; here they are assumed, and nothing says that the 0 before it is."""
    outcome = run_program(CAPTURED, tmp_path, run_graphmem)

    assert outcome.stdout.splitlines() == ["0", "0 0"]
    assert "assuming count = 0 (nothing is computed)" in outcome.stderr
    assert "assuming length = 0 (nothing is computed)" in outcome.stderr
    assert "script.py:11: assuming" not in outcome.stderr
