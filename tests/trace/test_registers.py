"""Reductions that need many registers are timed (`_dynamic_scale_rblock`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import pytest

from tests.conftest import Outcome

Run = Callable[..., Outcome]

L2_CACHE = 50 * 2**20
"""Of an H100; Inductor flushes it with a buffer of its size (`benchmark_gpu`)."""

LIGHT = "rows[0].float().sum(-1)"
"""Four elements a thread."""

HEAVY = "sum(each.float().sin() * each.float().exp() for each in rows).sum(-1)"
"""Eight times four elements a thread, which fill 32 registers alone."""

SCRIPT = """
import torch
rows = [torch.empty(65536, 4096, dtype=torch.bfloat16, device="cuda") for _ in range(8)]
@torch.compile
def reduced():
    return {}
result = reduced()
print(torch.cuda.max_memory_allocated())
"""

RESULT = 65536 * 4
ROWS = 8 * 65536 * 4096 * 2


@pytest.mark.parametrize("tuned", [(), ("--assume", "tuned=true")])
@pytest.mark.parametrize(("expression", "timed"), [(LIGHT, 0), (HEAVY, L2_CACHE)])
def test_a_reduction_is_timed_if_it_needs_more_registers_than_all_threads_have(
    expression: str, timed: int, tuned: tuple[str, ...], run_graphmem: Run, tmp_path: Path
) -> None:
    """65,536 registers for 2,048 threads of a multiprocessor: 32 (`regs_per_multiprocessor`).

    Up to torch 2.13 the choice is not read from the cache, so it is made again in a later run.
    """
    outcome = _run(expression, tmp_path, run_graphmem, *tuned)

    from torch._inductor.runtime.triton_heuristics import check_autotune_cache

    is_kept = "dynamic_scale_rblock_eligible" in signature(check_autotune_cache).parameters
    assert int(outcome.stdout) == ROWS + RESULT + (0 if tuned and is_kept else timed)
    assert "registers" not in outcome.stderr


def test_registers_need_not_be_counted(run_graphmem: Run, tmp_path: Path) -> None:
    outcome = _run(HEAVY, tmp_path, run_graphmem, "--assume", "registers=false")

    assert int(outcome.stdout) == ROWS + RESULT


def test_without_a_compiler_the_report_says_what_it_assumes(
    run_graphmem: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphmem.trace.compiled.registers._counted", _fails)
    outcome = _run(HEAVY, tmp_path, run_graphmem)

    assert int(outcome.stdout) == ROWS + RESULT
    report = re.sub(r"\s+", " ", outcome.stderr)
    assert "registers that a reduction needs have it timed: no; Triton has" in report
    assert "does not here: no tool (" in report


def _fails(binary: bytes) -> int:
    raise FileNotFoundError("no tool")


def _run(expression: str, folder: Path, run_graphmem: Run, *options: str) -> Outcome:
    script = folder / "script.py"
    script.write_text(SCRIPT.format(expression))
    return run_graphmem("run", "--gpu", "h100-80gb", *options, str(script))
