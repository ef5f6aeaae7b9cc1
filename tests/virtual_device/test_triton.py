"""Triton on the virtual card: its driver's answers, and the timings that it keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

pytest.importorskip("triton")

PROPERTIES = """
import triton

print(triton.runtime.driver.active.utils.get_device_properties(0))
"""

TUNED = """
import torch, triton, triton.language as tl

@triton.autotune([triton.Config({"B": 64}), triton.Config({"B": 128})], ["n"], cache_results=True)
@triton.jit
def double(x, n, B: tl.constexpr):
    pass

double[(1,)](torch.empty(64, device="cuda"), 64)
print(torch.cuda.max_memory_allocated())
"""

TIMED = """
import torch, triton

triton.testing.do_bench(lambda: torch.empty(128, device="cuda"), warmup=0, rep=0)
print(torch.cuda.max_memory_allocated())
"""

FLUSHED = 256 << 20
"""`do_bench` writes this before each timed call (triton/backends/nvidia/driver.py)."""


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


def test_triton_sees_the_card_that_was_asked_for(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """CUDA C++ Programming Guide, "Technical Specifications": 227 KiB a block, 64 Ki registers."""
    outcome = run_graphmem("run", "--gpu", "h100-80gb", script(tmp_path, PROPERTIES))

    assert outcome.stdout == (
        "{'max_shared_mem': 232448, 'max_num_regs': 65536, 'multiprocessor_count': 132,"
        " 'warpSize': 32}\n"
    )


def test_timings_are_neither_kept_in_nor_read_from_the_user_s_cache(
    tmp_path: Path, run_graphmem: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run predicts a first run, too; and a card never finds timings of this one."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    tuned = script(tmp_path, TUNED)

    printed = [int(run_graphmem("run", tuned).stdout) for _ in range(2)]

    assert printed == [FLUSHED + 512] * 2  # 64 floats take half of a block
    assert not cache.exists()


def test_a_script_times_a_call_by_do_bench(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """Triton 3.2 and later ask the driver to clear the cache before each timed call."""
    outcome = run_graphmem("run", script(tmp_path, TIMED))

    assert int(outcome.stdout) == FLUSHED + 128 * 4
