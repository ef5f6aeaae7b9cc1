"""Transformer Engine: a program that imports it gets to the first layer, which is refused by name.

Nothing of it is modelled. Its layers call the extension `transformer_engine_torch`, which allocates
outputs, workspaces for cuBLAS and FP8 copies in C++ (transformer_engine/pytorch/csrc/extensions of
2.20), and its Python part does not import without that extension (`load_framework_extension` of
transformer_engine/common/__init__.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphmem.gpus import Gpu
from graphmem.virtual_device.stand_ins import StandIn, lacking

_LAYERS = (
    "Linear LayerNormLinear LayerNormMLP LayerNorm RMSNorm GroupedLinear DotProductAttention "
    "MultiheadAttention TransformerLayer RotaryPositionEmbedding autocast fp8_autocast "
    "fp8_model_init quantized_model_init checkpoint make_graphed_callables"
)
_RECIPES = "Format DelayedScaling Float8CurrentScaling MXFP8BlockScaling Float8BlockScaling"


def _modules(gpu: Gpu) -> Mapping[str, Mapping[str, Any]]:
    return {
        "transformer_engine": {"__version__": STAND_IN.version},
        "transformer_engine.pytorch": lacking("transformer_engine", _LAYERS.split()),
        "transformer_engine.common": {},
        "transformer_engine.common.recipe": lacking("transformer_engine", _RECIPES.split()),
    }


STAND_IN = StandIn(
    distribution="transformer_engine",
    version="2.20.2",
    source="Transformer Engine 2.20, of which nothing is modelled",
    modules=_modules,
    models_nothing=True,
)
