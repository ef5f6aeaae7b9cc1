"""`nn.GRUCell` and `nn.LSTMCell` on a card: one kernel for all gates.

aten/src/ATen/native/cuda/RNN.cu. PyTorch's meta kernel for the LSTM fails without biases.
`nn.RNNCell` has no fused kernel.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten

_KEPT = 5  # GRU_WORKSPACE_MULTIPLIER


def _gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`_thnn_fused_gru_cell_cuda`: the next state, and a workspace for its derivative."""
    batch, hidden = hx.shape
    return _compact(hx), hx.new_empty((batch, hidden * _KEPT))


def _lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`_thnn_fused_lstm_cell_cuda`: both next states, and the gates."""
    return _compact(cx), _compact(cx), _compact(input_gates)


def _gru_cell_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor | None, ...]:
    """`_thnn_fused_gru_cell_backward_cuda`: the gradients of gates, state, and biases."""
    batch, kept = workspace.shape
    gates = 3 * kept // _KEPT
    of_input, of_hidden = workspace.new_empty((batch, gates)), workspace.new_empty((batch, gates))
    biases = (workspace.new_empty(gates), workspace.new_empty(gates)) if has_bias else (None, None)
    return of_input, of_hidden, _compact(grad_hy), *biases


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


KERNELS = {
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
}
