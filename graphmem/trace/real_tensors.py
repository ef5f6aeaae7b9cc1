"""Which operations run on real data.

Small tensors on the CPU stay real, so that schedules, masks and data loaders can read their values;
large ones are fake.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.trace.operands import tensors_of
from graphmem.values.limits import INTEGERS

aten = torch.ops.aten

_DEVICE_PUT = torch.ops.prims.device_put.default

REAL_CPU_ELEMENTS = 1 << 16
"""The largest number of elements of a real CPU tensor, if the traced device is not the CPU."""

_FROM_SIZE = {
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.zeros.default,
    aten.ones.default,
    aten.full.default,
    aten.rand.default,
    aten.randn.default,
}
_LIKE = frozenset(
    {
        aten.empty_like.default,
        aten.full_like.default,
        aten.ones_like.default,
        aten.rand_like.default,
        aten.randint_like.default,
        aten.randint_like.low_dtype,
        aten.randn_like.default,
        aten.zeros_like.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
        aten.new_full.default,
        aten.new_ones.default,
        aten.new_zeros.default,
    }
)
"""Factories that take their type, and some their shape, of another tensor, and read no data."""
_RANDOM_INTEGERS = {aten.randint.default: 1, aten.randint.low: 2}
_INTEGERS = {torch.bool, torch.uint8, torch.int32, torch.int64, torch.long}
_COPY, _TO_COPY = aten.copy_.default, aten._to_copy.default


def stays_real(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], most: float) -> bool:
    """Whether an operation runs on real data.

    It does if it reads only real CPU tensors, makes none elsewhere and, as a factory, none of more
    than `most` elements.
    """
    if args and isinstance(args[0], FakeTensor):
        return False
    device = args[1] if func is _DEVICE_PUT and len(args) > 1 else kwargs.get("device")
    if device is not None and device.type != "cpu":
        return False
    reads_real = False
    for tensor in tensors_of((args, *kwargs.values())):
        if isinstance(tensor, FakeTensor):
            return False
        reads_real = True
    return reads_real or _is_made_real(func, args, kwargs, most)


def is_like(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation makes a tensor on the host like a fake one, as `to_empty` does."""
    if func not in _LIKE or not isinstance(args[0], FakeTensor):
        return False
    device = kwargs.get("device")
    return device is not None and device.type == "cpu" and args[0].layout is torch.strided


def check_copied(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
    """Raise PyTorch's error if a tensor on the meta device is copied to another one.

    It is of `copy_impl` (aten/src/ATen/native/Copy.cpp); fake tensors copy without it.
    """
    if func is _COPY:
        to, source = args[0].device, args[1]
    elif func is _TO_COPY:
        to, source = (kwargs or {}).get("device"), args[0]
    else:
        return
    if to is not None and to.type != "meta" and source.device.type == "meta":
        shape_of(source).to("cpu")


def shape_of(fake: FakeTensor) -> torch.Tensor:
    """A tensor without data, of a fake one's type and shape, which kernels for the host take."""
    meta = torch.device("meta")
    made: torch.Tensor = aten.empty_strided.default(
        fake.shape, fake.stride(), dtype=fake.dtype, device=meta
    )
    return made


def _is_made_real(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], most: float) -> bool:
    """Whether a factory's CPU tensor is real; more often for integers, which control programs."""
    if most > 1 and (func in _RANDOM_INTEGERS or kwargs.get("dtype") in _INTEGERS):
        most = max(most, INTEGERS)
    return _elements(func, args) <= most


def _elements(func: Any, args: tuple[Any, ...]) -> int:
    """How many elements a factory makes; 0 for one that is always small or already real."""
    position = _RANDOM_INTEGERS.get(func, 0 if func in _FROM_SIZE else None)
    if position is None:
        return 0
    count = 1
    for size in args[position]:
        count *= size
    return count
