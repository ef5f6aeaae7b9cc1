"""The cards that a step may run on. Nothing here imports torch."""

from __future__ import annotations

from graphmem.gpus.card import CONTEXT_NOTE, MAX_THREADS_PER_MULTIPROCESSOR, Gpu
from graphmem.gpus.names import find_gpu, label_of
from graphmem.gpus.table import DEFAULT_GPU, GPUS, AssumedCard

__all__ = [
    "CONTEXT_NOTE",
    "DEFAULT_GPU",
    "GPUS",
    "MAX_THREADS_PER_MULTIPROCESSOR",
    "AssumedCard",
    "Gpu",
    "find_gpu",
    "label_of",
]
