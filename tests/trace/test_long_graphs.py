"""An autograd graph may be longer than the stack is deep.

Each command runs in a child process, because a failure would crash the process. By default the
stacks are small, so that few operations suffice; `GRAPHMEM_LONG_GRAPHS=1` uses the usual stack of
8 MiB, 200,000 operations and 1,260 layers.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

TARGETS = """
import torch, graphmem

def chain(operations, retained=False):
    x = torch.randn(8, 8, device="cuda", requires_grad=True)

    def step():
        y, kept = x, []
        for _ in range(operations):
            y = y.sin()
            if retained:
                y.retain_grad()
                kept.append(y)
        y.sum().backward()
        x.grad = None

    return graphmem.TrainingStep(step=step)

def decoder(layers):
    layer = torch.nn.TransformerEncoderLayer
    layers = [layer(8, 2, 16, batch_first=True, dropout=0.0) for _ in range(layers)]
    return torch.nn.Sequential(*layers), torch.randn(1, 4, 8)
"""
IS_LONG = os.environ.get("GRAPHMEM_LONG_GRAPHS") == "1"
STACK = (8 << 20) if IS_LONG else (512 << 10)
OPERATIONS = 200_000 if IS_LONG else 4_000
LAYERS = 1_260 if IS_LONG else 100


def analyze(folder: Path, target: str, *settings: str) -> str:
    (folder / "long.py").write_text(TARGETS)
    sets = [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run(
        [sys.executable, "-m", "graphmem", "analyze", f"long.py:{target}", *sets, "--steps", "1"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (STACK, STACK)),
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2_000:])
    return done.stdout


@pytest.mark.slow
def test_a_long_chain_of_operations_is_traced_and_freed(tmp_path: Path) -> None:
    report = analyze(tmp_path, "chain", f"operations={OPERATIONS}")
    # Each operation saves its input, 8*8*4 bytes in a block of 512. At the first product of the
    # backward pass the last result, the loss, its gradient, a cosine and the product exist too.
    assert f"({OPERATIONS * 512 + 5 * 512:,} bytes)" in report


@pytest.mark.slow
def test_a_deep_model_is_traced_and_freed(tmp_path: Path) -> None:
    assert "peak" in analyze(tmp_path, "decoder", f"layers={LAYERS}")
