"""`nn.GRUCell` and `nn.LSTMCell`: one kernel for all gates (aten/src/ATen/native/cuda/RNN.cu).

The workspace for the backward pass is allocated before the states. The biases' gradients are sums
of the gates' gradients, computed at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphmem.graph import TensorOut
from graphmem.kernel_program import Output, Step

from .call import Call, Rule
from .layout import contiguous_strides
from .reduction import reduced


def _forward(call: Call) -> Iterator[Step]:
    *states, workspace = call.outputs()
    yield from (workspace, *states)


def _lstm_backward(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    if call.value("has_bias"):
        yield from reduced(call, _contiguous(call.op.outputs[0]), [0])


def _gru_backward(call: Call) -> Iterator[Step]:
    gradients = list(call.outputs())
    if not call.value("has_bias"):
        yield from gradients
        return
    *others, of_input, of_hidden = gradients
    yield from others
    for bias, gates in ((of_input, 0), (of_hidden, 1)):
        yield from _summed(call, bias, call.op.outputs[gates])


def _summed(call: Call, bias: Output, gates: TensorOut) -> Iterator[Step]:
    yield bias
    yield from reduced(call, _contiguous(gates), [0])


def _contiguous(gates: TensorOut) -> TensorOut:
    return TensorOut(gates.shape, gates.dtype, None, contiguous_strides(gates.shape))


RULES: Mapping[str, Rule] = {
    "aten._thnn_fused_gru_cell": _forward,
    "aten._thnn_fused_lstm_cell": _forward,
    "aten._thnn_fused_gru_cell_backward": _gru_backward,
    "aten._thnn_fused_lstm_cell_backward_impl": _lstm_backward,
}
