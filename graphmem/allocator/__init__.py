"""A model of PyTorch's CUDA caching allocator, in plain Python and without torch.

It reports what `torch.cuda.memory_stats` would after the same requests: bytes allocated, reserved,
requested, active, and in unusable splits. `graphmem verify` checks it against recordings.
"""

from __future__ import annotations

from graphmem.allocator.caching_allocator import CachingAllocator
from graphmem.allocator.device import Device
from graphmem.allocator.out_of_memory import MemoryState, OutOfMemory
from graphmem.allocator.pool import EVERYBODYS, Block, BlockInfo, PoolId, Segment, SegmentInfo
from graphmem.allocator.restoring import restore
from graphmem.allocator.settings import AllocatorSettings, parse_settings
from graphmem.allocator.statistics import Stat, Statistics

__all__ = [
    "EVERYBODYS",
    "AllocatorSettings",
    "Block",
    "BlockInfo",
    "CachingAllocator",
    "Device",
    "MemoryState",
    "OutOfMemory",
    "PoolId",
    "Segment",
    "SegmentInfo",
    "Stat",
    "Statistics",
    "parse_settings",
    "restore",
]
