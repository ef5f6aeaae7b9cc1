"""Give a real run the values that a trace assumed, so that both take the same path.

A trace assumes what only a real run knows: which expert a token chooses, how many elements a mask
selects, a number that is read or drawn. Each answer is stored under the n-th call of its operator,
and the same call in the real run returns it.

Not covered: reads without an operation, such as `tolist()` on the CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from graphmem.trace import detectors
from graphmem.trace.dispatch import TraceMode
from graphmem.trace.phases import Phases
from graphmem.trace.reads import Reads
from graphmem.values.known import KnownValues
from graphmem.values.plans import ValuePlan
from graphmem.values.rules import Rules
from graphmem.virtual_device.patching import replaced

aten = torch.ops.aten

Call = tuple[int, Any, int]
Function = Callable[..., Any]
_DRAWN_FROM = (aten.topk.default, aten.sort.default, aten.sort.stable)


class Calls:
    """Numbers the calls of each operator from 0 in each iteration.

    Calls before the first iteration do not count: weights are created differently in a trace.
    """

    def __init__(self) -> None:
        self._iteration = 0
        self._counts: Counter[Any] = Counter()

    def begin_iteration(self) -> None:
        """Restart the numbers."""
        self._iteration += 1
        self._counts.clear()

    def next(self, func: Any) -> Call:
        """The number of this call."""
        self._counts[func] += 1
        return self._iteration, func, self._counts[func]


class AssumedValues:
    """Stores a trace's assumptions and gives them to a real run."""

    def __init__(self) -> None:
        self._outputs: dict[Call, list[tuple[int, torch.Tensor]]] = {}
        self._numbers: dict[Call, Any] = {}
        self._selecting: set[Call] = set()
        self._given: list[torch.Tensor | None] = []
        self._call: Call | None = None

    def __bool__(self) -> bool:
        return bool(self._outputs or self._numbers or self._selecting or self._given)

    # Of the trace -------------------------------------------------------------------------------

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Store the assumptions of a trace that runs in the context."""
        calls = Calls()
        replacements = [
            (Phases, "begin_iteration", _begun(Phases.begin_iteration, calls)),
            (TraceMode, "__torch_dispatch__", self._numbered(TraceMode.__torch_dispatch__, calls)),
            (Rules, "results", self._by_rule(Rules.results, 3)),
            (Rules, "compared", self._by_rule(Rules.compared, 2)),
            (Reads, "scalar", self._reading(Reads.scalar)),
            (Reads, "count", self._counting(Reads.count)),
            (KnownValues, "_run", self._drawing(KnownValues._run)),
            (KnownValues, "assume", self._giving(KnownValues.assume)),
        ]
        with replaced(replacements):
            yield

    def _numbered(self, dispatch: Function, calls: Calls) -> Function:
        def run(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if self._call is not None:  # a part of the running operation
                return dispatch(mode, func, types, args, kwargs)
            self._call = calls.next(func)
            try:
                return dispatch(mode, func, types, args, kwargs)
            finally:
                self._call = None

        return run

    def _by_rule(self, find: Function, place_of_result: int) -> Function:
        def find_and_keep(rules: Rules, *call: Any) -> Any:
            made = find(rules, *call)
            if made is not None:
                self._keep(call[place_of_result], made[1])
            return made

        return find_and_keep

    def _reading(self, scalar: Function) -> Function:
        def read(reads: Reads, tensor: Any) -> Any:
            known = reads.known.of(tensor)
            number = scalar(reads, tensor)
            if self._call is not None and (known is None or known.basis):
                self._numbers[self._call] = number
            return number

        return read

    def _counting(self, count: Function) -> Function:
        def selected(reads: Reads, what: str, numel: int) -> Any:
            if self._call is not None:
                self._selecting.add(self._call)
            return count(reads, what, numel)

        return selected

    def _drawing(self, run: Function) -> Function:
        def draw(known: KnownValues, plan: ValuePlan, *call: Any) -> Any:
            drawn = run(known, plan, *call)
            is_new = plan.is_random and not plan.writes and isinstance(drawn, torch.Tensor)
            if is_new and self._call is not None:
                self._outputs[self._call] = [(0, drawn.clone())]
            return drawn

        return draw

    def _giving(self, assume: Function) -> Function:
        """Assumptions about a library's function, not an operation."""

        def give(known: KnownValues, tensor: Any, values: Any, rule: Any) -> None:
            if self._call is None:
                self._given.append(values if known.of(tensor) is None else None)
            assume(known, tensor, values, rule)

        return give

    def _keep(self, result: Any, outputs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        if self._call is None:
            return
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        self._outputs[self._call] = [
            (place, values)
            for output, values in outputs
            for place, each in enumerate(results)
            if each is output
        ]

    # Of the real run ----------------------------------------------------------------------------

    @contextmanager
    def given(self) -> Iterator[None]:
        """Make libraries' functions return the assumptions in a real run within the context."""
        kept = iter(self._given)

        def give(tensor: torch.Tensor, values: torch.Tensor, rule: Any) -> None:
            told = next(kept, None)
            if told is not None:
                with torch._C._DisableTorchDispatch():
                    tensor.copy_(told)

        reads: Any = SimpleNamespace(known=SimpleNamespace(assume=give))
        with detectors.known(reads):
            yield

    def run(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operation of the real run."""
        func = call[1]
        if call in self._numbers:
            return self._numbers[call]
        if call in self._selecting:
            if str(func) in _KEEPING_ALL:
                return _KEEPING_ALL[str(func)](args, kwargs)
            args = tuple(map(_all_true, args))
        result = func(*args, **kwargs)
        for place, values in self._outputs.get(call, ()):
            output = result[place] if isinstance(result, (tuple, list)) else result
            output.copy_(values)
            if func in _DRAWN_FROM and args[0].dim():
                dim = args[2] if func is aten.topk.default and len(args) > 2 else -1
                result[0].copy_(args[0].gather(dim, output))
        return result


def _begun(begin: Function, calls: Calls) -> Function:
    def begin_and_number(phases: Phases, step: int) -> None:
        calls.begin_iteration()
        begin(phases, step)

    return begin_and_number


def _all_distinct(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """`_unique2` of values that are all distinct."""
    values = args[0]
    many = values.numel()
    returns_inverse = args[2] if len(args) > 2 else kwargs.get("return_inverse", False)
    returns_counts = args[3] if len(args) > 3 else kwargs.get("return_counts", False)
    inverse = torch.arange(many).view(values.shape) if returns_inverse else torch.empty(0).long()
    counts = torch.ones(many if returns_counts else 0, dtype=torch.int64)
    return values.reshape(-1).clone(), inverse, counts


def _all_true(arg: Any) -> Any:
    """All-true masks in place of an operation's own."""
    if isinstance(arg, (list, tuple)):
        return type(arg)(map(_all_true, arg))
    is_mask = isinstance(arg, torch.Tensor) and arg.dtype in (torch.bool, torch.uint8)
    return torch.ones_like(arg) if is_mask else arg


_KEEPING_ALL: dict[str, Function] = {
    "aten._unique2.default": _all_distinct,
    "torchvision.nms.default": lambda args, kwargs: torch.arange(args[0].shape[0]),
}
