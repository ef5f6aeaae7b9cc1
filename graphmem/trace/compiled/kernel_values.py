"""Follow values through Inductor's kernels, which compute nothing here.

Clauses:
  (1) when a wrapper calls a kernel, its loops (`kernel_loops.py`) are run on the host if what they
      load is known, and what they store is known from then on: it can be a size that the wrapper
      reads next, or be passed on to an operator that is no kernel, such as a collective;
  (2) what a kernel writes and is not known is forgotten;
  (3) other kernels, such as the program's own, write what PyTorch's analysis finds.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem import constructors
from graphmem.trace.compiled.kernel_loops import KernelCall, KernelCalls
from graphmem.trace.compiled.loop_runs import run
from graphmem.trace.operands import span_of
from graphmem.values.held import KNOWN, Basis, UnknownError
from graphmem.values.known import KnownValues
from graphmem.virtual_device.libraries.triton_writes import forget_written
from graphmem.virtual_device.patching import Replacement

_CALL = re.compile(r"(?P<kernel>\w+)\.run\((?P<arguments>.*)")
_NAME = re.compile(r"\w+")
_WRITTEN = ("out_ptr", "in_out_ptr")


def replacements(known: KnownValues, kernels: Mapping[str, KernelCalls]) -> list[Replacement]:
    """The attributes to replace.

    Args:
        known: the values of tensors.
        kernels: the calls in each wrapper, by its file.
    """
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    launch: Any = CachingAutotuner.run
    found: dict[tuple[str, int], KernelCall | None] = {}

    def launch_and_follow(autotuner: Any, *args: Any, **kwargs: Any) -> Any:
        result = launch(autotuner, *args, **kwargs)
        frame = sys._getframe(1)
        of_wrapper = kernels.get(frame.f_code.co_filename)
        if of_wrapper is not None:
            line = frame.f_code.co_filename, frame.f_lineno
            if line not in found:
                found[line] = _called(of_wrapper, *line)
            call = found[line]
            if call is None:
                _forget_written(autotuner, args)
            else:
                _note(known, args, _written(autotuner, args), _run(known, call, args, frame))
        return result

    return [(CachingAutotuner, "run", launch_and_follow)]


def _called(kernels: KernelCalls, file: str, line: int) -> KernelCall | None:
    """The call of a kernel at a line of a wrapper."""
    match = _CALL.search(linecache.getline(file, line))
    if match is None:
        return None
    names = tuple(_NAME.findall(match["arguments"]))
    calls = kernels.get(match["kernel"], ())
    return next((each for each in calls if names[: len(each.arguments)] == each.arguments), None)


def _written(autotuner: Any, args: Sequence[Any]) -> list[int]:
    """The positions of the arguments that a kernel of Inductor's writes into."""
    names = _parameters(autotuner, is_tensor=True)
    tensors = [place for place, each in enumerate(args) if isinstance(each, torch.Tensor)]
    pairs = zip(tensors, names, strict=True)
    return [place for place, name in pairs if name.startswith(_WRITTEN)]


def _parameters(autotuner: Any, *, is_tensor: bool) -> list[str]:
    signature = _by_name(autotuner, "signature").items()
    given = [(name, str(kind)) for name, kind in signature if kind != "constexpr"]
    return [name for name, kind in given if kind.startswith("*") is is_tensor]


def _by_name(autotuner: Any, what: str) -> dict[str, Any]:
    """Facts about parameters, whose keys are positions up to torch 2.5."""
    names = autotuner.fn.arg_names
    facts = autotuner.triton_meta[what].items()
    return {names[key] if isinstance(key, int) else key: value for key, value in facts}


def _forget_written(autotuner: Any, args: Sequence[Any]) -> None:
    """Clause (3)."""
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    others = [each for each in args if not isinstance(each, torch.Tensor)]
    named = dict(zip(_parameters(autotuner, is_tensor=True), tensors, strict=False))
    named |= dict(zip(_parameters(autotuner, is_tensor=False), others, strict=False))
    forget_written(autotuner.fn, (), _by_name(autotuner, "constants") | named)


class _Buffers:
    """What is known of a kernel's buffers while it runs, see `loop_runs.Buffers`.

    A loop loads what an argument held before the kernel ran, unless it names a buffer that a loop
    of the same kernel stores.
    """

    def __init__(
        self, known: KnownValues, call: KernelCall, args: Sequence[Any], sizes: Mapping[str, Any]
    ) -> None:
        self._known = known
        self._call = call
        self._args = args
        self._sizes = sizes
        self._basis: Basis = KNOWN
        self._unknown = set(call.unknown)
        self._stored: dict[str, torch.Tensor] = {}
        self.results: dict[int, tuple[torch.Tensor, Basis] | None] = {}

    def load(self, name: str) -> torch.Tensor:
        if name in self._unknown:
            raise UnknownError
        return self._stored[name] if name in self._stored else self._held(name)

    def _held(self, name: str) -> torch.Tensor:
        place = self._call.places.get(name)
        tensor = None if place is None else self._args[place]
        if not isinstance(tensor, torch.Tensor) or tensor.requires_grad:
            raise UnknownError
        known = self._known.of(tensor)
        if known is None:
            raise UnknownError
        self._basis |= known.basis
        return _in_one_dimension(known.tensor)

    def dtype(self, name: str) -> torch.dtype:
        return self._call.made[name][0]

    def store(
        self, name: str, index: torch.Tensor | None, value: torch.Tensor, *, adds: bool
    ) -> None:
        dtype, size = self._call.made[name]
        elements = int(eval(size, {"__builtins__": {}, **self._sizes}))
        if index is None and not adds and value.numel() == elements:
            self._stored[name] = value.reshape(-1).to(dtype, copy=True)
        else:
            self._stored[name] = self._stored_at(name, index, value, elements, adds=adds)
        self._note(name, (self._stored[name], self._basis))

    def _stored_at(
        self,
        name: str,
        index: torch.Tensor | None,
        value: torch.Tensor,
        elements: int,
        *,
        adds: bool,
    ) -> torch.Tensor:
        dtype = self.dtype(name)
        if index is None:
            index = constructors.arange(value.numel(), device="cpu").reshape(value.shape)
        is_whole = not adds and self._covers(name, index, elements)
        base = constructors.zeros(elements, dtype=dtype, device="cpu")
        base = base if is_whole else self._before(name).clone()
        return base.index_put_((index,), value.to(dtype), accumulate=adds)

    def _covers(self, name: str, index: torch.Tensor, elements: int) -> bool:
        """Whether these indices are all elements of a buffer, which may lie apart."""
        covered = constructors.zeros(elements, dtype=torch.bool, device="cpu")
        covered[index] = True
        place = self._call.places.get(name)
        if place is not None:
            covered = covered.as_strided(self._args[place].shape, self._args[place].stride())
        return bool(covered.all())

    def _before(self, name: str) -> torch.Tensor:
        """What the memory of a buffer has that is written in part."""
        place = self._call.places.get(name, -1)
        if place not in self.results:
            return self._held(name)
        result = self.results[place]
        if result is None:
            raise UnknownError
        return result[0]

    def fail(self, name: str) -> None:
        """Know nothing of a buffer that is stored."""
        self._unknown.add(name)
        self._note(name, None)

    def _note(self, name: str, result: tuple[torch.Tensor, Basis] | None) -> None:
        if name in self._call.places:
            self.results[self._call.places[name]] = result


def _in_one_dimension(tensor: torch.Tensor) -> torch.Tensor:
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        return tensor.as_strided((span_of(tensor),), (1,))


def _run(
    known: KnownValues, call: KernelCall, args: Sequence[Any], frame: FrameType
) -> Mapping[int, tuple[torch.Tensor, Basis] | None]:
    """What is known of a kernel's arguments when it has run, in one dimension, by position."""
    sizes = _sizes(call.symbols, frame)
    buffers = _Buffers(known, call, args, sizes)
    for loop in call.loops:
        try:
            run(loop, buffers, sizes)
        except UnknownError:
            for name in loop.stored():
                buffers.fail(name)
    return buffers.results


def _sizes(symbols: Iterable[str], frame: FrameType) -> dict[str, Any]:
    """The values of symbols in a wrapper."""
    if not symbols:
        return {}
    found = frame.f_locals
    sizes = {name: found[name] for name in symbols if name in found}
    if isinstance(found, dict):  # before Python 3.13 a copy, which keeps what the wrapper frees
        found.clear()
    return sizes


def _note(
    known: KnownValues,
    args: Sequence[Any],
    written: Sequence[int],
    made: Mapping[int, tuple[torch.Tensor, Basis] | None],
) -> None:
    """Clauses (1) and (2)."""
    for place in written:
        tensor = args[place]
        if not isinstance(tensor, FakeTensor):
            continue
        result = made.get(place)
        values = None if result is None else _laid_out(result[0], tensor)
        if result is None or values is None:
            known.forget(tensor)
        else:
            known.write(tensor, values, result[1])


def _laid_out(flat: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor | None:
    with torch._C._DisableTorchDispatch():
        try:
            return flat.as_strided(tensor.shape, tensor.stride()).to(tensor.dtype)
        except RuntimeError:  # it is larger
            return None
