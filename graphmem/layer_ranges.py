"""Fold equal layers into one: `h.[0-11].mlp` for `h.0.mlp` to `h.11.mlp`.

Clauses:
  (1) names fold if they differ in one number between dots and their values are equal;
  (2) the numbers are listed in order, runs of them as `first-last`: `[0-2,5]`;
  (3) `unfold` restores the names.

  Not covered: names that contain brackets themselves; they stay unchanged.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

from graphmem.errors import InputError

V = TypeVar("V", bound=Hashable)

_NUMBER = re.compile(r"0|[1-9]\d*")
_RANGES = re.compile(r"\[(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\]")


class NoModuleError(InputError):
    """A pattern matches no module of the step."""

    def __init__(self, pattern: str, names: str) -> None:
        super().__init__(f"no module is called {pattern!r}", hint=f"the outermost are {names}")


def fold(values: Mapping[str, V]) -> dict[str, V]:
    """The same values under fewer names, sorted by the first number of each, then by name."""
    folded = {tuple(name.split(".")): value for name, value in values.items()}
    depth = max(map(len, folded), default=0)
    for position in reversed(range(depth)):
        folded = _fold_at(position, folded)
    return {".".join(parts): folded[parts] for parts in sorted(folded, key=_order)}


def no_module(pattern: str, outermost: Iterable[str]) -> InputError:
    """The error for a pattern that matches no module; equal layers are listed as one."""
    names = ", ".join(fold(dict.fromkeys(outermost, "")))
    return NoModuleError(pattern, names)


def outermost(names: Iterable[str], pattern: str) -> list[str]:
    """The modules that a pattern matches; of nested ones, the outermost, which come first."""
    found: list[str] = []
    for name in names:
        is_inside = any(name.startswith(f"{outer}.") for outer in found)
        if name and not is_inside and fnmatchcase(name, pattern):
            found.append(name)
    return found


def unfold(values: Mapping[str, V]) -> dict[str, V]:
    """Expand folded names into every single name."""
    return {name: value for folded, value in values.items() for name in members(folded)}


def members(folded: str) -> Iterator[str]:
    """The names that a folded one stands for."""
    choices = [_choices(part) for part in folded.split(".")]
    return (".".join(parts) for parts in itertools.product(*choices))


def numbers_in(name: str) -> list[str]:
    """The numbers of a name's layers; of a folded one, its ranges."""
    return [part for part in name.split(".") if _is_number(part)]


def _fold_at(position: int, values: Mapping[tuple[str, ...], V]) -> dict[tuple[str, ...], V]:
    groups: dict[tuple[tuple[str, ...], tuple[str, ...], V], list[int]] = {}
    folded: dict[tuple[str, ...], V] = {}
    for parts, value in values.items():
        if len(parts) > position and _NUMBER.fullmatch(parts[position]):
            around = (parts[:position], parts[position + 1 :], value)
            groups.setdefault(around, []).append(int(parts[position]))
        else:
            folded[parts] = value
    for (before, after, value), numbers in groups.items():
        folded[(*before, _written(numbers), *after)] = value
    return folded


def _written(numbers: Iterable[int]) -> str:
    """Format numbers as runs, in brackets if there are several."""
    in_order = sorted(numbers)
    if len(in_order) == 1:
        return str(in_order[0])
    runs = []
    for _, run in itertools.groupby(enumerate(in_order), key=lambda item: item[1] - item[0]):
        members_of_run = [number for _, number in run]
        first, last = members_of_run[0], members_of_run[-1]
        runs.append(f"{first}-{last}" if last > first else str(first))
    return f"[{','.join(runs)}]"


def _choices(part: str) -> list[str]:
    match = _RANGES.fullmatch(part)
    if match is None:
        return [part]
    numbers: list[str] = []
    for run in match[1].split(","):
        first, _, last = run.partition("-")
        numbers += map(str, range(int(first), int(last or first) + 1))
    return numbers


def _order(parts: tuple[str, ...]) -> list[tuple[int, str]]:
    """Layers by number, not by spelling: 9 before 10."""
    firsts = [re.search(r"\d+", part) if _is_number(part) else None for part in parts]
    return [
        (int(first[0]) if first else -1, part) for first, part in zip(firsts, parts, strict=True)
    ]


def _is_number(part: str) -> bool:
    return bool(_NUMBER.fullmatch(part) or _RANGES.fullmatch(part))
