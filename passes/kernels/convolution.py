"""Convolutions: the workspaces of cuDNN, and the bias gradient's sum.

cuDNN chooses its workspaces at run time (aten/src/ATen/native/cudnn/Conv_v8.cpp, `run_conv_plan`).
On Hopper cards many were measured (`convolution_measured.py`); for others there are rules
(`convolution_plans.py`). On other cards this is known of 16-bit NCHW operands, if the card
multiplies them in tensor cores (float16 from compute capability 7.0 on, bfloat16 from 8.0 on):

  (1) tensor-core kernels want NHWC; cuDNN transposes its operands into its workspace, and the
      result back (NVIDIA, "Convolutional Layers User's Guide", section "Tensor Layout": "automatic
      transpose operations"; profiles show `nchwToNhwcKernel` for input and weight and
      `nhwcToNchwKernel` for the result of each call, on V100, A100 and H100);
  (2) channels are padded to a multiple of 8 on the way (cuDNN developer guide, "Tensor
      Transformations": padding, folding and NCHW-to-NHWC);
  (3) the gradient of a weight also needs partial sums. Liger's table has six rows of a bfloat16 3x3
      convolution of 4 channels on an RTX 3090 (fixtures/cases/, liger_multi_token_attention): each
      equals the gradient's workspace of (1) and (2), four tensors where unpadded ones would be two,
      plus 721,000 to 1,115,008 bytes. The largest of these is assumed.

For 32-bit operands no workspace is assumed on these cards: a recorded step has none (nca2d), and
ResNet-50 on a T4 agrees without one (t4_preflight). Depthwise convolutions in NCHW run PyTorch's
own kernels (aten/src/ATen/native/cuda/DepthwiseConv2d.cu), which need no workspace and compute the
gradient of the weight before that of the input (R: conv_depthwise).

The input is copied if it has gaps or is neither NCHW nor channels last (`_copied_input`; R:
tf_mamba, which convolves half of a transposed tensor). The incoming gradient is copied if its
layout differs from the input's (`_copied_gradient`; R: vit, whose patches are transposed).

The gradient of the bias (aten/src/ATen/native/Convolution.cpp, `convolution_backward`): cuDNN
computes the gradient of the input, then that of the weight; then the gradient of the bias is a sum,
whose staging buffer depends on the layout of the incoming gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from msgspec import structs

from graphmem.graph import TensorOut
from graphmem.kernel_program import CONVOLUTION_WORKSPACE, Free, Output, Scratch, Step, Take

from .call import Call, Rule, during
from .convolution_measured import measured_bytes
from .convolution_plans import ConvolutionPlan, ConvolutionProduct
from .layout import (
    is_contiguous,
    is_laid_out,
    item_bytes,
    nbytes,
    suggests_channels_last,
)
from .reduction import contiguous_copies, reduced

MOST_PARTIAL_SUMS = 1_115_008  # clause (3), length 256

_ALIGNED_CHANNELS = 8
_ROW = 3  # dimensions of rows of numbers, channel by channel
_HOPPER = (9, 0)
_MEASURED = ("float16", "bfloat16", "float32")
_WORKSPACE = "workspace of cuDNN's convolutions"
_CHOICE = (
    "the plan is cuDNN's choice; the bound is what is left on the card, as one that cannot be "
    "allocated is passed over"
)
_OF_TRANSPOSED = {
    ConvolutionProduct.RESULT: ConvolutionProduct.INPUT_GRADIENT,
    ConvolutionProduct.INPUT_GRADIENT: ConvolutionProduct.RESULT,
    ConvolutionProduct.WEIGHT_GRADIENT: ConvolutionProduct.WEIGHT_GRADIENT,
}
_TENSOR_CORES_SINCE: Mapping[str, tuple[int, int]] = {"float16": (7, 0), "bfloat16": (8, 0)}


def _forward(call: Call) -> Iterator[Step]:
    copied = _copied_input(call)
    yield from map(Take, copied)
    yield from call.outputs()
    yield from during(_workspace(call, call.op.outputs[0], ConvolutionProduct.RESULT))
    yield from map(Free, copied)


def _backward(call: Call) -> Iterator[Step]:
    grad = call.tensor("grad_output")
    births = iter(_births(call))
    wants_input, wants_weight, wants_bias = call.value("output_mask")
    is_row = len(grad.shape) == _ROW
    rows = _copied_input(call) if is_row else []
    copied = _copied_input(call) if wants_weight and not is_row else []
    yield from map(Take, rows)
    if _is_own_kernel(call):
        yield from _own_backward(call, births, copied)
    else:
        copied += _copied_gradient(call, grad)
        yield from map(Take, copied)
        if wants_input:
            yield from _birth(births)
            yield from during(_workspace(call, grad, ConvolutionProduct.INPUT_GRADIENT))
        if wants_weight:
            yield from _birth(births)
            yield from during(_workspace(call, grad, ConvolutionProduct.WEIGHT_GRADIENT))
        yield from map(Free, copied)
    yield from births
    if wants_bias:
        axes = [axis for axis in range(len(grad.shape)) if axis != 1]
        yield from reduced(call, grad, axes)
    yield from map(Free, rows)


def _own_backward(call: Call, births: Iterator[Output], copied: list[Scratch]) -> Iterator[Step]:
    """`conv_depthwise2d_backward_cuda_out` (aten/src/ATen/native/cuda/DepthwiseConv2d.cu).

    It wants everything contiguous: the gradient throughout, the input for the weight's gradient,
    which comes first (R: zoo_nystromformer, whose gradient is transposed).
    """
    grad = call.tensor("grad_output")
    wants_input, wants_weight, _ = call.value("output_mask")
    held = contiguous_copies(grad, "the gradient")
    yield from map(Take, held)
    if wants_weight:
        yield from during(copied, _birth(births))
    if wants_input:
        yield from _birth(births)
    yield from map(Free, held)


def _copied_input(call: Call) -> list[Scratch]:
    """`input.contiguous(backend_memory_format)`, in a backward pass for the weight's gradient only.

    The input of a 1-d convolution is always copied, before it becomes an image, and held for the
    whole operation (aten/src/ATen/native/Convolution.cpp, `_convolution` and
    `convolution_backward`).
    """
    tensor = call.tensor("input")
    wants_channels_last = _has_channels_last(call)
    if is_laid_out(tensor, channels_last=wants_channels_last):
        return []
    return [Scratch("input in the layout of a convolution", nbytes(tensor))]


def _has_channels_last(call: Call) -> bool:
    """`cudnn_conv_suggest_memory_format` (aten/src/ATen/native/ConvUtils.h)."""
    operands = (call.tensor("input"), call.tensor("weight"))
    is_double = any(tensor.dtype == "float64" for tensor in operands)
    return not is_double and any(map(suggests_channels_last, operands))


def _copied_gradient(call: Call, grad: TensorOut) -> list[Scratch]:
    """The gradient's copy, if exactly one of it and the input is channels last.

    aten/src/ATen/native/cudnn/ConvShared.cpp, `cudnn_convolution_backward`:
    `grad_output_t.to(input.suggest_memory_format())`. The operands of a 1-d convolution are images
    there (R: zoo_convbert, whose gradient is transposed), the input a contiguous one.
    """
    is_row = len(grad.shape) == _ROW
    wants_channels_last = not is_row and suggests_channels_last(call.tensor("input"))
    if suggests_channels_last(_as_image(grad) if is_row else grad) == wants_channels_last:
        return []
    return [Scratch("gradient in the layout of a convolution", nbytes(grad))]


def _as_image(row: TensorOut) -> TensorOut:
    """`view4d` (aten/src/ATen/native/Convolution.cpp), which is `unsqueeze(2)`."""
    (batch, channels, length), (of_batch, of_channels, step) = row.shape, row.stride
    return structs.replace(
        row,
        shape=(batch, channels, 1, length),
        stride=(of_batch, of_channels, length * step, step),
    )


def _births(call: Call) -> list[Output]:
    births = list(call.outputs())
    both = call.value("output_mask")[:2] == [True, True]
    if both and _is_own_kernel(call):
        births[:2] = reversed(births[:2])
    return births


def _is_own_kernel(call: Call) -> bool:
    tensor = call.tensor("input")
    is_depthwise = call.value("groups") == tensor.shape[1] > 1 and not call.value("transposed")
    return is_depthwise and not _has_channels_last(call)


def _birth(births: Iterator[Output]) -> Iterator[Output]:
    born = next(births, None)
    if born is not None:
        yield born


def _workspace(call: Call, result: TensorOut, product: ConvolutionProduct) -> list[Scratch]:
    """The workspace of one of the three products; `result` is the forward pass's."""
    if call.runtime.gpu.compute_capability == _HOPPER:
        workspace = _on_hopper(call, result, product)
    else:
        workspace = _transposing(call, result, product)
    return [Scratch(CONVOLUTION_WORKSPACE, workspace)] if workspace else []


def _on_hopper(call: Call, result: TensorOut, product: ConvolutionProduct) -> int:
    """What was measured for this very convolution, or else what the rules say."""
    if call.tensor("input").dtype not in _MEASURED:
        call.leave_out(_WORKSPACE, "0 bytes", f"none of this dtype was measured, and {_CHOICE}")
        return 0
    plan = _plan(call, result)
    product = _OF_TRANSPOSED[product] if call.value("transposed") else product
    measured = measured_bytes(plan, product)
    if measured is not None:
        call.leave_out(
            f"{_WORKSPACE}, measured",
            "as cuDNN 9.19.0 took it for the same convolution on an H200 (torch 2.11.0)",
            f"another release may choose another, and {_CHOICE}",
        )
        return measured
    call.leave_out(
        _WORKSPACE,
        "copies of operands and result, and sums of slices of a weight's gradient, by rules that "
        "hold for most of 23,867 convolutions measured on an H200, of which this is none",
        _CHOICE,
    )
    return plan.workspace_bytes(product)


def _plan(call: Call, result: TensorOut) -> ConvolutionPlan:
    """A transposed one is the gradient of a convolution from its result to its input."""
    tensor, weight = call.tensor("input"), call.tensor("weight")
    both = (tensor.shape, result.shape)
    source, made = reversed(both) if call.value("transposed") else both
    return ConvolutionPlan(
        source,
        weight.shape,
        made,
        stride=_of_each(call, "stride"),
        padding=_of_each(call, "padding"),
        dilation=_of_each(call, "dilation"),
        groups=call.value("groups"),
        is_channels_last=_has_channels_last(call),
        dtype=tensor.dtype,
        multiprocessors=call.runtime.gpu.multiprocessors,
    )


def _of_each(call: Call, name: str) -> tuple[int, ...]:
    """A list with a number for each dimension of space, or one for all of them."""
    values = tuple(call.value(name))
    dimensions = len(call.tensor("input").shape) - 2
    return values * dimensions if len(values) == 1 else values


def _transposing(call: Call, result: TensorOut, product: ConvolutionProduct) -> int:
    """Clauses (1) to (3)."""
    tensor, weight = call.tensor("input"), call.tensor("weight")
    if not _is_transposed(call, tensor, weight, product):
        return 0
    call.leave_out(
        "workspace of cuDNN's convolutions in 16 bits",
        "copies of operands and result with channels last, 1.1 MiB for a weight's gradient",
        "the plan is cuDNN's choice, up to what is left on the card; one that cannot be allocated "
        "is passed over",
    )
    partial_sums = MOST_PARTIAL_SUMS if product is ConvolutionProduct.WEIGHT_GRADIENT else 0
    return sum(map(_channels_last_bytes, (tensor, weight, result))) + partial_sums


def _is_transposed(
    call: Call, tensor: TensorOut, weight: TensorOut, product: ConvolutionProduct
) -> bool:
    """Whether operands in NCHW are transposed; of the weight its gradient needs only the sizes.

    `torch.nn.grad.conv2d_weight` gives one number, expanded (torch/nn/grad.py), for which
    `cudnn_conv_suggest_memory_format` (aten/src/ATen/native/ConvUtils.h) finds NCHW.
    """
    since = _TENSOR_CORES_SINCE.get(tensor.dtype)
    if since is None or call.runtime.gpu.compute_capability < since:
        return False
    is_depthwise = call.value("groups") == tensor.shape[1] > 1
    is_sized = product is ConvolutionProduct.WEIGHT_GRADIENT and not _has_channels_last(call)
    return not is_depthwise and is_contiguous(tensor) and (is_sized or is_contiguous(weight))


def _channels_last_bytes(tensor: TensorOut) -> int:
    """Clause (2): a tensor of (batch, channels, …), or a weight of (results, channels, …)."""
    batch, channels, *space = tensor.shape
    padded = -(-channels // _ALIGNED_CHANNELS) * _ALIGNED_CHANNELS
    return batch * padded * math.prod(space) * item_bytes(tensor.dtype)


RULES: Mapping[str, Rule] = {
    "aten.convolution": _forward,
    "aten.convolution_backward": _backward,
}
