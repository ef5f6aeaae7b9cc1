"""Random choices, histograms, medians and modes: operations that inspect their input first.

aten/src/ATen/native/Distributions.cpp (`multinomial_out`), cuda/MultinomialKernel.cu,
cuda/Randperm.cu, cuda/SummaryOps.cu, cuda/Sorting.cpp, cuda/TensorModeKernel.cpp:
  (1) `multinomial` looks for the largest value and the smallest, since 2.12 at once, which it then
      holds, and for rows of zeros; without replacement, or for a single choice, it divides the
      input by random numbers and takes the largest; otherwise it normalises a copy and takes
      running sums (up to torch 2.14 it keeps another copy);
  (2) `randperm` sorts a range by random keys, with enough bits that keys hardly repeat;
  (3) `bincount` and `histc` look for the smallest and the largest value, since 2.13 and 2.12 at
      once; `bincount` then holds both throughout;
  (4) `median` without a dimension sorts a copy, and checks whether the largest value is NaN;
      `nanmedian` counts NaNs and computes the position on the card; along a dimension both search a
      contiguous input, as `kthvalue` does; `mode` searches one whose rows are contiguous, and sorts
      rows of more than 2,048 one by one, which has no rule;
  (5) `normal` looks for a negative deviation before it allocates its result and once more after
      (DistributionTemplates.h, `CHECK_NORMAL_TENSOR_STD`);
  (6) `bernoulli` draws by probabilities in float32, or in float64 for a float64 result
      (cuda/DistributionTemplates.h, `bernoulli_kernel`);
  (7) a draw from Dirichlet's distribution divides gamma draws by their sums
      (cuda/Distributions.cpp, `_s_dirichlet_cuda`).

fixtures/cuda/operators.jsonl.gz shows all but the last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain

from graphmem.graph import TensorOut
from graphmem.kernel_program import Free, Scratch, Step, Take
from graphmem.nodes import Node
from graphmem.torch_releases.differences import (
    INDICES_ARE_LOOKED_AT_ONCE,
    MULTINOMIAL_KEEPS_NO_COPY,
    RANGES_ARE_FOUND_AT_ONCE,
)

from .call import Call, Rule, during
from .cub_scans import scan
from .layout import INDEX_BYTES, INT32_MAX, is_contiguous, is_one_run, item_bytes, nbytes, numel
from .reduction import (
    aminmax,
    compact,
    contiguous_copies,
    contiguous_copy,
    converted_sum,
    flattened,
    index_kernel,
    logic_kernel,
    reduced,
)
from .sorting import row, storage_of_sort
from .topk import topk

_INT_BYTES = 4
_LONGEST_INT_KEY = 32
_SAME_KEYS = math.log(0.9) * 12  # `log_threshold_12`


def _multinomial(call: Call) -> Iterator[Step]:
    """Clause (1)."""
    tensor, samples = call.tensor("self"), call.value("num_samples")
    yield from call.outputs()
    if call.value("replacement") and samples != 1:
        yield from _with_replacement(call, tensor)
        return
    are_finite = Scratch("whether all are finite and positive", 1)
    drawn = _drawn(call, tensor, samples, are_finite)
    if RANGES_ARE_FOUND_AT_ONCE.holds_in(call.runtime.release):
        yield from aminmax(call, tensor, chain(_compared(are_finite), drawn))
    else:
        yield from _checks(call, tensor, are_finite)
        yield from drawn


def _drawn(call: Call, tensor: TensorOut, samples: int, are_finite: Scratch) -> Iterator[Step]:
    zeros = Scratch("whether a row is zero", 1)
    yield from _rows_of_zeros(call, tensor, zeros)
    yield from during([Scratch("random numbers", nbytes(compact(tensor)))], _choices(call, samples))
    yield Free(zeros)
    yield Free(are_finite)


def _compared(result: Scratch) -> Iterator[Step]:
    comparisons = [Scratch("comparison", 1), Scratch("comparison", 1)]
    yield from map(Take, [*comparisons, result])
    yield from map(Free, comparisons)


def _checks(call: Call, tensor: TensorOut, result: Scratch) -> Iterator[Step]:
    held: list[Scratch] = []
    for what in ("greatest", "least"):
        held.append(Scratch(f"the {what}", item_bytes(tensor.dtype)))
        yield Take(held[-1])
        yield from flattened(call, tensor)
        held.append(Scratch("comparison", 1))
        yield Take(held[-1])
    yield Take(result)
    yield from map(Free, reversed(held))


def _rows_of_zeros(call: Call, tensor: TensorOut, result: Scratch) -> Iterator[Step]:
    rows = math.prod(tensor.shape[:-1])
    sums = Scratch("sums of rows", rows * item_bytes(tensor.dtype))
    yield Take(sums)
    yield from reduced(call, tensor, -1)
    if len(tensor.shape) > 1:
        mask = Scratch("which rows are zero", rows)
        yield Take(mask)
        yield Take(result)
        flat = TensorOut((rows,), "bool", None, (1,))
        yield from flattened(call, flat, logic_kernel)
        yield Free(mask)
    else:
        yield Take(result)
    yield Free(sums)
    yield from during([Scratch("whether none is", 1)])


def _choices(call: Call, samples: int) -> Iterator[Step]:
    tensor = call.tensor("self")
    quotients = compact(tensor)
    if samples == 1:
        yield from reduced(
            call, quotients, -1, kernel_of=index_kernel, keepdim=True, out_dtype="int64"
        )
        return
    rows = math.prod(tensor.shape[:-1])
    values = Scratch("the greatest", rows * samples * item_bytes(tensor.dtype))
    yield from during([values], topk(call, quotients, samples, -1, True))


def _with_replacement(call: Call, tensor: TensorOut) -> Iterator[Step]:
    size = nbytes(compact(tensor))
    names = ["a copy of the input", "normalised rows", "sums of rows"]
    if MULTINOMIAL_KEEPS_NO_COPY.holds_in(call.runtime.release):
        del names[0]
    held = [Scratch(what, size) for what in names]
    if len(tensor.shape) == 1 or tensor.shape[0] == 1:
        held.append(scan(call, numel(tensor), tensor.dtype))
    yield from during(held)


def _randperm(call: Call) -> Iterator[Step]:
    """Clause (2)."""
    yield from call.outputs()
    count = call.value("n")
    if not count or not call.op.outputs:
        return
    size = item_bytes(call.op.outputs[0].dtype)
    yield from during([Scratch("the number as a tensor", size)])
    likely = math.log2(count - (6 * count * count + 1) / _SAME_KEYS)
    bits = min(64, math.ceil(likely))
    key = _INT_BYTES if bits <= _LONGEST_INT_KEY else INDEX_BYTES
    held = [
        Scratch("the range", count * size),
        Scratch("random keys", count * key),
        Scratch("sorted keys", count * key),
    ]
    yield from during([*held, storage_of_sort(call, count, key, size, bits)])


def _bincount(call: Call) -> Iterator[Step]:
    """Clause (3)."""
    tensor = call.tensor("self")
    if numel(tensor) and INDICES_ARE_LOOKED_AT_ONCE.holds_in(call.runtime.release):
        yield from aminmax(call, tensor, call.outputs())
        return
    if numel(tensor):
        if tensor.dtype != "uint8":
            yield from _extremum(call, tensor, "the least")
        yield from _extremum(call, tensor, "the greatest")
    yield from call.outputs()


def _histc(call: Call) -> Iterator[Step]:
    """Clause (3), if no range is given."""
    tensor = call.tensor("self")
    yield from call.outputs()
    if call.value("min") != call.value("max") or not numel(tensor):
        return
    if RANGES_ARE_FOUND_AT_ONCE.holds_in(call.runtime.release):
        yield from aminmax(call, tensor)
    else:
        yield from _extremum(call, tensor, "the least")
        yield from _extremum(call, tensor, "the greatest")


def _extremum(call: Call, tensor: TensorOut, what: str) -> Iterator[Step]:
    value = Scratch(what, item_bytes(tensor.dtype))
    yield from during([value], flattened(call, tensor))


def _median(call: Call) -> Iterator[Step]:
    """Clause (4)."""
    tensor = call.tensor("self")
    if call.value("dim") is not None or not numel(tensor):
        yield from _searched(call)
        return
    copies = [] if is_one_run(tensor) else [contiguous_copy(tensor)]
    values = Scratch("sorted values", nbytes(tensor))
    positions = Scratch("positions", numel(tensor) * INDEX_BYTES)
    yield from map(Take, [*copies, values])
    yield from during([positions], row(call, numel(tensor), tensor.dtype))
    yield from map(Free, copies)
    if call.name == "aten.nanmedian":
        yield from _at_counted_position(call, numel(tensor))
    else:
        yield from during([Scratch("whether the greatest is a NaN", 1)], call.outputs())
    yield Free(values)


def _at_counted_position(call: Call, count: int) -> Iterator[Step]:
    """`(count - 1 - NaNs) / 2`, a float32 number that becomes an index."""
    is_nan = TensorOut((count,), "bool", None, (1,))
    held = [Scratch("which are NaN", count), Scratch("how many are NaN", INDEX_BYTES)]
    yield from map(Take, held)
    yield from converted_sum(call, is_nan, "int64")
    held.append(Scratch("how many are not", INDEX_BYTES))
    held.append(Scratch("half as many", item_bytes("float32")))
    position = Scratch("the position", INDEX_BYTES)
    yield from map(Take, [*held[2:], position])
    yield from map(Free, reversed(held))
    yield from call.outputs()
    yield Free(position)


def _searched(call: Call) -> Iterator[Step]:
    """`median_with_indices_impl` and `kthvalue_out_cuda`."""
    tensor = call.tensor("self")
    copies = contiguous_copies(tensor)
    yield from during(copies, call.outputs())


def _mode(call: Call) -> Iterator[Step]:
    """`mode_kernel_impl`."""
    tensor = call.tensor("self")
    yield from call.outputs()
    dim = call.value("dim") if call.value("dim") is not None else -1
    length = tensor.shape[dim] if tensor.shape else 1
    if length == 1:
        return
    is_sorted = length > _LONGEST_SEARCHED or numel(tensor) > INT32_MAX
    if is_sorted or not is_contiguous(_transposed(tensor, dim)):
        yield from during([contiguous_copy(tensor)])
    if is_sorted:
        what = "positions of a row, its distinct values and their counts"
        call.leave_out(f"scratch memory of {call.name}", "a copy of the input", f"no rule; {what}")


def _transposed(tensor: TensorOut, dim: int) -> TensorOut:
    """A tensor with a dimension and its last one exchanged."""
    order = list(range(len(tensor.shape)))
    order[dim], order[-1] = order[-1], order[dim]
    shape, stride = (
        tuple(each[place] for place in order) for each in (tensor.shape, tensor.stride)
    )
    return TensorOut(shape, tensor.dtype, None, stride, tensor.offset)


def _normal(call: Call) -> Iterator[Step]:
    """Clause (5)."""
    std = call.optional("std") if isinstance(call.value("std"), Node) else None
    if std is None or not numel(std):
        yield from call.outputs()
        return
    yield from _looks_for_negatives(call, std)
    yield from call.outputs()
    yield from _looks_for_negatives(call, std)


def _looks_for_negatives(call: Call, std: TensorOut) -> Iterator[Step]:
    least = Scratch("the least", item_bytes(std.dtype))
    yield Take(least)
    yield from flattened(call, std)
    yield from during([Scratch("comparison", 1)])
    yield Free(least)


def _dirichlet(call: Call) -> Iterator[Step]:
    """Clause (7)."""
    yield from call.outputs()
    draws = compact(call.tensor("self"))
    sums = Scratch("sums of draws", numel(draws) // draws.shape[-1] * item_bytes(draws.dtype))
    yield from during([sums], reduced(call, draws, [-1], keepdim=True))


def _bernoulli(call: Call) -> Iterator[Step]:
    """Clause (6)."""
    yield from call.outputs()
    tensor, given = call.tensor("self"), call.value("p")
    chances = tensor if given is None else call.optional("p") if isinstance(given, Node) else None
    wanted = "float64" if tensor.dtype == "float64" else "float32"
    if chances is not None and chances.dtype != wanted:
        copy = Scratch(f"chances as {wanted}", numel(chances) * item_bytes(wanted))
        yield from during([copy])


_LONGEST_SEARCHED = 2048  # 2 * MAX_BLOCK_SIZE

RULES: Mapping[str, Rule] = {
    "aten.normal": _normal,
    "aten._sample_dirichlet": _dirichlet,
    "aten.bernoulli": _bernoulli,
    "aten.bernoulli_": _bernoulli,
    "aten.multinomial": _multinomial,
    "aten.randperm": _randperm,
    "aten.bincount": _bincount,
    "aten.histc": _histc,
    "aten.median": _median,
    "aten.nanmedian": _median,
    "aten.kthvalue": _searched,
    "aten.mode": _mode,
}
