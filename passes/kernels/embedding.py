"""Looking up rows of a table, and the gradient of the table.

`embedding` (aten/src/ATen/native/Embedding.cpp) is `index_select(0, indices.reshape(-1))`: indices
that are not one run of equal strides, such as those of an expanded buffer, are copied, and the copy
goes when the rows are there. A recorded BERT-large has the two events around those of the rows
(tests/test_scratch_operators.py).

The gradient: aten/src/ATen/native/cuda/Embedding.cu, `embedding_dense_backward_cuda`, and
EmbeddingBackwardKernel.cu, `embedding_backward_cuda_kernel`; the embedding rows of Liger (docs/
sources.md, "Embeddings, indexing and sorting"; A100, 16,384 tokens).

  (0) Indices, then the gradient, are made contiguous, and stay as long as the call.
  (1) Up to 3,072 tokens, without scaling by frequency, nothing but the result is allocated.
  (2) Otherwise tokens are sorted by index and cut into segments of one row each, and those into
      parts of ten tokens; each part has a row of the accumulating type.

Not covered: the variant with atomic additions of torch 2.11 for small tables (named as left out
where its condition holds), and the temporary storage of CUB's `unique` and scans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphmem.graph import TensorOut
from graphmem.kernel_program import Free, Scratch, Step, Take
from graphmem.torch_releases.differences import EMBEDDINGS_ADD_ATOMICALLY

from .call import Call, Rule, during
from .cub import SMALL_NOTE, SORT_NOTE, key_bits, sort_pairs_bytes
from .layout import accumulate_bytes, is_contiguous, is_one_run, item_bytes, numel
from .reduction import contiguous_copy

_TOKENS_WITHOUT_SORT = 3072
_TOKENS_PER_PART = 10
_SCALAR_BYTES = 8
_WARP = 32
_MAX_THREADS = 1024


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


def _sorted(call: Call, grad: TensorOut, indices: TensorOut) -> Iterator[Step]:
    """Clause (2), from the sort to the end."""
    per_token = numel(indices) * item_bytes(indices.dtype)
    held = [Scratch("sorted indices", per_token), Scratch("positions before the sort", per_token)]
    yield from map(Take, held)
    yield from _sort(call, indices, per_token)
    if call.value("scale_grad_by_freq"):
        held.append(Scratch("frequencies of indices", per_token))
        yield Take(held[-1])
    yield from call.outputs()
    yield from during(_segments(call, grad, indices))
    yield from map(Free, reversed(held))


def _sort(call: Call, indices: TensorOut, per_token: int) -> Iterator[Step]:
    bits = key_bits(call.value("num_weights"))
    size = item_bytes(indices.dtype)
    storage = sort_pairs_bytes(numel(indices), size, size, bits, call.runtime.gpu)
    if storage is None:
        call.leave_out("storage of CUB's sort", "0 bytes", SORT_NOTE)
    yield from during(
        [Scratch("positions", per_token), Scratch("storage of CUB's sort", storage or 0)]
    )


def _segments(call: Call, grad: TensorOut, indices: TensorOut) -> list[Scratch]:
    tokens, size = numel(indices), item_bytes(indices.dtype)
    segments = min(tokens, call.value("num_weights"))
    parts = tokens // _TOKENS_PER_PART + segments
    width = grad.shape[-1]
    if _is_atomic(call, segments, parts, width):
        call.leave_out(
            "gradient of an embedding by atomic additions",
            "as by segments",
            "torch 2.11 and later allocate less for small tables",
        )
    call.leave_out("storage of CUB's unique and scan", "0 bytes", SMALL_NOTE)
    return [
        Scratch("beginnings of segments", tokens * size),
        Scratch("number of segments", _SCALAR_BYTES),
        Scratch("parts of each segment", segments * size),
        Scratch("first part of each segment", segments * size),
        Scratch("number of parts", _SCALAR_BYTES),
        Scratch("beginnings of parts", parts * size),
        Scratch("gradients of parts", parts * width * accumulate_bytes(grad.dtype)),
    ]


def _is_atomic(call: Call, segments: int, parts: int, width: int) -> bool:
    columns = -(-width // _WARP) * _WARP
    blocks = -(-segments * columns // min(columns, _MAX_THREADS))
    fills_card = blocks >= 4 * call.runtime.gpu.multiprocessors
    return (
        EMBEDDINGS_ADD_ATOMICALLY.holds_in(call.runtime.release)
        and not fills_card
        and parts > 4 * blocks
    )


RULES: Mapping[str, Rule] = {
    "aten.embedding": _forward,
    "aten.embedding_dense_backward": _dense_backward,
}
