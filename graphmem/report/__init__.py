"""The result of an analysis: one `Report`, and several ways to write it."""

from __future__ import annotations

from graphmem.report.schema import Report

__all__ = ["Report"]
