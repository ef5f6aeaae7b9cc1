"""docs/models.md, made from the results of `tools/breadth.py run`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tools.model_zoo import giants

Row = dict[str, Any]
_INSTALLED = re.compile(r"\S*/site-packages/")


def table(rows: Iterable[Row]) -> str:
    """The page."""
    found = sorted(rows, key=lambda row: (row["family"], row["name"]))
    families = sorted({row["family"] for row in found})
    parts = [_HEAD, _summary(found, families)]
    parts += [_section(each, [row for row in found if row["family"] == each]) for each in families]
    return "\n".join([*parts, *giants.table(giants.known()), ""])


_HEAD = """# Models that people train

Tiny models, each trained for one real step on the CPU, then analysed for an A100, then traced on
fake CPU tensors and compared with the real step: every allocation and free, tensors saved for the
backward pass, gradients and optimizer state. Masks and labels are among the inputs, dropout is off.
Made by

    python -m tools.breadth run --testers FOLDER --out /tmp/breadth/results.jsonl
    python -m tools.breadth table /tmp/breadth/results.jsonl > docs/models.md

(torch 2.13.0, transformers 4.57.6, two cores, hours). `tests/house/test_breadth.py` runs a
cross-section. Models without a real step are not counted but listed with the reason; `rag` and
`rwkv` were stopped, and models that are not listed have not been run. Models that disagree or are
refused are discussed in [exactness.md](exactness.md#models-that-differ). "saved" is empty if the
real step was given the trace's assumptions, as for the routing of experts
([how](exactness.md)).
"""


def _summary(rows: list[Row], families: list[str]) -> str:
    lines = [
        "| | train on CPU | analysed | agree with the real step | except for the order of frees |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for family in families:
        real = [row for row in rows if row["family"] == family and row.get("cpu") == "ok"]
        analysed = sum(row.get("analysis") == "ok" for row in real)
        agreed = Counter(row.get("agrees") for row in real)
        exact, nearly = agreed["in every event"], agreed["except for the order of frees"]
        lines.append(f"| {family} | {len(real)} | {analysed} | {exact} | {nearly} |")
    return "\n".join(lines) + "\n"


def _section(family: str, rows: list[Row]) -> str:
    lines = [
        f"## {family}\n",
        "| model | | seconds | saved | traced | gradients | optimizer state | oracle |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    real = [row for row in rows if row.get("cpu") == "ok"]
    lines += [_line(row) for row in real]
    missing = [f"{row['name']} ({_why_not(row)})" for row in rows if row.get("cpu") != "ok"]
    if missing:
        lines.append("\nNo real step: " + "; ".join(missing) + ".")
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    said = row.get("analysis") or row.get("ended", "")
    message = row.get("analysis_message", "")
    oracle = row.get("agrees") or row.get("oracle_message") or row.get("ended", "")
    if row.get("difference"):
        oracle += f": {row['difference']}"
    cells = [
        row["name"],
        f"{'analysed' if said == 'ok' else said}{': ' + message if message else ''}",
        f"{row.get('analysis_seconds', 0):.1f}",
        _number(row.get("saved")),
        _number(row.get("traced_saved")),
        _pair(row, "gradients"),
        _pair(row, "states"),
        oracle,
    ]
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _pair(row: Row, what: str) -> str:
    real, traced = row.get(what), row.get(f"traced_{what}")
    if real == traced or traced is None:
        return _number(real)
    return f"{_number(real)}, traced {_number(traced)}"


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _cell(text: str) -> str:
    return _INSTALLED.sub("", text).replace("|", "\\|").replace("\n", " ")[:400]


def _why_not(row: Row) -> str:
    return _cell(row.get("cpu_message") or row.get("ended", ""))[:160]
