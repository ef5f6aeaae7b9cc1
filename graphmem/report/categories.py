"""Names and colours of the categories, used by every report and picture."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CATEGORY_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "parameter": "parameters",
        "buffer": "buffers",
        "optimizer_state": "optimizer state",
        "workspace": "kernel workspaces",
        "input": "inputs",
        "gradient": "gradients",
        "autocast_cache": "autocast's weight copies",
        "communication": "communication buffers",
        "activation": "activations (saved)",
        "temporary": "temporaries",
        "kept": "kept by the script",
        "rounding": "rounding by the allocator",
    }
)

COMMUNICATION = "communication"
"""The category of communication buffers."""

# From the bottom of the stack to its top: longest-lived first.
CATEGORY_COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "parameter": "#4c78a8",
        "buffer": "#8fb8dd",
        "optimizer_state": "#54a24b",
        "workspace": "#9d755d",
        "kept": "#b5336d",
        "input": "#5fb3b3",
        "gradient": "#f2932f",
        "autocast_cache": "#e3c341",
        "communication": "#b07aa1",
        "activation": "#9467bd",
        "temporary": "#e0565b",
        "rounding": "#9aa0a6",
    }
)
