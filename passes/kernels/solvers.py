"""Linear systems: pointers to matrices, and copies of them.

Triangular ones:

aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp, `triangular_solve_kernel`: up to eight
matrices of 64 columns or more are solved one after the other; of others with at most 512 columns
cuBLAS gets arrays of pointers, those of `A` and those of `B` (`get_device_pointers`); MAGMA, which
solves the rest, keeps its arrays in pinned memory. The layer of Qwen 3.5 and Qwen3-Next called
gated delta rule solves many small ones (fixtures/cuda/zoo.tar.xz, zoo_qwen3_5_text).

With a Cholesky factor: BatchLinearAlgebraLib.cpp beside it, `_cholesky_solve_helper_cuda_cusolver`,
copies the factor, with a status of the call; several systems with one right-hand side each have
arrays of pointers as well (fixtures/real/gaussian_process.py on an H200; several systems are read
in the source). What cuSOLVER takes to find the factor is not known: there 62,656 bytes for 4,000
rows.

Factors: BatchLinearAlgebra.cpp in aten/src/ATen/native, `lu_unpack_out` numbers the rows, once and
then for each matrix, and permutes the numbers as the pivots say; those of one matrix are not copied
(2.13.0 above a pretended card).

Inverses: aten/src/ATen/native/BatchLinearAlgebra.cpp, `linalg_inv_ex_out` solves for the identity
by `linalg_solve_ex_out`, which has the factors of the matrix, and their pivots, to itself.

Eigenvalues: BatchLinearAlgebra.cpp, `_linalg_eigh` allocates the vectors before the values, then a
status for each matrix, and looks whether one is set (fixtures/real/shampoo.py on an H200).

Singular values: BatchLinearAlgebra.cpp, `_linalg_svd` allocates both matrices of vectors before the
values, then such statuses; cuda/linalg/BatchLinearAlgebraLib.cpp, `svd_cusolver` copies the matrix
in columns. cuSOLVER's workspace comes after that, in fixtures/cuda/operators.jsonl.gz 2.1 to 2.3
times a matrix of 512 or 256 rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from graphmem.kernel_program import Free, Output, Scratch, Step, Take

from .call import Call, Rule, during
from .layout import INDEX_BYTES, item_bytes, nbytes
from .reduction import compact

_FEW, _WIDE, _OF_CUBLAS = 8, 64, 512
_STATUS_BYTES = 4
_PIVOT_BYTES = 4
_VECTORS_FIRST = (0, 2, 1)  # `U`, `Vh`, `S`


def _triangular(call: Call) -> Iterator[Step]:
    matrix, result = call.tensor("self"), call.op.outputs[0]
    width, count = matrix.shape[-1], math.prod(result.shape[:-2])
    yield from call.outputs()
    if width <= _OF_CUBLAS and not (count <= _FEW and width >= _WIDE):
        sides = ("matrices", "right-hand sides")
        yield from during(Scratch(f"pointers to the {side}", count * INDEX_BYTES) for side in sides)


def _cholesky(call: Call) -> Iterator[Step]:
    factor, result = call.tensor("input2"), call.op.outputs[0]
    *batch, rows, columns = result.shape
    count = math.prod(batch)
    copied = count * rows * rows * item_bytes(factor.dtype)
    held = [Scratch("the factor in columns", copied)]
    if count > 1 and columns == 1:
        sides = ("right-hand sides", "factors")
        held += [Scratch(f"pointers to the {side}", count * INDEX_BYTES) for side in sides]
    yield from during([Scratch("status", _STATUS_BYTES)], [*call.outputs(), *during(held)])


def _factors(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    if not call.value("unpack_pivots"):
        return
    rows, count = call.tensor("LU_data").shape[-2], math.prod(call.tensor("LU_data").shape[:-2])
    numbers = Scratch("numbers of rows", rows * INDEX_BYTES)
    yield Take(numbers)
    if not call.tensor("LU_data").shape[:-2]:
        yield Free(numbers)
        return
    permuted = Scratch("permuted numbers of rows", count * rows * INDEX_BYTES)
    yield from (Take(permuted), Free(numbers), Free(permuted))


def _inverse(call: Call) -> Iterator[Step]:
    matrix = call.tensor("A")
    rows, numel = matrix.shape[-1], math.prod(matrix.shape)
    factors = Scratch("the factors of the matrix", numel * item_bytes(matrix.dtype))
    pivots = Scratch("pivots", numel // max(rows, 1) * _PIVOT_BYTES)
    yield from call.outputs()
    yield from during([factors, pivots])


def _eigen(call: Call) -> Iterator[Step]:
    matrix = call.tensor("A")
    status = Scratch("statuses", math.prod(matrix.shape[:-2]) * _STATUS_BYTES)
    yield from reversed([*call.outputs()])
    yield from during([status], during([Scratch("whether any is set", 1), Scratch("bools", 1)]))


def _singular(call: Call) -> Iterator[Step]:
    matrix = call.tensor("A")
    count = math.prod(matrix.shape[:-2])
    status = Scratch("statuses", count * _STATUS_BYTES)
    checks = [Scratch("whether any is set", 1), Scratch("bools", 1)]
    if len(call.op.births) == len(_VECTORS_FIRST):
        yield from map(Output, _VECTORS_FIRST)
    else:
        yield from call.outputs()
    yield Take(status)
    yield from during([Scratch("the matrix in columns", nbytes(compact(matrix)))])
    yield from during(checks if count == 1 else checks[:1])
    yield Free(status)


RULES: Mapping[str, Rule] = {
    "aten._linalg_svd": _singular,
    "aten.linalg_solve_triangular": _triangular,
    "aten.cholesky_solve": _cholesky,
    "aten.linalg_inv_ex": _inverse,
    "aten.lu_unpack": _factors,
    "aten._linalg_eigh": _eigen,
}
"""The rules, by operator."""
