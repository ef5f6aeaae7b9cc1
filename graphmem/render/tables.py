"""The timeline and the holders at the peak as tables: CSV, or Parquet with pyarrow."""

from __future__ import annotations

import csv
import io
from typing import Any, Literal

from graphmem.analysis import Analysis
from graphmem.render.lifetimes import Clock
from graphmem.render.messages import NoPyarrowError

TableName = Literal["timeline", "holders"]
Rows = list[dict[str, Any]]
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def table(analysis: Analysis, name: TableName) -> Rows:
    """One of the tables; every row has the same columns."""
    return _timeline(analysis) if name == "timeline" else _holders(analysis)


def csv_text(rows: Rows) -> str:
    """Format rows as CSV with a header."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _no_formula(value) for key, value in row.items()} for row in rows)
    return buffer.getvalue()


def _no_formula(value: Any) -> Any:
    """Escape a text that a spreadsheet would take for a formula (OWASP, "CSV Injection")."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def parquet_bytes(rows: Rows) -> bytes:
    """Format rows as a Parquet file.

    Raises:
        InputError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise NoPyarrowError() from error
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def _timeline(analysis: Analysis) -> Rows:
    """One row for each allocation and free."""
    timeline, ops = analysis.timeline, analysis.graph.ops
    clock = Clock(analysis.graph)
    rows = []
    for moment in timeline.moments:
        storage = moment.born or moment.died
        if storage is None:
            continue
        index = clock.op_at(moment.tick)
        op = ops[index] if index >= 0 else None
        rows.append(
            {
                "tick": moment.tick,
                "phase": clock.phase_at(moment.tick),
                "operation": index if op else None,
                "target": op.target if op else None,
                "module": op.module if op else None,
                "source": str(op.source) if op and op.source else None,
                "event": "alloc" if moment.born else "free",
                "storage": storage.id,
                "block": timeline.block_bytes[storage.id],
                "allocated": moment.allocated,
                "requested": moment.requested,
                "reserved": moment.reserved,
            }
        )
    return rows


def _holders(analysis: Analysis) -> Rows:
    """One row for each storage alive at the peak, largest first."""
    return [
        {
            "bytes": holder.bytes,
            "block": holder.block,
            "category": holder.category,
            "dtype": holder.dtype,
            "shape": "x".join(map(str, holder.shape)),
            "module": holder.module,
            "operation": holder.op,
            "source": holder.source,
            "reason": holder.reason,
            "owners": "; ".join(f"{owner.kind} {owner.name}".strip() for owner in holder.owners),
        }
        for holder in analysis.report.at_peak.holders
    ]
