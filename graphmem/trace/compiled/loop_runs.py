"""Run a loop of one of Inductor's kernels on known values, for all of its indices at once.

Each variable of the loop is a tensor of its values along a dimension of its own, and numbers are
tensors that broadcast over all of them.

Clauses:
  (1) numbers of 16 bits are computed in 32, and rounded where they are stored, as Triton code does
      it (`to_dtype` with `use_compute_types`, torch/_inductor/ops_handler.py);
  (2) an index out of bounds is an error, unless a mask makes its number irrelevant;
  (3) a loop of more indices than `MOST`, or `MOST_NUMBERS` if it stores numbers other than
      integers, is not run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from graphmem import constructors
from graphmem.values.held import UnknownError
from graphmem.values.limits import DRAWN, INTEGERS, is_number

MOST = INTEGERS
"""The most indices of a loop over integers."""

MOST_NUMBERS = DRAWN

_TERM = re.compile(r"((?P<factor>\d+)\*)?(?P<name>[a-z]\w*)")
_SUM = re.compile(rf"{_TERM.pattern}( \+ (\d+\*)?[a-z]\w*)*")

Block = tuple["Step", ...]


class StepResult(NamedTuple):
    """The result of an earlier step, as an argument."""

    name: str


class Step(NamedTuple):
    """A step of a loop; `kind` is that of Inductor's operation, such as "load"."""

    name: str
    kind: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class FusedLoop(NamedTuple):
    """A loop over all combinations of some variables.

    Attributes:
        ranges: each variable with its size.
        reduced: how many of the last variables are reduced.
        main: what is computed for each combination.
        blocks: what is computed where a mask is true, by name.
    """

    ranges: tuple[tuple[str, str], ...]
    reduced: int
    main: Block
    blocks: dict[str, Block]

    def buffers(self) -> Iterator[str]:
        """The names of the buffers that it loads or stores."""
        yield from self.loaded()
        yield from self.stored()

    def loaded(self) -> Iterator[str]:
        """The names of the buffers that it loads."""
        for block in (self.main, *self.blocks.values()):
            yield from (step.args[0] for step in block if step.kind == "load")
            yield from (step.args[1][0] for step in block if step.kind == "bucketize")

    def stored(self) -> Iterator[str]:
        """The names of the buffers that it stores."""
        yield from (step.args[0] for step in self.main if step.kind in _STORES)


class Buffers(Protocol):
    """The values of a kernel's buffers."""

    def load(self, name: str) -> torch.Tensor:
        """A buffer's elements in one dimension.

        Raises:
            UnknownError: they are not known.
        """

    def dtype(self, name: str) -> torch.dtype:
        """The dtype of a buffer that is stored."""

    def store(
        self, name: str, index: torch.Tensor | None, value: torch.Tensor, *, adds: bool
    ) -> None:
        """Store a value at each index, from zero upwards if it is None.

        Raises:
            UnknownError: the buffer's other elements are not known.
        """


def run(loop: FusedLoop, buffers: Buffers, sizes: Mapping[str, Any]) -> None:
    """Run a loop.

    Args:
        loop: the loop.
        buffers: where it loads and stores.
        sizes: the values of symbols.

    Raises:
        UnknownError: what it needs is not known.
    """
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        for name in loop.loaded():
            buffers.load(name)
        try:
            _Run(loop, buffers, sizes).block(loop.main)
        except Exception as error:  # what cannot be computed is unknown, whatever the reason
            raise UnknownError from error


class _Run:
    """One run of a loop."""

    def __init__(self, loop: FusedLoop, buffers: Buffers, sizes: Mapping[str, Any]) -> None:
        self._loop = loop
        self._buffers = buffers
        self._names: dict[str, Any] = {**sizes, "__builtins__": {}}
        self._shape = [self._evaluated(size) for _, size in loop.ranges]
        are_numbers = any(is_number(buffers.dtype(name)) for name in loop.stored())
        if math.prod(self._shape) > (MOST_NUMBERS if are_numbers else MOST):
            raise UnknownError
        for place, (name, _) in enumerate(loop.ranges):
            shape = [1] * len(self._shape)
            shape[place] = self._shape[place]
            self._names[name] = constructors.arange(shape[place], device="cpu").reshape(shape)
        self._is_masked = False

    def _evaluated(self, expression: str) -> Any:
        return eval(expression, self._names)

    def block(self, block: Block) -> Any:
        """Run some steps; returns the output."""
        found: dict[str, Any] = {}
        for step in block:
            args, kwargs = _filled(step.args, found), _filled(step.kwargs, found)
            if step.kind == "output":
                return args[0]
            own = getattr(self, f"_{step.kind}", None)
            found[step.name] = (own or _POINTWISE[step.kind])(*args, **kwargs)
        return None

    def _get_index(self, expression: str) -> torch.Tensor | None:
        """An index for each combination; None if they count up from zero."""
        if self._counts_up(expression):
            return None
        return _tensor(self._evaluated(expression), torch.int64)

    def _counts_up(self, expression: str) -> bool:
        if not _SUM.fullmatch(expression):
            return False
        terms = (_TERM.fullmatch(each) for each in expression.split(" + "))
        factors = {term["name"]: int(term["factor"] or 1) for term in terms if term}
        step = 1
        for (name, _), size in zip(self._loop.ranges[::-1], self._shape[::-1], strict=True):
            if factors.pop(name, step if size == 1 else 0) != step:
                return False
            step *= size
        return not factors

    def _index_expr(self, index: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        if index is None:
            index = constructors.arange(math.prod(self._shape), device="cpu").reshape(self._shape)
        return index.to(dtype)

    _value_expr = _index_expr

    def _load(self, name: str, index: torch.Tensor | None) -> torch.Tensor:
        flat, count = self._buffers.load(name), math.prod(self._shape)
        if index is None and flat.numel() >= count:
            loaded = flat[:count].reshape(self._shape)
        else:
            index = self._index_expr(index, torch.int64)
            loaded = flat[index.clamp(0, max(flat.numel() - 1, 0)) if self._is_masked else index]
        return loaded.to(_computed(loaded.dtype))

    def _store(
        self, name: str, index: torch.Tensor | None, value: Any, mode: str | None = None
    ) -> None:
        if mode not in (None, "atomic_add"):
            raise UnknownError
        index = None if index is None else index.expand(self._shape)
        self._buffers.store(name, index, self._everywhere(value), adds=mode is not None)

    def _store_reduction(self, name: str, index: torch.Tensor | None, value: Any) -> None:
        kept = self._shape[: len(self._shape) - self._loop.reduced] + [1] * self._loop.reduced
        index = self._index_expr(index, torch.int64)
        self._buffers.store(name, index.expand(kept), value.expand(kept), adds=False)

    def _everywhere(self, value: torch.Tensor) -> torch.Tensor:
        return value.expand(self._shape)

    def _indirect(self, name: str, size: str, wraps: bool, index: torch.Tensor) -> None:
        index = index.to(torch.int64)
        if wraps:
            index = torch.where(index < 0, index + self._evaluated(size), index)
        self._names[name] = index

    def _masked(self, name: str, mask: torch.Tensor, other: Any) -> torch.Tensor:
        outer, self._is_masked = self._is_masked, True
        try:
            value = self.block(self._loop.blocks[name])
        finally:
            self._is_masked = outer
        return torch.where(mask, value, _tensor(other, value.dtype).to(value.dtype))

    def _reduction(self, dtype: torch.dtype, source: torch.dtype, kind: str, value: Any) -> Any:
        reduce = _REDUCTIONS.get(kind)
        if reduce is None or not isinstance(value, torch.Tensor):
            raise UnknownError
        if kind.startswith("arg"):
            self._along(value)
        dims = tuple(range(-self._loop.reduced, 0))
        made = reduce(self._everywhere(value), dims)
        return made if isinstance(made, tuple) else made.to(_computed(dtype))

    def _scan(self, kind: str, dtypes: Sequence[torch.dtype], values: Sequence[Any]) -> Any:
        scan = torch.cumsum if kind == "add" else torch.cumprod
        return (scan(self._along(values[0]), -1, dtype=_computed(dtypes[0])),)

    def _bucketize(
        self,
        value: torch.Tensor,
        boundaries: Sequence[Any],
        first: Any,
        dtype: torch.dtype,
        right: bool,
        sorter: Any = None,
        sorter_indices: Any = None,
    ) -> torch.Tensor:
        """How many boundaries are below each value, or not above it if `right`."""
        name, count, _, step = boundaries
        if sorter is not None or value.numel() * int(count) > MOST:
            raise UnknownError
        places = constructors.arange(int(count), device="cpu") * step
        row = self._buffers.load(name)[_tensor(first, torch.int64).unsqueeze(-1) + places]
        is_below = row <= value.unsqueeze(-1) if right else row < value.unsqueeze(-1)
        return is_below.sum(-1).to(dtype)

    def _sort(self, dtypes: Any, values: Sequence[Any], stable: bool, descending: bool) -> Any:
        keys, order = torch.sort(self._along(values[0]), stable=True, descending=descending)
        return keys, *(self._along(each).gather(-1, order) for each in values[1:])

    def _along(self, value: torch.Tensor) -> torch.Tensor:
        """A value for each index, along the only dimension that is reduced."""
        if self._loop.reduced != 1:
            raise UnknownError
        return self._everywhere(value)


def _filled(argument: Any, found: dict[str, Any]) -> Any:
    if isinstance(argument, StepResult):
        return found.get(argument.name)  # None: the handler, which is no result
    if isinstance(argument, dict):
        return {name: _filled(each, found) for name, each in argument.items()}
    if isinstance(argument, (list, tuple)):
        return [_filled(each, found) for each in argument]
    return argument


def _computed(dtype: torch.dtype) -> torch.dtype:
    """Clause (1)."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _tensor(value: Any, dtype: torch.dtype) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    return constructors.full((), value, dtype=dtype, device="cpu")


def _constant(value: Any, dtype: torch.dtype) -> torch.Tensor:
    return _tensor(value, _computed(dtype))


def _to_dtype(
    value: torch.Tensor,
    dtype: torch.dtype,
    src_dtype: torch.dtype | None = None,
    use_compute_types: bool = True,
) -> torch.Tensor:
    return value.to(_computed(dtype) if use_compute_types else dtype)


def _as_integer(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda value, dtype: function(value).to(dtype)


_SAME = (
    "abs add bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor "
    "ceil eq exp floor fmod ge gt isinf isnan le log logical_and logical_not logical_or "
    "logical_xor lt maximum minimum mul ne neg pow reciprocal relu remainder round rsqrt sigmoid "
    "sign sqrt square sub tanh trunc where"
).split()
"""Operations of Inductor that are those of torch with the same name."""

_POINTWISE: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in _SAME},
    "and_": torch.bitwise_and,
    "or_": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "mod": torch.fmod,
    "truediv": torch.true_divide,
    "floordiv": torch.floor_divide,
    "truncdiv": lambda left, right: torch.div(left, right, rounding_mode="trunc"),
    "identity": lambda value: value,
    "constant": _constant,
    "to_dtype": _to_dtype,
    "ceil_to_int": _as_integer(torch.ceil),
    "floor_to_int": _as_integer(torch.floor),
    "round_to_int": _as_integer(torch.round),
    "trunc_to_int": _as_integer(torch.trunc),
    "check_bounds": lambda *args: None,
    "getitem": lambda several, place: several[place],
}


def _kept(value: torch.Tensor, dims: tuple[int, ...]) -> list[int]:
    return [*value.shape[: dims[0]], *(1 for _ in dims)]


def _welford(value: torch.Tensor, dims: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Mean, sum of squared deviations, count."""
    mean = value.mean(dims, keepdim=True)
    return (
        mean,
        (value - mean).square().sum(dims, keepdim=True),
        torch.ones_like(value).sum(dims, keepdim=True),
    )


def _softmax(value: torch.Tensor, dims: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """The largest number, and the sum of exponentials relative to it."""
    largest = value.amax(dims, keepdim=True)
    return largest, (value - largest).exp().sum(dims, keepdim=True)


_REDUCTIONS: dict[str, Callable[[torch.Tensor, tuple[int, ...]], Any]] = {
    "sum": lambda value, dims: value.sum(dims, keepdim=True),
    "max": lambda value, dims: value.amax(dims, keepdim=True),
    "min": lambda value, dims: value.amin(dims, keepdim=True),
    "argmax": lambda value, dims: value.argmax(-1, keepdim=True),
    "argmin": lambda value, dims: value.argmin(-1, keepdim=True),
    "prod": lambda value, dims: value.flatten(dims[0]).prod(-1).reshape(_kept(value, dims)),
    "welford_reduce": _welford,
    "online_softmax_reduce": _softmax,
    "any": lambda value, dims: (value != 0).any(dims, keepdim=True),
}


_STORES = ("store", "store_reduction")

_OWN = ("load", "index_expr", "value_expr", "bucketize", "reduction", "sort")

KINDS = frozenset((*_POINTWISE, *_STORES, *_OWN))
"""The operations that are followed."""
