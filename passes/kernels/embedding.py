"""Embedding lookups, and the gradient of the table.

`embedding` (aten/src/ATen/native/Embedding.cpp) is `index_select(0, indices.reshape(-1))`: indices
that are not one run of equal strides, such as those of an expanded buffer, are copied, and the copy
is freed once the rows are there. A recorded BERT-large has these two events around those of the
rows (tests/passes/kernels/test_operators.py).

The gradient: aten/src/ATen/native/cuda/Embedding.cu, `embedding_dense_backward_cuda`, and
EmbeddingBackwardKernel.cu, `embedding_backward_cuda_kernel`; the embedding rows of Liger (docs/
sources.md, "Embeddings, indexing and sorting"; A100, 16,384 tokens); fixtures/cuda/operators.

  (0) Indices, then the gradient, are made contiguous and held for the whole call.
  (1) Up to 3,072 tokens, without scaling by frequency, only the result is allocated.
  (2) Otherwise tokens are sorted by their index, cut into segments of one row each, and those into
      parts of ten tokens. The sort looks at all bits up to torch 2.12, where the number that the
      table's size needs is commented out, and then at as many as that.
  (3) Each part has a row of the accumulating type; from torch 2.11 on those of few, long segments
      are added atomically instead (`use_fused_kernel`): to the result, or for 16 bits to a float32
      table.
  (4) `embedding_bag` (EmbeddingBag.cu) allocates its sizes, bags and results before its output; its
      gradient always sorts, except for the maximum, which allocates only the result.
  (5) A sparse gradient of `embedding_bag` (aten/src/ATen/native/EmbeddingBag.cpp,
      `_embedding_bag_sparse_backward`) is the bags' rows by index; that of a mean is multiplied by
      a factor for each (fixtures/real/tabular.py --sparse on an H200; the mean is read in the
      source).
  (6) `embedding_renorm_`, as of `max_norm`, sorts the indices, whose order is freed at once, and
      finds distinct ones in memory for all (Embedding.cu, `embedding_renorm_cuda_`).

Not covered: the mask of a sparse gradient with `padding_idx`, the temporary storage of CUB's
`unique` and scans before CUDA 13 (`cub_scans`), and deterministic algorithms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphmem.graph import TensorOut
from graphmem.kernel_program import Free, Output, Scratch, Step, Take
from graphmem.torch_releases.differences import (
    EMBEDDINGS_ADD_ATOMICALLY,
    EMBEDDINGS_SORT_BY_NEEDED_BITS,
)

from .call import Call, Rule, during
from .cub import key_bits
from .cub_scans import scan, scan_by_key, unique, unique_by_key
from .filling import fill
from .layout import (
    INDEX_BYTES,
    accumulate_bytes,
    is_contiguous,
    is_half,
    is_one_run,
    item_bytes,
    nbytes,
    numel,
)
from .reduction import contiguous_copies, contiguous_copy
from .sorting import sorted_rows, storage_of_sort

_TOKENS_WITHOUT_SORT = 3072
_TOKENS_PER_PART = 10
_SCALAR_BYTES = 8
_WARP = 32
_MAX_THREADS = 1024
_BLOCKS_TO_FILL_A_MULTIPROCESSOR = 4
_MEAN, _MAXIMUM = 1, 2  # `EmbeddingBagMode`


def _forward(call: Call) -> Iterator[Step]:
    indices = call.tensor("indices")
    copies = [] if is_one_run(indices) else [contiguous_copy(indices, "the indices")]
    yield from during(copies, call.outputs())


def _dense_backward(call: Call) -> Iterator[Step]:
    grad, indices = call.tensor("grad_output"), call.tensor("indices")
    operands = ((indices, "the indices"), (grad, "the gradient"))
    copies = [contiguous_copy(each, what) for each, what in operands if not is_contiguous(each)]
    is_small = numel(indices) <= _TOKENS_WITHOUT_SORT and not call.value("scale_grad_by_freq")
    yield from during(copies, call.outputs() if is_small else _sorted(call, grad, indices))


def _sorted(
    call: Call, grad: TensorOut, indices: TensorOut, *, has_bags: bool = False
) -> Iterator[Step]:
    """Clause (2), from the sort to the end."""
    size = item_bytes(indices.dtype)
    held = [Scratch(what, nbytes(indices)) for what in ("sorted indices", "positions before")]
    yield from map(Take, held)
    yield from _sort(call, indices)
    if call.value("scale_grad_by_freq"):
        held.append(Scratch("frequencies of indices", nbytes(indices)))
        yield Take(held[-1])
        for _ in ("numbers in order", "the greatest of each index"):
            yield from during([scan_by_key(call, numel(indices), size)])
    yield from call.outputs()
    yield from _segments(call, grad, indices, has_bags=has_bags)
    yield from map(Free, reversed(held))


def _sort(call: Call, indices: TensorOut) -> Iterator[Step]:
    size = item_bytes(indices.dtype)
    needed = EMBEDDINGS_SORT_BY_NEEDED_BITS.holds_in(call.runtime.release)
    bits = key_bits(call.value("num_weights")) if needed else 8 * size
    storage = storage_of_sort(call, numel(indices), size, size, bits)
    positions = Scratch("positions", nbytes(indices))
    yield from during([positions], [*fill(call, indices.dtype), *during([storage])])


def _segments(call: Call, grad: TensorOut, indices: TensorOut, *, has_bags: bool) -> Iterator[Step]:
    tokens, size = numel(indices), item_bytes(indices.dtype)
    segments = min(tokens, call.value("num_weights"))
    parts = tokens // _TOKENS_PER_PART + segments
    beginnings = [
        Scratch("beginnings of segments", tokens * size),
        Scratch("number of segments", _SCALAR_BYTES),
    ]
    yield from map(Take, beginnings)
    keys = Scratch("distinct indices", tokens * size)
    yield from during([keys, unique_by_key(call, tokens, size)])
    counts = [
        Scratch("parts of each segment", segments * size),
        Scratch("first part of each segment", segments * size),
    ]
    yield from map(Take, counts)
    yield from during([scan(call, segments, indices.dtype)])
    held = [
        Scratch("number of parts", _SCALAR_BYTES),
        Scratch("beginnings of parts", parts * size),
    ]
    is_atomic = not has_bags and _is_atomic(call, segments, parts, grad.shape[-1])
    sums = _atomic if is_atomic else _of_parts
    yield from during([*held, *sums(call, grad, parts, size)])
    yield from map(Free, reversed([*beginnings, *counts]))


def _of_parts(call: Call, grad: TensorOut, parts: int, size: int) -> list[Scratch]:
    """Clause (3), a row for each part."""
    del call, size
    row = grad.shape[-1] * accumulate_bytes(grad.dtype)
    return [Scratch("gradients of parts", parts * row)]


def _atomic(call: Call, grad: TensorOut, parts: int, size: int) -> list[Scratch]:
    """Clause (3), added at once."""
    held = [Scratch("segments of parts", parts * size)]
    if is_half(grad.dtype):
        table = call.value("num_weights") * grad.shape[-1] * accumulate_bytes(grad.dtype)
        held.append(Scratch("the gradient in float32", table))
    return held


def _is_atomic(call: Call, segments: int, parts: int, width: int) -> bool:
    columns = -(-width // _WARP) * _WARP
    blocks = -(-segments * columns // min(columns, _MAX_THREADS))
    enough = _BLOCKS_TO_FILL_A_MULTIPROCESSOR * call.runtime.gpu.multiprocessors
    return (
        EMBEDDINGS_ADD_ATOMICALLY.holds_in(call.runtime.release)
        and blocks < enough
        and parts > 4 * blocks
    )


def _bags(call: Call) -> Iterator[Step]:
    """Clause (4): the output comes third, after the trace's third and second births."""
    births = list(range(len(call.op.births)))
    order = [2, 1, 0, *births[3:]] if len(births) > 2 else births
    yield from map(Output, order)


def _bags_backward(call: Call) -> Iterator[Step]:
    grad, indices = call.tensor("grad"), call.tensor("indices")
    if call.value("sparse"):
        yield from _sparse_bags_backward(call, grad, indices)
        return
    copies = contiguous_copies(grad, "the gradient")
    has_rows = call.value("mode") != _MAXIMUM
    steps = _sorted(call, grad, indices, has_bags=True) if has_rows else call.outputs()
    yield from during(copies, steps)


def _sparse_bags_backward(call: Call, grad: TensorOut, indices: TensorOut) -> Iterator[Step]:
    """Clause (5)."""
    yield from call.outputs()
    if call.value("mode") != _MEAN:
        return
    size = item_bytes(grad.dtype)
    per_bag = numel(call.tensor("bag_size")) * size
    sizes, factors = (Scratch(what, per_bag) for what in ("sizes of bags", "their reciprocals"))
    of_rows = Scratch("a factor for each row", numel(indices) * size)
    yield from map(Take, (sizes, factors, of_rows))
    yield from map(Free, (factors, sizes, of_rows))


def _renorm(call: Call) -> Iterator[Step]:
    """Clause (6)."""
    yield from call.outputs()
    indices = call.tensor("indices")
    count, size = numel(indices), nbytes(indices)
    held = [Scratch("sorted indices", size)]
    yield Take(held[0])
    yield from during([Scratch("their order", count * INDEX_BYTES)], sorted_rows(call, indices))
    distinct = [Scratch("distinct indices", size), Scratch("how many are distinct", INDEX_BYTES)]
    yield from during(distinct, during([unique(call, count, indices.dtype)]))
    yield Free(held[0])


RULES: Mapping[str, Rule] = {
    "aten.embedding": _forward,
    "aten.embedding_renorm_": _renorm,
    "aten.embedding_dense_backward": _dense_backward,
    "aten._embedding_bag": _bags,
    "aten._embedding_bag_forward_only": _bags,
    "aten._embedding_bag_backward": _bags_backward,
    "aten._embedding_bag_dense_backward": _bags_backward,
}
