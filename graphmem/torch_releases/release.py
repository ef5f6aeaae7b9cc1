"""Parse the release of PyTorch from a version."""

from __future__ import annotations

import re

from graphmem.errors import InputError


def parse_release(torch_version: str) -> tuple[int, int]:
    """The first two numbers of a version, such as (2, 13) of "2.13.0+cpu".

    Raises:
        InputError: it does not begin with two numbers.
    """
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    if match is None:
        raise InputError(
            f"not a version of torch: {torch_version!r}", hint='write it like "2.13" or "2.13.0"'
        )
    return int(match[1]), int(match[2])
