"""Quantised tensors: what `Quantizer::create_tensor` and `quantize` allocate (csrc/quantizer.cpp).

(1) A tensor scaled as a whole (`Float8Quantizer`, `Float8CurrentScalingQuantizer`) has its data, a
    transposed copy unless the card multiplies any layout, and one inverse scale.
(2) A tensor scaled in blocks (`MXFP8Quantizer`, `Float8BlockQuantizer`) has data and inverse scales
    for use by rows, and the same for use by columns.
(3) Current scaling takes two numbers while it quantises; where a kernel computes the largest value
    on the way, its result in high precision, that value and a scale
    (`create_unquantized_tensor_with_amax`, `quantize_with_amax`).

Python's classes are those of the installed package. Not covered: NVFP4, and grouped tensors.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from graphmem.virtual_device.stand_ins.transformer_engine.card import multiplies_any_layout, refuse

DELAYED, CURRENT = "Float8Quantizer", "Float8CurrentScalingQuantizer"
BLOCKS_OF_32, BLOCKS_OF_128 = "MXFP8Quantizer", "Float8BlockQuantizer"
_MODULES = {
    DELAYED: ("float8_tensor", "Float8Tensor"),
    CURRENT: ("float8_tensor", "Float8Tensor"),
    BLOCKS_OF_32: ("mxfp8_tensor", "MXFP8Tensor"),
    BLOCKS_OF_128: ("float8_blockwise_tensor", "Float8BlockwiseQTensor"),
}
USES = ("rowwise", "columnwise")
Shape = Sequence[int]


def kind_of(quantizer: Any) -> str | None:
    """The class of a quantizer; None for no quantizer."""
    if quantizer is None:
        return None
    name = type(quantizer).__name__
    if name not in _MODULES:
        refuse(name)
    return name


def create(
    quantizer: Any,
    shape: Shape,
    dtype: torch.dtype,
    device: Any = "cuda",
    pin_memory: bool = False,
) -> Any:
    """`create_tensor`: a plain tensor without a quantizer."""
    kind = kind_of(quantizer)

    def new(size: Shape, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        return torch.empty(tuple(size), dtype=dtype, device=device, pin_memory=pin_memory)

    if kind is None:
        return new(shape, dtype)
    if kind in (DELAYED, CURRENT):
        parts = _scaled_whole(quantizer, kind, shape, new)
    else:
        parts = _scaled_in_blocks(quantizer, shape, new)
    return python_tensor(quantizer, tuple(shape), dtype, device, parts)


def update(quantizer: Any, tensor: Any) -> Any:
    """`convert_and_update_tensor`: allocate what a use needs, free what no use does."""
    kind = kind_of(quantizer)
    if kind in (DELAYED, CURRENT):
        _update_whole(quantizer, tensor)
    elif kind == BLOCKS_OF_32:
        _update_blocks(quantizer, tensor)
    return tensor


def quantize(tensor: Any, quantizer: Any, output: Any = None, noop: Any = None) -> Any:
    """`quantize` (csrc/extensions/cast.cpp)."""
    data = tensor.contiguous()
    if output is None:
        output = create(quantizer, data.shape, data.dtype, data.device)
    else:
        output = update(quantizer, output)
    fill(quantizer)
    return output


def fill(quantizer: Any) -> None:
    """`Quantizer::quantize`: clause (3)."""
    if kind_of(quantizer) == CURRENT:
        largest_and_scale = torch.empty(2, dtype=torch.float32, device="cuda")
        _reduce(quantizer, largest_and_scale[0])


def fill_from_high_precision(
    quantizer: Any,
    shape: Shape,
    dtype: torch.dtype,
    use: Callable[[torch.Tensor], None] = lambda result: None,
) -> None:
    """Clause (3): a kernel's result, from which the quantised one is made, and then freed.

    `use` is called with the result before it is quantised.
    """
    if kind_of(quantizer) != CURRENT:
        result = torch.empty(tuple(shape), dtype=dtype, device="cuda")
        use(result)
        fill(quantizer)
        return
    largest = torch.zeros(1, dtype=torch.float32, device="cuda")
    result = torch.empty(tuple(shape), dtype=dtype, device="cuda")
    use(result)
    scale = torch.empty(1, dtype=torch.float32, device="cuda")
    _reduce(quantizer, largest)
    del scale, result


def shape_of(tensor: Any) -> tuple[int, ...]:
    """A tensor's own shape, whichever copies it has (`nvte_tensor_shape`)."""
    if isinstance(tensor, torch.Tensor):
        return tuple(tensor.shape)
    for name in ("_data", "_rowwise_data"):
        if getattr(tensor, name, None) is not None:
            return tuple(getattr(tensor, name).shape)
    if hasattr(tensor, "_transpose"):
        return _untransposed(tensor._transpose.shape)
    if hasattr(tensor, "_is_2D_scaled"):
        return _untransposed(tensor._columnwise_data.shape)
    return tuple(tensor._columnwise_data.shape)


def _reduce(quantizer: Any, largest: torch.Tensor) -> None:
    if quantizer.with_amax_reduction:
        group = quantizer._canonicalized_amax_reduction_group()
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX, group=group)


def _scaled_whole(
    quantizer: Any, kind: str, shape: Shape, new: Callable[..., torch.Tensor]
) -> dict[str, Any]:
    """Clause (1): delayed scaling allocates the inverse scale first."""
    inverse = new([1], torch.float32) if kind == DELAYED else None
    any_layout = multiplies_any_layout()
    data = new(shape) if quantizer.rowwise_usage or any_layout else None
    has_copy = quantizer.columnwise_usage and not any_layout
    transpose = new(_transposed(shape)) if has_copy else None
    inverse = new([1], torch.float32) if inverse is None else inverse
    return {"data": data, "fp8_scale_inv": inverse, "data_transpose": transpose}


def _scaled_in_blocks(
    quantizer: Any, shape: Shape, new: Callable[..., torch.Tensor]
) -> dict[str, Any]:
    """Clause (2)."""
    parts: dict[str, Any] = {}
    for use in USES:
        is_wanted = getattr(quantizer, f"{use}_usage")
        sizes = sizes_in_blocks(quantizer, shape, use)
        for name, size in zip((f"{use}_data", f"{use}_scale_inv"), sizes, strict=True):
            parts[name] = new(*size) if is_wanted else None
    return parts


def sizes_in_blocks(
    quantizer: Any, shape: Shape, use: str
) -> tuple[tuple[tuple[int, ...], torch.dtype], tuple[tuple[int, ...], torch.dtype]]:
    """Clause (2): shape and type of the data for a use, and of its inverse scales."""
    kind = kind_of(quantizer)
    by_columns = use == "columnwise"
    size = _transposed(shape) if by_columns and kind == BLOCKS_OF_128 else tuple(shape)
    dtype = torch.uint8 if kind == BLOCKS_OF_32 else torch.float32
    return (size, torch.uint8), (_scale_shape(quantizer, shape, by_columns), dtype)


def _scale_shape(quantizer: Any, shape: Shape, by_columns: bool) -> tuple[int, int]:
    """`get_scale_shape`."""
    columns = shape[-1] if len(shape) else 1
    rows = prod(shape) // columns
    if kind_of(quantizer) == BLOCKS_OF_32:
        if rows % 32 or columns % 32:
            raise RuntimeError(f"MXFP8 requires tensor dims that are divisible by 32 (got {shape})")
        if by_columns:
            return _up(rows // 32, 4), _up(columns, 128)
        return _up(rows, 128), _up(columns // 32, 4)
    if by_columns:
        rows, columns = columns, rows
    if quantizer.block_scaling_dim == 2:
        return -(-rows // 128), _up(-(-columns // 128), 4)
    return -(-columns // 128), _up(rows, 4)


def python_tensor(
    quantizer: Any,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: Any,
    parts: dict[str, Any],
) -> Any:
    """The package's own class for a tensor, or for its storage alone."""
    root = "transformer_engine.pytorch"
    kind = kind_of(quantizer)
    assert kind is not None
    module, name = _MODULES[kind]
    types = importlib.import_module(f"{root}.constants").DType
    common = {**parts, "fp8_dtype": types.cast(quantizer.dtype), "quantizer": quantizer}
    if kind == BLOCKS_OF_32:
        common["with_gemm_swizzled_scales"] = quantizer.optimize_for_gemm
    elif kind == BLOCKS_OF_128:
        common["is_2D_scaled"] = quantizer.block_scaling_dim == 2
    if quantizer.internal:
        storage = importlib.import_module(f"{root}.tensor.storage.{module}_storage")
        return getattr(storage, f"{name}Storage")(**common, fake_dtype=dtype)
    stride = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
    tensors = importlib.import_module(f"{root}.tensor.{module}")
    where = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else device
    made = getattr(tensors, name)
    return made(shape=shape, stride=stride, dtype=dtype, device=where, **common)


def _update_whole(quantizer: Any, tensor: Any) -> None:
    shape, any_layout = shape_of_data(tensor), multiplies_any_layout()
    needs_data = quantizer.rowwise_usage or any_layout
    needs_copy = quantizer.columnwise_usage and not any_layout
    _keep(tensor, "_data", shape if needs_data else None)
    _keep(tensor, "_transpose", _transposed(shape) if needs_copy else None)
    tensor._transpose_invalid = not needs_copy


def _update_blocks(quantizer: Any, tensor: Any) -> None:
    shape = shape_of_data(tensor)
    for use in USES:
        is_wanted = getattr(quantizer, f"{use}_usage")
        scales = _scale_shape(quantizer, shape, use == "columnwise")
        _keep(tensor, f"_{use}_data", shape if is_wanted else None)
        _keep(tensor, f"_{use}_scale_inv", scales if is_wanted else None)
    tensor._with_gemm_swizzled_scales = quantizer.optimize_for_gemm


def shape_of_data(tensor: Any) -> tuple[int, ...]:
    """The shape of a quantised tensor, by its data."""
    if hasattr(tensor, "_transpose"):
        transpose = tensor._transpose
        if transpose is not None:
            return _untransposed(transpose.shape)
        return tuple(tensor._data.shape)
    rows, columns = tensor._rowwise_data, tensor._columnwise_data
    return tuple((rows if columns is None else columns).shape)


def _keep(tensor: Any, name: str, shape: Shape | None) -> None:
    """Allocate a buffer that is wanted and missing, and drop one that is not wanted."""
    if shape is None:
        setattr(tensor, name, None)
    elif getattr(tensor, name) is None:
        setattr(tensor, name, torch.empty(tuple(shape), dtype=torch.uint8, device="cuda"))


def _transposed(shape: Shape) -> tuple[int, ...]:
    return (*shape[-1:], *shape[:-1])


def _untransposed(shape: Shape) -> tuple[int, ...]:
    return (*shape[1:], *shape[:1])


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
