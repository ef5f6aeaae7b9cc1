"""Descriptions of cards: "name=my-card,memory=24GiB,sm=75,multiprocessors=72".

They give what decides how much memory a step takes: `total_memory`, the compute capability, the
multiprocessors. The name is optional and need not be that of a known card.

This module does not import torch.
"""

from __future__ import annotations

import re

from graphmem.gpus.card import MAX_THREADS_PER_MULTIPROCESSOR, Gpu
from graphmem.gpus.messages import (
    MissingGpuFieldError,
    UnknownCapabilityError,
    UnknownGpuFieldError,
    WrongGpuMemoryError,
    WrongMultiprocessorsError,
)

_FIELDS = ("name", "memory", "sm", "multiprocessors")
_UNITS = {"": 1, "b": 1, "mib": 2**20, "gib": 2**30, "mb": 10**6, "gb": 10**9}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", re.ASCII)


def described_gpu(text: str) -> Gpu:
    """Parse the description of a card.

    Raises:
        InputError: a field is unknown, missing or not a number.
    """
    fields = _fields(text)
    capability = _capability(fields["sm"])
    name = fields.get("name", "") or f"sm{fields['sm']}"
    return Gpu(
        name=name,
        title=name,
        memory_bytes=_memory(fields["memory"]),
        compute_capability=capability,
        multiprocessors=_count(fields["multiprocessors"]),
        memory_note="as described",
    )


def _fields(text: str) -> dict[str, str]:
    fields = {}
    for part in text.split(","):
        key, _, value = (each.strip() for each in part.partition("="))
        if key not in _FIELDS or key in fields:
            raise UnknownGpuFieldError(part)
        fields[key] = value
    missing = [key for key in _FIELDS[1:] if not fields.get(key)]
    if missing:
        raise MissingGpuFieldError(" and ".join(missing))
    return fields


def _capability(text: str) -> tuple[int, int]:
    digits = text.replace(".", "")
    if digits.isascii() and digits.isdigit() and len(digits) in (2, 3):
        capability = int(digits[:-1]), int(digits[-1])
        if capability in MAX_THREADS_PER_MULTIPROCESSOR:
            return capability
    known = ", ".join(f"{major}{minor}" for major, minor in MAX_THREADS_PER_MULTIPROCESSOR)
    raise UnknownCapabilityError(text, known)


def _memory(text: str) -> int:
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match is not None else None
    nbytes = 0 if match is None or unit is None else int(float(match[1]) * unit)
    if not 2**28 <= nbytes <= 2**50:
        raise WrongGpuMemoryError(text)
    return nbytes


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 10_000):
        raise WrongMultiprocessorsError(text)
    return int(text)
