"""Encode an analysis as columns of numbers, compact enough to embed in a page.

Growing integers are stored as differences; texts are stored once and referred to by index.
`page/data.js` decodes it.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from graphmem.analysis import Analysis
from graphmem.graph import Owner, Storage
from graphmem.render.lifetimes import (
    Lifetime,
    Reasons,
    categories_of,
    category_of,
    lifetimes,
)
from graphmem.report.schema import Report

Columns = dict[str, list[int]]


class Texts:
    """Texts, each stored once; index 0 is the empty text."""

    def __init__(self) -> None:
        self._indexes = {"": 0}

    def index(self, text: object | None) -> int:
        """The index of a text; None counts as the empty text."""
        return self._indexes.setdefault("" if text is None else str(text), len(self._indexes))

    def all(self) -> list[str]:
        """Every text, by index."""
        return list(self._indexes)


def packed(content: dict[str, Any]) -> str:
    """Encode columns as compressed JSON in base64."""
    return base64.b64encode(zlib.compress(msgspec.json.encode(content), 6)).decode()


def summary(report: Report) -> dict[str, Any]:
    """A report without its list of holders."""
    found: dict[str, Any] = msgspec.to_builtins(report)
    del found["at_peak"]["holders"]
    return found


def columns(analysis: Analysis) -> dict[str, Any]:
    """Encode everything that the page shows."""
    return _Columns(analysis).build()


class _Columns:
    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._graph = analysis.graph
        self._texts = Texts()
        self._lifetimes = lifetimes(analysis)
        self._peak, _ = analysis.timeline.peak()
        self._moment_ticks = analysis.timeline.moments.ticks
        self._op_ticks = [op.tick for op in analysis.graph.ops]

    def build(self) -> dict[str, Any]:
        """Build every table; `texts` comes last, when all are known."""
        return {
            "report": summary(self._analysis.report),
            "peak": self._peak.index,
            "moments": self._moments(),
            "phases": self._phases(),
            "ops": self._ops(),
            "storages": self._storages(),
            "owners": self._owners(),
            "texts": self._texts.all(),
        }

    def _moments(self) -> Columns:
        moments = self._analysis.timeline.moments
        return {
            "allocated": _differences(moments.allocated),
            "requested": _differences(moments.requested),
            "reserved": _differences(moments.reserved),
            "op": _differences(self._ops_at(self._moment_ticks)),
        }

    def _phases(self) -> list[dict[str, Any]]:
        phases = self._graph.phases
        firsts = self._moments_from([phase.start for phase in phases])
        lasts = self._moments_from([phase.end + 1 for phase in phases])
        return [
            {"name": str(phase.name), "step": phase.step, "first": first, "last": last}
            for phase, first, last in zip(phases, firsts, lasts, strict=True)
        ]

    def _ops(self) -> Columns:
        ops, text = self._graph.ops, self._texts.index
        return {
            "target": [text(op.target.removesuffix(".default")) for op in ops],
            "module": [text(op.module) for op in ops],
            "source": [text(op.source) for op in ops],
            "autograd": [text(op.autograd_node) for op in ops],
        }

    def _storages(self) -> Columns:
        lives, text = self._lifetimes, self._texts.index
        reasons = Reasons(self._analysis)
        kinds = categories_of(self._analysis)
        return {
            "first": _differences(life.first for life in lives),
            "span": [life.last - life.first for life in lives],
            "bytes": [life.storage.nbytes for life in lives],
            "block": [life.block for life in lives],
            "op": _differences(_op_index(life.storage) for life in lives),
            "module": [text(life.module) for life in lives],
            "dtype": [text(life.storage.dtype) for life in lives],
            "shape": [text(_shape(life.storage)) for life in lives],
            "category": [text(category_of(life, self._peak, kinds)) for life in lives],
            "reason": [text(reasons.of(life)) for life in lives],
        }

    def _owners(self) -> Columns:
        pairs = [(i, owner) for i, life in enumerate(self._lifetimes) for owner in _held(life)]
        owners = [owner for _, owner in pairs]
        starts = [owner.start for owner in owners]
        ends = [self._graph.end + 1 if each.end is None else each.end for each in owners]
        births = [self._lifetimes[i].first for i, _ in pairs]
        text = self._texts.index
        return {
            "storage": _differences(i for i, _ in pairs),
            "kind": [text(owner.kind) for owner in owners],
            "name": [text(owner.name) for owner in owners],
            "source": [text(owner.source) for owner in owners],
            "taken_over": [int(owner.is_taken_over) for owner in owners],
            "first": np.subtract(self._moments_from(starts), births).tolist(),
            "last": np.subtract(self._moments_from(ends), births).tolist(),
            "first_op": _differences(self._ops_at(starts)),
            "last_op": _differences(
                len(self._op_ticks) if owner.end is None else op
                for owner, op in zip(owners, self._ops_before(ends), strict=True)
            ),
        }

    def _moments_from(self, ticks: Sequence[int]) -> list[int]:
        """For each tick, the first moment not before it."""
        found: list[int] = np.searchsorted(self._moment_ticks, ticks, side="left").tolist()
        return found

    def _ops_at(self, ticks: Sequence[int]) -> list[int]:
        """For each tick, the operation that began last, or -1."""
        found: list[int] = (np.searchsorted(self._op_ticks, ticks, side="right") - 1).tolist()
        return found

    def _ops_before(self, ticks: Sequence[int]) -> list[int]:
        """For each tick, the last operation that began before it, or -1."""
        found: list[int] = (np.searchsorted(self._op_ticks, ticks, side="left") - 1).tolist()
        return found


def _differences(numbers: Iterable[int]) -> list[int]:
    found: list[int] = np.diff(np.fromiter(numbers, dtype=np.int64), prepend=0).tolist()
    return found


def _held(life: Lifetime) -> list[Owner]:
    """Its owners, except those that held it for no time at all."""
    return [each for each in life.storage.owners if each.end is None or each.end > each.start]


def _op_index(storage: Storage) -> int:
    return -1 if storage.op is None else storage.op


def _shape(storage: Storage) -> str:
    return " \N{MULTIPLICATION SIGN} ".join(map(str, storage.shape)) or "scalar"
