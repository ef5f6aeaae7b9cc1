"""What a card draws from a seed that the program has set.

Clauses:
  (1) from `manual_seed` on, a generator's offset is known as long as every kernel that takes
      numbers from it takes a known number of them (`philox.py`);
  (2) these are the kernels for normal, uniform and integer numbers that fill contiguous tensors;
      any other operation that draws, or may draw, makes the offset unknown, and so does a CUDA
      graph;
  (3) numbers are known for up to `FLOATS` elements.

Sines and logarithms are rounded otherwise on a card (`__sincosf`), so normal numbers may differ in
their last bits. Not covered: float64 and complex numbers, and integers from a range of 2^28 or
more, whose kernel differs between releases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import torch

from graphmem.values.arguments import tensors
from graphmem.values.limits import FLOATS
from graphmem.values.philox import Turns

aten = torch.ops.aten

_LARGEST = 1 << 31
"""Bytes from which on a tensor is drawn in parts (`can_use_32bit_indexing`)."""

_WIDE_RANGE = 1 << 28
_HARMLESS = frozenset({"prim", "prims", "profiler", "c10d", "_c10d_functional", "c10d_functional"})
"""Namespaces beside `aten` whose operators draw nothing."""


class CardGenerator(Protocol):
    """A generator of the card."""

    def take(self, numbers: int) -> tuple[int, int] | None:
        """Advance the offset; returns seed and offset before that, None if they are unknown."""

    def lose(self) -> None:
        """Know the offset no more."""


class DeviceGenerators(Protocol):
    """The card's generators."""

    def of(self, given: Any, device: torch.device) -> CardGenerator | None:
        """The generator that an operator uses: the given one, or the device's."""

    def all(self) -> Iterable[CardGenerator]:
        """The generators of all devices."""

    def threads(self, device: torch.device) -> int:
        """The threads that are on a card at once."""


Draw = Callable[[], torch.Tensor]
"""Computes what an operation draws for its result, of its dtype and shape."""


class CardDraws:
    """Follows the card's generators."""

    def __init__(self, generators: DeviceGenerators | None) -> None:
        """Take the generators; without any, nothing is known of what is drawn."""
        self._generators = generators
        self._kinds: dict[Any, _Kind | None] = {}

    def follow(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Draw | None:
        """Follow an operation; returns what it draws if that is known."""
        try:
            kind = self._kinds[func]
        except KeyError:
            kind = self._kinds[func] = _kind_of(func)
        if kind is None or self._generators is None:
            return None
        given = _Given(func, args, kwargs)
        target = next(tensors([result]), None)
        if kind is _other:
            if given.get("dropout_p") != 0.0:
                self._lose(given.get("generator"), target)
            return None
        return None if target is None else self._drawn(kind, given, target, self._generators)

    def _drawn(
        self, kind: _Kind, given: _Given, target: torch.Tensor, generators: DeviceGenerators
    ) -> Draw | None:
        dtype, shape, device = target.dtype, target.shape, target.device
        if device.type != "cuda" or not target.numel():
            return None
        make = kind(given) if _is_plain(target) else None
        generator = generators.of(given.get("generator"), device)
        if make is None or generator is None:
            self._lose(given.get("generator"), target)
            return None
        turns = Turns.of(target.numel(), generators.threads(device))
        state = generator.take(turns.advance)
        if state is None or target.numel() > FLOATS:
            return None

        def values() -> torch.Tensor:
            with torch._C._DisableTorchDispatch(), torch.no_grad():
                return make(turns, *state).to(dtype).reshape(shape)

        return values

    def lose(self) -> None:
        """Know no offset any more."""
        self._lose(None, None)

    def _lose(self, given: Any, target: torch.Tensor | None) -> None:
        """Clause (2)."""
        if self._generators is None or (target is not None and target.device.type == "cpu"):
            return
        generator = None if target is None else self._generators.of(given, target.device)
        for each in self._generators.all() if generator is None else [generator]:
            each.lose()


class _Given(NamedTuple):
    """The arguments of an operation."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def get(self, name: str) -> Any:
        """An argument, or its default; None if the operator has none of that name."""
        for position, argument in enumerate(self.func._schema.arguments):
            if argument.name == name:
                default = argument.default_value
                given = self.args[position] if position < len(self.args) else default
                return self.kwargs.get(name, given)
        return None


_Make = Callable[[Turns, int, int], torch.Tensor]
_Kind = Callable[[_Given], _Make | None]
"""Finds what makes the numbers of an operation; None if that is not known."""


def _is_plain(target: torch.Tensor) -> bool:
    """Whether elements are drawn in the order of their places, in 32 bits."""
    is_other = target.dtype is torch.float64 or target.dtype.is_complex
    return not is_other and target.is_contiguous() and target.nbytes < _LARGEST


def _normal(given: _Given) -> _Make:
    """`normal_kernel`."""
    mean, std = given.get("mean") or 0.0, given.get("std")
    scale = 1.0 if std is None else std
    return lambda turns, seed, offset: turns.normal(seed, offset) * scale + mean


def _uniform(given: _Given) -> _Make:
    """`uniform_kernel`: the upper bound, which it could draw, is the lower one."""
    low, high = given.get("from") or 0.0, given.get("to")
    high = 1.0 if high is None else high

    def make(turns: Turns, seed: int, offset: int) -> torch.Tensor:
        value = turns.uniform(seed, offset) * (high - low) + low
        return value.masked_fill_(value == high, low)

    return make


def _integer(low: str | None, high: str) -> _Kind:
    """`random_from_to_kernel`, by the names of the bounds."""

    def find(given: _Given) -> _Make | None:
        bottom, top = 0 if low is None else given.get(low), given.get(high)
        if not isinstance(top, int) or not 0 < (span := top - bottom) < _WIDE_RANGE:
            return None
        return lambda turns, seed, offset: turns.integers(seed, offset) % span + bottom

    return find


def _other(given: _Given) -> _Make | None:
    """An operation that may draw in another way [clause 2]."""
    raise NotImplementedError


_NORMAL = (aten.randn.default, aten.randn.generator, aten.randn_like.default, aten.normal_.default)
_UNIFORM = (aten.rand.default, aten.rand.generator, aten.rand_like.default, aten.uniform_.default)
_KINDS: dict[Any, _Kind] = {
    **dict.fromkeys(_NORMAL, _normal),
    **dict.fromkeys(_UNIFORM, _uniform),
    aten.randint.default: _integer(None, "high"),
    aten.randint.generator: _integer(None, "high"),
    aten.randint.low: _integer("low", "high"),
    aten.randint.low_generator: _integer("low", "high"),
    aten.random_.to: _integer(None, "to"),
    getattr(aten.random_, "from"): _integer("from", "to"),
}


def _kind_of(func: Any) -> _Kind | None:
    """What an operator draws; None if it draws nothing."""
    if func in _KINDS:
        return _KINDS[func]
    if func.namespace == "aten":
        return _other if torch.Tag.nondeterministic_seeded in func.tags else None
    return None if func.namespace in _HARMLESS else _other
