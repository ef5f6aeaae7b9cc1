"""Operations without scratch memory whose outputs come in another order than they are returned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphmem.kernel_program import Output, Step

from .call import Call, Rule


def _dropout(call: Call) -> Iterator[Step]:
    """`dropout_cuda` (aten/src/ATen/native/cuda/Dropout.cu): the mask, then the result."""
    births = len(call.op.births)
    yield from map(Output, (1, 0) if births == 2 else range(births))


RULES: Mapping[str, Rule] = {"aten.native_dropout": _dropout}
