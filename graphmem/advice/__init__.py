"""Advice: what a change to a training step would save, measured by tracing the changed step."""

from __future__ import annotations

from graphmem.advice.comparison import ReportComparison

__all__ = ["ReportComparison"]
