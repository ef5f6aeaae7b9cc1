"""Matrix products: cuBLAS and cublasLt workspaces, and copies of operands.

  (1) Up to torch 2.14 the first product of a thread allocates the workspace of the thread's cuBLAS
      handle, after the outputs and the copies of operands; it is never freed. Autograd runs the
      backward pass of CUDA tensors in a separate thread, so a training loop has two
      (aten/src/ATen/cuda/CublasHandlePool.cpp; recordings ckpt11 and mlp01). From 2.15 on each
      product takes one there and returns it when the kernel is launched
      (`getCurrentCUDABlasHandleWithWorkspace`).
  (2) `addmm` with a bias runs on cublasLt if `_takes_lt` is true; its workspace depends on the
      version (`Runtime.cublaslt_workspace`): up to torch 2.8 a block for each call, taken before
      the handle's (ckpt11, lin01, mlp01); from 2.9 on one for each handle, never freed
      (mha_lm128_infer); from 2.12 none; from 2.15 again a block for each call. The Lt handle is the
      cuBLAS handle; up to 2.11 asking for it takes the handle's workspace.
  (3) An operand that is neither row- nor column-major is copied (aten/src/ATen/native/cuda/
      Blas.cpp, `prepare_matrix_for_cublas`, `prepare_batch_matrix_for_cublas`; attn01, ckpt09),
      the right one first: cuBLAS writes column-major, so a row-major result is the product of the
      transposed operands in reverse order (`transpose_result`; linear_strided of
      fixtures/cuda/operators.jsonl.gz). A batch of columns also counts as column-major.

Not covered: fallbacks at run time, when cublasLt finds no algorithm; several streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from graphmem.graph import TensorOut
from graphmem.kernel_program import CUBLAS_WORKSPACE, CUBLASLT_WORKSPACE, Scratch, Step, Take
from graphmem.runtime import LtWorkspace, Runtime
from graphmem.torch_releases.differences import LT_HANDLE_TAKES_NOTHING, LT_LOOKS_AT_BOTH_OPERANDS

from . import sparse
from .call import Call, Rule, Workspaces, during
from .layout import is_contiguous, is_dense, nbytes, numel

BLAS_WORKSPACE = f"{CUBLAS_WORKSPACE} of "

_LT_DTYPES = frozenset({"float64", "float32", "float16", "bfloat16"})


def cublas_workspace(call: Call) -> Iterator[Step]:
    """Take the workspace of a product: the handle's, or one that is returned after the call."""
    if call.runtime.keeps_cublas_workspaces:
        yield from map(Take, workspace_of_handle(call.thread, call.workspaces, call.runtime))
    else:
        yield from during([Scratch(CUBLAS_WORKSPACE, call.runtime.cublas_workspace_bytes)])


def workspace_of_handle(thread: str, taken: Workspaces, runtime: Runtime) -> Iterator[Scratch]:
    """The workspace a thread takes when it first asks for its handle (`getCurrentCUDABlasHandle`).

    From torch 2.15 on a handle has cuBLAS's own workspace, which is not in PyTorch's allocator.
    """
    if runtime.keeps_cublas_workspaces and thread not in taken.cublas:
        taken.cublas.add(thread)
        yield Scratch(BLAS_WORKSPACE + thread, runtime.cublas_workspace_bytes)


def _mm(call: Call) -> Iterator[Step]:
    matrix = call.sparse("self")
    if matrix is not None:
        return sparse.mm(call, matrix)
    return _product(call, ("self", "mat2"))


def _bmm(call: Call) -> Iterator[Step]:
    return _product(call, ("self", "mat2"))


def _baddbmm(call: Call) -> Iterator[Step]:
    return _product(call, ("batch1", "batch2"))


def _addmm(call: Call) -> Iterator[Step]:
    matrix = call.sparse("mat1")
    if matrix is not None:
        return sparse.addmm(call, matrix)
    workspace = _lt_workspace if _takes_lt(call) else cublas_workspace
    return _product(call, ("mat1", "mat2"), workspace)


def _scaled_mm(call: Call) -> Iterator[Step]:
    return _product(call, ("self", "mat2"), _lt_workspace)


def _int_mm(call: Call) -> Iterator[Step]:
    return _product(call, ("self", "mat2"), _lt_handle)


def _mv(call: Call) -> Iterator[Step]:
    return _matrix_vector(call, "self")


def _addmv(call: Call) -> Iterator[Step]:
    return _matrix_vector(call, "mat")


def _dot(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    yield from cublas_workspace(call)


def _product(
    call: Call,
    operands: tuple[str, str],
    workspace: Callable[[Call], Iterator[Step]] = cublas_workspace,
) -> Iterator[Step]:
    tensors = [call.tensor(name) for name in operands]
    yield from call.outputs()
    if not all(map(numel, tensors)):
        return
    is_by_rows = tensors[1].shape[-1] > 1 or len(tensors[1].shape) == 2
    in_order = reversed(tensors) if is_by_rows else tensors
    copies = [_copy(tensor) for tensor in in_order if not _is_matrix(tensor)]
    yield from during(copies, workspace(call))


def _matrix_vector(call: Call, matrix_name: str) -> Iterator[Step]:
    """`addmv_out_cuda`: a vector of stride 0 is copied as well."""
    matrix, vector = call.tensor(matrix_name), call.tensor("vec")
    yield from call.outputs()
    if not numel(matrix):
        return
    copies = [] if vector.stride[0] or numel(vector) == 1 else [_copy(vector)]
    if not _is_matrix(matrix):
        copies.append(_copy(matrix))
    yield from during(copies, cublas_workspace(call))


def _lt_workspace(call: Call) -> Iterator[Step]:
    kind = call.runtime.cublaslt_workspace
    size = call.runtime.cublaslt_workspace_bytes
    if kind is LtWorkspace.EACH_CALL:
        yield from during([Scratch(CUBLASLT_WORKSPACE, size)], _lt_handle(call))
    elif kind is LtWorkspace.SHARED:
        yield from cublas_workspace(call)
    else:
        yield from _lt_handle(call)
        if call.thread not in call.workspaces.cublaslt:
            call.workspaces.cublaslt.add(call.thread)
            yield Take(Scratch(f"{CUBLASLT_WORKSPACE} of {call.thread}", size))


def _lt_handle(call: Call) -> Iterator[Step]:
    """Ask for cublasLt's handle, all that a product of integers does (`int8_gemm`)."""
    if not LT_HANDLE_TAKES_NOTHING.holds_in(call.runtime.release):
        yield from cublas_workspace(call)


def _takes_lt(call: Call) -> bool:
    """`addmm_out_cuda_impl`: whether cublasLt's epilogue adds the bias.

    It does if both sizes of `mat2` exceed 1; from torch 2.10 on those of `mat1` must as well, and
    the bias may have several dimensions if all but one are 1.
    """
    bias, left, right = call.tensor("self"), call.tensor("mat1"), call.tensor("mat2")
    sizes, is_vector = [*right.shape], len(bias.shape) == 1
    if LT_LOOKS_AT_BOTH_OPERANDS.holds_in(call.runtime.release):
        sizes += left.shape
        is_vector = max(bias.shape, default=1) == numel(bias)
    return (
        call.value("beta") == 1
        and is_vector
        and numel(bias) == right.shape[1]
        and is_contiguous(bias)
        and left.dtype in _LT_DTYPES
        and min(sizes) > 1
        and call.runtime.env.get("DISABLE_ADDMM_CUDA_LT") != "1"
    )


def _is_matrix(tensor: TensorOut) -> bool:
    """Whether cuBLAS can read a matrix, or a batch of them, as it lies in memory."""
    if len(tensor.shape) == 2 and is_dense(tensor):
        return True
    (rows, columns), (row_stride, column_stride) = tensor.shape[-2:], tensor.stride[-2:]
    if column_stride == 1 and row_stride >= max(1, columns):
        return True
    if row_stride == 1 and column_stride >= max(1, rows):
        return True
    return len(tensor.shape) == 3 and is_contiguous(tensor) and bool(row_stride * column_stride)


def _copy(tensor: TensorOut) -> Scratch:
    return Scratch("contiguous copy of an operand", nbytes(tensor))


RULES: Mapping[str, Rule] = {
    "aten.mm": _mm,
    "aten.bmm": _bmm,
    "aten.addmm": _addmm,
    "aten.addmm_": _addmm,
    "aten._addmm_activation": _addmm,
    "aten.baddbmm": _baddbmm,
    "aten.baddbmm_": _baddbmm,
    "aten.addbmm": _baddbmm,
    "aten.mv": _mv,
    "aten.addmv": _addmv,
    "aten.addmv_": _addmv,
    "aten.dot": _dot,
    "aten.vdot": _dot,
    "aten._scaled_mm": _scaled_mm,
    "aten._int_mm": _int_mm,
}
