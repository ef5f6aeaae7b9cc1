"""What kernels of integers compute, found by Triton's own interpreter on the host.

A kernel that counts a router's choices decides sizes, which its caller reads.

Clauses:
  (1) a launch is followed if its tensors are integers or bools and those that it only reads are
      known, unless it has more than `MOST_PROGRAMS` programs;
  (2) it runs on copies, once something asks for what it wrote, as `TRITON_INTERPRET=1` would run it
      (triton/runtime/interpreter.py);
  (3) it may touch only memory of its arguments, and load only what is known or what it has stored;
      what any other launch writes is unknown, and so is memory that it writes in part;
  (4) launches with equal operands, as a training step's often are, run once.

Not covered: kernels that take descriptors or tuples, and those within a compiled graph.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from graphmem import constructors
from graphmem.values.held import KNOWN, Basis, HeldValues, UnknownError
from graphmem.values.limits import DEEPEST, INTEGERS, is_number
from graphmem.values.memory import Geometry, RealMemory, geometry_of
from graphmem.virtual_device.libraries.triton_interpreter import Region, interpret
from graphmem.virtual_device.libraries.triton_writes import named_arguments, written_by
from graphmem.virtual_device.unseen_writes import values_of

MOST_PROGRAMS = 1 << 10
"""The most programs of a launch that is run; each takes some milliseconds."""

_REMEMBERED = 32
"""The launches whose results are remembered [clause 4]."""

Results = dict[int, torch.UntypedStorage]
"""What storages hold after a launch, by their place among those that it uses."""

_remembered: OrderedDict[Any, Results] = OrderedDict()


def follow_launch(
    kernel: Any, args: tuple[Any, ...], options: Mapping[str, Any], grid: Any
) -> bool:
    """Note what a launch writes, to be computed when it is asked for; False if it is unknown."""
    named = named_arguments(kernel, args, options)
    tensors = {name: each for name, each in named.items() if isinstance(each, torch.Tensor)}
    known = None if _holds_tensors(named) else _follower(tensors.values())
    programs = tuple(grid(named) if callable(grid) else grid) if known is not None else ()
    if known is None or math.prod(programs) > MOST_PROGRAMS:
        return False
    written = [tensors[name] for name in written_by(kernel, named) if name in tensors]
    keys = {_key(each) for each in written}
    regions = {_key(each): _Region.of(each, known) for each in tensors.values()}
    if any(each.before is None for key, each in regions.items() if key not in keys):
        return False
    places = {key: place for place, key in enumerate(regions)}
    taken = {
        name: _Argument(geometry_of(each), places[_key(each)]) for name, each in tensors.items()
    }
    launch = _Launch(kernel, named | taken, programs, [*regions.values()])
    for tensor in written:
        known.forget(tensor)
        known.postpone(tensor, launch.memory_of(places[_key(tensor)]), launch.basis)
    return True


def _key(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


def _holds_tensors(named: Mapping[str, Any]) -> bool:
    """Whether an argument that is no tensor may hold some: descriptors and tuples do."""
    others = (each for each in named.values() if not isinstance(each, torch.Tensor))
    return any(isinstance(each, tuple) or hasattr(each, "base") for each in others)


def _follower(tensors: Iterable[torch.Tensor]) -> HeldValues | None:
    """Who follows the values of a launch; None if it cannot be run [clause 1]."""
    known: HeldValues | None = None
    for each in tensors:
        known = values_of(each)
        if known is None or known.is_capturing or each.layout is not torch.strided:
            return None
        if is_number(each.dtype) or each.numel() > INTEGERS:
            return None
    return known


class _Argument(NamedTuple):
    """A tensor that a launch takes.

    Attributes:
        geometry: how it lies in its storage.
        region: the place of its storage among those of the launch.
    """

    geometry: Geometry
    region: int


class _Region(NamedTuple):
    """A storage that a launch uses.

    Attributes:
        nbytes: its size.
        before: what it holds; None if that is unknown.
        basis: the rules that this depends on.
    """

    nbytes: int
    before: RealMemory | None
    basis: Basis

    @classmethod
    def of(cls, tensor: torch.Tensor, known: HeldValues) -> _Region:
        """The storage of a tensor as it is now."""
        held = known.saved(tensor)
        before, basis = (None, KNOWN) if held is None else (held.memory, held.basis)
        return cls(tensor.untyped_storage().nbytes(), before, basis)

    def read(self) -> torch.UntypedStorage | None:
        """What it holds, as it was at the launch."""
        return None if self.before is None else self.before.read()


class _Launch:
    """A launch that runs when something asks for what it wrote.

    Attributes:
        basis: the rules that its operands depend on.
    """

    def __init__(
        self,
        kernel: Any,
        arguments: Mapping[str, Any],
        programs: tuple[int, ...],
        regions: Sequence[_Region],
    ) -> None:
        self._kernel = kernel
        self._arguments = arguments
        self._programs = programs
        self._regions = regions
        self._results: Results | None = None
        self.basis: Basis = KNOWN.union(*(each.basis for each in regions))
        waited = [each.before for each in regions if each.before is not None]
        self._depth = 1 + max((each.depth for each in waited), default=0)
        if self._depth > DEEPEST:
            for each in waited:
                each.read()
            self._depth = 1

    def memory_of(self, place: int) -> RealMemory:
        """What a storage holds after the launch."""
        nbytes = self._regions[place].nbytes
        return RealMemory(nbytes, compute=partial(self._read, place), depth=self._depth)

    def _read(self, place: int) -> torch.UntypedStorage | None:
        if self._results is None:
            self._results = self._run()
            self._regions = ()
        return self._results.get(place)

    def _run(self) -> Results:
        """The storages that are known after the launch."""
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            memories = [each.read() for each in self._regions]
            key = self._identity(memories)
            if key not in _remembered:
                _remembered[key] = self._interpreted(memories)
            _remembered.move_to_end(key)
            while len(_remembered) > _REMEMBERED:
                _remembered.popitem(last=False)
            return {place: _copy(each) for place, each in _remembered[key].items()}

    def _identity(self, memories: Sequence[torch.UntypedStorage | None]) -> Any:
        """What its results depend on [clause 4]."""
        digests = [each and hashlib.sha256(_array(each)).digest() for each in memories]
        sizes = [each.nbytes for each in self._regions]
        return self._kernel, repr((self._programs, self._arguments, sizes, digests))

    def _interpreted(self, memories: Sequence[torch.UntypedStorage | None]) -> Results:
        guarded = [
            Region(constructors.zeros(each.nbytes, dtype=torch.uint8, device="cpu"), memory)
            for each, memory in zip(self._regions, memories, strict=True)
        ]
        given = {
            name: each.geometry.view_of(guarded[each.region].memory)
            if isinstance(each, _Argument)
            else each
            for name, each in self._arguments.items()
        }
        try:
            interpret(self._kernel, given, self._programs, guarded)
        except UnknownError:
            return {}
        return {place: each.memory for place, each in enumerate(guarded) if each.is_known()}


def _array(memory: torch.UntypedStorage) -> Any:
    return constructors.empty(0, dtype=torch.uint8, device="cpu").set_(memory).numpy()


def _copy(memory: torch.UntypedStorage) -> torch.UntypedStorage:
    """A copy: writes of the program change it."""
    copied: torch.UntypedStorage = memory.clone()
    return copied
