"""LSTM, GRU and RNN as one cuDNN operation, as a card runs them.

A build without cuDNN runs them cell by cell. Here kernels registered for `AutogradCUDA` do what
`_cudnn_impl` does (aten/src/ATen/native/cudnn/RNN.cpp) and call the real operator `_cudnn_rnn`,
whose derivative every build has.

The sizes of cuDNN's reserve space, which autograd keeps for the backward pass, and of the dropout
state were measured (graphmem/cudnn_recurrent.py).

Not covered: deterministic mode, and versions of cuDNN that pad the weight buffer. (That of
LSTM(1024, 1024) is the sum of its weights, 32.03 MiB: README of Stonesjtu/pytorch_memlab.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch.backends.cudnn import CUDNN_TENSOR_DTYPES

from graphmem.cudnn_recurrent import (
    GRU,
    LSTM,
    RNN_RELU,
    RNN_TANH,
    Layers,
    dropout_state_bytes,
    extents,
)
from graphmem.virtual_device.overriding import override

aten = torch.ops.aten

_MODES = {"rnn_relu": RNN_RELU, "rnn_tanh": RNN_TANH, "lstm": LSTM, "gru": GRU}

RECURRENT = tuple(
    getattr(getattr(aten, name), overload) for name in _MODES for overload in ("input", "data")
)
"""The operators whose kernels are here."""


@contextmanager
def recurrent_layers(multiprocessors: int) -> Iterator[None]:
    """Run recurrent layers on fake CUDA tensors as cuDNN does while the context is open.

    Args:
        multiprocessors: the card's number of multiprocessors.
    """
    library = torch.library.Library("aten", "IMPL")
    layers = _Layers(multiprocessors)
    try:
        for key in ("AutogradCUDA", "CUDA"):
            for name, mode in _MODES.items():
                operator = getattr(aten, name)
                library.impl(
                    f"{name}.input", _where_enabled(layers.whole(mode), operator.input), key
                )
                library.impl(
                    f"{name}.data", _where_enabled(layers.packed(mode), operator.data), key
                )
        override(library, "_cudnn_rnn", _forward, "Meta")
        library.impl("_cudnn_rnn_backward", _backward, "Meta")
        yield
    finally:
        library._destroy()


def _where_enabled(kernel: Callable[..., Any], operator: Any) -> Callable[..., Any]:
    """Run cell by cell, as every build can, if the program has switched cuDNN off.

    `cudnn_is_acceptable` (aten/src/ATen/native/cudnn/RNN.cpp asks it) wants a tensor with elements,
    too.
    """

    def run(source: Any, *args: Any) -> Any:
        if torch.backends.cudnn.enabled and source.numel():
            return kernel(source, *args)
        return operator._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, source, *args)

    return run


def flatten_parameters(module: torch.nn.RNNBase) -> None:
    """Lay a module's weights out in one buffer, as `RNNBase.flatten_parameters` does on a card.

    Weights that lie in such a buffer already are copied into a new one. Those of a dtype that
    `torch.backends.cudnn.is_acceptable` does not list, i.e. bfloat16, stay where they are; each
    forward pass copies them into a buffer.
    """
    weights = [weight for weight in module._flat_weights if _on_card(weight)]
    if len(weights) != len(module._flat_weights_names):
        return
    places = {(each.untyped_storage()._cdata, each.storage_offset()) for each in weights}
    types = {weight.dtype for weight in weights}
    if len(types) > 1 or not types <= CUDNN_TENSOR_DTYPES or len(places) < len(weights):
        return
    with torch.no_grad():
        for weight, part in zip(weights, _flat(weights, weights[0].dtype), strict=True):
            aten.set_.source_Tensor(weight, part)


class _Layers:
    """Kernels of `lstm`, `gru`, `rnn_tanh` and `rnn_relu`, which share one dropout state."""

    def __init__(self, multiprocessors: int) -> None:
        self._state_bytes = dropout_state_bytes(multiprocessors)
        self._dropout_state: torch.Tensor | None = None

    def whole(self, mode: int) -> Any:
        """The overload for a tensor of sequences of equal length."""

        def kernel(source: Any, hidden: Any, weights: Any, *options: Any) -> Any:
            *others, batch_first = options
            return self._run(mode, source, (), hidden, weights, batch_first, *others)

        return kernel

    def packed(self, mode: int) -> Any:
        """The overload for a packed sequence."""

        def kernel(data: Any, sizes: Any, hidden: Any, weights: Any, *options: Any) -> Any:
            return self._run(mode, data, sizes.tolist(), hidden, weights, False, *options)

        return kernel

    def _run(
        self,
        mode: int,
        source: torch.Tensor,
        sizes: Sequence[int],
        hidden: Any,
        weights: Sequence[torch.Tensor],
        batch_first: bool,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> tuple[torch.Tensor, ...]:
        """`_cudnn_impl`, and under autocast `_cudnn_rnn_cast_reflatten`, which casts to fp16.

        The former is in aten/src/ATen/native/cudnn/RNN.cpp, the latter in cudnn/AutocastRNN.cpp.
        """
        hx, cx = hidden if mode == LSTM else (hidden, None)
        width = hx.shape[2] if cx is None else cx.shape[2]
        projected = hx.shape[2] if hx.shape[2] != width else 0
        if torch.is_autocast_enabled("cuda") and source.dtype != torch.float64:
            weights = weights if weights[0].dtype == torch.half else _flat(weights, torch.half)
            # arguments of one C++ call, which the wheels' compiler evaluates last to first
            cx = None if cx is None else cx.half()
            hx, source = hx.half(), source.half()
        output, hy, cy, _, _ = aten._cudnn_rnn(
            source,
            weights,
            (4 if has_biases else 2) + bool(projected),
            _buffer_of(weights),
            hx,
            cx,
            mode,
            width,
            projected,
            num_layers,
            batch_first,
            dropout,
            train,
            bidirectional,
            sizes,
            self._state(source, dropout) if train else None,
        )
        return (output, hy) if cx is None else (output, hy, cy)

    def _state(self, source: torch.Tensor, dropout: float) -> torch.Tensor | None:
        """The state of dropout's generators, made once (`get_dropout_state`)."""
        if dropout and self._dropout_state is None:
            torch.empty((), dtype=torch.int64, device=source.device)
            self._dropout_state = torch.empty(
                self._state_bytes, dtype=torch.uint8, device=source.device
            )
        return self._dropout_state if dropout else None


def _on_card(weight: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(weight, torch.Tensor) and weight.is_cuda and torch.backends.cudnn.enabled


def _flat(weights: Sequence[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """Copy the weights into one buffer (`copy_weights_to_flat_buf_views`).

    To autograd the copies are independent tensors, not views of the buffer (`get_parameters`).
    """
    buffer = torch.zeros(_size_of(weights), dtype=dtype, device=weights[0].device)
    parts = [
        aten.set_.source_Tensor(buffer.new_empty(0), part) for part in _slices(buffer, weights)
    ]
    for part, weight in zip(parts, weights, strict=True):
        part.copy_(weight)
    return parts


def _size_of(weights: Sequence[torch.Tensor]) -> int:
    return sum(weight.numel() for weight in weights)


def _slices(buffer: torch.Tensor, weights: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The slice of the buffer for each weight, in its shape."""
    start = 0
    for weight in weights:
        yield buffer.narrow(0, start, weight.numel()).view(weight.shape)
        start += weight.numel()


def _buffer_of(weights: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The buffer that holds all weights back to back, if there is one (`try_get_weight_buf`)."""
    first, start = weights[0], 0
    for weight in weights:
        is_next = weight.storage_offset() == start
        if not is_next or weight.untyped_storage()._cdata != first.untyped_storage()._cdata:
            return None
        start += weight.numel()
    with torch.no_grad():
        return first.detach().as_strided((start,), (1,), 0)


def _forward(
    source: torch.Tensor,
    weight: Sequence[torch.Tensor],
    weight_stride0: int,
    weight_buf: torch.Tensor | None,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """The results of `_cudnn_rnn`, in cuDNN's layout."""
    directions = 1 + bidirectional
    out = proj_size or hidden_size
    if batch_sizes:
        output = source.new_empty((source.shape[0], out * directions))
    else:
        batch, length = source.shape[:2] if batch_first else source.shape[1::-1]
        output = source.new_empty((length, batch, out * directions))
        output = output.transpose(0, 1) if batch_first else output
    reserve = source.new_empty(0, dtype=torch.uint8)
    if train:
        layers = Layers(
            mode, *extents(source.shape, batch_first, batch_sizes), source.shape[-1], hidden_size,
            out, num_layers, directions, dropout, source.dtype, is_training=True,
        )  # fmt: skip
        reserve = source.new_empty(layers.reserve_bytes, dtype=torch.uint8)
    hy = torch.empty_like(hx, memory_format=torch.contiguous_format)
    cy = hx.new_empty(0) if cx is None else torch.empty_like(cx)
    if weight_buf is None:
        weight_buf = source.new_empty(_size_of(weight))
    return output, hy, cy, reserve, weight_buf


def _backward(
    source: torch.Tensor,
    weight: Sequence[torch.Tensor],
    weight_stride0: int,
    weight_buf: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    output: torch.Tensor,
    grad_output: torch.Tensor | None,
    grad_hy: torch.Tensor | None,
    grad_cy: torch.Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: torch.Tensor | None,
    reserve: torch.Tensor,
    output_mask: Sequence[bool],
) -> tuple[Any, ...]:
    """The gradients; those of the weights are views of one buffer."""
    swaps = batch_first and not batch_sizes
    dx = torch.empty_like(
        source.transpose(0, 1) if swaps else source, memory_format=torch.contiguous_format
    )
    dcx = None if cx is None else torch.empty_like(cx)
    dw: list[torch.Tensor] = []
    if output_mask[3]:
        buffer = torch.empty_like(weight_buf)
        dw = list(_slices(buffer, weight))
    return dx.transpose(0, 1) if swaps else dx, torch.empty_like(hx), dcx, dw
