"""Means by `scatter_reduce` and `index_reduce`: aten/src/ATen/native/TensorAdvancedIndexing.cpp.

Both count the numbers that each result averages by adding ones, and put 1 where there are none.
fixtures/cuda/operators.jsonl.gz shows both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphmem.kernel_program import Scratch, Step

from .call import Call, Rule, during
from .layout import nbytes, numel


def _scatter(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    if call.value("reduce") == "mean":
        ones, counts, mask = counting(call, "src")
        yield from during([ones, counts], during([mask]))


def _index(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    if call.value("reduce") == "mean":
        ones, counts, mask = counting(call, "source")
        yield from during([counts], [*during([ones]), *during([mask])])


def counting(call: Call, source: str) -> tuple[Scratch, Scratch, Scratch]:
    """What a mean allocates to count numbers: ones, counts, and where there are none."""
    tensor = call.tensor("self")
    return (
        Scratch("ones to count with", nbytes(call.tensor(source))),
        Scratch("how many numbers a result has", nbytes(tensor)),
        Scratch("which results have none", numel(tensor)),
    )


RULES: Mapping[str, Rule] = {
    "aten.scatter_reduce": _scatter,
    "aten.scatter_reduce_": _scatter,
    "aten.index_reduce": _index,
    "aten.index_reduce_": _index,
}
