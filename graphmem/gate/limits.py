"""Limits as people write them: "22 GiB", "1%", and tables of them by category and module."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

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
        "workspaces": "workspace",
    }
)
"""The report's category for each key of a table of limits."""


@dataclass(frozen=True)
class Increase:
    """What may be added to a baseline: a part of it, or bytes."""

    text: str
    share: Fraction = Fraction(0)
    nbytes: int = 0

    def allowed(self, before: int) -> int:
        """The most bytes that `before` may become."""
        return before + int(before * self.share) + self.nbytes


def _bytes(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f'{value!r} is no size: write it like "22 GiB"')
    try:
        return parse_bytes(value)
    except InputError as error:
        raise ValueError(f"{error}: {error.hint}") from error


def _increase(value: Any) -> Increase:
    if isinstance(value, Increase):
        return value
    percentage = _PERCENTAGE.fullmatch(value.strip()) if isinstance(value, str) else None
    if percentage:
        return Increase(value, share=Fraction(percentage[1]) / 100)
    nbytes = _bytes(value)
    return Increase(format_bytes(nbytes), nbytes=nbytes)


Size = Annotated[int, BeforeValidator(_bytes)]
Growth = Annotated[Increase, BeforeValidator(_increase)]


L = TypeVar("L")


class Limits(BaseModel, Generic[L]):
    """Limits of one kind: of all that is allocated, of categories, of modules by pattern."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, frozen=True)

    allocated: L | None = None
    parameters: L | None = None
    buffers: L | None = None
    gradients: L | None = None
    optimizer_state: L | None = None
    activations: L | None = None
    autocast_cache: L | None = None
    inputs: L | None = None
    temporaries: L | None = None
    workspaces: L | None = None
    modules: dict[str, L] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _for_all_alone(cls, value: Any) -> Any:
        """`max_increase = "1%"` is short for `max_increase.allocated = "1%"`."""
        return value if isinstance(value, (dict, cls)) else {"allocated": value}

    def by_category(self) -> Iterator[tuple[str, str, L]]:
        """Every limit of a category: its key here, the report's name, the limit."""
        for key, category in CATEGORY_OF.items():
            limit = getattr(self, key)
            if limit is not None:
                yield key, category, limit


def is_below(module: str, pattern: str) -> bool:
    """Whether a pattern such as `h.*.attn` means a module: itself, or one above it."""
    parts = module.split(".")
    return any(fnmatchcase(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))
