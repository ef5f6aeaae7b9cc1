"""Verification as JSON: the same figures as the text, with `schema: "graphmem.verify/1"`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from graphmem.torch_releases.release import written
from graphmem.verify.allocator_check import AllocatorCheck
from graphmem.verify.changes import Change
from graphmem.verify.comparison import Comparison
from graphmem.verify.suite import PrintedRow, Suite, SuiteRow

SCHEMA = "graphmem.verify/1"


def allocator_json(checks: Sequence[AllocatorCheck]) -> str:
    """The result of `verify --allocator`."""
    return _document({"allocator": [_check(check) for check in checks]})


def comparison_json(comparison: Comparison) -> str:
    """The result of `verify RECORDING --target TARGET`."""
    return _document({"comparison": _comparison(comparison)})


def suite_json(suite: Suite) -> str:
    """The result of `verify --suite`."""
    return _document(
        {
            "suite": [_row(row) for row in suite.recorded],
            "printed": [_printed_row(row) for row in suite.printed],
        }
    )


def _document(content: dict[str, Any]) -> str:
    return json.dumps({"schema": SCHEMA, **content}, indent=2) + "\n"


def _check(check: AllocatorCheck) -> dict[str, Any]:
    replay = check.replay
    if replay is None:
        return {"recording": check.name, "replayed": False}
    figures = asdict(replay)
    miss = replay.first_miss
    figures.pop("name")
    figures["first_miss"] = None if miss is None else {"event": miss.index, "what": miss.what}
    return {"recording": check.name, "replayed": True, **figures}


def _comparison(comparison: Comparison) -> dict[str, Any]:
    recorded = comparison.recorded_figures
    index = comparison.first_difference
    return {
        "recording": comparison.name,
        "target": comparison.target,
        "start": comparison.start,
        "equal": comparison.is_equal,
        "events": {"recorded": len(comparison.recorded), "predicted": len(comparison.predicted)},
        "first_mismatch": None if index is None else _difference(comparison, index),
        "only_recorded": _sizes(comparison.only_recorded),
        "only_predicted": _sizes(comparison.only_predicted),
        "recorded": None if recorded is None else asdict(recorded),
        "predicted": asdict(comparison.predicted_figures),
    }


def _difference(comparison: Comparison, index: int) -> dict[str, Any]:
    return {
        "event": index,
        "recorded": _change(comparison.recorded, index),
        "predicted": _change(comparison.predicted, index),
    }


def _change(side: Sequence[Change], index: int) -> dict[str, Any] | None:
    return asdict(side[index]) if index < len(side) else None


def _sizes(sizes: Sequence[tuple[int, int]]) -> list[dict[str, int]]:
    return [{"bytes": nbytes, "allocations": count} for nbytes, count in sizes]


def _row(row: SuiteRow) -> dict[str, Any]:
    request = row.case.request
    return {
        "case": row.case.name,
        "gpu": row.gpu.name,
        "torch": request.torch,
        "traced_by": written(row.traced_by),
        "expect": "gap" if row.case.gap else "exact",
        "gap": row.case.gap or None,
        "failed": row.has_failed,
        "comparison": None if row.comparison is None else _comparison(row.comparison),
    }


def _printed_row(row: PrintedRow) -> dict[str, Any]:
    return {
        "case": row.case.name,
        "gpu": row.gpu.name,
        "torch": row.case.request.torch,
        "traced_by": written(row.traced_by),
        "source": row.case.source,
        "figure": str(row.figure.figure),
        "settings": dict(row.figure.settings),
        "predicted": row.predicted,
        "printed": row.figure.printed.text,
        "error": row.error,
        "known_error": row.figure.known_error,
        "gap": row.figure.gap or None,
        "failed": row.has_failed,
    }
