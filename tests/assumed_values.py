"""What a trace assumed of values, for a real run to go by: the same routing in both.

A trace assumes what only a real run knows: which expert a token chooses, how many elements a mask
selects, a number that is read. Each answer is kept by the operation that gave it, the n-th call of
its kind in the program, and given by that call in the real run in place of its own.

Not covered: what is read without an operation, as by `tolist()` on the CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphmem.trace.dispatch import TraceMode
from graphmem.trace.reads import Reads
from graphmem.values.rules import Rules
from graphmem.virtual_gpu.patching import replaced

aten = torch.ops.aten

Call = tuple[Any, int]
Change = Callable[[Any], Any]
_DRAWN_FROM = (aten.topk.default, aten.sort.default, aten.sort.stable)


class Calls:
    """Numbers the calls of each operator."""

    def __init__(self) -> None:
        self._counts: Counter[Any] = Counter()

    def next(self, func: Any) -> Call:
        """The call that begins."""
        self._counts[func] += 1
        return func, self._counts[func]


class AssumedValues:
    """Keeps what a trace assumes, and gives it to a real run."""

    def __init__(self) -> None:
        self._outputs: dict[Call, list[tuple[int, torch.Tensor]]] = {}
        self._numbers: dict[Call, Any] = {}
        self._selecting: set[Call] = set()
        self._call: Call | None = None

    def __bool__(self) -> bool:
        return bool(self._outputs or self._numbers or self._selecting)

    # Of the trace -------------------------------------------------------------------------------

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep what a trace assumes that runs meanwhile."""
        calls = Calls()
        dispatch, results, compared = TraceMode.__torch_dispatch__, Rules.results, Rules.compared
        scalar, count = Reads.scalar, Reads.count

        def numbered(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if self._call is not None:  # a part of the operation that runs
                return dispatch(mode, func, types, args, kwargs)
            self._call = calls.next(func)
            try:
                return dispatch(mode, func, types, args, kwargs)
            finally:
                self._call = None

        def by_rule(find: Callable[..., Any]) -> Callable[..., Any]:
            def find_and_keep(rules: Rules, func: Any, args: Any, *rest: Any) -> Any:
                made = find(rules, func, args, *rest)
                if made is not None:
                    self._keep(rest[-2] if find is compared else rest[-1], made[1])
                return made

            return find_and_keep

        def read(reads: Reads, tensor: Any) -> Any:
            known = reads.known.of(tensor)
            number = scalar(reads, tensor)
            if self._call is not None and (known is None or known.basis):
                self._numbers[self._call] = number
            return number

        def selected(reads: Reads, what: str, numel: int) -> int:
            if self._call is not None:
                self._selecting.add(self._call)
            return count(reads, what, numel)

        replacements = [
            (TraceMode, "__torch_dispatch__", numbered),
            (Rules, "results", by_rule(results)),
            (Rules, "compared", by_rule(compared)),
            (Reads, "scalar", read),
            (Reads, "count", selected),
        ]
        with replaced(replacements):
            yield

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

    def run(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What an operation of the real run returns."""
        func, _ = call
        if call in self._numbers:
            return self._numbers[call]
        if call in self._selecting:
            args = tuple(map(_all_true, args))
        result = func(*args, **kwargs)
        for place, values in self._outputs.get(call, ()):
            output = result[place] if isinstance(result, (tuple, list)) else result
            output.copy_(values)
            if func in _DRAWN_FROM and args[0].dim():
                dim = args[2] if func is aten.topk.default and len(args) > 2 else -1
                result[0].copy_(args[0].gather(dim, output))
        return result


def _all_true(arg: Any) -> Any:
    """Masks that select everything, in place of an operation's own."""
    if isinstance(arg, (list, tuple)):
        return type(arg)(map(_all_true, arg))
    is_mask = isinstance(arg, torch.Tensor) and arg.dtype in (torch.bool, torch.uint8)
    return torch.ones_like(arg) if is_mask else arg
