"""The holders of a report as a data frame of an optional library."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from graphmem.errors import InputError
from graphmem.report.holders import reason_of
from graphmem.report.schema import Report


class NoLibraryError(InputError):
    """A table was asked for in a library that is not installed."""

    def __init__(self, library: str) -> None:
        super().__init__(f"{library} is not installed", hint=f"pip install {library}")


def holders_in(library: str, report: Report) -> Any:
    """Make a data frame with one row for each holder, largest first.

    Raises:
        InputError: the library is not installed.
    """
    try:
        frames = import_module(library)
    except ImportError as error:
        raise NoLibraryError(library) from error
    rows = [
        {
            "bytes": each.bytes,
            "block": each.block,
            "category": each.category,
            "module": each.module,
            "source": each.source,
            "operation": each.op,
            "dtype": each.dtype,
            "shape": list(each.shape),
            "reason": reason_of(each),
        }
        for each in report.at_peak.holders
    ]
    return frames.DataFrame(rows)
