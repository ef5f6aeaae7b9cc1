"""Staging buffers of reductions, compared with docs/sources.md, "Reductions"."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmem.gpus import Gpu, find_gpu
from graphmem.graph import TensorOut
from graphmem.passes.kernels.iteration import Dim, loop_of
from graphmem.passes.kernels.layout import contiguous_strides
from graphmem.passes.kernels.staging import Kernel, Staging, staging_of
from tests.support.kernel_calls import Calls, aten, tensor

H100, A100, RTX_4090 = map(find_gpu, ("h100", "a100", "rtx-4090"))
FLOAT, PAIR = Kernel(4), Kernel(16)


def staging(
    shape: tuple[int, ...],
    axes: list[int],
    gpu: Gpu,
    kernel: Kernel = FLOAT,
    stride: tuple[int, ...] = (),
    dtype: str = "float32",
) -> Staging | None:
    strides = stride or contiguous_strides(shape)
    loop = loop_of(TensorOut(shape, dtype, 0, strides), axes, keepdim=False, out_dtype=dtype)
    return staging_of(loop, kernel, gpu)


class TestTheTable:
    @pytest.mark.parametrize(("gpu", "buffer"), [(H100, 2_112), (A100, 1_728), (RTX_4090, 1_536)])
    def test_sum_of_everything(self, gpu: Gpu, buffer: int) -> None:
        assert staging((2**24,), [0], gpu) == Staging(buffer, 4)

    @pytest.mark.parametrize(
        ("gpu", "buffer"), [(H100, 138_412_032), (A100, 113_246_208), (RTX_4090, 100_663_296)]
    )
    def test_sum_of_columns(self, gpu: Gpu, buffer: int) -> None:
        assert staging((8192, 4096), [0], gpu) == Staging(buffer, 128)

    @pytest.mark.parametrize("gpu", [H100, A100, RTX_4090])
    @pytest.mark.parametrize(
        ("rows", "expected"), [(16_384, Staging(100_663_296, 24)), (1_024, Staging(6_291_456, 24))]
    )
    def test_sum_of_768_columns(self, rows: int, expected: Staging, gpu: Gpu) -> None:
        assert staging((rows, 768), [0], gpu) == expected

    @pytest.mark.parametrize("gpu", [H100, A100, RTX_4090])
    def test_an_odd_number_of_columns_and_sums_of_rows_need_none(self, gpu: Gpu) -> None:
        assert staging((2048, 50_257), [0], gpu) is None
        assert staging((8192, 4096), [1], gpu) is None


class TestTheRecordings:
    @pytest.mark.parametrize(
        ("rows", "columns", "expected"),
        [
            (1000, 512, None),  # lm100_train
            (2000, 512, Staging(8_388_608, 16)),  # lm200_train_bf16
            (512, 1024, None),  # cs336med_train, context 128
            (1024, 1024, Staging(8_388_608, 32)),  # 256
            (2048, 1024, Staging(16_777_216, 32)),  # 512
            (4096, 1024, Staging(33_554_432, 32)),  # 1024
            (2048, 2560, Staging(41_943_040, 80)),  # cs336xl_l_ctx512_full_step
        ],
    )
    def test_gradients_of_norm_weights(
        self, rows: int, columns: int, expected: Staging | None
    ) -> None:
        """Cards are not stated; these sizes do not depend on them."""
        for gpu in (A100, H100, RTX_4090):
            assert staging((rows, columns), [0], gpu) == expected

    def test_max_over_the_slowest_dimension_of_an_einsum(self) -> None:
        """cs336xl_k_ctx512_fullstep: (4, 512, 10000), the vocabulary slowest, 132
        multiprocessors; the sum over the same; row statistics of (4, 512, 2560)."""
        strides = (512, 1, 2048)

        assert staging((4, 512, 10_000), [2], H100, PAIR, strides) == Staging(553_648_128, 64)
        assert staging((4, 512, 10_000), [2], H100, FLOAT, strides) == Staging(138_412_032, 64)
        assert staging((4, 512, 2_560), [2], H100, FLOAT, strides) == Staging(41_943_040, 64)

    def test_sum_of_everything_and_any(self) -> None:
        """attn01: 524,288 elements; worked by hand: 1,966,080 elements on a card
        of 144 resident blocks of 512 threads, 48 multiprocessors of three."""
        card = Gpu("48", "", 0, (8, 6), 48)

        assert staging((8, 4096, 16), [0, 1, 2], A100) == Staging(256, 4)
        assert staging((1_966_080,), [0], card) == Staging(576, 4)
        assert staging((1_966_080,), [0], card, Kernel(1), dtype="bool") == Staging(144, 4)


class TestLoops:
    def test_a_contiguous_tensor_is_one_dimension(self) -> None:
        loop = loop_of(_out((4, 5, 6)), [0, 1, 2], keepdim=False, out_dtype="float32")

        assert loop.dims == (Dim(120, 0, 1),)

    def test_reduced_dimensions_come_first(self) -> None:
        loop = loop_of(_out((4, 5, 6)), [0], keepdim=False, out_dtype="float32")

        assert loop.dims == (Dim(4, 0, 30), Dim(30, 1, 1))
        assert (loop.reduced, loop.outputs, loop.inputs_per_output) == (1, 30, 4)

    def test_dimensions_of_size_1_vanish(self) -> None:
        loop = loop_of(_out((4, 1, 6)), [1], keepdim=True, out_dtype="float32")

        assert loop.dims == (Dim(24, 1, 1),)

    @given(st.permutations(range(3)), st.sets(st.integers(0, 2)))
    def test_the_order_of_dimensions_does_not_matter(
        self, order: list[int], axes: set[int]
    ) -> None:
        """A permuted view reduced over the same dimensions is read in the same order."""
        shape, strides = (4, 6, 10), (60, 10, 1)
        plain = loop_of(TensorOut(shape, "float32", 0, strides), axes, **_PLAIN)
        permuted = TensorOut(
            tuple(shape[i] for i in order), "float32", 0, tuple(strides[i] for i in order)
        )
        moved = loop_of(permuted, {order.index(axis) for axis in axes}, **_PLAIN)

        reduced = [(dim.size, dim.inp) for dim in plain.dims if dim.is_reduced]
        assert reduced == [(dim.size, dim.inp) for dim in moved.dims if dim.is_reduced]
        assert plain.outputs == moved.outputs

    def test_more_than_32_bits_are_reduced_in_halves(self) -> None:
        """2^30 floats are 2^32 bytes: within each half, offsets stay below 2^31."""
        loop = loop_of(_out((2**15, 2**15)), [0], keepdim=False, out_dtype="float32")
        parts = list(loop.parts())

        assert [part.dims[0].size for part in parts] == [2**14] * 2
        assert [part.offset for part in parts] == [0, 2**29]


class TestOperators:
    def test_the_buffer_follows_the_output_and_the_semaphores_go_first(self) -> None:
        """attn01: +4, +256, +4, -4, -256."""
        program = Calls().call(aten.sum.default, tensor(8, 4096, 16))

        assert program == ["out0", 256, 4, -4, -256]

    def test_halves_are_gathered_in_float32(self) -> None:
        single = Calls("h100").call(aten.sum.dim_IntList, tensor(8192, 4096), [0])
        half = tensor(8192, 4096, dtype=torch.bfloat16)

        assert single == Calls("h100").call(aten.sum.dim_IntList, half, [0])

    def test_halves_in_two_parts_keep_what_they_have_in_float32(self) -> None:
        """2^31 elements of two bytes: 4 bytes for the one output, then two parts of 2^30 elements,
        each divided over enough blocks of 512 threads that a thread adds 256 values."""
        program = Calls().call(aten.sum.default, tensor(2**31, dtype=torch.bfloat16))
        part = [4 * (2**30 // 512 // 256), 4]

        assert program == ["out0", 4, *2 * [*part, -part[1], -part[0]], -4]

    def test_integers_are_copied_to_int64_first(self) -> None:
        program = Calls().call(aten.sum.dim_IntList, tensor(100, 10, dtype=torch.int32), [1])

        assert program == ["out0", 1000 * 8, -1000 * 8]

    def test_a_half_summed_in_float32_is_not_copied(self) -> None:
        half = tensor(100, 10, dtype=torch.float16)
        program = Calls().call(aten.sum.dim_IntList, half, [1], dtype=torch.float32)

        assert program == ["out0"]

    def test_the_norm_of_complex_numbers_copies_none(self) -> None:
        """ATen/native/ReduceOpsUtils.h, `make_reduction`: they are read as complex numbers."""
        numbers = tensor(10, 10, dtype=torch.complex64)
        wider = aten.linalg_vector_norm.default, numbers, 2, [1], False

        assert Calls().call(aten.linalg_vector_norm.default, numbers, 2, [1]) == ["out0"]
        program = Calls().call(*wider, dtype=torch.complex128)
        assert program == ["out0", 100 * 16, -100 * 16]

    @pytest.mark.parametrize(
        ("func", "args", "accumulator"),
        [
            (aten.sum.dim_IntList, ([0],), 4),
            (aten.mean.dim, ([0],), 4),
            (aten.amax.default, ([0],), 4),
            (aten.max.dim, (0,), 16),
            (aten.argmax.default, (0,), 16),
            (aten.var.correction, ([0],), 16),
            (aten.any.dim, (0,), 1),
            (aten.linalg_vector_norm.default, (2, [0]), 4),
        ],
    )
    def test_the_accumulator_decides_the_size(
        self, func: object, args: tuple[object, ...], accumulator: int
    ) -> None:
        """138,412,032 bytes for 4 of the accumulator (the table's second row, H100)."""
        program = Calls("h100").call(func, tensor(8192, 4096), *args)
        taken = [step for step in program if isinstance(step, int) and step > 0]

        assert taken == [138_412_032 // 4 * accumulator, 128]

    def test_max_of_everything_makes_its_input_contiguous(self) -> None:
        transposed = tensor(100, 10, stride=(1, 100))

        assert Calls().call(aten.max.default, transposed) == ["out0", 4000, -4000]

    def test_an_odd_offset_in_a_storage_allows_no_vectors(self) -> None:
        """One element a thread: blocks of 32 x 16 threads cover 4096/32 = 128 stretches of
        columns; 132 * 2048/512 = 528 of them are resident, so ceil(528/128) = 5 share a column,
        each with partial results for 32 columns."""
        view = tensor(8192, 4096, stride=(4098, 1), offset=1)
        program = Calls("h100").call(aten.sum.dim_IntList, view, [0])

        assert program[1:3] == [4 * 4096 * 5 * 32, 4 * 128]

    def test_logsumexp_has_exponentials_of_everything(self) -> None:
        program = Calls().call(aten.logsumexp.default, tensor(64, 1000), [1])
        rows, everything = 64 * 4, 64 * 1000 * 4

        assert program == [rows, rows, 64, -64, -rows, everything, "out0", -everything, -rows]


def _out(shape: tuple[int, ...]) -> TensorOut:
    return TensorOut(shape, "float32", 0, contiguous_strides(shape))


_PLAIN = {"keepdim": False, "out_dtype": "float32"}
