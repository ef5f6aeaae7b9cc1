"""mamba_ssm where it is not installed, and its extension `selective_scan_cuda`.

Read from mamba_ssm 2.3.2; the extension has been the same since 1.0.

(1) The extension's forward pass (`selective_scan_fwd` of csrc/selective_scan/selective_scan.cpp)
    allocates the gated output, the output and the states between chunks of 2,048 positions; its
    backward pass (`selective_scan_bwd`) the gradients, those of B and C that vary in float32.
(2) `selective_scan_fn` is that of mamba_ssm/ops/selective_scan_interface.py.

Not covered: `mamba_inner_fn`, and what is a Triton kernel in Python (Mamba 2 and 3, normalisations,
generation). The package's Python part, where installed, runs all of it over clause (1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphmem.gpus import Gpu
from graphmem.virtual_device.stand_ins import StandIn, lacking
from graphmem.virtual_device.stand_ins.selective_scan import bwd, fwd, selective_scan_fn

_INSTALL = (
    "MAMBA_SKIP_CUDA_BUILD=TRUE MAMBA_FORCE_BUILD=TRUE pip install mamba-ssm --no-build-isolation"
)
_TRITON = {
    "selective_state_update": ["selective_state_update"],
    "ssd_combined": ["mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined"],
    "layernorm_gated": ["RMSNorm", "rmsnorm_fn"],
    "layer_norm": ["RMSNorm", "layer_norm_fn", "rms_norm_fn"],
}
_MODELS = ["Mamba", "Mamba2", "Mamba3", "MambaLMHeadModel"]


def _modules(gpu: Gpu) -> Mapping[str, Mapping[str, Any]]:
    inner = lacking("mamba_ssm", ["mamba_inner_fn"], _INSTALL)
    interface = {"selective_scan_fn": selective_scan_fn, **inner}
    models = lacking("mamba_ssm", _MODELS, _INSTALL)
    return {
        "selective_scan_cuda": {"fwd": fwd, "bwd": bwd},
        "mamba_ssm": {**interface, **models, "__version__": STAND_IN.version},
        "mamba_ssm.ops": {},
        "mamba_ssm.ops.selective_scan_interface": interface,
        "mamba_ssm.ops.triton": {},
        **{
            f"mamba_ssm.ops.triton.{module}": lacking("mamba_ssm", names, _INSTALL)
            for module, names in _TRITON.items()
        },
    }


STAND_IN = StandIn(
    distribution="mamba_ssm",
    version="2.3.2",
    source="mamba_ssm 2.3.2, csrc/selective_scan/selective_scan.cpp and "
    "mamba_ssm/ops/selective_scan_interface.py",
    modules=_modules,
)
