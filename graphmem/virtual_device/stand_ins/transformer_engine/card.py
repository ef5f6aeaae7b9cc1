"""What the extension asks of the card, and how it refuses what the stand-in lacks."""

from __future__ import annotations

from typing import NoReturn

import torch

from graphmem.virtual_device.messages import NoStandInPartError

PACKAGE = "transformer_engine"
CUDNN_VERSION = 91900  # the version whose workspaces were recorded (docs/sources.md, "Attention")
CUBLASLT_VERSION = 130100


def architecture() -> int:
    """`cuda::sm_arch`: 90 for an H100."""
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def processors() -> int:
    """`multiProcessorCount`."""
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


def multiplies_any_layout() -> bool:
    """`nvte_is_non_tn_fp8_gemm_supported`: FP8 operands need no transposed copy."""
    return 100 <= architecture() < 120 or architecture() >= 130


def refuse(what: str) -> NoReturn:
    """Refuse what is not modelled, by name."""
    raise NoStandInPartError(PACKAGE, what)
