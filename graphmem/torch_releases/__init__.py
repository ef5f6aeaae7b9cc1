"""The releases of PyTorch that graphmem runs on, and the differences between them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from graphmem.torch_releases.differences import AUTOCAST_CASTS_RMS_NORM, Difference, Release
from graphmem.torch_releases.installed_build import (
    ARGUMENTS_HOLD_GRADIENTS,
    COPIES_TO_DEVICES_KEPT_OFF,
    FLASH_STATE_IS_ON_CARD,
    FUNCTION_APPLY_IS_BUILT_IN,
    INNER_NODES_ARE_DESTROYED,
    INTRUSIVE_NODES,
    MODES_MAY_BE_COMPILED_UNDER,
    MODES_TAKE_HIGHER_ORDER_OPERATORS,
    NO_OP_CUDA_GUARD,
    PACKED_TENSORS_CAN_BE_READ,
    PRECISIONS_HAVE_NAMES,
    TIES_ARE_SPLIT,
    TRUNCATED_NORMALS_ARE_REDRAWN,
    UNUSED_INPUTS_ARE_COUNTED,
)
from graphmem.torch_releases.release import parse_release

__all__ = [
    "ARGUMENTS_HOLD_GRADIENTS",
    "AUTOCAST_CASTS_RMS_NORM",
    "COPIES_TO_DEVICES_KEPT_OFF",
    "FLASH_STATE_IS_ON_CARD",
    "FUNCTION_APPLY_IS_BUILT_IN",
    "INNER_NODES_ARE_DESTROYED",
    "INTRUSIVE_NODES",
    "MODES_MAY_BE_COMPILED_UNDER",
    "MODES_TAKE_HIGHER_ORDER_OPERATORS",
    "NO_OP_CUDA_GUARD",
    "PACKED_TENSORS_CAN_BE_READ",
    "PRECISIONS_HAVE_NAMES",
    "TIES_ARE_SPLIT",
    "TRUNCATED_NORMALS_ARE_REDRAWN",
    "UNUSED_INPUTS_ARE_COUNTED",
    "Difference",
    "Release",
    "installed_one",
    "installed_release",
    "parse_release",
]


@cache
def installed_release() -> Release:
    """The installed release, such as (2, 13)."""
    import torch

    return parse_release(torch.__version__)


def installed_one(places: dict[Release, str]) -> ModuleType:
    """The module that has something in the installed release.

    Args:
        places: its names from some release on, the newest first.
    """
    return import_module(next(it for since, it in places.items() if since <= installed_release()))
