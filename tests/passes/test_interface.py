"""Passes are pure and independent of their order; third-party ones are found like built-in ones."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmem.analysis import Request, runtime_of, traced_step
from graphmem.graph import StepGraph
from graphmem.graph_lines import lines_of
from graphmem.pipeline import Annotations, Pass, installed_passes, run_passes
from tests.support.places import FIXTURES, ROOT

GPT2 = f"{FIXTURES / 'gpt2'}.py:build"
REQUEST = Request(steps=1, settings={"batch": "1"}, autocast="fp16")
RUNTIME = runtime_of(REQUEST)


@cache
def graph() -> StepGraph:
    return traced_step(GPT2, REQUEST).graph


@cache
def expected() -> dict[str, str]:
    return {name: repr(found) for name, found in run_passes(graph(), RUNTIME).items()}


def valid_orders() -> list[tuple[str, ...]]:
    """Some of the orders that satisfy the passes' requirements."""
    needs: nx.DiGraph[str] = nx.DiGraph()
    for each in installed_passes():
        needs.add_node(each.provides)
        needs.add_edges_from((name, each.provides) for name in each.requires)
    orders = nx.all_topological_sorts(needs)
    return [tuple(next(orders)) for _ in range(50)]


@settings(max_examples=10)
@given(st.sampled_from(valid_orders()))
def test_any_valid_order_gives_the_same_result(order: tuple[str, ...]) -> None:
    passes: dict[str, Pass] = {each.provides: each for each in installed_passes()}
    before = list(lines_of(graph()))
    found: dict[str, object] = {}
    for name in order:
        required = Annotations({needed: found[needed] for needed in passes[name].requires})
        found[name] = passes[name].run(graph(), RUNTIME, required)

    assert {name: repr(annotation) for name, annotation in found.items()} == expected()
    assert list(lines_of(graph())) == before


def test_running_them_twice_gives_the_same_result() -> None:
    again = {name: repr(found) for name, found in run_passes(graph(), RUNTIME).items()}

    assert again == expected()


def test_a_strangers_package_shows_in_the_report_once_it_is_installed(tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    source = tmp_path / "source"
    _copy(ROOT / "tests" / "stranger", source)
    subprocess.run(
        [*install, "--no-build-isolation", "--target", tmp_path / "site", source], check=True
    )
    command = [sys.executable, "-m", "graphmem", "analyze", GPT2, "--steps", "1"]
    report = subprocess.run(
        [*command, "--set", "batch=1", "--set", "layers=1"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
    ).stdout

    _, _, found = report.partition("  largest_op\n")
    assert found.startswith("    aten.nll_loss_backward.default allocates 196.5 MiB")


def _copy(folder: Path, to: Path) -> None:
    """Copy the package, so that building it leaves no files here."""
    for file in (folder / "pyproject.toml", folder / "graphmem_largest_op" / "__init__.py"):
        copied = to / file.relative_to(folder)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(file.read_bytes())
