"""`_grouped_mm`: the products of experts, by CUTLASS on a card of compute capability 9.

aten/src/ATen/native/cuda/GroupMM.cu, `bf16bf16_grouped_gemm_impl_sm90_sm100`, after the result:
(1) for each group three pointers, each array of them a multiple of 16 bytes, the sizes of its
    product and the strides of its operands;
(2) CUTLASS's workspace: for each multiprocessor four tensor maps of 128 bytes.

Other dtypes and older cards multiply group by group (native/GroupedMMUtils.h). Newer cards' kernel
has a workspace of its own, which is not known.

fixtures/cuda/ranks/grouped_experts shows both, and that neither depends on the sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from graphmem.kernel_program import Scratch, Step

from .call import Call, Rule, during
from .layout import ceil_div

_POINTER_BYTES, _INT_BYTES = 8, 4
_ALIGNED_BYTES = 16
_TENSOR_MAPS, _TENSOR_MAP_BYTES = 4, 128


def _grouped_mm(call: Call) -> Iterator[Step]:
    left, right = call.tensor("self"), call.tensor("mat2")
    yield from call.outputs()
    major = call.runtime.gpu.compute_capability[0]
    is_of_other_dtype = call.value("out_dtype") not in (None, torch.bfloat16)
    if {left.dtype, right.dtype} != {"bfloat16"} or is_of_other_dtype:
        return
    if major > 9:
        call.leave_out("CUTLASS's workspace of grouped products", "none", "not known on this card")
    if major != 9:
        return
    offsets = call.optional("offs")
    groups = left.shape[0] if offsets is None else offsets.shape[0]
    pointers = 3 * _ALIGNED_BYTES * ceil_div(groups * _POINTER_BYTES, _ALIGNED_BYTES)
    sizes, strides = 3 * groups * _INT_BYTES, 3 * groups * _POINTER_BYTES
    maps = call.runtime.gpu.multiprocessors * _TENSOR_MAPS * _TENSOR_MAP_BYTES
    yield from during(
        [
            Scratch("pointers and sizes of the groups", pointers + sizes + strides),
            Scratch("CUTLASS workspace", maps),
        ]
    )


RULES: Mapping[str, Rule] = {"aten._grouped_mm": _grouped_mm}
