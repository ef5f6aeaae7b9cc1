"""The random numbers of a card's kernels: Philox4x32-10, and what cuRAND makes of them.

The generator is Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011), as in
cuRAND's curand_philox4x32_x.h. Which thread makes which number is PyTorch's
(aten/src/ATen/native/cuda/DistributionTemplates.h, `calc_execution_policy` and
`distribution_elementwise_grid_stride_kernel`; the same in torch 2.0 and 2.13):

(1) a kernel has as many blocks of 256 threads as a number each needs, and at most as many as are on
    the card at once;
(2) thread i has the i-th subsequence, and begins where the generator's offset is;
(3) at each turn it makes four numbers, each for the next stretch of as many elements as there are
    threads, so that one turn is enough for most tensors;
(4) the offset then advances by four for each turn.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from graphmem import constructors

_BLOCK = 256  # `block_size_bound`
_AT_ONCE = 4
"""Numbers in a turn: `curand4`, `curand_uniform4`, `curand_normal4`."""

_PER_TURN = 4  # `max_generator_offsets_per_curand_call`
_LOW = 0xFFFFFFFF
_FACTORS = 0xD2511F53, 0xCD9E8D57  # PHILOX_M4x32_0 and _1
_STEPS = 0x9E3779B9, 0xBB67AE85  # PHILOX_W32_0 and _1
_ROUNDS = 10
_UNIT = 2.0**-32  # CURAND_2POW32_INV


class Turns(NamedTuple):
    """How a kernel draws numbers for a tensor.

    Attributes:
        numel: the elements of the tensor.
        threads: the threads of the kernel.
        rounds: the turns of each thread.
    """

    numel: int
    threads: int
    rounds: int

    @classmethod
    def of(cls, numel: int, threads_at_once: int) -> Turns:
        """Clauses (1) and (3).

        Args:
            numel: the elements of the tensor, at least one.
            threads_at_once: the threads that are on the card at once.
        """
        blocks = min(math.ceil(numel / _BLOCK), threads_at_once // _BLOCK)
        threads = blocks * _BLOCK
        return cls(numel, threads, math.ceil(numel / (threads * _AT_ONCE)))

    @property
    def advance(self) -> int:
        """Clause (4)."""
        return self.rounds * _PER_TURN

    def integers(self, seed: int, offset: int) -> torch.Tensor:
        """Integers of 32 bits, one for each element."""
        return self._in_order(self._words(seed, offset))

    def uniform(self, seed: int, offset: int) -> torch.Tensor:
        """Numbers above 0 and up to 1 (`_curand_uniform`, curand_uniform.h)."""
        return self.integers(seed, offset).to(torch.float32) * _UNIT + _UNIT / 2

    def normal(self, seed: int, offset: int) -> torch.Tensor:
        """Normal numbers in pairs, a sine and a cosine (`_curand_box_muller`, curand_normal.h)."""
        first, second, third, fourth = self._words(seed, offset)
        made = (*_box_muller(first, second), *_box_muller(third, fourth))
        return self._in_order(made)

    def _words(self, seed: int, offset: int) -> tuple[torch.Tensor, ...]:
        """Four integers for each turn and thread."""
        turns = constructors.arange(self.rounds, device="cpu") + offset // _PER_TURN
        threads = constructors.arange(self.threads, device="cpu")
        shape = self.rounds, self.threads
        return _philox(seed, turns[:, None].expand(shape), threads.expand(shape))

    def _in_order(self, made: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Clause (3): a turn's first numbers, then its second ones, and so on; one an element."""
        return torch.stack(made, 1).flatten()[: self.numel]


def _philox(seed: int, turns: torch.Tensor, threads: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The four integers that follow from a counter of 128 bits and a key of 64."""
    counter = (turns & _LOW, turns >> 32 & _LOW, threads & _LOW, threads >> 32)
    key = seed & _LOW, seed >> 32
    for _ in range(_ROUNDS):
        first, second = counter[0] * _FACTORS[0], counter[2] * _FACTORS[1]
        counter = (
            second >> 32 & _LOW ^ counter[1] ^ key[0],
            second & _LOW,
            first >> 32 & _LOW ^ counter[3] ^ key[1],
            first & _LOW,
        )
        key = (key[0] + _STEPS[0]) & _LOW, (key[1] + _STEPS[1]) & _LOW
    return counter


def _box_muller(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    radius = first.to(torch.float32).mul_(_UNIT).add_(_UNIT / 2).log_().mul_(-2).sqrt_()
    angle = second.to(torch.float32).mul_(_UNIT * 2 * math.pi).add_(_UNIT * math.pi)
    return angle.sin().mul_(radius), angle.cos_().mul_(radius)
