"""Random generators of the virtual GPU: they have a seed and an offset.

`torch.Generator(device="cuda")` and `torch.cuda.default_generators` behave as on a card
(aten/src/ATen/cuda/CUDAGeneratorImpl.cpp), so that seeds and states can be set, saved and compared.

Each kernel that draws numbers advances the offset, as far as it is known how many it takes
(`values/card_draws.py`). Assumption: from the first other one on, the offset stays where the
program sets it.
"""

from __future__ import annotations

import itertools
import secrets
import weakref
from typing import Any, cast

import torch

from graphmem.graph import Op
from graphmem.virtual_device.devices import Devices
from graphmem.virtual_device.patching import Replacement

_DEFAULT_SEED = 67280421310721  # c10::detail::default_rng_seed_val
_STATE_BYTES = 16  # the seed and the offset, eight bytes each
_SEEDS = 1 << 64

_MADE: weakref.WeakValueDictionary[int, CudaGenerator] = weakref.WeakValueDictionary()
"""The virtual GPU's generators, by their C++ objects."""
_TorchGenerator: Any = torch.Generator
_TorchMeta: Any = type(torch.Generator)


def random_replacements(devices: Devices) -> list[Replacement]:
    """List the replacements of the generators."""
    generators = tuple(CudaGenerator(index) for index in range(devices.count))
    return [
        (torch, "Generator", Generator),
        (torch.cuda, "default_generators", generators),
    ]


def device_of(generator: Any) -> str:
    """The kind of device of a generator, also of one that C++ has handed on as its own."""
    return "cuda" if generator._cdata in _MADE else str(generator.device.type)


def draws_random_numbers(op: Op) -> bool:
    """Whether a kernel draws random numbers; attention does only for its dropout."""
    target = op.operator
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return False
    is_attention = any(each.name == "dropout_p" for each in target._schema.arguments)
    return not is_attention or bool(op.argument("dropout_p"))


class _AnyGenerator(_TorchMeta):  # type: ignore[misc]
    """Metaclass of `torch.Generator` while the virtual GPU is on: one class for all devices."""

    def __call__(self, device: Any = "cpu") -> Any:
        if self is not Generator:
            return super().__call__(device)
        if torch.device(device).type == "cuda":
            is_current = torch.device(device) == torch.device("cuda")
            return CudaGenerator(
                torch.cuda.current_device() if is_current else torch.device(device).index
            )
        return _TorchGenerator(device)

    def __instancecheck__(self, instance: Any) -> bool:
        if self is Generator:
            return isinstance(instance, _TorchGenerator)
        return bool(super().__instancecheck__(instance))


class Generator(_TorchGenerator, metaclass=_AnyGenerator):  # type: ignore[misc]
    """Makes a generator of the virtual GPU, or PyTorch's own for another device."""


class CudaGenerator(Generator):
    """The virtual GPU's generator; C++ sees a CPU generator, which draws nothing."""

    _numbers = itertools.count()

    def __new__(cls, index: int) -> CudaGenerator:
        """Make what C++ sees as a CPU generator."""
        made = cast(CudaGenerator, _TorchGenerator.__new__(cls, "cpu"))
        _MADE[made._cdata] = made
        return made

    def __init__(self, index: int) -> None:
        """Make a generator of a device, with PyTorch's default seed."""
        self._index = index
        self._seed, self._offset = _DEFAULT_SEED, 0
        self._is_known = False  # a card's default generator begins with a random seed
        self.state_number = next(self._numbers)
        """Identifies its state, which two generators may share (`graphsafe_get_state`)."""

    @property
    def device(self) -> torch.device:
        """The device whose numbers it would draw."""
        return torch.device("cuda", self._index)

    def manual_seed(self, seed: int) -> CudaGenerator:
        """Set the seed, and the offset to 0."""
        self._seed, self._offset = int(seed) % _SEEDS, 0
        self._is_known = True
        return self

    def seed(self) -> int:
        """Set a random seed and return it."""
        self.manual_seed(secrets.randbits(53))
        self._is_known = False  # a card's is another
        return self._seed

    def initial_seed(self) -> int:
        """The seed."""
        return self._seed

    def get_offset(self) -> int:
        """The offset, as far as it is known."""
        return self._offset

    def set_offset(self, offset: int) -> None:
        """Set the offset."""
        self._offset = int(offset)

    def get_state(self) -> torch.Tensor:
        """Seed and offset as bytes, on the CPU."""
        state = b"".join(each.to_bytes(8, "little") for each in (self._seed, self._offset))
        return torch.tensor(list(state), dtype=torch.uint8, device="cpu")

    def set_state(self, state: torch.Tensor) -> CudaGenerator:
        """Set the state; a state without an offset sets it to 0.

        Raises:
            RuntimeError: the state does not have a CUDA generator's size.
        """
        numbers = bytes(state.tolist())
        if len(numbers) not in (8, _STATE_BYTES):
            raise RuntimeError("RNG state is wrong size")
        before, self._seed = self._seed, int.from_bytes(numbers[:8], "little")
        self._is_known &= self._seed == before  # else the state may be one of unknown offset
        self._offset = int.from_bytes(numbers[8:], "little")
        return self

    def clone_state(self) -> CudaGenerator:
        """Another generator in the same state."""
        other = CudaGenerator(self._index)
        other._seed, other._offset = self._seed, self._offset
        other._is_known = self._is_known
        return other

    def graphsafe_get_state(self) -> CudaGenerator:
        """Another generator that shares this one's state."""
        return CudaGenerator(self._index).graphsafe_set_state(self)

    def graphsafe_set_state(self, other: CudaGenerator) -> CudaGenerator:
        """Share the state of another generator."""
        self._seed, self._offset = other._seed, other._offset
        self.state_number = other.state_number
        self._is_known = other._is_known = False  # each advances the other's offset as well
        return self

    def take(self, numbers: int) -> tuple[int, int] | None:
        """Advance the offset; returns seed and offset before that, None if they are unknown."""
        if not self._is_known:
            return None
        state = self._seed, self._offset
        self._offset += numbers
        return state

    def lose(self) -> None:
        """Know the offset no more, until the program sets the seed again."""
        self._is_known = False


class CardGenerators:
    """The generators of the virtual GPU and how many threads draw from them."""

    def of(self, given: Any, device: torch.device) -> CudaGenerator | None:
        """The generator that an operator uses: the given one, or the device's."""
        if given is not None:
            return _MADE.get(given._cdata)
        generators = torch.cuda.default_generators
        place = device.index or 0
        found = generators[place] if place < len(generators) else None
        return found if isinstance(found, CudaGenerator) else None

    def all(self) -> list[CudaGenerator]:
        """The generators of all devices."""
        generators = torch.cuda.default_generators
        return [each for each in generators if isinstance(each, CudaGenerator)]

    def threads(self, device: torch.device) -> int:
        """The threads that are on a card at once."""
        card: Any = torch.cuda.get_device_properties(device)
        return int(card.multi_processor_count * card.max_threads_per_multi_processor)
