"""Convolutions: the workspaces of cuDNN's tensor-core kernels, and the bias gradient's sum.

cuDNN decides about its workspaces at run time (aten/src/ATen/native/cudnn/Conv_v8.cpp,
`run_conv_plan`). What is known of 16-bit operands that lie NCHW, where the card multiplies them in
tensor cores (float16 from compute capability 7.0 on, bfloat16 from 8.0 on):

  (1) tensor-core kernels want NHWC; cuDNN transposes what it is given, into its workspace, and the
      result back (NVIDIA, "Convolutional Layers User's Guide", section "Tensor Layout": "automatic
      transpose operations"; profiles show `nchwToNhwcKernel` for input and weight and
      `nhwcToNchwKernel` for the result of each call, on V100, A100 and H100);
  (2) channels are padded to a multiple of 8 on the way (cuDNN developer guide, "Tensor
      Transformations": padding, folding and NCHW-to-NHWC);
  (3) the gradient of a weight has partial sums besides. Liger's table has six rows of a bfloat16
      3x3 convolution of 4 channels on an RTX 3090 (fixtures/cases/, liger_multi_token_attention):
      each is met by the gradient's workspace of (1) and (2), four tensors where unpadded ones would
      be two, and 721,000 to 1,115,008 bytes besides. What was most is taken.

Convolutions for which each channel is its own group take PyTorch's own kernels where they lie NCHW
(aten/src/ATen/native/cuda/DepthwiseConv2d.cu), which need no workspace. Nothing is taken for 32-bit
operands: a recorded step has none (nca2d), and ResNet-50 on a T4 is met without (t4_preflight).

The gradient of the bias (aten/src/ATen/native/Convolution.cpp, `convolution_backward`): cuDNN
computes the gradient of the input, then that of the weight; then the gradient of the bias is a sum,
whose staging buffer depends on the layout of the incoming gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from graphmem.graph import TensorOut
from graphmem.kernel_program import CONVOLUTION_WORKSPACE, Output, Scratch, Step

from .call import Call, Rule, during
from .layout import is_contiguous, item_bytes
from .reduction import reduced

MOST_PARTIAL_SUMS = 1_115_008  # clause (3), length 256

_ALIGNED_CHANNELS = 8
_TENSOR_CORES_SINCE: Mapping[str, tuple[int, int]] = {"float16": (7, 0), "bfloat16": (8, 0)}


def _forward(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    yield from during(_workspace(call, call.op.outputs[0]))


def _backward(call: Call) -> Iterator[Step]:
    grad = call.tensor("grad_output")
    births = iter(call.outputs())
    wants_input, wants_weight, wants_bias = call.value("output_mask")
    if wants_input:
        yield from _birth(births)
        yield from during(_workspace(call, grad))
    if wants_weight:
        yield from _birth(births)
        yield from during(_workspace(call, grad, partial_sums=MOST_PARTIAL_SUMS))
    yield from births
    if wants_bias:
        axes = [axis for axis in range(len(grad.shape)) if axis != 1]
        yield from reduced(call, grad, axes)


def _birth(births: Iterator[Output]) -> Iterator[Output]:
    born = next(births, None)
    if born is not None:
        yield born


def _workspace(call: Call, result: TensorOut, partial_sums: int = 0) -> list[Scratch]:
    """Clauses (1) to (3), for one of the three products; `result` is the forward pass's."""
    tensor, weight = call.tensor("input"), call.tensor("weight")
    if not _is_transposed(call, tensor, weight):
        return []
    call.leave_out(
        "workspace of cuDNN's convolutions in 16 bits",
        "copies of operands and result with channels last, 1.1 MiB for a weight's gradient",
        "the plan is cuDNN's choice, up to what is left on the card; one that cannot be allocated "
        "is passed over",
    )
    copies = sum(map(_channels_last_bytes, (tensor, weight, result)))
    return [Scratch(CONVOLUTION_WORKSPACE, copies + partial_sums)]


def _is_transposed(call: Call, tensor: TensorOut, weight: TensorOut) -> bool:
    since = _TENSOR_CORES_SINCE.get(tensor.dtype)
    if since is None or call.runtime.gpu.compute_capability < since:
        return False
    is_depthwise = call.value("groups") == tensor.shape[1] > 1
    return not is_depthwise and is_contiguous(tensor) and is_contiguous(weight)


def _channels_last_bytes(tensor: TensorOut) -> int:
    """Clause (2): a tensor of (batch, channels, …), or a weight of (results, channels, …)."""
    batch, channels, *space = tensor.shape
    padded = -(-channels // _ALIGNED_CHANNELS) * _ALIGNED_CHANNELS
    return batch * padded * math.prod(space) * item_bytes(tensor.dtype)


RULES: Mapping[str, Rule] = {
    "aten.convolution": _forward,
    "aten.convolution_backward": _backward,
}
