"""Random programs: H100 recordings compared with predictions.

`fixtures/cuda/random.tar.xz` has 239 recordings; every sixteenth is compared here. Their release,
torch 2.11, frees the tensors of a dying graph in another order than later ones, so only the
allocations, their order and the peaks are compared on every release.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from graphmem.verify import run_suite
from graphmem.verify.changes import Change
from graphmem.verify.own_cases import own_case
from tests.support.places import FIXTURES

ARCHIVE = FIXTURES / "cuda" / "random.tar.xz"
SAMPLE = 16
CHOSEN_BY_CUDNN = ("convolution", "cudnn")
"""Operators whose workspace is assumed, as their reports say: those of `conv1d` and of a GRU."""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("random")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return sorted(folder.iterdir())


def allocated(changes: tuple[Change, ...]) -> list[int]:
    return [change.nbytes for change in changes if change.is_alloc]


def has_assumed_workspace(changes: tuple[Change, ...]) -> bool:
    return any(name in change.where for change in changes for name in CHOSEN_BY_CUDNN)


def test_every_allocation_of_a_random_program_is_predicted(recordings: list[Path]) -> None:
    sample = recordings[::SAMPLE]
    rows = [run_suite([own_case(path)], path.parent).recorded[0] for path in sample]
    compared = [row.comparison for row in rows if row.comparison is not None]
    known = [each for each in compared if not has_assumed_workspace(each.predicted)]

    assert len(known) > 10
    for each in known:
        assert allocated(each.predicted) == allocated(each.recorded), each.name
        assert each.recorded_figures is not None
        assert each.predicted_figures == each.recorded_figures, each.name


def test_gradients_of_gradients_run_in_the_order_of_the_card(recordings: list[Path]) -> None:
    """Program 125 makes nodes on both threads, after a view was written into.

    The card's thread must count no node that only a trace makes, or nodes of its second iteration
    run before those of the program's thread.
    """
    (path,) = (path for path in recordings if path.name.startswith("random_125."))

    compared = run_suite([own_case(path)], path.parent).recorded[0].comparison

    assert compared is not None
    assert compared.first_difference is None
