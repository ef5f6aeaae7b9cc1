"""The enumerations and data structures of `transformer_engine_torch`.

From csrc/extensions/pybind.cpp and common/util/pybind_helper.h of 2.20.2; the numbers are those of
common/include/transformer_engine/ (transformer_engine.h, fused_attn.h, comm_gemm_overlap.h).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch


class DType(IntEnum):
    """`NVTEDType`."""

    kByte = 0  # noqa: N815 - these names are the extension's
    kInt32 = 2  # noqa: N815
    kFloat32 = 4  # noqa: N815
    kFloat16 = 5  # noqa: N815
    kBFloat16 = 6  # noqa: N815
    kFloat8E4M3 = 7  # noqa: N815
    kFloat8E5M2 = 8  # noqa: N815
    kFloat4E2M1 = 10  # noqa: N815


_TORCH_TYPES = {
    DType.kByte: torch.uint8,
    DType.kInt32: torch.int32,
    DType.kFloat32: torch.float32,
    DType.kFloat16: torch.float16,
    DType.kBFloat16: torch.bfloat16,
    DType.kFloat8E4M3: torch.float8_e4m3fn,
    DType.kFloat8E5M2: torch.float8_e5m2,
}
_LAYOUTS = (
    "SB3HD SBH3D SBHD_SB2HD SBHD_SBH2D SBHD_SBHD_SBHD BS3HD BSH3D BSHD_BS2HD BSHD_BSH2D "
    "BSHD_BSHD_BSHD T3HD TH3D THD_T2HD THD_TH2D THD_THD_THD SBHD_BSHD_BSHD BSHD_SBHD_SBHD "
    "THD_BSHD_BSHD THD_SBHD_SBHD Paged_KV_BSHD_BSHD_BSHD Paged_KV_BSHD_SBHD_SBHD "
    "Paged_KV_SBHD_BSHD_BSHD Paged_KV_SBHD_SBHD_SBHD Paged_KV_THD_BSHD_BSHD "
    "Paged_KV_THD_SBHD_SBHD BHSD_BHSD_BHSD QKV_Layout_NOT_SET"
)
_FORMATS = "SBHD BSHD THD BSHD_2SBHD SBHD_2BSHD THD_2BSHD THD_2SBHD BHSD QKV_Format_NOT_SET"
_BIASES = "NO_BIAS PRE_SCALE_BIAS POST_SCALE_BIAS ALIBI"
_MASKS = (
    "NO_MASK PADDING_MASK CAUSAL_MASK PADDING_CAUSAL_MASK CAUSAL_BOTTOM_RIGHT_MASK "
    "PADDING_CAUSAL_BOTTOM_RIGHT_MASK"
)
_SOFTMAXES = "VANILLA_SOFTMAX OFF_BY_ONE_SOFTMAX LEARNABLE_SOFTMAX"
_SCALINGS = (
    "DELAYED_TENSOR_SCALING MXFP8_1D_SCALING BLOCK_SCALING_1D BLOCK_SCALING_2D NVFP4_1D_SCALING"
)


def _counted(name: str, members: str, prefix: str = "NVTE_", **others: int) -> type[IntEnum]:
    numbers = {prefix + member: number for number, member in enumerate(members.split())}
    return _enumeration(name, {**numbers, **others})


def _enumeration(name: str, members: dict[str, int]) -> type[IntEnum]:
    made: Any = IntEnum
    return made(name, members)  # type: ignore[no-any-return]


QKVLayout = _counted("NVTE_QKV_Layout", _LAYOUTS)
QKVFormat = _counted("NVTE_QKV_Format", _FORMATS)
BiasType = _counted("NVTE_Bias_Type", _BIASES)
MaskType = _counted("NVTE_Mask_Type", _MASKS)
SoftmaxType = _counted("NVTE_Softmax_Type", _SOFTMAXES)
ScalingMode = _counted("NVTEScalingMode", _SCALINGS, NVTE_INVALID_SCALING=100)
AttentionBackend = _enumeration(
    "NVTE_Fused_Attn_Backend",
    {"NVTE_F16_arbitrary_seqlen": 1, "NVTE_FP8": 2, "NVTE_No_Backend": -1},
)
_FORWARD = " ".join(f"GEMM{n}_{what}" for n in (1, 2, 3) for what in ("INPUT", "WEIGHT", "OUTPUT"))
_BACKWARD = " ".join(f"GRAD_{what}{n}" for n in (1, 2, 3) for what in ("OUTPUT", "INPUT"))
_OVERLAPS = (
    "BULK_OVERLAP_AG BULK_OVERLAP_RS SPLIT_PIPELINED_AG_P2P SPLIT_PIPELINED_RS "
    "SPLIT_PIPELINED_RS_P2P ATOMIC_GEMM_RS ATOMIC_GEMM_AG_P2P ATOMIC_GEMM_RS_P2P "
    "EXTERNAL_BULK_OVERLAP_AG"
)


class FP8TensorMeta:
    """Scales and the history of largest values, which Python fills in."""

    scale: Any = None
    scale_inv: Any = None
    amax_history: Any = None


def torch_dtype(dtype: Any) -> torch.dtype:
    """PyTorch's name of a type, which may be PyTorch's already."""
    if isinstance(dtype, torch.dtype):
        return dtype
    return _TORCH_TYPES[DType(int(dtype))]


def names() -> dict[str, Any]:
    """The extension's names for all of these."""
    enumerations = (
        DType,
        QKVLayout,
        QKVFormat,
        BiasType,
        MaskType,
        SoftmaxType,
        ScalingMode,
        AttentionBackend,
        _counted("FP8FwdTensors", _FORWARD, ""),
        _counted("FP8BwdTensors", _BACKWARD, ""),
        _counted("CommOverlapType", "RS AG", ""),
        _counted("CommOverlapAlgo", _OVERLAPS, ""),
        _counted("Float8BlockScaleTensorFormat", "GEMM_READY COMPACT INVALID", ""),
        _counted("NVTERoutingMapFormat", "BYTEMAP BITMAP_U8", ""),
        _counted("NVTEQBHistogramMode", "TWO_KERNEL FUSED_ATOMIC", ""),
    )
    return {each.__name__: each for each in enumerations} | {"FP8TensorMeta": FP8TensorMeta}
