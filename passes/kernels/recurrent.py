"""LSTM, GRU and RNN as one cuDNN operation: copies, zero gradients and the workspace.

`_cudnn_rnn` and `_cudnn_rnn_backward` (aten/src/ATen/native/cudnn/RNN.cpp):
(1) The input is copied if it is not contiguous with time first, and again in each of the two halves
of the backward pass; so is the incoming gradient in the first half.
(2) Missing gradients (of the last hidden state, of the last cell state) become zeros of full size.
(3) cuDNN's workspace follows the results, including the buffer of weights, and precedes the reserve
space; in the backward pass each half takes it after allocating its gradients. Its size was measured
(graphmem/cudnn_recurrent.py); the report lists sizes that are not known to the byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import torch
from msgspec import structs

from graphmem.cudnn_recurrent import Layers, extents
from graphmem.graph import TensorOut
from graphmem.kernel_program import Output, Scratch, Step

from .call import Call, Rule, during
from .layout import nbytes
from .reduction import contiguous_copies

_RESERVE = 3  # its position among the forward operation's results
_WEIGHTS = 3  # the position of the weights' gradients among the backward operation's results


def _forward(call: Call) -> Iterator[Step]:
    reserve = call.op.outputs[_RESERVE].storage
    births = call.op.births
    results = [Output(at) for at, birth in enumerate(births) if birth != reserve]
    kept = [Output(births.index(reserve))] if reserve in births else []
    work = during([_workspace(call)], kept)
    yield from during(_time_first(call, "input"), chain(results, work))


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
    yield from during(copies, chain(map(Output, range(first)), during([_workspace(call)])))
    if first < births:
        again = _time_first(call, "input")
        work = during([_workspace(call)])
        yield from during(again, chain(map(Output, range(first, births)), work))


_LIKE = {"grad_output": "output", "grad_hy": "hx", "grad_cy": "cx"}


def _workspace(call: Call) -> Scratch:
    layers = _layers(call)
    if not layers.is_exact:
        call.leave_out(
            "workspace of cuDNN's recurrent layers",
            "a formula that most of 949 layers on an H100 follow within 10 %",
            "cuDNN decides it; packed sequences took up to 13 % less, a GRU with wide inputs up to "
            "51 % more",
        )
    return Scratch("workspace of cuDNN's recurrent layers", layers.workspace_bytes)


def _layers(call: Call) -> Layers:
    source, hidden = call.tensor("input"), call.value("hidden_size")
    where = extents(source.shape, call.value("batch_first"), call.value("batch_sizes"))
    return Layers(
        call.value("mode"), *where, source.shape[-1], hidden,
        call.value("proj_size") or hidden, call.value("num_layers"),
        1 + call.value("bidirectional"), call.value("dropout"),
        getattr(torch, source.dtype), call.value("train"),
    )  # fmt: skip


def _time_first(call: Call, name: str) -> list[Scratch]:
    """The copy of a tensor that is not contiguous with time before the batch."""
    tensor = call.tensor(name)
    if call.value("batch_first") and not call.value("batch_sizes"):
        tensor = _swapped(tensor)
    return contiguous_copies(tensor, name)


def _swapped(tensor: TensorOut) -> TensorOut:
    batch, time, *others = zip(tensor.shape, tensor.stride, strict=True)
    shape, stride = zip(time, batch, *others, strict=True)
    return structs.replace(tensor, shape=shape, stride=stride)


RULES: Mapping[str, Rule] = {
    "aten._cudnn_rnn": _forward,
    "aten._cudnn_rnn_backward": _backward,
}
