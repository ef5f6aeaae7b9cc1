"""`graphmem analyze` follows CUDA graphs and memory pools as `graphmem run` does.

`run` is compared with an H100 in tests/verify/test_recorded_graphs.py; here each target is analysed
and run, and both must agree to the byte.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphmem
from graphmem.analysis import Request, run_analysis
from tests.conftest import Outcome
from tests.support.sizes import KEPT_WORKSPACES

MODEL = """
import torch
from graphmem import TrainingStep
from torch import nn

def layers():
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 256))
"""
WHOLE_STEP = """
def build():
    model = nn.Sequential(layers(), layers()).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    x, y = torch.randn(64, 256, device="cuda"), torch.randn(64, 256, device="cuda")
    def train():
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        train()
        optimizer.zero_grad()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train()
    def step():
        x.copy_(torch.randn(64, 256, device="cuda"))
        graph.replay()
    return TrainingStep(model=model, step=step)
"""
CALLABLES = """
def build():
    model = nn.Sequential(layers(), layers()).cuda()
    x = torch.randn(64, 256, device="cuda")
    samples = (x,), (torch.randn_like(x, requires_grad=True),)
    first, second = torch.cuda.make_graphed_callables((model[0], model[1]), samples)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def step():
        optimizer.zero_grad()
        second(first(torch.randn(64, 256, device="cuda"))).sum().backward()
        optimizer.step()
    return TrainingStep(model=model, step=step)
"""
POOL = """
def build():
    model = nn.Sequential(layers(), layers()).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    pool = torch.cuda.MemPool()
    def step():
        with torch.cuda.use_mem_pool(pool):
            loss = model(torch.randn(64, 256, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return TrainingStep(model=model, step=step)
"""
COMPILED = """
def build():
    model = nn.Sequential(layers(), layers())
    return torch.compile(model, {how}), torch.randn(64, 256)
"""
BRANCHES = """
def build():
    model = torch.compile(layers().cuda(), mode="reduce-overhead")
    def step():
        for rows in (64, 64, 64, 32, 32, 32, 64):
            torch.compiler.cudagraph_mark_step_begin()
            with torch.no_grad():
                y = model(torch.randn(rows, 256, device="cuda"))
                model(y.relu())
    return TrainingStep(model=model, step=step)
"""
STREAMS = """
def build():
    model, side = layers().cuda(), torch.cuda.Stream()
    def step():
        with torch.cuda.stream(side):
            x = torch.randn(64, 256, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        x.record_stream(torch.cuda.current_stream())
        model(x).sum().backward()
    return TrainingStep(model=model, step=step)
"""


def target(folder: Path, body: str) -> str:
    (folder / "model.py").write_text(MODEL + body)
    return f"{folder / 'model.py'}:build"


def figures(report: dict[str, Any]) -> tuple[int, int, int, int]:
    """Peak allocated, requested and reserved then; the highest reserved bytes."""
    card = report["memory"]["on_card"] if report["memory"] else report["ran"]
    peak = report["peak"]
    return peak["allocated"], peak["requested"], peak["reserved"], card["reserved"]


def of_both(
    folder: Path, run: Callable[..., Outcome], body: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The figures of `analyze` and of `run`."""
    name = target(folder, body)
    shared = "--gpu", "h100-80gb", "--format", "json"
    analysed = run("analyze", *shared, name)
    done = run("run", *shared, "-o", str(folder / "run.json"), name)
    assert (analysed.exit_code, done.exit_code) == (0, 0), analysed.stderr + done.stderr
    ran = json.loads((folder / "run.json").read_text())
    return figures(json.loads(analysed.stdout)), figures(ran)


@pytest.mark.parametrize("body", [WHOLE_STEP, CALLABLES, POOL, STREAMS])
def test_both_commands_give_the_same_figures(
    body: str, tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    analysed, ran = of_both(tmp_path, run_graphmem, body)

    assert analysed == ran


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        COMPILED.format(how="mode='reduce-overhead'"),
        COMPILED.format(how="backend='cudagraphs'"),
        COMPILED.format(how="mode='default'"),
        BRANCHES,
    ],
)
def test_both_commands_give_the_same_figures_of_compiled_code(
    body: str, tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    pytest.importorskip("triton")
    analysed, ran = of_both(tmp_path, run_graphmem, body)

    assert analysed == ran


def test_the_pool_of_a_graph_is_listed(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """It is what the capture allocated: 2 x 2 MiB of weights' gradients and more."""
    done = run_graphmem("analyze", "--gpu", "h100-80gb", target(tmp_path, WHOLE_STEP))

    assert "private (1, 0)" in done.stdout
    assert "CUDA graph" not in done.stdout


def test_a_saved_step_has_the_same_report(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    file = str(tmp_path / "step.graphmem")
    done = run_graphmem("analyze", "--gpu", "t4", "--save", file, target(tmp_path, CALLABLES))
    again = run_graphmem("analyze", file)

    assert done.exit_code == again.exit_code == 0, again.stderr
    assert "private (0, 1)" in again.stdout
    peak = next(line for line in done.stdout.splitlines() if line.startswith("peak"))
    assert peak in again.stdout


@pytest.mark.parametrize(("mebibytes", "fits"), [(400, True), (260, False)])
def test_the_verdict_of_a_small_card_is_that_of_a_run(
    mebibytes: int,
    fits: bool,
    tmp_path: Path,
    run_graphmem: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A context of compute capability 7.5 takes 198 MiB of it, cuBLAS's workspaces another part."""
    ((variable, kept),) = KEPT_WORKSPACES.items()
    monkeypatch.setenv(variable, kept)
    name = target(tmp_path, WHOLE_STEP)
    card = f"name=small,memory={mebibytes}MiB,sm=75,multiprocessors=40"
    options = ("--gpu", card, "--env", f"{variable}={kept}", "--format", "json")
    analysed = run_graphmem("analyze", *options, name)
    out = tmp_path / "run.json"
    run_graphmem("run", "--gpu", card, "--format", "json", "-o", str(out), name)
    mine, its = json.loads(analysed.stdout)["memory"]["on_card"], json.loads(out.read_text())["ran"]

    assert mine["fits"] is its["fits"] is fits
    assert (mine["reserved"], mine["allocated"]) == (its["reserved"], its["allocated"])


def test_a_read_during_a_capture_is_the_cards_error(tmp_path: Path) -> None:
    body = """
def build():
    model = layers().cuda()
    def step():
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            print(model(torch.randn(64, 256, device="cuda")).sum().item())
    return TrainingStep(model=model, step=step)
"""
    with pytest.raises(
        graphmem.InputError, match="not permitted when stream is capturing"
    ) as error:
        graphmem.analyze(target(tmp_path, body))

    assert "model.py:13" in str(error.value)


@pytest.mark.slow
def test_a_tape_played_on_an_equal_card_gives_the_same_moments(tmp_path: Path) -> None:
    """Pools get noted states again, and blocks new owners."""
    pytest.importorskip("triton")
    step = run_analysis(target(tmp_path, BRANCHES), Request(gpu="h100-80gb")).step
    assert step.observed is not None
    assert step.observed.tape is not None
    seen = step.observed.timeline
    again = step.observed.tape.replay(step.runtime.new_allocator(bounded=False)).timeline

    assert list(again.moments) == list(seen.moments)
    assert again.addresses == seen.addresses
    assert again.segments == seen.segments
