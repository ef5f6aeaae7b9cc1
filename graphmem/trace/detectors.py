"""The assumptions about torchvision's detectors, whose proposals depend on weights.

If boxes, anchors and targets are known, so are the matches, and nothing is assumed. Otherwise

(1) `Matcher` (torchvision/models/detection/_utils.py) matches a quarter of the boxes with targets,
in turn, the rest with none. So `BalancedPositiveNegativeSampler` finds as many of both as it may
take: of 512 boxes 128 that have a target (`box_positive_fraction`);
(2) `LevelMapper` (torchvision/ops/poolers.py) spreads boxes evenly over the levels of a pyramid.

Functions are replaced once the program has loaded them: graphmem imports no torchvision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

import torch

from graphmem import constructors
from graphmem.trace.reads import Reads
from graphmem.values.rules import Rule
from graphmem.virtual_device.libraries.imports import prepared
from graphmem.virtual_device.patching import replaced

_NMS = "torchvision.ops.boxes"
"""The module that registers the operator."""
_MATCHER = "torchvision.models.detection._utils"
_POOLERS = "torchvision.ops.poolers"

_MATCHED = 4
_OVERLAPS = "overlaps depend on weights"


def when_nms_is_loaded(call: Callable[[], None]) -> AbstractContextManager[None]:
    """Call a function once the program has loaded torchvision's operators."""

    def follow(boxes: ModuleType) -> AbstractContextManager[None]:
        call()
        return nullcontext()

    return prepared(_NMS, follow)


@contextmanager
def known(reads: Reads) -> Iterator[None]:
    """Assume what detectors match and pool, as soon as the program has loaded them."""

    def match(utils: Any) -> AbstractContextManager[None]:
        return replaced([(utils.Matcher, "__call__", _matching(utils.Matcher.__call__, reads))])

    def pool(poolers: Any) -> AbstractContextManager[None]:
        mapper = poolers.LevelMapper
        return replaced([(mapper, "__call__", _mapping(mapper.__call__, reads))])

    with prepared(_MATCHER, match), prepared(_POOLERS, pool):
        yield


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
