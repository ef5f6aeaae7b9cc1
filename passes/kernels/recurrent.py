"""LSTM, GRU and RNN as one cuDNN operation: the copies that are made for it.

`_cudnn_rnn` and `_cudnn_rnn_backward` (aten/src/ATen/native/cudnn/RNN.cpp):
(1) The input is copied where it is not contiguous with time first; so it is in each of the two
halves of the backward pass, and the incoming gradient in the first of them.
(2) Gradients that nobody gave (of the last hidden state, of the last cell state) are zeros of
their full size.
cuDNN's own workspaces are listed by the pass `unmodelled`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from graphmem.graph import TensorOut
from graphmem.kernel_program import Output, Scratch, Step

from .call import Call, Rule, during
from .layout import is_contiguous, nbytes
from .reduction import contiguous_copy

_WEIGHTS = 3  # the position of the weights' gradients in what the backward operation returns


def _forward(call: Call) -> Iterator[Step]:
    yield from during(_time_first(call, "input"), call.outputs())


def _backward(call: Call) -> Iterator[Step]:
    births = len(call.op.births)
    of_weights = int(bool(call.value("output_mask")[_WEIGHTS]))
    given = {name: call.optional(name) for name in ("grad_output", "grad_hy", "grad_cy")}
    like = {name: call.optional(of) for name, of in _LIKE.items()}
    zeros = [
        Scratch(f"zeros for {name}, which nobody gave", nbytes(tensor))
        for name, tensor in like.items()
        if tensor is not None and given[name] is None
    ]
    yield from during(zeros, _halves(call, births - of_weights, births))


def _halves(call: Call, first: int, births: int) -> Iterator[Step]:
    copies = _time_first(call, "input")
    if call.optional("grad_output") is not None:
        copies += _time_first(call, "grad_output")
    yield from during(copies, map(Output, range(first)))
    yield from during(_time_first(call, "input"), map(Output, range(first, births)))


_LIKE = {"grad_output": "output", "grad_hy": "hx", "grad_cy": "cx"}


def _time_first(call: Call, name: str) -> list[Scratch]:
    """The copy of a tensor that is not contiguous once time comes before the batch."""
    tensor = call.tensor(name)
    if call.value("batch_first") and not call.value("batch_sizes"):
        tensor = _swapped(tensor)
    return [] if is_contiguous(tensor) else [contiguous_copy(tensor, name)]


def _swapped(tensor: TensorOut) -> TensorOut:
    batch, time, *others = zip(tensor.shape, tensor.stride, strict=True)
    shape, stride = zip(time, batch, *others, strict=True)
    return replace(tensor, shape=shape, stride=stride)


RULES: Mapping[str, Rule] = {
    "aten._cudnn_rnn": _forward,
    "aten._cudnn_rnn_backward": _backward,
}
