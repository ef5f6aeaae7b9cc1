"""The bytes of the virtual card that a call takes, as a program reads them."""

from __future__ import annotations

from typing import Any

import torch


def kept_and_peak(call: Any) -> tuple[Any, int, int]:
    """What a call returns, the bytes that it leaves, and the most that it took."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    kept = torch.cuda.memory_allocated() - before
    return result, kept, torch.cuda.max_memory_allocated() - before
