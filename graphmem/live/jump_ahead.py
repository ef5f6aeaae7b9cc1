"""PyTorch's generator of random numbers for the host, moved on without drawing.

A script that builds a model of eight billion parameters draws them twice, which takes minutes, and
the card needs none of them. The generator is a Mersenne Twister: its words, before they are
tempered, follow a linear recurrence over bits. So a later word is a sum (exclusive or) of words
that come now, and the polynomial `x ** n` modulo that of the recurrence says of which (Haramoto and
others, "Efficient jump ahead for F2-linear random number generators", 2008).

PyTorch makes the words that are added up, and short draws show how many words a long one takes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any

import torch

from graphmem import constructors

_WORDS = 624
"""The words of a state (aten/src/ATen/core/MT19937RNGEngine.h, `MERSENNE_STATE_N`)."""
_MIDDLE, _BITS, _LOWER, _TWIST = 397, 32, 31, 0x9908B0DF  # the same file: M, masks, `MATRIX_A`
_DEGREE = _WORDS * _BITS - _LOWER
_BYTES = _WORDS * _BITS // 8
_LEFT, _NEXT, _ARRAY = 8, 16, 24
"""Places in a state's bytes (aten/src/ATen/CPUGeneratorImpl.cpp, `CPUGeneratorImplStateLegacy`)."""
_GROUP = 16
"""`normal_` draws in groups of 16 numbers, and the last 16 again if some remain
(aten/src/ATen/native/cpu/DistributionTemplates.h, `normal_fill`)."""
_SHIFTS = 4  # as many bits as a hexadecimal digit of a polynomial has

Draw = Callable[[torch.Tensor, torch.Generator], Any]
"""Fills a tensor with numbers of a generator."""


def jump(generator: torch.Generator, draw: Draw, numbers: int, dtype: torch.dtype) -> None:
    """Move a generator on as if so many numbers, at least 624, had been drawn."""
    words = _words_drawn(draw, numbers, dtype)
    last = _word_sums(b"".join(_arrays(generator)), _power(words - _WORDS))
    state = _State(generator)
    used = _WORDS + 1 - state.left
    state.array, state.left, state.next = last, 1, 0
    ahead = _WORDS - 1 - (used + words - 1) % _WORDS  # so many words more has the last array
    state.array = (last + _next_array(state))[4 * ahead :][:_BYTES]
    state.left, state.next = ahead + 1, _WORDS - ahead
    generator.set_state(state.as_tensor())


def _next_array(state: _State) -> bytes:
    ahead = torch.Generator()
    ahead.set_state(state.as_tensor())
    constructors.empty(1, dtype=torch.float32, device="cpu").uniform_(generator=ahead)
    return _State(ahead).array


def _words_drawn(draw: Draw, numbers: int, dtype: torch.dtype) -> int:
    """How many words of the generator a draw takes."""

    def taken(count: int) -> int:
        generator = torch.Generator().manual_seed(0)
        draw(constructors.empty(count, dtype=dtype, device="cpu"), generator)
        return _State(generator).next

    groups, rest = divmod(numbers, _GROUP)
    first = taken(_GROUP + rest)
    return first + (groups - 1) * (taken(2 * _GROUP + rest) - first)


class _State:
    """A generator's state, as its fields.

    Attributes:
        left: one more than the words of `array` that are still to be used.
        next: the position of the next one.
        array: words in 32 bits each.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._bytes = bytes(generator.get_state().tolist())
        self.left: int = struct.unpack_from("<i", self._bytes, _LEFT)[0]
        self.next: int = struct.unpack_from("<Q", self._bytes, _NEXT)[0]
        self.array = struct.pack(
            f"<{_WORDS}I", *struct.unpack_from(f"<{_WORDS}Q", self._bytes, _ARRAY)
        )

    @property
    def unused(self) -> bytes:
        """The words that come next."""
        return self.array[4 * self.next :][: 4 * (self.left - 1)]

    def as_tensor(self) -> torch.Tensor:
        """The bytes for `Generator.set_state`."""
        state = bytearray(self._bytes)
        struct.pack_into("<i", state, _LEFT, self.left)
        struct.pack_into("<Q", state, _NEXT, self.next)
        words = struct.unpack(f"<{_WORDS}I", self.array)
        struct.pack_into(f"<{_WORDS}Q", state, _ARRAY, *words)
        return constructors.tensor(list(state), dtype=torch.uint8, device="cpu")


def _arrays(generator: torch.Generator) -> Iterator[bytes]:
    """The words that a generator makes next, not tempered, as many as a jump adds up."""
    ahead = generator.clone_state()
    state = _State(ahead)
    yield state.unused
    scratch = constructors.empty(_WORDS, dtype=torch.float32, device="cpu")
    scratch[: state.left].uniform_(generator=ahead)  # a word for each number
    for _ in range(_DEGREE // _WORDS + 2):
        yield _State(ahead).array
        scratch.uniform_(generator=ahead)


def _word_sums(words: bytes, polynomial: int) -> bytes:
    """The sums of words that a polynomial stands for, of the first and the 623 that follow it.

    Four words are added up at once: a digit of the polynomial says which of them.
    """
    sequence = int.from_bytes(words, "little")
    sums = [0]
    for shift in range(_SHIFTS):
        sums += [each ^ (sequence >> _BITS * shift) for each in sums]
    of_digits = {
        f"{digit:x}": each.to_bytes(len(words), "little") for digit, each in enumerate(sums)
    }
    total = 0
    for place, digit in enumerate(reversed(f"{polynomial:x}")):
        start = place * _SHIFTS * _BITS // 8
        total ^= int.from_bytes(of_digits[digit][start : start + _BYTES], "little")
    return total.to_bytes(_BYTES, "little")


@lru_cache(maxsize=256)
def _power(exponent: int) -> int:
    """`x ** exponent` modulo the recurrence's polynomial, whose coefficients are bits.

    The square of a polynomial has its coefficients at twice their places, as a number whose binary
    digits are read in base four has its bits.
    """
    free = max(exponent.bit_length() - _DEGREE.bit_length() + 1, 0)
    power = 1 << (exponent >> free)
    for place in reversed(range(free)):
        power = _remainder(int(f"{power:b}", 4) << (exponent >> place & 1))
    return power


def _remainder(polynomial: int) -> int:
    while quotient := polynomial >> _DEGREE:
        polynomial &= (1 << _DEGREE) - 1
        for place in _lower_places():
            polynomial ^= quotient << place
    return polynomial


@cache
def _lower_places() -> tuple[int, ...]:
    """Where the recurrence's polynomial has ones, but for the highest.

    Its factors are those of Matsumoto and Nishimura, "Mersenne Twister", 1998, appendix A.
    """
    outer = 1 << _WORDS | 1 << _MIDDLE
    inner = 1 << _WORDS - 1 | 1 << _MIDDLE - 1
    total = _product(_repeated(outer, _BITS - _LOWER), _repeated(inner, _LOWER))
    for bit in range(_BITS):
        if _TWIST >> bit & 1:
            term = _repeated(outer, min(_BITS - _LOWER, _BITS - 1 - bit))
            total ^= _product(term, _repeated(inner, max(_LOWER - 1 - bit, 0)))
    return tuple(place for place in range(_DEGREE) if total >> place & 1)


def _repeated(factor: int, times: int) -> int:
    power = 1
    for _ in range(times):
        power = _product(power, factor)
    return power


def _product(one: int, other: int) -> int:
    product = 0
    while other:
        lowest = other & -other
        product ^= one << (lowest.bit_length() - 1)
        other ^= lowest
    return product
