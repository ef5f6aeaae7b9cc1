"""Memory of cuDNN's recurrent layers, as measured: there is no source for it.

The formulas come from two runs on one H100 (torch 2.11.0, cuDNN 9.19.0): the calls of
`fixtures/cuda/operators.jsonl.gz`, and 949 layers of other sizes. They match, byte for byte, every
reserve space, and the workspace of an LSTM whose input is no wider than its state; the others are
approximate, and the report says so (`is_exact`): in `fixtures/cuda/real`, workspaces of packed
sequences are 10 to 13 % smaller (seq2seq) and those of a GRU whose input is 3.2 times as wide as
its state 41 to 51 % larger (speech).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

RNN_RELU, RNN_TANH, LSTM, GRU = range(4)  # cudnnRNNMode_t
GATES = {RNN_RELU: 1, RNN_TANH: 1, LSTM: 4, GRU: 3}

_KEPT = {RNN_RELU: 1, RNN_TANH: 1, LSTM: 5, GRU: 6}  # widths of the state, for each step
_HEADER_BYTES = 256
_ALIGNMENT = 32
_LIBRARY_BYTES = 8 << 20  # for each layer and direction
_SMALL_STATE = 128
_DROPOUT_BYTES_PER_MULTIPROCESSOR = 48 << 10

# By kind and directions: state widths for each step, and for each sequence and layer.
_WORK = {
    (LSTM, 1): (5, 10),
    (LSTM, 2): (14, 24),
    (GRU, 1): (4, 5),
    (GRU, 2): (12, 20),
    (RNN_TANH, 1): (4, 9),
    (RNN_TANH, 2): (12, 20),
}


def dropout_state_bytes(multiprocessors: int) -> int:
    """The state of dropout's generators: 6,488,064 bytes on the 132 multiprocessors of an H100.

    That is 48 KiB for each; `get_dropout_state` (aten/src/ATen/native/cudnn/RNN.cpp) asks cuDNN.
    """
    return multiprocessors * _DROPOUT_BYTES_PER_MULTIPROCESSOR


def extents(
    shape: Sequence[int], batch_first: bool, batch_sizes: Sequence[int]
) -> tuple[int, int, int]:
    """Time steps, sequences and rows of an input; `batch_sizes` belongs to packed sequences."""
    if batch_sizes:
        return len(batch_sizes), batch_sizes[0], shape[0]
    steps, batch = shape[1::-1] if batch_first else shape[:2]
    return steps, batch, steps * batch


@dataclass(frozen=True)
class Layers:
    """A call of `_cudnn_rnn`.

    Attributes:
        mode: `cudnnRNNMode_t`.
        steps: time steps of the longest sequence.
        batch: sequences.
        rows: time steps of all sequences together.
        inputs: width of the input.
        hidden: width of the state.
        out: width of the output of one direction; less than `hidden` if it is projected.
        layers: how many layers.
        directions: 1 or 2.
        dropout: probability of dropout.
        dtype: the dtype of all numbers.
        is_training: whether a backward pass may follow.
    """

    mode: int
    steps: int
    batch: int
    rows: int
    inputs: int
    hidden: int
    out: int
    layers: int
    directions: int
    dropout: float
    dtype: torch.dtype
    is_training: bool

    @property
    def is_exact(self) -> bool:
        """Whether `workspace_bytes` is exact, not only approximate."""
        is_long = self.steps >= 2 * self.layers
        is_packed = self.rows < self.steps * self.batch
        return self.mode == LSTM and self.inputs <= self.hidden and is_long and not is_packed

    @property
    def reserve_bytes(self) -> int:
        """Bytes that autograd keeps for the backward pass.

        For each layer all gates and an LSTM's cell states (a GRU has six values), and a
        projection's input and output; the outputs between layers; one bit for each number that
        dropout may drop, for each direction that reads it, as if no sequence were shorter than
        the longest (fixtures/cuda/real/seq2seq).
        """
        projected = self.hidden + self.out if self.out < self.hidden else 0
        kept = _KEPT[self.mode] * self.hidden + projected
        numbers = self.directions * self.rows * self.dtype.itemsize
        between = self.layers - 1
        states = _aligned(self.layers * numbers * kept)
        outputs = _aligned(between * numbers * self.hidden)
        masks = between * self.directions * _aligned(self._mask_bytes) if self.dropout else 0
        return _HEADER_BYTES + states + outputs + masks

    @property
    def _mask_bytes(self) -> int:
        return -(-self.steps * self.batch * self.directions * self.out // 8)

    @property
    def workspace_bytes(self) -> int:
        """Bytes that each call takes: forward, backward for data, backward for weights.

        A copy of the matrices (not the biases), the input step by step, a number of states for each
        step and each sequence, and two integers for each sequence.
        """
        numbers = _aligned(self.dtype.itemsize * (self._matrices + self._states))
        inputs = _aligned(self.rows * self.inputs * self.dtype.itemsize)
        work = _HEADER_BYTES + _aligned(8 * self.batch) + inputs + numbers
        return self.layers * self.directions * _LIBRARY_BYTES + work

    @property
    def _matrices(self) -> int:
        rows = GATES[self.mode] * self.hidden
        projection = self.out * self.hidden if self.out < self.hidden else 0
        widths = [self.inputs] + [self.directions * self.out] * (self.layers - 1)
        return self.directions * sum(rows * (width + self.out) + projection for width in widths)

    @property
    def _states(self) -> int:
        kind = RNN_TANH if self.mode == RNN_RELU else self.mode
        of_step, of_sequence = _WORK[kind, self.directions]
        in_projection = self.out < self.hidden
        if self._is_small:
            of_step, of_sequence = of_step + 16, of_sequence - 2 * (2 * self.directions - 1)
        drops = self.dropout and self.is_training and self.layers > 1
        if drops and self.directions == 1 and self.mode != RNN_TANH:
            of_step += 1
        states = of_step * self.rows + of_sequence * self.layers * self.batch
        if not in_projection:
            return states * self.hidden + self._wide_inputs
        projected = 2 * self.directions * self.layers * self.batch
        step_outputs = self.directions * self.rows
        return (states - projected) * self.hidden + (projected + step_outputs) * self.out

    @property
    def _wide_inputs(self) -> int:
        """Extra numbers of a single layer whose input is at least as wide as its state."""
        is_one = self.mode == LSTM and self.layers == self.directions == 1 and self.is_training
        if not is_one or self._is_small:
            return 0
        wider = 2 * self.rows * (self.inputs - self.hidden)
        return max(0, wider + self.batch * self.hidden)

    @property
    def _is_small(self) -> bool:
        """Whether cuDNN runs its kernels for narrow states, which exist for float16 and float32."""
        is_narrow = self.hidden <= _SMALL_STATE and self.out == self.hidden
        return is_narrow and self.dtype != torch.bfloat16


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
