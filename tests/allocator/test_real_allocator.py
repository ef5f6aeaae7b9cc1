"""graphmem's allocator and the one in the installed torch's libc10_cuda.so do the same.

That one runs on a pretended CUDA (tools/real_allocator), so no GPU is needed, but a build of torch
for CUDA is. A few fixed seeds; `python -m tools.real_allocator` runs many, and other wheels.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from graphmem.torch_releases.differences import NEWEST_TRIED, OLDEST_BLOCK_IS_TAKEN
from tools.real_allocator.cases import difference
from tools.real_allocator.driver import build_driver, missing_tools
from tools.real_allocator.libraries import Libraries, installed_libraries
from tools.real_allocator.modes import MODES

SEEDS = range(2)


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    """Those of the installed torch, if they can be run."""
    if missing := missing_tools():
        pytest.skip(f"not installed: {', '.join(missing)}")
    found = installed_libraries()
    if found is None:
        pytest.skip("the installed torch was built without CUDA")
    if not found.symbols:
        pytest.skip(f"{found.cuda} was stripped of its symbols")
    if lacking := found.missing():
        message = f"{found.cuda} lacks {', '.join(lacking)}"
        if found.release > NEWEST_TRIED:
            pytest.skip(f"{message}; it is newer than any release that was tried")
        pytest.fail(message)
    return found


@pytest.fixture(scope="module")
def driver(libraries: Libraries, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pretended CUDA."""
    folder = tmp_path_factory.mktemp("driver")
    build_driver(folder, libraries.runtime)
    return folder


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", MODES)
def test_both_allocators_do_the_same(
    libraries: Libraries, driver: Path, mode: str, seed: int
) -> None:
    if not MODES[mode].suits(libraries):
        pytest.skip("its settings came with torch {}.{}".format(*MODES[mode].since))

    found = difference(libraries, driver, mode, seed)

    assert not found, found


def test_the_rules_of_another_release_are_noticed(libraries: Libraries, driver: Path) -> None:
    """Where blocks of one size are free, 2.12 took another one than those before."""
    is_later = OLDEST_BLOCK_IS_TAKEN.holds_in(libraries.release)
    found = difference(libraries, driver, "plain", 0, rules=(2, 11) if is_later else NEWEST_TRIED)

    where, answer, *_ = found.splitlines()
    assert where.startswith("plain, seed 0, step ")
    assert ": malloc of " in where
    assert answer.startswith("  answer: real 0x")
    assert ", predicted 0x" in answer
