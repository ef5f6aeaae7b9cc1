"""Large tensors on the host that nobody has written to.

A program that offloads keeps weights, gradients and optimizer states on the host: 128 GB for eight
billion parameters, of numbers that came from the card, where nobody knows them. The system provides
memory for a page when it is first written to, and a page that was never written to reads as zeros.

(1) A tensor that a factory has made of zeros or of whatever is there is *untouched*, and so is its
    copy.
(2) A copy of the card's numbers into it writes nothing, and makes it *unknown*. So is a new copy.
(3) An operation on something unknown does not run if all that it makes or changes is large and of
    floats. What it makes is untouched and unknown; what it changes becomes unknown if it was
    untouched, and keeps its numbers otherwise.
(4) Any other operation runs, and what it changes is touched, unless that is a small part. So do
    draws, and those that only overwrite. Zeros that become zeros stay untouched.

Only glibc is known to give large tensors fresh pages; elsewhere everything is written.
"""

from __future__ import annotations

import math
import mmap
import os
import platform
import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch

from graphmem import constructors
from graphmem.trace.operands import span_of, tensors_of
from graphmem.unmarked_writes import tensors_written, written_by
from graphmem.values.limits import FLOATS

aten = torch.ops.aten

_FRESH = 1 << 25
"""The least bytes that glibc always maps anew (`DEFAULT_MMAP_THRESHOLD_MAX`, malloc/malloc.c)."""
_UNSET = {
    aten.zeros.default: aten.empty.memory_format,
    aten.zeros_like.default: aten.empty_like.default,
    aten.new_zeros.default: aten.new_empty.default,
    **{
        func: func
        for func in (
            aten.empty.memory_format,
            aten.empty_strided.default,
            aten.empty_like.default,
            aten.new_empty.default,
            aten.new_empty_strided.default,
        )
    },
}
"""Factories, and what makes the same tensor without writing to it."""
_REFUSED = "can't allocate memory"
"""By c10/core/impl/alloc_cpu.cpp, as of more than the machine's memory (`overcommit_memory`)."""
_NO_RESERVE = 0x4000  # `MAP_NORESERVE` (include/uapi/asm-generic/mman.h), in `mmap` from 3.13 on
COPIES = frozenset({aten._to_copy.default, aten.clone.default})
_KEEP_ZEROS = frozenset({aten.zero_.default, aten.mul_.Tensor, aten.mul_.Scalar})
"""What leaves zeros as they are, by a number."""
_OVERWRITES = frozenset(
    {aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default}
)

Run = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class _Untouched(weakref.ref[torch.UntypedStorage]):
    """A weak reference to a storage that is untouched, but for small parts if not `is_zeros`."""

    __slots__ = ("is_unknown", "is_zeros", "key", "nbytes")
    is_zeros: bool
    key: int
    nbytes: int
    is_unknown: bool


class UntouchedTensors:
    """Knows the tensors on the host that nobody has written to."""

    def __init__(self) -> None:
        self._storages: dict[int, _Untouched] = {}

    @property
    def exist(self) -> bool:
        """Whether there are any."""
        return bool(self._storages)

    def zeros(
        self, like: torch.Tensor, otherwise: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """A tensor on the host for numbers of the card [clause 2]; `otherwise` makes small ones."""
        if not (_is_large(like) and _maps_anew()):
            return otherwise(like)
        return self._made(like, is_unknown=True)

    def takes(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        """Whether a copy of a tensor whose numbers are unknown writes nothing [clause 2]."""
        found = self._of(target)
        if found is None or not _is_large(target) or not self._is_unknown(source):
            return False
        found.is_unknown = True
        return True

    def touch(self, memory: torch.UntypedStorage) -> None:
        """Note that a storage is written to, or may be."""
        self._storages.pop(memory._cdata, None)

    def wrote(self, tensor: torch.Tensor) -> None:
        """Note that a tensor is written to, which may be a part of an untouched one."""
        if tensor.numel() > FLOATS:
            self.touch(tensor.untyped_storage())
        elif (found := self._of(tensor)) is not None:
            found.is_zeros = False

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Run) -> Any:
        """Run an operation on the host, by `run`, or leave it out."""
        if func is aten.full.default and _is_zeros(args, kwargs):
            func, args = aten.zeros.default, args[:1]
        if func in _UNSET:
            makes = self._make if _makes_many(args, kwargs) and _maps_anew() else run
            return makes(func, args, kwargs)
        if not self._storages or func.is_view:
            return run(func, args, kwargs)
        if func in _KEEP_ZEROS and self._stays_zeros(*args):
            return args[0]
        if _is_of_lists(func):
            args = self._rows_to_run(func, args)
            if not args[0]:
                return None
        changed = list(tensors_written(func, args, kwargs))
        if self._is_left_out(func, args, kwargs):
            made = self._unchanged(func, changed) if changed else self._unrun(func, args, kwargs)
            if made is not None:
                return made
        for tensor in changed:
            self.wrote(tensor)
        return run(func, args, kwargs)

    def _rows_to_run(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of an operation that changes each tensor of a list, less clause (3)."""
        rows = range(len(args[0]))
        has_rows = [isinstance(each, (tuple, list)) and len(each) == len(rows) for each in args]
        columns = list(zip(args, has_rows, strict=True))
        run = []
        for row in rows:
            of_row = tuple(column[row] if has else column for column, has in columns)
            changed = [of_row[each] for each, _ in written_by(func) if has_rows[each]]
            if self._reads_unknown(of_row, {}) and all(map(_is_large, changed)):
                self._leave(changed)
            else:
                run.append(row)
        return tuple([column[row] for row in run] if has else column for column, has in columns)

    def _make(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        unset = _UNSET[func]
        try:
            made = unset(*args, **kwargs)
        except RuntimeError as error:
            if _REFUSED not in str(error):
                raise
            made = self._made(_without_data(unset, args, kwargs), is_unknown=False)
        if _is_large(made):
            self._note(made.untyped_storage(), is_unknown=False)
        elif unset is not func:
            made.zero_()
        return made

    def _stays_zeros(self, tensor: torch.Tensor, *numbers: Any) -> bool:
        found = self._of(tensor)
        are_finite = all(isinstance(each, (int, float)) and math.isfinite(each) for each in numbers)
        return found is not None and found.is_zeros and are_finite

    def _is_left_out(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if torch.Tag.nondeterministic_seeded in func.tags:
            return False
        if func in COPIES and (found := self._of(args[0])) is not None and found.is_zeros:
            return True
        read = args[1:] if func in _OVERWRITES else args
        return self._reads_unknown(read, kwargs)

    def _reads_unknown(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return any(map(self._is_unknown, tensors_of((args, *kwargs.values()))))

    def _is_unknown(self, tensor: torch.Tensor) -> bool:
        found = self._of(tensor)
        return found is not None and found.is_unknown and tensor.numel() > FLOATS

    def _of(self, tensor: torch.Tensor) -> _Untouched | None:
        if tensor.layout is not torch.strided:
            return None
        memory = tensor.untyped_storage()
        found = self._storages.get(memory._cdata)
        return None if found is None or found.nbytes != memory.nbytes() else found

    def _unchanged(self, func: Any, changed: list[torch.Tensor]) -> Any:
        """What an operation returns that changes these, and has not run; None if it has to."""
        if len(func._schema.returns) != len(changed) or not all(map(_is_large, changed)):
            return None
        self._leave(changed)
        return changed[0] if len(changed) == 1 else tuple(changed)

    def _leave(self, changed: Iterable[torch.Tensor]) -> None:
        for found in map(self._of, changed):
            if found is not None:
                found.is_unknown = True

    def _unrun(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Tensors as an operation makes them, which has not run; None if it has to."""
        try:
            results = _without_data(func, args, kwargs)
        except (NotImplementedError, RuntimeError):
            return None  # no kernel for tensors without data
        several = results if isinstance(results, (tuple, list)) else [results]
        if not all(isinstance(each, torch.Tensor) and _is_large(each) for each in several):
            return None
        is_unknown = self._reads_unknown(args, kwargs)
        made = [self._made(each, is_unknown=is_unknown) for each in several]
        return made[0] if several is not results else type(results)(made)

    def _made(self, like: torch.Tensor, *, is_unknown: bool) -> torch.Tensor:
        memory = _fresh(span_of(like), like.dtype)
        self._note(memory.untyped_storage(), is_unknown=is_unknown)
        return memory.as_strided(like.shape, like.stride())

    def _note(self, memory: torch.UntypedStorage, *, is_unknown: bool) -> None:
        found = self._storages[memory._cdata] = _Untouched(memory, self._freed)
        found.key, found.nbytes = memory._cdata, memory.nbytes()
        found.is_unknown, found.is_zeros = is_unknown, True

    def _freed(self, found: _Untouched) -> None:
        if self._storages.get(found.key) is found:
            del self._storages[found.key]


_META = torch.device("meta")


def _makes_many(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a factory makes a strided tensor of many elements: of a size, or like a tensor."""
    like = args[0] if isinstance(args[0], torch.Tensor) else None
    size = args[0] if like is None else args[1] if len(args) > 1 else like.shape
    layouts = (kwargs.get("layout"), None if like is None else like.layout)
    return math.prod(size) > FLOATS and all(each in (None, torch.strided) for each in layouts)


def _is_zeros(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return args[1] == 0 and kwargs.get("dtype") is not None


def _without_data(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation makes of tensors without data."""
    operands = [_as_meta(each) for each in args]
    options = {name: _as_meta(value) for name, value in kwargs.items()}
    on_meta = {"device": _META} if func in _UNSET or kwargs.get("device") is not None else {}
    return func(*operands, **options | on_meta)


def _fresh(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory that nobody has written to, of which the system need not have as much."""
    try:
        return constructors.empty(elements, dtype=dtype, device="cpu")
    except RuntimeError as error:
        if _REFUSED not in str(error):
            raise
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    return torch.frombuffer(mmap.mmap(-1, elements * dtype.itemsize, flags=flags), dtype=dtype)


def _as_meta(value: Any) -> Any:
    """An argument with tensors without data in place of tensors."""
    if isinstance(value, torch.Tensor):
        empty = constructors.empty(0, dtype=value.dtype, device=_META)
        return empty.new_empty_strided(value.shape, value.stride())
    if isinstance(value, (tuple, list)):
        return [_as_meta(each) for each in value]
    return value


def _is_large(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values are not followed, and its memory is fresh when it is allocated."""
    return (
        tensor.dtype.is_floating_point
        and tensor.numel() > FLOATS
        and tensor.numel() * tensor.element_size() >= _FRESH
        and 0 not in tensor.stride()
    )


@cache
def _is_of_lists(func: Any) -> bool:
    """Whether an operation changes each tensor of a list, and returns nothing."""
    written = [each for each in func._schema.arguments if each.alias_info is not None]
    return (
        bool(written)
        and not func._schema.returns
        and all(str(each.type) == "List[Tensor]" for each in written)
        and written[0].name == func._schema.arguments[0].name
    )


@cache
def _maps_anew() -> bool:
    return platform.libc_ver()[0] == "glibc" and "malloc" not in os.environ.get("LD_PRELOAD", "")
