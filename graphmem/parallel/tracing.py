"""Trace a target for planning: as `analyze` does, or with bf16 weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from graphmem.analysis import Progress, Request, traced_step
from graphmem.annotations import KERNEL_MEMORY
from graphmem.parallel.layout import Precision
from graphmem.parallel.planner import Planner


def planner_for(
    target: str | Callable[[], Any],
    request: Request,
    precision: Precision = Precision.TRACED,
    blocks: str | None = None,
    wrap: Sequence[str] = (),
    progress: Progress = lambda message: None,
) -> tuple[str, Planner]:
    """Trace a target; return its name and a planner of its step.

    Args:
        target: a target, as for `graphmem.analyze`.
        request: how to trace.
        precision: for bf16 weights, they are traced as such, without autocast.
        blocks: see `Planner`.
        wrap: see `Planner`.
        progress: called with a description of each stage.

    Raises:
        InputError: the target cannot be traced.
    """
    from graphmem.pipeline import run_passes

    if precision is Precision.BF16_MASTER:
        request = replace(request, changes=replace(request.changes, dtype="bf16"))
    step = traced_step(target, request, progress, follows=False)
    programs = run_passes(step.graph, step.runtime).of(KERNEL_MEMORY).programs
    return step.name, Planner(step.graph, programs, step.runtime, blocks, wrap)
