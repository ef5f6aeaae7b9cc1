"""`torch.use_deterministic_algorithms(True)`: bytes of torch 2.13.0 above a pretended H100.

`tools/pretended_card` runs PyTorch's own CUDA build; its results are at the head of each program.
"""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn import functional

import graphmem
from graphmem import TrainingStep
from graphmem.errors import InputError
from graphmem.op_states import Determinism
from tests.support.kernel_calls import Calls, aten, tensor

LONG = torch.int64
CHECKS = [8, 8, 1, -1, 1, -1, -8, -8]


def filling_calls() -> Calls:
    calls = Calls("h100")
    calls.determinism = Determinism.FILLED
    return calls


def sorting(count: int, storage: int) -> list[int]:
    """Indices that are checked, wrapped, made one, and sorted with their positions."""
    size = 8 * count
    linear = [size, size, -size]
    arrays = [size, size, size, 8, -8, storage, -storage, -size, -size, -size]
    return [*CHECKS, *linear, *arrays, -size]


def test_index_add_scales_its_source_and_sorts() -> None:
    table, rows, values = tensor(5000, 512), tensor(1024, dtype=LONG), tensor(1024, 512)
    scaled = 1024 * 512 * 4

    program = filling_calls().call(aten.index_add.default, table, 0, rows, values)
    assert program == ["out0", scaled, *sorting(1024, 1), -scaled]


@pytest.mark.parametrize("operator", [aten.index_copy.default, aten.index_put.default])
def test_writes_that_do_not_accumulate_sort_as_well(operator: torch._ops.OpOverload) -> None:
    table, rows, values = tensor(5000, 512), tensor(1024, dtype=LONG), tensor(1024, 512)
    place = (0, rows) if operator is aten.index_copy.default else ([rows],)

    program = filling_calls().call(operator, table, *place, values)
    assert program == ["out0", *sorting(1024, 1)]


def test_one_value_is_written_without_a_sort() -> None:
    table, rows = tensor(5000, 512), tensor(1024, dtype=LONG)

    assert filling_calls().call(aten.index_put.default, table, [rows], tensor()) == ["out0"]


def test_a_scatter_makes_the_positions_along_other_dimensions() -> None:
    """3,600 indices of both dimensions, each checked; CUB sorts them in several tiles."""
    table, index, values = tensor(70, 90), tensor(40, 90, dtype=LONG), tensor(40, 90)
    size, positions, element = 8 * 40 * 90, 8 * 90, [8, -8]
    along = [*CHECKS, size, size, -size]
    across = [8, 8, size, -size, 1, -1, 1, -1, -8, -8, size, size, -size, -size]
    arrays = [size, size, size, *element, 63_487, -63_487, -size, -size, -size, -size]

    program = filling_calls().call(aten.scatter_add.default, table, 0, index, values)
    assert program == ["out0", positions, *element, *along, *across, *arrays, -positions]


def test_an_index_that_is_the_same_along_a_dimension_needs_no_positions() -> None:
    table, values = tensor(70, 90), tensor(40, 90)
    index = tensor(40, 90, dtype=LONG, stride=(1, 0))

    program = filling_calls().call(aten.scatter_add.default, table, 0, index, values)
    assert program == ["out0", *sorting(40, 1)]


def test_results_that_grow_are_filled_from_an_element_on() -> None:
    calls = filling_calls()

    assert calls.call(aten.abs.default, tensor(70, 90)) == ["out0", 4, -4]
    assert calls.call(aten.arange.default, 50, device="meta") == ["out0", 8, -8]
    calls.determinism = Determinism.ALGORITHMS
    assert calls.call(aten.abs.default, tensor(70, 90)) == ["out0"]


@pytest.mark.parametrize(
    ("dtype", "count", "nbytes"),
    [
        (torch.float32, 6300, 4),
        (torch.float32, 1_000_000, 492),
        (torch.float32, 3_000_000, 528),  # one for each of 132 multiprocessors
        (torch.float64, 100_000, 200),
        (torch.bfloat16, 300_000, 74),
    ],
)
def test_a_running_sum_begins_from_sums_of_blocks(
    dtype: torch.dtype, count: int, nbytes: int
) -> None:
    program = filling_calls().call(aten.cumsum.default, tensor(count, dtype=dtype), 0)

    assert program == ["out0", nbytes, -nbytes]


def test_whole_numbers_are_summed_as_ever() -> None:
    program = filling_calls().call(aten.cumsum.default, tensor(20_000, dtype=LONG), 0)

    assert program == ["out0", 1535, -1535]


def trained(forward: object) -> None:
    model = torch.nn.Conv2d(3, 4, 1)
    step = TrainingStep(model, torch.ones(2, 3, 16, 16), lambda out: forward(out).sum())  # type: ignore[operator]

    def build() -> TrainingStep:
        torch.use_deterministic_algorithms(True)
        return step

    graphmem.analyze(build, gpu="h100", steps=1)


@pytest.mark.parametrize(
    ("forward", "kernel"),
    [
        (lambda out: functional.adaptive_avg_pool2d(out, 4), "adaptive_avg_pool2d_backward_cuda"),
        (lambda out: out.median(0)[0], "median CUDA with indices output"),
        (torch.histc, "_histc_cuda with floating point input"),
    ],
)
def test_what_a_card_refuses_is_refused(forward: object, kernel: str) -> None:
    with pytest.raises(InputError, match=f"{re.escape(kernel)} does not have a deterministic"):
        trained(forward)


@pytest.mark.parametrize(
    "forward", [lambda out: functional.adaptive_avg_pool2d(out, 1), lambda out: out.mode(0)[0]]
)
def test_what_a_card_takes_is_taken(forward: object) -> None:
    """The fake kernel of `mode` refuses it with `median`'s words."""
    trained(forward)
