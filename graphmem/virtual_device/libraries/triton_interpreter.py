"""Triton's own interpreter, run over memory that is watched.

`TRITON_INTERPRET=1` makes `@triton.jit` build interpreted kernels (triton/runtime/interpreter.py).
Here a kernel that was built for a card is interpreted once, with the functions that it calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from threading import Lock
from types import SimpleNamespace
from typing import Any

import torch

from graphmem.values.held import UnknownError
from graphmem.virtual_device.patching import replaced

_INTERPRETER = "triton.runtime.interpreter"
_one_at_a_time = Lock()


class Region:
    """Real memory for a storage, and which of its bytes are known.

    Attributes:
        memory: the memory.
    """

    def __init__(self, room: torch.Tensor, before: torch.UntypedStorage | None) -> None:
        """Take memory for a storage.

        Args:
            room: bytes of its size.
            before: what it holds; None if that is unknown.
        """
        self.memory = room.untyped_storage()
        if before is not None:
            self.memory.copy_(before)
        self._is_known = torch.full_like(room, before is not None, dtype=torch.bool).numpy()

    def is_known(self) -> bool:
        """Whether all of it is known."""
        return bool(self._is_known.all())

    def use(self, addresses: Any, itemsize: int, *, stores: bool) -> Any:
        """Note a use of numbers at addresses; returns which of them lie here.

        Raises:
            UnknownError: one that is loaded is not known.
        """
        first = addresses.astype("int64") - self.memory.data_ptr()
        is_here = (first >= 0) & (first + itemsize <= self.memory.nbytes())
        for byte in range(itemsize):
            places = first[is_here] + byte
            if stores:
                self._is_known[places] = True
            elif not self._is_known[places].all():
                raise UnknownError
        return is_here


class _Guard:
    """The interpreter's access to memory (python/src/interpreter.cc), which checks no address."""

    def __init__(self, original: Any, regions: Sequence[Region]) -> None:
        self._original = original
        self._regions = regions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def load(self, addresses: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self._check(addresses[mask], _itemsize(dtype), stores=False)
        return self._original.load(addresses, mask, other, dtype)

    def store(self, addresses: Any, values: Any, mask: Any) -> None:
        self._check(addresses[mask], values.dtype.itemsize, stores=True)
        self._original.store(addresses, values, mask)

    def atomic_rmw(self, kind: Any, addresses: Any, values: Any, mask: Any, order: Any) -> Any:
        self._check(addresses[mask], values.dtype.itemsize, stores=False)
        return self._original.atomic_rmw(kind, addresses, values, mask, order)

    def atomic_cas(self, addresses: Any, compared: Any, values: Any, order: Any) -> Any:
        self._check(addresses.reshape(-1), values.dtype.itemsize, stores=False)
        return self._original.atomic_cas(addresses, compared, values, order)

    def _check(self, addresses: Any, itemsize: int, *, stores: bool) -> None:
        found = sum(each.use(addresses, itemsize, stores=stores).sum() for each in self._regions)
        if found != addresses.size:
            raise UnknownError


def interpret(
    kernel: Any,
    arguments: Mapping[str, Any],
    programs: tuple[int, ...],
    regions: Sequence[Region],
) -> None:
    """Run a kernel.

    Args:
        kernel: a function of `@triton.jit`.
        arguments: by name; tensors in one of the regions.
        programs: how many there are, in up to three dimensions.
        regions: all memory that it may use.

    Raises:
        UnknownError: it cannot be interpreted, or uses what it may not.
    """
    interpreter = import_module(_INTERPRETER)
    if not hasattr(interpreter, "_LangPatchScope"):  # it would leave `triton.language` changed
        raise UnknownError
    try:
        function = interpreter.InterpretedFunction(kernel.fn)
        with _one_at_a_time, _interpreting(interpreter, regions):
            function.run(grid=programs, warmup=False, **arguments)
    except Exception as error:  # what cannot be computed is unknown, whatever the reason
        raise UnknownError from error


@contextmanager
def _interpreting(interpreter: Any, regions: Sequence[Region]) -> Iterator[None]:
    """Let functions that a kernel calls be interpreted, those of `triton.language` too."""
    language = import_module("triton.language")
    called = import_module("triton.runtime.jit").JITFunction
    guard = _Guard(interpreter._interpreter, regions)
    both = {"tl": language, "core": language.core}
    with replaced(
        [(interpreter, "_interpreter", guard), (called, "__call__", _call_of(interpreter))]
    ):
        patched = interpreter._patch_lang(SimpleNamespace(__globals__=both))
        try:
            yield
        finally:
            patched.restore()


def _call_of(interpreter: Any) -> Callable[..., Any]:
    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        return interpreter.InterpretedFunction(function.fn).rewrite()(*args, **kwargs)

    return call


def _itemsize(dtype: Any) -> int:
    """Of a dtype of numpy, or of a class that stands for one."""
    size: int = import_module("numpy").dtype(dtype).itemsize
    return size
