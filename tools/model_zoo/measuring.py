"""One case: a real training step on the CPU, the analysis, and their comparison."""

from __future__ import annotations

import functools
import gc
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from typing import Any

import torch

from graphmem import TrainingStep, analyze
from graphmem.errors import InputError
from graphmem.forward_passes import fullest_forward
from graphmem.graph import OwnerKind, StepGraph
from graphmem.report.build import saved_for_backward
from graphmem.trace import TraceOptions, trace
from graphmem.trace.loop import call, default_loss
from tests.support import oracle
from tests.support.assumed_values import AssumedValues
from tools.model_zoo.case import Case

OPTIONS = TraceOptions(steps=1, keep_grads=True, subclass_like=True)
Result = dict[str, Any]


def measure(case: Case) -> Iterator[Result]:
    """Yield results as they become known, so that a case that times out keeps the earlier ones."""
    build = case.build
    while True:
        real = RealStep(build)
        (tried,) = _told("cpu", real.run)
        yield tried
        if real.recording is not None:
            break
        if not case.amend(tried["cpu_message"]):
            return
    yield {"saved": real.saved, "gradients": real.gradients, "states": real.states}
    yield from _told("analysis", lambda: _analyse(build))
    traced: list[StepGraph] = []
    assumed = AssumedValues()
    _forget_cached()
    with oracle.comparable(), assumed.kept():
        yield from _told("oracle", lambda: traced.append(trace(build, gpu=None, options=OPTIONS)))
    if not traced:
        return
    compared = _compared(real, traced[0])
    if compared["difference"] and assumed:
        yield from _told("routed", lambda: real.run(assumed))
        yield {"saved": real.saved, "gradients": real.gradients, "states": real.states}
        compared = _compared(real, traced[0])
    yield compared


def _forget_cached() -> None:
    """Forget the tables that a library's functions kept from the run before, as of positions."""
    gc.unfreeze()  # what is set aside is not listed
    caches = (each for each in gc.get_objects() if isinstance(each, functools._lru_cache_wrapper))
    for each in caches:
        if not each.__module__.startswith(("torch", "graphmem")):
            each.cache_clear()


def _told(what: str, run: Callable[[], Any]) -> Iterator[Result]:
    begun = time.process_time()
    try:
        more = run() or {}
        answer, message = "ok", ""
    except InputError as error:
        more, answer = {}, "refused"
        message = f"{error}" + (f" (hint: {error.hint})" if error.hint else "")
    except Exception as error:  # noqa: BLE001 - whatever the model raises is the result
        more, answer = {}, "failed"
        message = f"{type(error).__name__}: {error}"[:600]
        where = traceback.extract_tb(sys.exc_info()[2])[-1]
        message += f" ({where.filename}:{where.lineno})"
    seconds = round(time.process_time() - begun, 2)
    yield {what: answer, f"{what}_message": message, f"{what}_seconds": seconds, **more}


def _analyse(build: Callable[[], TrainingStep]) -> Result:
    report = analyze(build, steps=1, gpu="a100-80gb", grads="keep")
    return {
        "operations": report.operations,
        "peak": report.peak.allocated,
        "analysed_saved": report.saved_for_backward,
        "analysed_gradients": report.model.gradient_bytes,
        "analysed_states": report.model.optimizer_state_bytes,
        "assumptions": [[each.what, each.value, each.source] for each in report.assumptions],
    }


class RealStep:
    """A real training step, eager on the CPU.

    Attributes:
        recording: the events of its storages; None if it failed.
        saved: bytes that autograd holds once the loss exists, each storage once, without
        parameters; None for a step that runs itself.
        gradients: bytes of the parameters' gradients.
        states: bytes of the optimizer's tensors.
    """

    def __init__(self, build: Callable[[], TrainingStep]) -> None:
        self._build = build
        self._model: torch.nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self.recording: oracle.Recording | None = None
        self.saved: int | None = None
        self.gradients = self.states = 0

    def run(self, assumed: AssumedValues | None = None) -> None:
        """Run one iteration, and another forward pass.

        Args:
            assumed: the values a trace assumed, to follow.
        """
        recording = oracle.run(self._watched, OPTIONS, assumed)
        if self._model is not None:
            grads = [p.grad for p in self._model.parameters() if p.grad is not None]
            self.gradients = _bytes_of(grads)
        if self._optimizer is not None:
            states = self._optimizer.state.values()
            self.states = _bytes_of([each for state in states for each in state.values()])
        self._model = self._optimizer = None
        self.saved = None if assumed else _saved_by(self._build())
        self.recording = recording

    def _watched(self) -> TrainingStep:
        step = self._build()
        self._model = step.model
        make = step.optimizer
        if isinstance(make, torch.optim.Optimizer):
            self._optimizer = make
        elif make is not None:
            return replace(step, optimizer=partial(self._made, make))
        return step

    def _made(self, make: Callable[[Any], torch.optim.Optimizer], parameters: Any) -> Any:
        self._optimizer = make(parameters)
        return self._optimizer


def _bytes_of(tensors: list[Any]) -> int:
    strided = [each for each in tensors if isinstance(each, torch.Tensor)]
    storages = {s._cdata: s.nbytes() for s in map(_storage_of, strided) if s is not None}
    return sum(storages.values())


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    return tensor.untyped_storage() if tensor.layout is torch.strided else None


def _saved_by(step: TrainingStep) -> int | None:
    if step.step is not None or step.model is None:
        return None
    packed: list[weakref.ref[torch.UntypedStorage]] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = _storage_of(tensor)
        if storage is not None:
            packed.append(weakref.ref(storage))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = call(step.model, step.inputs)  # unused outputs keep its graph
        loss = (step.loss or default_loss)(output)
    held = {s._cdata: s.nbytes() for ref in packed if (s := ref()) is not None}
    for parameter in step.model.parameters():
        held.pop(parameter.untyped_storage()._cdata, None)
    del loss, output
    return sum(held.values())


def _compared(real: RealStep, graph: StepGraph) -> Result:
    assert real.recording is not None
    events = oracle.events_of(graph)
    found: Result = {
        "traced_saved": saved_for_backward(fullest_forward(graph), graph),
        "traced_gradients": _held(graph, OwnerKind.GRADIENT),
        "traced_states": _held(graph, OwnerKind.OPTIMIZER_STATE),
        "real_bytes": _allocated(real.recording.events),
        "traced_bytes": _allocated(events),
    }
    for agrees, check in _CHECKS.items():
        try:
            check(real.recording, events)
        except AssertionError as error:
            found["difference"] = "; ".join(str(error).splitlines()[:3])
        else:
            return {**found, "agrees": agrees, "difference": ""}
    return {**found, "agrees": "no"}


def _assert_agree_but_for_order(real: oracle.Recording, traced: list[oracle.Event]) -> None:
    """The same, except that consecutive frees may come in any order."""
    oracle.assert_equal(_with_sorted_frees(real.events), _with_sorted_frees(traced))


def _with_sorted_frees(events: list[oracle.Event]) -> list[oracle.Event]:
    stretches = groupby(events, key=lambda event: event.kind)
    ordered = [sorted(stretch, key=oracle._by_block) for _, stretch in stretches]
    return list(chain.from_iterable(ordered))


_CHECKS = {
    "in every event": oracle.assert_agree,
    "except for the order of frees": _assert_agree_but_for_order,
}


def _allocated(events: list[oracle.Event]) -> int:
    return sum(event.nbytes or 0 for event in events if event.kind == "alloc")


def _held(graph: StepGraph, kind: OwnerKind) -> int:
    return sum(storage.nbytes for storage in graph.storages if storage.owned_as(kind))
