"""Limits as written by people: "22 GiB", "1%", and tables of them by category and module."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import msgspec

from graphmem.errors import InputError
from graphmem.units import format_bytes, parse_bytes

_PERCENTAGE = re.compile(r"(\d+(?:\.\d+)?)\s*%")

CATEGORY_OF: Mapping[str, str] = MappingProxyType(
    {
        "parameters": "parameter",
        "buffers": "buffer",
        "gradients": "gradient",
        "optimizer_state": "optimizer_state",
        "activations": "activation",
        "autocast_cache": "autocast_cache",
        "inputs": "input",
        "temporaries": "temporary",
        "kept": "kept",
        "workspaces": "workspace",
    }
)
"""The report's category for each key of a table of limits."""


def size_of(value: Any) -> int:
    """Read bytes from TOML: "22 GiB", or a number.

    Raises:
        ValueError: it is not a size.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f'{value!r} is not a size: write it like "22 GiB"')
    try:
        return parse_bytes(value)
    except InputError as error:
        raise ValueError(f"{error}: {error.hint}") from error


class Increase:
    """An increase allowed over a baseline: a percentage of it, or bytes; `text` is its notation.

    Not a dataclass, because msgspec would decode those itself, from a table.
    """

    __slots__ = ("nbytes", "share", "text")

    def __init__(self, text: str, share: Fraction = Fraction(0), nbytes: int = 0) -> None:
        self.text = text
        self.share = share
        self.nbytes = nbytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Increase) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self._parts)

    @property
    def _parts(self) -> tuple[str, Fraction, int]:
        return self.text, self.share, self.nbytes

    def allowed(self, before: int) -> int:
        """The most bytes that `before` may grow to."""
        return before + int(before * self.share) + self.nbytes

    @classmethod
    def read(cls, value: Any) -> Increase:
        """Read an increase from TOML.

        Raises:
            ValueError: it is not an increase.
        """
        percentage = _PERCENTAGE.fullmatch(value.strip()) if isinstance(value, str) else None
        if percentage:
            return cls(value, share=Fraction(percentage[1]) / 100)
        nbytes = size_of(value)
        return cls(format_bytes(nbytes), nbytes=nbytes)


L = TypeVar("L")


class Limits(msgspec.Struct, Generic[L], forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Limits of one kind: on all allocated bytes, on categories, on modules by pattern."""

    allocated: L | None = None
    parameters: L | None = None
    buffers: L | None = None
    gradients: L | None = None
    optimizer_state: L | None = None
    activations: L | None = None
    autocast_cache: L | None = None
    inputs: L | None = None
    temporaries: L | None = None
    kept: L | None = None
    workspaces: L | None = None
    modules: dict[str, L] = {}

    def by_category(self) -> Iterator[tuple[str, str, L]]:
        """Every limit on a category: its key here, the report's name, the limit."""
        for key, category in CATEGORY_OF.items():
            limit = getattr(self, key)
            if limit is not None:
                yield key, category, limit


def is_below(module: str, pattern: str) -> bool:
    """Whether a pattern such as `h.*.attn` matches a module or one of its ancestors."""
    parts = module.split(".")
    return any(fnmatchcase(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))
