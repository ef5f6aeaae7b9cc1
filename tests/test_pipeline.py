"""Passes, built-in or third-party, are ordered by what they require and provide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import graphmem
from graphmem import TrainingStep, pipeline
from graphmem.gpus import find_gpu
from graphmem.graph import StepGraph
from graphmem.passes.kernel_memory import FAMILIES, RULES
from graphmem.pipeline import (
    CircularPassesError,
    MissingPassError,
    Pass,
    TwoPassesError,
    installed_passes,
    ordered,
    passes_for,
    run_passes,
)
from graphmem.runtime import Runtime
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.differences import CUB_IS_OF_CUDA_13
from tests.conftest import Outcome
from tests.support.places import ROOT

RUNTIME = Runtime(find_gpu("a100"), "2.13.0")
EMPTY = StepGraph(device="cuda:0")


def a_pass(provides: str, *requires: str) -> Pass:
    return Pass(provides, lambda graph, runtime, given: (provides, dict(given)), requires)


def test_a_pass_sees_what_it_requires_and_nothing_else() -> None:
    annotations = run_passes(EMPTY, RUNTIME, [a_pass("b", "a"), a_pass("a"), a_pass("c")])

    assert annotations["b"] == ("b", {"a": ("a", {})})
    assert annotations["c"] == ("c", {})


@given(st.permutations(["a", "b", "c", "d"]))
def test_the_order_of_installation_does_not_matter(names: list[str]) -> None:
    needs = {"a": (), "b": ("a",), "c": ("a", "b"), "d": ()}
    passes = [a_pass(name, *needs[name]) for name in names]

    assert [each.provides for each in ordered(passes)] == ["a", "d", "b", "c"]


def test_a_requirement_that_nobody_provides_is_an_error() -> None:
    with pytest.raises(MissingPassError):
        ordered([a_pass("b", "a")])


@pytest.mark.parametrize("command", ["run", "analyze"])
def test_a_program_is_not_run_in_vain(
    command: str,
    run_graphmem: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """What an update lacks that was not installed again, or a stranger's package."""
    lonely = SimpleNamespace(load=lambda: a_pass("b", "a"))
    monkeypatch.setattr(pipeline, "entry_points", lambda group: [lonely])
    installed_passes.cache_clear()
    (tmp_path / "model.py").write_text("print('it ran')\ndef build(): print('it was built')\n")
    target = tmp_path / ("model.py" if command == "run" else "model.py:build")

    done = run_graphmem(command, str(target))
    installed_passes.cache_clear()

    assert done.exit_code == 2
    assert done.stderr.startswith("error: pass 'b' requires 'a', which no pass provides")
    assert "it " not in done.stdout


def test_two_passes_that_provide_the_same_key_are_an_error() -> None:
    with pytest.raises(TwoPassesError):
        ordered([a_pass("a"), a_pass("a")])


def test_a_cycle_is_an_error_that_names_it() -> None:
    with pytest.raises(CircularPassesError):
        ordered([a_pass("a", "b"), a_pass("b", "a")])


def test_one_annotation_takes_what_it_requires_directly_or_not() -> None:
    passes = [a_pass("a"), a_pass("b", "a"), a_pass("c", "b"), a_pass("d", "a")]

    assert {each.provides for each in passes_for("c", passes)} == {"a", "b", "c"}


def test_built_in_passes_are_found_through_the_entry_points() -> None:
    assert {"kernel_memory", "unmodelled"} <= {each.provides for each in installed_passes()}


def test_no_two_families_of_kernels_have_a_rule_for_one_operator() -> None:
    names = [name for family in FAMILIES for name in family.RULES]

    assert len(names) == len(set(names))


def test_the_documentation_names_every_operator_with_a_rule() -> None:
    text = (ROOT / "docs/kernel_memory.md").read_text()
    missing = [name for name in RULES if f"`{name.removeprefix('aten.')}`" not in text]

    assert missing == []


def test_data_and_solver_dependent_scratch_is_named_once_a_run() -> None:
    def step() -> None:
        x = torch.randn(4, 4, device="cuda", requires_grad=True)
        value = torch.ones((), device="cuda", requires_grad=True)
        filled = x.masked_fill(x.isnan(), value)
        (filled.prod() + filled.prod(0).sum() + filled.norm()).backward()
        torch.linalg.eigvalsh(x)

    report = graphmem.analyze(lambda: TrainingStep(step=step), steps=1)

    of_cub = [f"temporary storage of CUB's {what}" for what in ("reduction", "selection")]
    assert {each.what: each.times for each in report.assumptions} == {
        "workspace of torch.linalg's solvers": 1,
        "zeros among the factors of prod() or cumprod()": 2,
        "whether numbers are finite": 1,
        **({} if CUB_IS_OF_CUDA_13.holds_in(installed_release()) else dict.fromkeys(of_cub, 2)),
    }
