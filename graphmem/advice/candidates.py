"""Candidate changes that may lower a step's peak, each measured by tracing the changed step.

The trace suggests which to try: autocast if it is off, other activations for those that keep their
input, checkpointing of modules that it would shrink, optimizers with less state, dropping gradients
after the step, freezing half of the parameters, halving the batch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from graphmem.annotations import CHECKPOINTING, KERNEL_MEMORY, OUTPUT_REUSE
from graphmem.errors import InputError
from graphmem.graph import OwnerKind, StepGraph
from graphmem.op_states import AutocastState
from graphmem.units import counted

if TYPE_CHECKING:
    from graphmem.analysis import Analysis, Request

TOP = 10
_CHECKPOINTED = 3
_LEAST_FOR_BFLOAT16 = 8
"""Older cards only emulate it (torch/cuda/__init__.py, `is_bf16_supported`)."""
_BFLOAT16 = ("bf16", "bfloat16", "bfloat16 has 8 bits of precision")
_FLOAT16 = ("fp16", "float16", "float16 overflows beyond 65,504, so the loss needs a GradScaler")
_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


@dataclass(frozen=True)
class Candidate:
    """One change.

    Attributes:
        what: the change in words.
        option: its option of `graphmem whatif`; of `graphmem analyze` for `--grads`.
        price: its cost, in words.
        line: the line of code to change, or how to write it.
        request: the changed request.
        frees_bytes: bytes of saved tensors that it would free at the end of the forward pass,
            according to a pass; None if only a trace of the changed step can tell.
    """

    what: str
    option: str
    price: str
    line: str
    request: Request
    frees_bytes: int | None = None


@dataclass(frozen=True)
class Advice:
    """A change, and the bytes by which it lowered the peak."""

    candidate: Candidate
    saves_bytes: int


def advise(
    target: str | Callable[[], Any],
    request: Request,
    analysis: Analysis,
    progress: Callable[[str], None] = lambda message: None,
) -> list[Advice]:
    """Measure the changes that lower the peak most, largest saving first.

    Changes that cannot be traced, such as autocast in a model that does not allow it, are left out.
    """
    before = analysis.report.peak.allocated
    found = []
    for candidate in candidates(request, analysis):
        progress(f"measuring {candidate.option}")
        try:
            after = _peak_of(target, candidate.request)
        except InputError:
            continue
        if after < before:
            found.append(Advice(candidate, before - after))
    return sorted(found, key=lambda advice: -advice.saves_bytes)[:TOP]


def _peak_of(target: str | Callable[[], Any], request: Request) -> int:
    """The peak of a step's report, without the passes and the report that it takes no part in."""
    from graphmem.analysis import timeline_of, traced_step
    from graphmem.pipeline import passes_for, run_passes

    step = traced_step(target, request)
    found = run_passes(step.graph, step.runtime, passes_for(KERNEL_MEMORY.name))
    return timeline_of(step, found).peak()[0].allocated


def candidates(request: Request, analysis: Analysis) -> Iterator[Candidate]:
    """Every change worth measuring."""
    yield from _precision(request, analysis)
    yield from _checkpointing(request, analysis)
    yield from _activations(request, analysis)
    yield from _optimizers(request, analysis.graph)
    yield from _gradients(request)
    yield from _frozen(request, analysis.graph)
    yield Candidate(
        "halve the batch",
        "--batch 0.5x",
        "twice as many steps, or gradient accumulation",
        "the batch size of the data loader",
        replace(request, changes=replace(request.changes, batch=0.5)),
    )


def _precision(request: Request, analysis: Analysis) -> Iterator[Candidate]:
    """Autocast, unless it is on or the weights are in 16 bits already."""
    graph = analysis.graph
    weights = {each.dtype for each in graph.storages if each.owned_as(OwnerKind.PARAMETER)}
    if "float32" not in weights or any(op.autocast is not AutocastState.OFF for op in graph.ops):
        return
    major, _ = analysis.step.runtime.gpu.compute_capability
    kind, dtype, price = _BFLOAT16 if major >= _LEAST_FOR_BFLOAT16 else _FLOAT16
    yield Candidate(
        "run forward and loss under autocast",
        f"--autocast {kind}",
        price,
        f'with torch.autocast("cuda", dtype=torch.{dtype}): around the forward pass',
        replace(request, autocast=kind),
    )


def _checkpointing(request: Request, analysis: Analysis) -> Iterator[Candidate]:
    """Modules that differ only in their numbers form one pattern: `h.0` and `h.1` are `h.*`."""
    groups = defaultdict[str, list[Any]](list)
    for each in analysis.annotations.of(CHECKPOINTING).modules:
        groups[_INDEX.sub("*", each.module)].append(each)
    savings = sorted(groups.items(), key=lambda item: -sum(each.saves_bytes for each in item[1]))
    for pattern, modules in savings[:_CHECKPOINTED]:
        operations = sum(each.recomputed_operations for each in modules)
        yield Candidate(
            f"checkpoint {pattern}" + (f" ({len(modules)} modules)" if len(modules) > 1 else ""),
            f"--checkpoint '{pattern}'",
            f"{operations} operations are recomputed in the backward pass",
            "call it with torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False); "
            f"its forward is at {_first_line(analysis.graph, modules[0].module)}",
            replace(
                request,
                changes=replace(request.changes, checkpoint=(*request.changes.checkpoint, pattern)),
            ),
            sum(each.saves_bytes for each in modules),
        )


def _first_line(graph: StepGraph, module: str) -> str:
    inside = (op.source for op in graph.ops if f"{op.module}.".startswith(f"{module}."))
    return str(next((source for source in inside if source is not None), "no line of its own"))


def _activations(request: Request, analysis: Analysis) -> Iterator[Candidate]:
    known = defaultdict[str, list[Any]](list)
    for each in analysis.annotations.of(OUTPUT_REUSE).activations:
        known[each.name.rstrip("_")].append(each)
    for old, found in known.items():
        saves = sum(each.exchange_saves_bytes for each in found)
        if saves <= 0:
            continue
        new = "leaky_relu-inplace" if old == "leaky_relu" else "relu"
        yield Candidate(
            f"{new} in place of {old} ({counted(len(found), 'call')})",
            f"--activation {old}={new}",
            "the same function" if old == "leaky_relu" else "a different function: train again",
            str(found[0].source or found[0].module),
            replace(
                request,
                changes=replace(
                    request.changes, activations={**request.changes.activations, old: new}
                ),
            ),
            saves,
        )


def _optimizers(request: Request, graph: StepGraph) -> Iterator[Candidate]:
    if not any(storage.owned_as(OwnerKind.OPTIMIZER_STATE) for storage in graph.storages):
        return
    for name, price in (
        ("sgd", "no optimizer moments, so training converges differently"),
        ("sgd-momentum", "one moment in place of two, so training converges differently"),
        ("adamw-fused", "none, where the optimizer was AdamW"),
    ):
        yield Candidate(
            f"switch the optimizer to {name}",
            f"--optimizer {name}",
            price,
            "where the optimizer is made",
            replace(request, optimizer=name),
        )


def _gradients(request: Request) -> Iterator[Candidate]:
    if request.grads == "keep":
        yield Candidate(
            "drop gradients after the step",
            "--grads none",
            "none",
            "optimizer.zero_grad(set_to_none=True)",
            replace(request, grads="none"),
        )


def _frozen(request: Request, graph: StepGraph) -> Iterator[Candidate]:
    """Freeze the first half of the longest numbered list of modules that train."""
    lists = defaultdict[str, set[int]](set)
    for name, trains in graph.parameters.items():
        match = re.match(r"(.*?)\.?\b(\d+)\.", name)
        if match is not None and trains:
            lists[match[1]].add(int(match[2]))
    if not lists:
        return
    prefix, numbers = max(lists.items(), key=lambda item: len(item[1]))
    half = sorted(numbers)[: len(numbers) // 2]
    if not half:
        return
    patterns = tuple(f"{prefix}.{number}".lstrip(".") for number in half)
    frozen = patterns[0] if len(patterns) == 1 else f"{patterns[0]} to {patterns[-1]}"
    yield Candidate(
        f"freeze {frozen}",
        " ".join(f"--freeze {pattern}" for pattern in patterns),
        "these layers do not train",
        "module.requires_grad_(False) before the optimizer is made",
        replace(
            request,
            changes=replace(request.changes, freeze=(*request.changes.freeze, *patterns)),
        ),
    )
