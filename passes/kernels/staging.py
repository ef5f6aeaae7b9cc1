"""Memory through which the blocks of a CUDA reduction exchange partial results.

`gpu_reduce_kernel` (aten/src/ATen/native/cuda/Reduce.cuh, as shipped with torch 2.13) splits the
inputs of one output over several blocks if that fills the card. Then it allocates a staging buffer
and semaphores, and frees them when it returns; `setReduceConfig` decides (its names are in
brackets). A reduction that does not run along the fastest dimension, such as a sum of columns,
allocates a buffer that is too large by the width of a block times that of the vector.

Exact in every recording compared so far: see docs/sources.md, "Reductions".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graphmem.gpus import Gpu
from graphmem.kernel_program import Scratch, Step

from .call import during
from .iteration import Loop
from .layout import ceil_div

_WARP = 32
_MAX_THREADS = 512  # `mnt_wrapper::MAX_NUM_THREADS`
_MAX_THREADS_COMPLEX128 = 256
_MIN_VALUES_PER_THREAD = 16
_MAX_VALUES_PER_THREAD = 256
_WIDEST_VECTOR = 4
_SEMAPHORE_BYTES = 4


@dataclass(frozen=True)
class Kernel:
    """The template arguments of `gpu_reduce_kernel` that matter here.

    Attributes:
        accumulator_bytes: bytes of one partial result [`arg_t`].
        accumulates_in_output: a loop of several parts needs no buffer for intermediate results.
    """

    accumulator_bytes: int
    accumulates_in_output: bool = True


@dataclass(frozen=True)
class Staging:
    """Bytes of the two allocations."""

    buffer: int
    semaphores: int


def reduction_scratch(loop: Loop, kernel: Kernel, gpu: Gpu) -> Iterator[Step]:
    """The steps of `gpu_reduce_kernel`."""
    parts = list(loop.parts())
    held = []
    if len(parts) > 1 and not kernel.accumulates_in_output:
        nbytes = loop.output_span * kernel.accumulator_bytes
        held.append(Scratch("accumulation buffer of a reduction in parts", nbytes))
    yield from during(held, _each_part(parts, kernel, gpu))


def _each_part(parts: list[Loop], kernel: Kernel, gpu: Gpu) -> Iterator[Step]:
    for part in parts:
        staging = staging_of(part, kernel, gpu)
        if staging is not None:
            kind = "reduction" if _runs_along_fastest(part) else "column reduction"
            yield from during(
                (
                    Scratch(f"staging buffer of a {kind}", staging.buffer),
                    Scratch(f"semaphores of a {kind}", staging.semaphores),
                )
            )


def staging_of(loop: Loop, kernel: Kernel, gpu: Gpu) -> Staging | None:
    """The memory that a reduction allocates, or None if one block computes each output."""
    inputs, outputs = loop.inputs_per_output, loop.outputs
    if inputs < _MAX_VALUES_PER_THREAD or not outputs:
        return None
    is_fast = _runs_along_fastest(loop)
    vector = 1 if is_fast else _output_vector(loop)
    width, height = _block(loop, vector)
    step_in, step_out = (width, 1) if is_fast else (1, width)
    splits_warps = ceil_div(inputs, step_in) >= min(height * 16, _MAX_VALUES_PER_THREAD)
    if splits_warps:
        step_in *= height
    else:
        step_out *= height
    values = ceil_div(inputs, step_in)
    grid = ceil_div(outputs // vector, step_out)
    target = gpu.multiprocessors * (gpu.max_threads_per_multiprocessor // (width * height))
    if not splits_warps or values < _MAX_VALUES_PER_THREAD or grid > target:
        return None
    blocks = max(
        min(ceil_div(target, grid), ceil_div(values, _MIN_VALUES_PER_THREAD)),
        ceil_div(values, _MAX_VALUES_PER_THREAD),
    )
    if blocks <= 1:
        return None
    buffer = kernel.accumulator_bytes * outputs * blocks
    return Staging(buffer if is_fast else buffer * width * vector, _SEMAPHORE_BYTES * grid)


def _runs_along_fastest(loop: Loop) -> bool:
    """[`reduction_on_fastest_striding_dimension`]."""
    dims, reduced = loop.dims, loop.reduced
    return reduced == len(dims) or dims[0].inp < dims[reduced].inp


def _block(loop: Loop, vector: int) -> tuple[int, int]:
    """Width and height of a block in threads [`set_block_dimension`].

    Along the fastest dimension a thread may load several elements at once, depending on operator
    and version. That makes blocks narrower for up to 8,191 inputs per output, which are never
    split.
    """
    if _runs_along_fastest(loop):
        fast, slow = loop.inputs_per_output, loop.outputs
    else:
        fast, slow = loop.outputs // vector, loop.inputs_per_output
    limit = _MAX_THREADS_COMPLEX128 if loop.in_bytes == 16 else _MAX_THREADS
    limit //= vector
    across, down = _power_of_two(fast, limit), _power_of_two(slow, limit)
    width = min(across, _WARP)
    height = min(down, limit // width)
    return min(across, limit // height), height


def _output_vector(loop: Loop) -> int:
    """[`get_output_vec_size`]; the allocator's blocks begin at a multiple of 512 bytes."""
    fastest = loop.dims[loop.reduced]
    if fastest.inp != 1:
        return 1
    others = [dim.inp for dim in loop.dims if dim is not fastest]
    vector = _WIDEST_VECTOR
    while any(number % vector for number in (loop.offset, fastest.size, *others)):
        vector //= 2
    return vector


def _power_of_two(number: int, limit: int) -> int:
    """The largest power of two up to `number`, at most `limit` [`last_pow2`]."""
    return min(limit, 1 << (max(1, number).bit_length() - 1))
