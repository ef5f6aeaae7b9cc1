"""Triangular systems: the pointers to their matrices.

aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp, `triangular_solve_kernel`: up to eight
matrices of 64 columns or more are solved one after the other; of others with at most 512 columns
cuBLAS gets arrays of pointers, those of `A` and those of `B` (`get_device_pointers`); MAGMA, which
solves the rest, keeps its arrays in pinned memory. The layer of Qwen 3.5 and Qwen3-Next called
gated delta rule solves many small ones (fixtures/cuda/zoo.tar.xz, zoo_qwen3_5_text).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from graphmem.kernel_program import Scratch, Step

from .call import Call, Rule, during
from .layout import INDEX_BYTES

_FEW, _WIDE, _OF_CUBLAS = 8, 64, 512


def _triangular(call: Call) -> Iterator[Step]:
    matrix, result = call.tensor("self"), call.op.outputs[0]
    width, count = matrix.shape[-1], math.prod(result.shape[:-2])
    yield from call.outputs()
    if width <= _OF_CUBLAS and not (count <= _FEW and width >= _WIDE):
        sides = ("matrices", "right-hand sides")
        yield from during(Scratch(f"pointers to the {side}", count * INDEX_BYTES) for side in sides)


RULES: Mapping[str, Rule] = {"aten.linalg_solve_triangular": _triangular}
"""The rules, by operator."""
