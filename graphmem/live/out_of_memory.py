"""Requests that did not fit: the operation that asked, and who held the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from graphmem.graph import Storage
from graphmem.online.online_simulator import RefusedRequest
from graphmem.report.largest import largest, most_common
from graphmem.units import counted, format_bytes, format_shape

_LISTED = 5
_TOLD = 3


@dataclass(frozen=True)
class OutOfMemorySection:
    """The section of the report on requests that did not fit.

    Attributes:
        refusals: the refused requests, in order.
        reason_for: says why a storage was alive at a tick.
    """

    refusals: Sequence[RefusedRequest]
    reason_for: Callable[[Storage, int], str]

    def report_lines(self) -> Iterator[str]:
        """The lines of the report: the first requests, each with the largest holders."""
        for refusal in self.refusals[:_TOLD]:
            yield from self._lines(refusal)
        if len(self.refusals) > _TOLD:
            left = counted(len(self.refusals) - _TOLD, "more request")
            yield f"and {left} that did not fit"

    def _lines(self, refusal: RefusedRequest) -> Iterator[str]:
        op = refusal.op
        if op is None:
            yield _beginning(refusal.message)
        else:
            module = f" in {op.module}" if op.module else ""
            where = "" if op.source is None else f" ({op.source})"
            name = op.target.removesuffix(".default")
            yield f"{name}{module}{where}: {_beginning(refusal.message)}"
        held = sorted(refusal.alive, key=lambda each: each[0].id)
        if held:
            yield "  the largest tensors on the GPU at that moment:"
        lines = (
            f"{format_bytes(block_bytes)} {self._line(storage, refusal)}"
            for storage, block_bytes in largest(held, lambda each: each[1], _LISTED)
        )
        yield from (f"    {line}" for line in most_common(lines, _LISTED))

    def _line(self, storage: Storage, refusal: RefusedRequest) -> str:
        shape = format_shape(storage.shape)
        return f"{storage.dtype} [{shape}]: {self.reason_for(storage, refusal.tick)}"


def _beginning(message: str) -> str:
    """The request and the free memory: the first sentences of PyTorch's message."""
    return ". ".join(message.removeprefix("CUDA out of memory. ").split(". ")[:2]) + "."
