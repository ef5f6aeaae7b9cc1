"""The assumptions about torchvision's detectors, whose proposals depend on weights.

If boxes, anchors and targets are known, so are the matches, and nothing is assumed. Otherwise

(1) `Matcher` (torchvision/models/detection/_utils.py) matches a quarter of the boxes with targets,
in turn, the rest with none. So `BalancedPositiveNegativeSampler` finds as many of both as it may
take: of 512 boxes 128 that have a target (`box_positive_fraction`);
(2) `LevelMapper` (torchvision/ops/poolers.py) spreads boxes evenly over the levels of a pyramid.

Functions are replaced once the program has loaded them: graphmem imports no torchvision.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from graphmem import constructors
from graphmem.trace.reads import Reads
from graphmem.values.rules import Rule
from graphmem.virtual_device.patching import Replacement

NMS = "torchvision.ops.boxes"
"""The module that registers the operator."""

_MATCHED = 4
_OVERLAPS = "overlaps depend on weights"


def is_loaded() -> bool:
    """Whether the program has loaded torchvision's operators, which its detectors use."""
    return NMS in sys.modules


def replacements(reads: Reads) -> Iterator[Replacement]:
    """The attributes to replace, as far as their modules are loaded."""
    matching: Any = sys.modules.get("torchvision.models.detection._utils")
    pooling: Any = sys.modules.get("torchvision.ops.poolers")
    if matching is not None:
        yield matching.Matcher, "__call__", _matching(matching.Matcher.__call__, reads)
    if pooling is not None:
        yield pooling.LevelMapper, "__call__", _mapping(pooling.LevelMapper.__call__, reads)


def _matching(match: Callable[..., torch.Tensor], reads: Reads) -> Callable[..., torch.Tensor]:
    def matched(matcher: Any, overlaps: torch.Tensor) -> torch.Tensor:
        matches = match(matcher, overlaps)
        targets, boxes = overlaps.shape
        with torch._C._DisableTorchDispatch():  # these are not the program's operations
            places = constructors.arange(boxes, device="cpu")
            chosen = torch.where(places % _MATCHED == 0, places // _MATCHED % targets, -1)
        rule = Rule(f"which of {boxes:,} boxes match a target", "every fourth", _OVERLAPS)
        reads.known.assume(matches, chosen, rule)
        return matches

    return matched


def _mapping(level: Callable[..., torch.Tensor], reads: Reads) -> Callable[..., torch.Tensor]:
    def mapped(mapper: Any, boxlists: list[torch.Tensor]) -> torch.Tensor:
        levels = level(mapper, boxlists)
        many = int(mapper.k_max - mapper.k_min) + 1
        with torch._C._DisableTorchDispatch():
            chosen = constructors.arange(levels.numel(), device="cpu") % many
        rule = Rule(f"which of {many} levels a box is pooled from", "each in turn", _OVERLAPS)
        reads.known.assume(levels, chosen, rule)
        return levels

    return mapped
