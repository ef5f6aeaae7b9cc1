"""Bytes as people read and write them. Binary units are powers of 1024, decimal ones of 1000."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from types import MappingProxyType

from graphmem.errors import InputError

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30

_BYTES_PER_UNIT: Mapping[str, int] = MappingProxyType(
    {
        "": 1,
        "b": 1,
        "byte": 1,
        "bytes": 1,
        "kb": 10**3,
        "mb": 10**6,
        "gb": 10**9,
        "tb": 10**12,
        "kib": _KIB,
        "mib": _MIB,
        "gib": _GIB,
        "tib": 2**40,
    }
)

_QUANTITY = re.compile(r"(\d{1,3}(?:[,_]\d{3})+|\d+)(\.\d+)?\s*([a-z]*)", re.IGNORECASE)


class NotBytesError(InputError):
    """A text is not a number of bytes."""

    def __init__(self, quantity: object) -> None:
        super().__init__(
            f"not a number of bytes: {quantity!r}",
            hint="write it like 22GiB (2^30), 1.5GB (10^9) or 500MiB",
        )


def format_bytes(count: int) -> str:
    """Return `count` bytes in the largest unit up to GiB, such as "17.673 GiB" or "1.5 MiB".

    Three decimals for GiB, one for MiB and KiB; the count may be negative, for differences.
    """
    if abs(count) < _KIB:
        return f"{count} B"
    for unit, size in (("KiB", _KIB), ("MiB", _MIB)):
        if round(abs(count) / size, 1) < 1024:
            return f"{count / size:.1f} {unit}"
    return f"{count / _GIB:.3f} GiB"


def format_exact(count: int) -> str:
    """Return every digit of `count` bytes, such as "18,976,121,856 bytes"."""
    return counted(count, "byte")


def format_both(count: int) -> str:
    """Return `count` bytes in a unit and exactly, such as "1.5 MiB (1,572,864 bytes)"."""
    return f"{format_bytes(count)} ({format_exact(count)})"


def counted(count: int, noun: str) -> str:
    """A number of things, such as "1 target" and "1,024 bytes"."""
    return f"{count:,} {noun}{'' if abs(count) == 1 else 's'}"


def format_shape(shape: Iterable[int]) -> str:
    """A tensor's shape, such as "2 x 3"; "scalar" without dimensions."""
    return " x ".join(map(str, shape)) or "scalar"


def parse_bytes(quantity: str | int) -> int:
    """Return the bytes in "22 GiB", "1.5GB", "500MiB", "18,976,121,856 bytes" or a plain number.

    GiB is 2^30 and GB is 10^9; case does not matter; fractions of a byte are dropped.

    Raises:
        InputError: `quantity` is negative, or not a number with one of these units.
    """
    match = _QUANTITY.fullmatch(str(quantity).strip())
    bytes_per_unit = _BYTES_PER_UNIT.get(match[3].lower()) if match else None
    if match is None or bytes_per_unit is None:
        raise NotBytesError(quantity)
    number = Fraction(re.sub("[,_]", "", match[1]) + (match[2] or ""))
    return int(number * bytes_per_unit)
