"""Batch norm: PyTorch's channels-last kernels, and cuDNN's memory, which is left out.

  (1) `_batch_norm_impl_index` (aten/src/ATen/native/Normalization.cpp) uses cuDNN where
      `_takes_cudnn` is true; cuDNN then keeps a reserve for the backward pass and takes workspaces,
      of sizes that only it knows. In training, its backward pass first makes the gradient
      contiguous in the input's memory format (derivatives.yaml, `cudnn_batch_norm`), and then
      allocates the gradients of input, weight and bias, even those that are not wanted
      (aten/src/ATen/native/cudnn/BatchNorm.cpp, `cudnn_batch_norm_backward`; recorded 30 times for
      64 frozen channels as `a 1048576, a 256, a 256, f 256, f 256`).
  (2) Otherwise channels-last input, and rows of channels (N, C), are reduced over the rows of a
      grid, with a staging buffer and semaphores where the grid has more than one row (aten/src/
      ATen/native/cuda/Normalization.cuh, `flexible_launch_configs`,
      `batch_norm_stats_channels_last_cuda_template`,
      `batch_norm_backward_reduce_cuda_channels_last_template`).
  (3) The statistics and the backward sums of `nn.SyncBatchNorm` are those of (2) (Normalization.cu,
      `batch_norm_stats_cuda`, `batch_norm_backward_reduce_cuda`).

Not covered: input that is neither contiguous nor channels-last, and evaluation mode.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from graphmem.graph import TensorOut
from graphmem.kernel_program import Free, Output, Scratch, Step, Take

from .call import Call, Rule, during
from .layout import accumulate_bytes, is_channels_last, is_contiguous, nbytes
from .reduction import contiguous_copy

_CUDNN_MOST_SAMPLES = 880_801
_CUDNN_ELEMENTS_BELOW = 2**31
_BLOCK = 512
_TILE_WIDTH = 32
_ELEMENTS_PER_THREAD = 16
_MOST_ROWS = 128
_LEAST_ROWS = 8
_SEMAPHORE_BYTES = 4


def _forward(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    if _is_left_to_cudnn(call):
        return
    tensor = call.tensor("input")
    if _takes_channels_last(tensor) and call.value("training"):
        yield from during(_staging(tensor, values=4))


def _backward(call: Call) -> Iterator[Step]:
    tensor = call.tensor("grad_out")
    births = len(call.op.births)
    is_native = not _is_left_to_cudnn(call)
    if not is_native and call.value("train"):
        yield from _cudnn_backward(call, tensor)
        return
    if not is_native or births != 3 or not _takes_channels_last(tensor) or not call.value("train"):
        yield from call.outputs()
        return
    sums = tensor.shape[1] * accumulate_bytes(tensor.dtype)
    held = [Scratch("sums of dy", sums), Scratch("sums of dy * x", sums)]
    steps = (Output(1), Output(2), *during(_staging(tensor, values=2)), Output(0))
    yield from during(held, steps)


def _statistics(call: Call) -> Iterator[Step]:
    """Clause (3), forward."""
    yield from call.outputs()
    tensor = call.tensor("input")
    if _takes_channels_last(tensor):
        yield from during(_staging(tensor, values=4))


def _sums(call: Call) -> Iterator[Step]:
    """Clause (3), backward."""
    yield from call.outputs()
    tensor = call.tensor("input")
    if _takes_channels_last(call.tensor("grad_out")) and _takes_channels_last(tensor):
        yield from during(_staging(tensor, values=2))


def _cudnn_backward(call: Call, grad: TensorOut) -> Iterator[Step]:
    """Clause (1): unwanted gradients are freed when the call returns."""
    names = ("the input", "the weight", "the bias")
    tensor, weight = call.tensor("input"), call.tensor("weight")
    births = iter(range(len(call.op.births)))
    copies = [] if _is_laid_out_as(grad, tensor) else [contiguous_copy(grad, "the gradient")]
    unwanted = []
    yield from map(Take, copies)
    for name, is_wanted in zip(names, call.value("output_mask"), strict=True):
        if is_wanted:
            yield Output(next(births))
            continue
        size = nbytes(tensor if name == "the input" else weight)
        unwanted.append(Scratch(f"gradient of {name}, which nobody wants", size))
        yield Take(unwanted[-1])
    yield from map(Free, (*copies, *unwanted))


def _is_laid_out_as(grad: TensorOut, tensor: TensorOut) -> bool:
    """Whether `grad.contiguous(tensor.suggest_memory_format())` copies nothing."""
    if is_channels_last(tensor):
        return is_channels_last(grad)
    return is_contiguous(grad) or not is_contiguous(tensor)  # the latter: NDHWC, not covered


def _is_left_to_cudnn(call: Call) -> bool:
    tensor, weight = call.tensor("input"), call.optional("weight")
    if not _takes_cudnn(tensor, weight):
        return False
    call.leave_out(
        "cuDNN's batch norm: reserve and workspaces", "0 bytes", "cuDNN chooses their sizes"
    )
    return True


def _takes_cudnn(tensor: TensorOut, weight: TensorOut | None) -> bool:
    """Clause (1), for a module with weight and bias that is training."""
    if weight is None or len(tensor.shape) < 3:
        return False
    dtypes = (tensor.dtype, weight.dtype)
    if "bfloat16" in dtypes or (tensor.dtype == "float16" and weight.dtype != "float32"):
        return False
    is_small = math.prod(tensor.shape) < _CUDNN_ELEMENTS_BELOW
    return is_small and tensor.shape[0] <= _CUDNN_MOST_SAMPLES


def _takes_channels_last(tensor: TensorOut) -> bool:
    """`batch_norm_use_channels_last_kernels`, which is true of rows of channels as well."""
    return is_channels_last(tensor) or (is_contiguous(tensor) and tensor.stride[1] == 1)


def _staging(tensor: TensorOut, *, values: int) -> list[Scratch]:
    """Clause (2); `values` are kept for each channel and row of the grid."""
    channels = tensor.shape[1]
    rows = math.prod(tensor.shape) // max(1, channels)
    across, down = _grid(rows, channels)
    if down == 1:
        return []
    nbytes = values * channels * down * accumulate_bytes(tensor.dtype)
    return [
        Scratch("staging buffer of channels", nbytes),
        Scratch("semaphores of channels", across * _SEMAPHORE_BYTES),
    ]


def _grid(rows: int, channels: int) -> tuple[int, int]:
    width = min(_power_of_two(channels), _TILE_WIDTH)
    height = min(_power_of_two(-(-rows // _ELEMENTS_PER_THREAD)), _BLOCK // width)
    if width * height != _BLOCK:
        width = min(_power_of_two(channels), _BLOCK // height)
    down = min(-(-rows // (height * _ELEMENTS_PER_THREAD)), _MOST_ROWS)
    return -(-channels // width), down if down >= _LEAST_ROWS else 1


def _power_of_two(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)


RULES: Mapping[str, Rule] = {
    "aten.native_batch_norm": _forward,
    "aten._native_batch_norm_legit": _forward,
    "aten.native_batch_norm_backward": _backward,
    "aten.batch_norm_stats": _statistics,
    "aten.batch_norm_backward_reduce": _sums,
}
