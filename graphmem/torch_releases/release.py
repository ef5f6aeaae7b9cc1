"""Parse the release of PyTorch from a version."""

from __future__ import annotations

import re

from graphmem.errors import InputError


class NotReleaseError(InputError):
    """A string is not a version of torch."""

    def __init__(self, torch_version: str) -> None:
        super().__init__(
            f"not a version of torch: {torch_version!r}", hint='write it like "2.13" or "2.13.0"'
        )


def parse_release(torch_version: str) -> tuple[int, int]:
    """The first two numbers of a version, such as (2, 13) for "2.13.0+cpu".

    Raises:
        InputError: it does not begin with two numbers.
    """
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    if match is None:
        raise NotReleaseError(torch_version)
    return int(match[1]), int(match[2])


def written(release: tuple[int, int]) -> str:
    """Format a release as "2.13"."""
    return ".".join(map(str, release))
