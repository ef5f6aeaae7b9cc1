"""Differences that docs/exactness.md names ("Differences by design"), each with its cause."""

from __future__ import annotations

import re

NAMED = {
    r"(?s)(_\(|inplace=True).*create_graph": "second derivatives of a view that was written to",
    r"max_pool1d": "without a gradient, max_pool1d has a kernel of its own on the CPU",
}
"""Causes by what a program must match."""


def cause_of(lines: list[str]) -> str | None:
    """Why a program is known to differ; None if it is not."""
    program = "\n".join(lines)
    return next((cause for known, cause in NAMED.items() if re.search(known, program)), None)
