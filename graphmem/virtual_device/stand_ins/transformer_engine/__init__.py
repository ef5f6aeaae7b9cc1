"""Transformer Engine's extension `transformer_engine_torch`, under its own Python.

`pip install --no-deps transformer_engine` installs the Python part alone, 1.2 MB; it imports
onnxscript, einops and pydantic. Read from the sources of transformer_engine_torch 2.20.2 (csrc/),
which allocate as those of 2.19 do, and for the kernels' workspaces from NVIDIA/TransformerEngine
d0067d0 (transformer_engine/common/, August 2026).

The parts are `products` (matrix products), `quantizers`, `norms`, `activations`, `attention` and
`others`; `python_part` lets the package's Python import. Not covered, and refused by name: what
`_LACKING` lists, such as what NVFP4, expert parallelism and overlapped communication call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphmem.gpus import Gpu
from graphmem.virtual_device.stand_ins import StandIn, lacking
from graphmem.virtual_device.stand_ins.transformer_engine import attention, products
from graphmem.virtual_device.stand_ins.transformer_engine.activations import activations
from graphmem.virtual_device.stand_ins.transformer_engine.card import PACKAGE
from graphmem.virtual_device.stand_ins.transformer_engine.names import names
from graphmem.virtual_device.stand_ins.transformer_engine.norms import norms
from graphmem.virtual_device.stand_ins.transformer_engine.others import others
from graphmem.virtual_device.stand_ins.transformer_engine.python_part import importable

_INSTALL = (
    "pip install --no-deps transformer_engine==2.20.2; pip install onnxscript einops pydantic"
)
_LAYERS = (
    "Linear LayerNormLinear LayerNormMLP LayerNorm RMSNorm GroupedLinear DotProductAttention "
    "MultiheadAttention TransformerLayer RotaryPositionEmbedding autocast fp8_autocast "
    "fp8_model_init quantized_model_init checkpoint make_graphed_callables"
)
_RECIPES = "Format DelayedScaling Float8CurrentScaling MXFP8BlockScaling Float8BlockScaling"
_LACKING = (
    "bgrad_group_quantize bulk_allocate bulk_overlap_ag_with_external_gemm CommOverlap "
    "CommOverlapBase CommOverlapCore CommOverlapHelper CommOverlapP2P CommOverlapP2PBase "
    "convert_bshd_to_thd convert_thd_to_bshd copy_data_ptrs_to_device copy_to_kv_cache "
    "create_nvshmem_tensor cusolvermp_ctx_create cusolvermp_ctx_destroy device_supports_multicast "
    "fp8_block_scaling_compute_partial_amax fp8_block_scaling_partial_cast fused_moe_aux_loss_bwd "
    "fused_moe_aux_loss_fwd fused_moe_aux_loss_fwd_graph_safe fused_multi_row_padding "
    "fused_multi_row_unpadding fused_score_for_moe_aux_loss_bwd fused_score_for_moe_aux_loss_fwd "
    "fused_topk_with_score_function_bwd fused_topk_with_score_function_fwd "
    "fused_topk_with_score_function_qb_fwd get_grouped_gemm_setup_workspace_size group_dequantize "
    "group_quantize group_requantize_inplace group_scaled_clamped_swiglu group_scaled_swiglu "
    "grouped_mlp_experimental grouped_swizzle_for_gemm init_nvshmem_backend moe_permute_bwd "
    "moe_permute_fwd moe_unpermute_bwd moe_unpermute_fwd multi_tensor_pad_last_dim "
    "multi_tensor_swizzle_scales_for_gemm_ multi_tensor_swizzle_scales_for_gemm_unchecked_ "
    "multi_tensor_transpose_to_bhsd mxfp8_scaling_compute_partial_amax mxfp8_scaling_partial_cast "
    "newton_schulz nvfp4_2d_compute_partial_amax nvfp4_2d_multi_tensor_transpose "
    "nvfp4_2d_partial_cast nvfp4_2d_scale_transpose nvfp4_compute_global_scale "
    "nvfp4_compute_per_block_scale nvfp4_data_transpose nvfp4_expand_scale_to_fp8 "
    "nvfp4_fused_scale nvfp4_group_quantize_with_amax nvfp4_multi_tensor_2d_partial_cast "
    "nvfp4_multi_tensor_compute_partial_amax nvfp4_multi_tensor_fused_scale "
    "nvfp4_quantize_with_amax nvshmem_finalize nvshmem_send_on_current_stream "
    "nvshmem_wait_on_current_stream nvte_built_with_cublasmp scaled_clamped_dswiglu "
    "scaled_clamped_swiglu scaled_dsituglu scaled_dsrelu scaled_dswiglu scaled_situglu "
    "scaled_srelu scaled_swiglu splits_to_offsets splits_to_offsets_multi "
    "swizzle_scales_for_gemm_ te_general_grouped_gemm_for_discrete_in "
    "te_general_grouped_gemm_for_discrete_out te_general_grouped_gemm_for_grouped_tensor "
    "thd_copy_valid_tokens_from_per_split_to_rank_local thd_cp_rank_order_to_sequence_order "
    "thd_get_partitioned_indices thd_grad_correction thd_out_correction thd_read_half_tensor "
    "thd_read_second_half_lse thd_second_half_lse_correction thd_sequence_order_to_cp_rank_order "
    "ubuf_built_with_mpi"
)


def _extension() -> dict[str, Any]:
    functions = (
        products.generic_gemm,
        products.te_general_grouped_gemm,
        attention.get_fused_attn_backend,
        attention.fused_attn_fwd,
        attention.fused_attn_bwd,
    )
    return {
        **lacking(PACKAGE, _LACKING.split()),
        **names(),
        **{each.__name__: each for each in functions},
        **norms(),
        **activations(),
        **others(),
    }


def _modules(gpu: Gpu) -> Mapping[str, Mapping[str, Any]]:
    return {
        "transformer_engine_torch": _extension(),
        "transformer_engine": {"__version__": STAND_IN.version},
        "transformer_engine.pytorch": lacking(PACKAGE, _LAYERS.split(), _INSTALL),
        "transformer_engine.common": {},
        "transformer_engine.common.recipe": lacking(PACKAGE, _RECIPES.split(), _INSTALL),
    }


STAND_IN = StandIn(
    distribution=PACKAGE,
    version="2.20.2",
    source="transformer_engine_torch 2.20.2, csrc/extensions/*.cpp and csrc/quantizer.cpp; "
    "workspaces of cuDNN's attention are those recorded of PyTorch on an H100, those of norms "
    "follow from registers as NVRTC 13.5 assigns them",
    modules=_modules,
    oldest="2.19",
    install=_INSTALL,
    around=importable,
)
