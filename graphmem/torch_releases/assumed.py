"""The assumptions that a report lists because of the releases it was made with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from graphmem.graph import Assumption
from graphmem.torch_releases import installed_release, parse_release
from graphmem.torch_releases.differences import NEWEST_TRIED, Difference, Release
from graphmem.torch_releases.installed_build import ABOVE_THE_KERNELS, COPIES_GO_TO_THE_HOST
from graphmem.torch_releases.release import written


def assumed_of(version: str) -> Iterator[Assumption]:
    """List what is assumed because of the installed release.

    Args:
        version: the version of torch whose CUDA rules apply.
    """
    import torch  # the report's words are needed without it

    installed = torch.__version__.partition("+")[0]
    if installed_release() > NEWEST_TRIED:
        yield Assumption(
            f"rules of torch {installed}",
            f"those of {written(NEWEST_TRIED)}",
            "it is newer than what graphmem was tested on",
            None,
        )
    asked_for = parse_release(version)
    if asked_for != installed_release():
        copies = COPIES_GO_TO_THE_HOST.holds_in(installed_release())
        above = ABOVE_THE_KERNELS if copies else (*ABOVE_THE_KERNELS, COPIES_GO_TO_THE_HOST)
        rows = between(asked_for, installed_release(), above)
        differ = "; ".join(f"since {written(row.since)}, {row.what}" for row in rows)
        yield Assumption(
            above_the_kernels(version),
            f"composites, derivative formulas and optimizers of {installed}",
            "it is the one that is installed; --torch chooses the CUDA rules"
            + (f". Known to differ: {differ}" if differ else ""),
            None,
        )


def above_the_kernels(version: str) -> str:
    """What an assumption calls the part of a release that `--torch` does not choose."""
    return f"what torch {version} runs above the card's kernels"


def between(one: Release, other: Release, rows: Iterable[Difference]) -> Iterator[Difference]:
    """The rows that hold in only one of two releases."""
    return (row for row in rows if row.holds_in(one) != row.holds_in(other))
