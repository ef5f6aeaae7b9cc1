"""Strides, and one type, of results, for operators whose fake rule disagrees with their kernels.

For fake tensors PyTorch uses a decomposition in Python where it has one
(torch/_meta_registrations.py, `activate_meta`), which gets sizes right but not always strides.
Strides decide whether the next view needs a copy. All operators of `op_db` were compared with their
CPU kernels, with inputs and gradients transposed one at a time; those that differ are

  (1) views: computed in C++ by `computeStride` (aten/src/ATen/TensorUtils.cpp);
  (2) contiguous results: kernels that use `LEGACY_CONTIGUOUS_MEMORY_FORMAT` or `resize_`;
  (3) results that TensorIterator lays out (aten/src/ATen/TensorIterator.cpp) for its operands in
      order; the decomposition looks at another operand first;
  (4) up to 2.9, the gradients of layer norm's weight and bias, to which the decomposition gives the
      input's type (torch/_decomp/decompositions.py, `native_layer_norm_backward`).

Not covered: `max_unpool2d`, `channel_shuffle` and `ldexp`; and, where cuDNN does not take the
input, CUDA's own batch norm of inputs that are neither contiguous nor channels-last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem import constructors
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import NORMS_GRADIENTS_KEEP_THEIR_TYPE
from graphmem.virtual_device.iterated import iterated_strides

aten = torch.ops.aten

_CONTIGUOUS = frozenset(
    {
        # native/SoftMax.cpp, the meta function
        aten._log_softmax_backward_data.default,
        # native/Pow.cpp, the meta function of `pow.Scalar`
        aten.pow.Scalar,
        # native/GatedLinearUnit.cpp, `glu_backward_cpu`; cuda/ActivationGluKernel.cu
        aten.glu_backward.default,
        # native/Loss.cpp, shared by both devices: `zeros_like` of the input
        aten.mse_loss_backward.default,
        aten.smooth_l1_loss_backward.default,
        aten.huber_loss_backward.default,
        # native/NLLLoss2d.cpp, cuda/NLLLoss2d.cu: `resize_`
        aten.nll_loss2d_forward.default,
        # native/DistributionTemplates.h, `normal_impl`
        aten.normal.Tensor_Tensor,
    }
)
_ON_CPU = frozenset(
    {
        # native/Activation.cpp, `log_sigmoid_forward_cpu`; on CUDA it has its input's strides
        aten.log_sigmoid_forward.default,
    }
)
_BATCH_NORMS = frozenset(
    {
        # native/Normalization.cpp on the CPU; cuDNN's make their input contiguous first
        # (`_batch_norm_impl_index`, and native/cudnn/BatchNorm.cpp)
        aten.native_batch_norm.default,
        aten._native_batch_norm_legit.default,
        aten._native_batch_norm_legit.no_stats,
    }
)
_ITERATED = frozenset(
    {
        # native/Activation.cpp and BinaryOps.cpp: gradient, then input
        aten.softplus_backward.default,
        aten.hardswish_backward.default,
        aten.hardtanh_backward.default,
        aten.logit_backward.default,
        # native/BinaryOps.cpp: first, then second
        aten.copysign.Tensor,
        aten.div.Tensor_mode,
        aten.floor_divide.default,
        aten.heaviside.default,
        aten.logaddexp.default,
        aten.logical_and.default,
        aten.logical_or.default,
        aten.logical_xor.default,
        aten.special_xlog1py.default,
        aten.xlogy.Tensor,
    }
)


def _contiguous(func: Any, results: Any, args: Sequence[Any]) -> Any:
    if isinstance(results, (tuple, list)):
        return tuple(_contiguous(func, each, args) for each in results)
    is_plain = isinstance(results, FakeTensor) and results.is_contiguous()
    return results if results is None or is_plain else _laid_out(results, None)


def _contiguous_on_cpu(func: Any, results: Any, args: Sequence[Any]) -> Any:
    if args[0].fake_device.type != "cpu":
        return results
    return _contiguous(func, results, args)


def _layer_norm_backward(func: Any, results: Any, args: Sequence[Any]) -> Any:
    """Contiguous, and a weight's or bias's gradient has its type.

    native/cuda/layer_norm_kernel.cu and native/layer_norm.cpp, `layer_norm_backward_*`
    """
    results = _contiguous(func, results, args)
    if NORMS_GRADIENTS_KEEP_THEIR_TYPE.holds_in(installed_release()):
        return results
    of_input, *of_parameters = results
    parameters = args[5:7]
    return (of_input, *map(_in_type_of, parameters, of_parameters))


def _in_type_of(parameter: torch.Tensor | None, gradient: FakeTensor | None) -> FakeTensor | None:
    if parameter is None or gradient is None or gradient.dtype is parameter.dtype:
        return gradient
    return _laid_out(gradient, None, parameter.dtype)


def _as_batch_norm(func: Any, results: Any, args: Sequence[Any]) -> Any:
    first = results[0]
    if first is None or first.is_contiguous(memory_format=torch.channels_last):
        return results
    if first.is_contiguous() or first.is_contiguous(memory_format=torch.channels_last_3d):
        return results
    return (_laid_out(first, None), *results[1:])


def _batch_norm_backward(func: Any, results: Any, args: Sequence[Any]) -> Any:
    """A card computes every gradient (cuDNN), the CPU only those that are wanted.

    `batch_norm_backward_cpu_template` (native/Normalization.cpp): `if (grad_input_mask[0])`. The
    decomposition always makes the input's gradient.
    """
    is_wanted = args[-1][0]
    if not is_wanted and args[0].fake_device.type == "cpu":
        return (None, *results[1:])
    return _as_batch_norm(func, results, args)


def _iterated(func: Any, result: FakeTensor, args: Sequence[Any]) -> FakeTensor:
    operands = [each for each in args if isinstance(each, torch.Tensor)]
    strides = iterated_strides(operands, result.shape)
    return result if strides == result.stride() else _laid_out(result, strides)


def _laid_out(
    tensor: FakeTensor, strides: Sequence[int] | None, dtype: torch.dtype | None = None
) -> FakeTensor:
    """A new tensor like a new one but with other strides; contiguous if None."""
    dtype = dtype or tensor.dtype
    with torch._C._DisableTorchDispatch():
        memory = constructors.empty(tensor.shape, dtype=dtype, device="meta")
        if strides is not None:
            memory = torch.empty_strided(tensor.shape, strides, dtype=dtype, device="meta")
    return FakeTensor(tensor.fake_mode, memory, tensor.fake_device)


LAYOUTS: Mapping[Any, Callable[[Any, Any, Sequence[Any]], Any]] = {
    **dict.fromkeys(_CONTIGUOUS, _contiguous),
    **dict.fromkeys(_ON_CPU, _contiguous_on_cpu),
    **dict.fromkeys(_BATCH_NORMS, _as_batch_norm),
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    **dict.fromkeys(_ITERATED, _iterated),
}
"""By operator, a function of operator, results and arguments that returns corrected results."""

VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})


def view_of(tensor: torch.Tensor, shape: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """The shape and strides of a view, clause (1)."""
    with torch._C._DisableTorchDispatch():
        memory = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=torch.uint8, device="meta"
        )
        view = memory.view(shape)
    return view.shape, view.stride()
