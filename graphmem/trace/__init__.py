"""Run a training step on fake tensors and write down what happens: the step graph."""

from __future__ import annotations

from graphmem.trace.tracer import TraceOptions, trace

__all__ = ["TraceOptions", "trace"]
