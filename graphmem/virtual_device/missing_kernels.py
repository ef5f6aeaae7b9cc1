"""Types of operands for which a card has no kernel.

A meta kernel takes them, and so may the host's. Each row has the types that the kernel on a card is
compiled for and its name in the error: the arguments of `AT_DISPATCH_…` in
aten/src/ATen/native/cuda/, `Blas.cpp`, `SoftMax.cu`, `Activation*Kernel.cu`, `*Loss*.cu`,
`BinaryMiscOpsKernels.cu`, `*Pool*.cu`, `UpSample*.cu`, `GridSampler.cu`, `Im2Col.cu`,
`DistanceKernel.cu`, `SummaryOps.cu`, and linalg/`BatchLinearAlgebra*.cpp`; where several kernels
share the work, the name is that of the usual one.

cuFFT transforms half precision of powers of two only, and no bfloat16 (`CuFFTConfig`,
cuda/CuFFTPlanCache.h).

Not covered: other operators, and what the backward pass of one lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch

from graphmem import constructors

aten = torch.ops.aten

_HALVES = frozenset({torch.float16, torch.bfloat16})
_FULL = frozenset({torch.float32, torch.float64})
_COMPLEX = frozenset({torch.complex64, torch.complex128})
_FLOATS = _HALVES | _FULL
_WHOLE = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def _rows(types: Iterable[torch.dtype], **names: str) -> dict[Any, tuple[frozenset[Any], str]]:
    return {getattr(aten, name): (frozenset(types), said) for name, said in names.items()}


_KERNELS = {
    **_rows(
        _FLOATS | _COMPLEX,
        mm="addmm_cuda",
        addmm="addmm_cuda",
        addmm_="addmm_cuda",
        bmm="baddbmm_cuda",
        baddbmm="baddbmm_cuda",
        baddbmm_="baddbmm_cuda",
        mv="addmv_impl_cuda",
        addmv="addmv_impl_cuda",
        dot="dot",
        vdot="vdot",
        silu="silu_cuda",
    ),
    **_rows(
        _FLOATS,
        _softmax="host_softmax",
        _log_softmax="host_softmax",
        gelu="GeluCUDAKernelImpl",
        mish="mish_cuda",
        softplus="softplus_cuda",
        hardswish="hardswish_cuda",
        hardsigmoid="hardsigmoid_cuda",
        log_sigmoid_forward="log_sigmoid_forward_cuda",
        glu="glu_cuda",
        mse_loss="mse_cuda",
        smooth_l1_loss="smooth_l1_cuda",
        huber_loss="huber_cuda",
        avg_pool2d="avg_pool2d_out_cuda_frame",
        avg_pool3d="avg_pool3d_out_frame",
        _adaptive_avg_pool2d="adaptive_avg_pool2d_cuda",
        adaptive_max_pool2d="adaptive_max_pool2d_cuda",
        max_pool2d_with_indices="max_pool2d_with_indices_out_cuda_frame",
        max_pool3d_with_indices="max_pool3d_with_indices_out_frame",
        upsample_linear1d="upsample_linear1d_out_frame",
        upsample_bilinear2d="upsample_bilinear2d_out_frame",
        upsample_bicubic2d="upsample_bicubic2d_out_frame",
        upsample_trilinear3d="upsample_trilinear3d_out_frame",
        grid_sampler_2d="grid_sampler_2d_cuda",
        grid_sampler_3d="grid_sampler_3d_cuda",
    ),
    **_rows(
        _FULL | _COMPLEX,
        linalg_cholesky_ex="cholesky_cusolver",
        cholesky_inverse="cholesky_cuda_potri",
        linalg_lu_factor_ex="lu_factor_cusolver",
        _linalg_det="lu_factor_cusolver",
        _linalg_slogdet="lu_factor_cusolver",
        _linalg_solve_ex="lu_factor_cusolver",
        linalg_ldl_factor_ex="ldl_factor_cusolver",
        linalg_householder_product="orgqr_cuda",
        linalg_solve_triangular="triangular_solve_cuda",
        geqrf="geqrf_cuda",
        _linalg_svd="svd_cuda_gesvdj",
    ),
    **_rows(_FULL, _cdist_forward="cdist_cuda", _pdist_forward="pdist_cuda"),
    **_rows(_FULL, _ctc_loss="ctc_loss_cuda"),
    **_rows(_FULL | _WHOLE, histc="histc_cuda"),
    **_rows(_FLOATS, multinomial="multinomial_kernel_cuda"),
    **_rows(
        _WHOLE | {torch.bool},
        bitwise_and="bitwise_and_cuda",
        bitwise_and_="bitwise_and_cuda",
        bitwise_or="bitwise_or_cuda",
        bitwise_or_="bitwise_or_cuda",
        bitwise_xor="bitwise_xor_cuda",
        bitwise_xor_="bitwise_xor_cuda",
        bitwise_not="bitwise_not_cuda",
    ),
}

_FOURIER = {aten._fft_r2c.default, aten._fft_c2c.default, aten._fft_c2r.default}


def check_kernel(func: Any, args: Sequence[Any]) -> None:
    """Refuse what a card has no kernel for.

    Raises:
        RuntimeError: as PyTorch's.
    """
    row = _KERNELS.get(func.overloadpacket)
    if row is not None and isinstance(args[0], torch.Tensor) and _is_on_card(args[0]):
        types, name = row
        dtype = _computed_in(args)
        if dtype not in types and args[0].numel():
            raise _refusal()(f"\"{name}\" not implemented for '{_name_of(dtype)}'")
    if func in _FOURIER and _is_on_card(args[0]):
        _check_transform(args[0], args[1], args[3] if func is aten._fft_c2r.default else None)


def _check_transform(tensor: torch.Tensor, dims: Sequence[int], last: int | None) -> None:
    """`last` is the length of the last dimension of a result in real numbers."""
    if tensor.dtype is torch.bfloat16:
        raise RuntimeError("cuFFT doesn't support tensor of type: BFloat16")
    if tensor.dtype not in (torch.float16, torch.complex32):
        return
    sizes = [tensor.shape[dim] for dim in dims]
    if last is not None:
        sizes[-1] = last
    if any(size & (size - 1) for size in sizes):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half "
            f"precision, but got a signal size of{sizes}"
        )


def _is_on_card(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and tensor.layout is torch.strided


def _computed_in(args: Sequence[Any]) -> torch.dtype:
    """The common type of two operands; those of products and losses have been found equal."""
    is_pair = len(args) > 1 and isinstance(args[1], torch.Tensor)
    return torch.result_type(args[0], args[1]) if is_pair else args[0].dtype


def _name_of(dtype: torch.dtype) -> str:
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        like = constructors.zeros(0, dtype=dtype, device="cpu")
        return like.type().rpartition(".")[2].removesuffix("Tensor")


@cache
def _refusal() -> type[RuntimeError]:
    """What the installed release raises: a `NotImplementedError` in later ones."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        try:
            constructors.zeros(1, dtype=torch.bool, device="cpu").softmax(0)
        except RuntimeError as error:
            return type(error)
    return RuntimeError
