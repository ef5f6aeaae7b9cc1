"""Scratch memory of kernels other than reductions; figures derived in each test.

Figures and recordings are those of docs/sources.md.
"""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
import torch

from graphmem.gpus import find_gpu
from graphmem.graph import PhaseName
from graphmem.passes.kernels.cub import key_bits, sort_pairs_bytes
from tests.support.kernel_calls import Calls, aten, tensor

HALF, LONG = torch.bfloat16, torch.int64


def most_at_once(program: list[str | int]) -> int:
    """The peak bytes of a program's scratch blocks, without outputs."""
    steps = (step for step in program if isinstance(step, int))
    blocks = (math.copysign(-(-abs(step) // 512) * 512, step) for step in steps)
    return int(max(accumulate(blocks)))


class TestCub:
    """docs/sources.md, "Embeddings, indexing and sorting"."""

    @pytest.mark.parametrize(
        ("count", "bits", "gpu", "nbytes"),
        [
            (8192, 64, "h100", 150_015),
            (8192, 64, "a100", 151_039),
            (16_384, 64, "h100", 283_135),
            (16_384, 64, "a100", 284_159),
            (4096, 14, "a100", 72_191),  # recording cs336med_train_ctx1024
            (4096, 14, "h100", 71_167),
            (2304, 64, "a100", 1),  # one tile
        ],
    )
    def test_sorting_pairs_of_int64(self, count: int, bits: int, gpu: str, nbytes: int) -> None:
        assert sort_pairs_bytes(count, 8, 8, bits, find_gpu(gpu)) == nbytes

    @pytest.mark.parametrize(
        ("of_floats", "nbytes"),
        [(False, 1_094_143), (True, 1_096_191)],  # 2.11.0 and 2.13.0 above a pretended H100
    )
    def test_tiles_of_int32_keys_alone_are_larger(self, of_floats: bool, nbytes: int) -> None:
        """`unique` of 2^18 values; a tile has 384 x 19 of them, of floats 384 x 18."""
        found = sort_pairs_bytes(1 << 18, 4, 0, 32, find_gpu("h100"), of_floats=of_floats)

        assert found == nbytes

    def test_unknown_policies_are_not_guessed(self) -> None:
        assert sort_pairs_bytes(10_000, 2, 8, 16, find_gpu("a100")) is None

    @pytest.mark.parametrize(("largest", "bits"), [(0, 1), (1, 1), (9999, 14), (16_383, 14)])
    def test_bits_of_a_key(self, largest: int, bits: int) -> None:
        assert key_bits(largest) == bits


class TestInSteps:
    def test_rolling_two_dimensions_takes_an_intermediate_tensor(self) -> None:
        """Recording timm_swin_tiny_fp32_mixup: `a 38535168, a 38535168, f 38535168`."""
        image = tensor(32, 56, 56, 96)

        program = Calls().call(aten.roll.default, image, [-3, -3], [1, 2])
        assert program == [38_535_168, "out0", -38_535_168]
        assert Calls().call(aten.roll.default, image, [-3], [1]) == ["out0"]

    def test_isin_compares_all_pairs(self) -> None:
        """Recording grpo_lora, one token and one test: `a 1, a 1, a 1, f 1, f 1`."""
        token = tensor(1, dtype=LONG)

        program = Calls().call(aten.isin.Tensor_Tensor, token, tensor(1, dtype=LONG))
        assert program == ["out0", 1, 1, -1, -1]

    def test_clamping_integers_by_a_fraction_casts_them_first(self) -> None:
        """Recording grpo_lora_fp32, `num_items_in_batch.clamp(min=1.0)`: `a 4, a 4, f 4`."""
        program = Calls().call(aten.clamp.default, tensor(1, dtype=LONG), 1.0)
        assert program == [4, "out0", -4]
        assert Calls().call(aten.clamp.default, tensor(1), 1.0) == ["out0"]
        assert Calls().call(aten.clamp.Tensor, tensor(1, dtype=LONG), tensor(1)) == ["out0"]

    def test_choosing_between_two_types_casts_one_of_them_first(self) -> None:
        """A real run takes 4,000 bytes for the cast, then 4,000 for the result (CPU)."""
        mask, numbers, halves = (
            tensor(1000, dtype=torch.bool),
            tensor(1000),
            tensor(1000, dtype=HALF),
        )

        assert Calls().call(aten.where.self, mask, numbers, halves) == [4000, "out0", -4000]
        assert Calls().call(aten.where.self, mask, halves, tensor(dtype=HALF)) == ["out0"]

    def test_a_search_copies_and_casts_what_it_reads(self) -> None:
        """Real runs on the CPU take these blocks in this order."""
        values, bounds = tensor(40, 50), tensor(30)
        across = tensor(50, 40).t()

        assert Calls().call(aten.bucketize.Tensor, values, bounds) == ["out0"]
        copied = Calls().call(aten.bucketize.Tensor, across, bounds)
        assert copied == ["out0", 4 * 2000, -4 * 2000]
        whole = tensor(40, 50, dtype=LONG)
        assert Calls().call(aten.searchsorted.Tensor, bounds, whole) == ["out0", 8000, -8000]
        halves = tensor(50, 40, dtype=HALF).t()
        cast = ["out0", 4000, 8000, -4000, -8000]
        assert Calls().call(aten.bucketize.Tensor, halves, bounds) == cast


class TestSearches:
    """cuda/Sorting.cpp, cuda/TensorModeKernel.cpp; the recordings have row-major operands only."""

    def test_rows_of_a_transposed_input_are_copied_to_be_searched(self) -> None:
        rows, columns = tensor(4096, 64), tensor(4096, 64, stride=(1, 4096))

        for operator, *arguments in ((aten.kthvalue.default, 7, 1), (aten.median.dim, 1)):
            assert Calls().call(operator, rows, *arguments) == ["out0", "out1"]
            program = Calls().call(operator, columns, *arguments)
            assert program == [4 * 4096 * 64, "out0", "out1", -4 * 4096 * 64]

    def test_the_mode_of_rows_needs_them_contiguous(self) -> None:
        table = tensor(1024, 64)

        assert Calls().call(aten.mode.default, table) == ["out0", "out1"]
        program = Calls().call(aten.mode.default, table, 0)
        assert program == ["out0", "out1", 4 * 1024 * 64, -4 * 1024 * 64]

    def test_long_rows_are_sorted_in_a_copy_whose_other_memory_is_listed(self) -> None:
        calls = Calls()

        program = calls.call(aten.mode.default, tensor(16, 2049))

        assert program == ["out0", "out1", 4 * 16 * 2049, -4 * 16 * 2049]
        assert "scratch memory of aten.mode" in [each.what for each in calls.assumptions()]

    def test_both_extremes_are_staged_as_pairs(self) -> None:
        """As `histc` looks for them on torch 2.12 and later: 8 bytes for each block of threads."""
        flat = tensor(1 << 20)
        (_, staged, *_), (_, largest, *_) = (
            [each for each in Calls().call(operator, flat) if each != "out1"]
            for operator in (aten.aminmax.default, aten.max.default)
        )
        assert staged == 2 * largest


class TestReflection:
    """cuda/ReflectionPad.cu."""

    def test_images_with_channels_last_are_copied_before_they_are_padded(self) -> None:
        image = tensor(2, 8, 32, 32)
        last = tensor(2, 8, 32, 32, stride=(8192, 1, 256, 8))
        pad, size = aten.reflection_pad2d.default, 4 * 2 * 8 * 32 * 32

        assert Calls().call(pad, image, [1, 1, 1, 1]) == ["out0"]
        assert Calls().call(pad, last, [1, 1, 1, 1]) == ["out0", size, -size]

    def test_the_gradient_is_copied(self) -> None:
        row, across = tensor(4, 8), tensor(4, 10, stride=(1, 4))
        back = aten.reflection_pad1d_backward.default

        assert Calls().call(back, across, row, [1, 1]) == ["out0", 160, -160]


class TestFourierTransforms:
    """cuda/SpectralOps.cpp, `_exec_fft`: what is not transformed must have one stride."""

    def test_the_last_dimension_is_read_as_it_is(self) -> None:
        program = Calls().call(aten._fft_r2c.default, tensor(32, 8, 96), [2], 0, True)

        assert program == ["out0"]

    def test_a_dimension_between_others_is_copied_to_the_end(self) -> None:
        """TimesNet's `rfft(x, dim=1)` of batch, time and channels."""
        program = Calls().call(aten._fft_r2c.default, tensor(32, 96, 7), [1], 0, True)
        copy = 32 * 96 * 7 * 4

        assert program == ["out0", copy, -copy]

    def test_a_transform_to_real_numbers_has_its_own_input(self) -> None:
        """Autoformer's `irfft(x, dim=-1)`; the clone of one between others is copied again."""
        spectrum = tensor(32, 8, 49, dtype=torch.complex64)
        copy = 32 * 8 * 49 * 8

        last = Calls().call(aten._fft_c2r.default, spectrum, [2], 2, 96)
        between = Calls().call(aten._fft_c2r.default, spectrum, [1], 2, 14)

        assert last == ["out0", copy, -copy]
        assert between == ["out0", copy, copy, -copy, -copy]

    def test_repeated_elements_are_copied(self) -> None:
        repeated = tensor(4, 16, stride=(0, 1), dtype=torch.complex64)

        program = Calls().call(aten._fft_c2c.default, repeated, [1], 0, True)

        assert program == ["out0", 4 * 16 * 8, -4 * 16 * 8]

    @pytest.mark.parametrize(
        ("stride", "is_copied"), [((1024, 32, 1), False), ((2048, 3, 64), True)]
    )
    def test_strides_of_planes_are_multiples(
        self, stride: tuple[int, int, int], is_copied: bool
    ) -> None:
        plane = tensor(2, 32, 32, stride=stride)

        program = Calls().call(aten._fft_r2c.default, plane, [1, 2], 0, True)

        assert (len(program) > 1) == is_copied

    def test_the_workspace_is_listed(self) -> None:
        calls = Calls()
        calls.call(aten._fft_c2c.default, tensor(4, 16, dtype=torch.complex64), [1], 0, True)

        assert "workspace of cuFFT's transforms" in [each.what for each in calls.assumptions()]


class TestIndexing:
    @pytest.mark.parametrize(("count", "storage"), [(4096, 72_191), (1000, 1)])
    def test_writing_rows_with_accumulation(self, count: int, storage: int) -> None:
        """Recordings cs336med_train_ctx1024 (n = 4096) and lm100_train (n = 1000): wrapped index,
        linear index, wrapped freed, sorted, original, range, CUB; freed in reverse."""
        table, values = tensor(10_000, 1024), tensor(count, 1024)
        index = tensor(count, dtype=LONG)
        program = Calls().call(aten._index_put_impl_.default, table, [index], values, True, True)
        n = count * 8

        assert program == [n, n, -n, n, n, n, storage, -storage, -n, -n, -n, -n]

    def test_indices_of_two_dimensions_are_linearised(self) -> None:
        table, index = tensor(100, 50), tensor(8, dtype=LONG)
        program = Calls().call(
            aten._index_put_impl_.default, table, [index, index], tensor(8), True, True
        )

        assert program[:6] == [64, 64, -64, 64, 64, -64]
        assert program[6] == -64

    def test_positions_of_a_mask_die_before_the_sort(self) -> None:
        """Recording sft_dft, the gradient of `hidden_states[mask]` with 445 of 4 x 334 tokens:
        nonzero, the linear index, -7,120 for the positions, the sort."""
        table, mask = tensor(4, 334, 1024), tensor(4, 334, dtype=torch.bool)
        program = Calls("h100", "2.11").call(
            aten._index_put_impl_.default, table, [mask], tensor(445, 1024), True, True
        )
        n = 8 * 445

        nonzero = [4, 1, -1, 2 * n, 1023, -1023, -4]
        linear = [n, n, -n, n, n, -n, -n]
        assert program == [*nonzero, *linear, -2 * n, n, n, n, 1, -1, -n, -n, -n, -n]

    def test_a_broadcast_value_is_copied_for_every_index(self) -> None:
        table, index = tensor(100, 50), tensor(8, dtype=LONG)
        program = Calls().call(
            aten._index_put_impl_.default, table, [index], tensor(50), True, True
        )

        assert program[3] == 8 * 50 * 4

    def test_without_accumulation_no_scratch_is_taken(self) -> None:
        table, index = tensor(100, 50), tensor(8, dtype=LONG)

        assert Calls().call(aten.index_put.default, table, [index], tensor(8, 50)) == ["out0"]

    def test_indices_on_the_host_are_wrapped_there(self) -> None:
        """cs336xl_k_ctx128_fullstep, the gradient of selected logits: rows are counted on the CPU,
        targets lie on the card; the linear index, the targets wrapped and scaled, the sort."""
        logits, targets = tensor(512, 10_000), tensor(512, dtype=LONG)
        rows = torch.arange(512)
        program = Calls("h100", "2.6").call(
            aten._index_put_impl_.default, logits, [rows, targets], tensor(512), True, True
        )

        copies = [4096, 4096, 4096, -4096, -4096]
        assert program == [*copies, 4096, 4096, 4096, 1, -1, -4096, -4096, -4096, -4096]

    def test_reading_at_indices_on_the_card_needs_nothing(self) -> None:
        assert Calls().call(aten.index.Tensor, tensor(9, 50), [tensor(8, dtype=LONG)]) == ["out0"]

    def test_indices_on_the_host_are_copied_to_read(self) -> None:
        """cs336xl_k_ctx128_fullstep, `logits[torch.arange(n), targets]`."""
        logits, targets = tensor(512, 10_000), tensor(512, dtype=LONG)
        program = Calls().call(aten.index.Tensor, logits, [torch.arange(512), targets])

        assert program == [4096, "out0", -4096]

    def test_narrow_indices_are_widened(self) -> None:
        """From the host 8 x 4 bytes, then 8 x 8, after which the first copy is freed."""
        index = torch.zeros(8, dtype=torch.int32)

        assert Calls().call(aten.index.Tensor, tensor(9, 50), [index]) == [32, 64, -32, "out0", -64]

    def test_indices_of_other_strides_are_made_contiguous(self) -> None:
        """A column of 3 and a row of 5 make 15 indices of 8 bytes, for each dimension."""
        column, row = tensor(3, 1, dtype=LONG), tensor(5, dtype=LONG)
        program = Calls().call(aten.index.Tensor, tensor(9, 9), [column, row])

        assert program == [120, 120, "out0", -120, -120]

    def test_writing_without_accumulation_copies_them_after_the_result(self) -> None:
        table, values = tensor(100, 50), tensor(8, 50)
        program = Calls().call(aten.index_put.default, table, [torch.arange(8)], values)

        assert program == ["out0", 64, -64]


class TestColumns:
    """aten/src/ATen/native/cuda/Im2Col.cu and Col2Im.cu."""

    SAME = (3, 3), (1, 1), (1, 1), (1, 1)  # kernel, dilation, padding, stride

    def test_columns_begin_as_large_as_the_image(self) -> None:
        image = tensor(2, 3, 8, 8)

        program = Calls().call(aten.im2col.default, image, *self.SAME)
        assert program == [2 * 3 * 8 * 8 * 4, "out0", -2 * 3 * 8 * 8 * 4]

    def test_an_image_with_other_strides_is_copied(self) -> None:
        columns = tensor(2, 27, 64, stride=(27 * 64, 1, 27))
        program = Calls().call(aten.col2im.default, columns, (8, 8), *self.SAME)

        assert program == ["out0", 2 * 27 * 64 * 4, -2 * 27 * 64 * 4]


class TestEmbedding:
    def gradient(self, tokens: int, rows: int, width: int, dtype: torch.dtype) -> list[str | int]:
        grad, indices = tensor(tokens, width, dtype=dtype), tensor(tokens, dtype=LONG)
        return Calls("a100").call(
            aten.embedding_dense_backward.default, grad, indices, rows, -1, False
        )

    @pytest.mark.parametrize(
        ("shape", "stride", "copied"),
        [
            ((8, 512), (512, 1), []),
            ((8, 512), (0, 1), [8 * 512 * 8]),  # token_type_ids of BERT, an expanded buffer
            ((512, 8), (1, 512), [8 * 512 * 8]),
            ((8, 511), (512, 1), [8 * 511 * 8]),  # `ids[:, :-1]`
            ((8, 512), (1024, 2), []),  # one run of every second element
        ],
    )
    def test_non_contiguous_indices_are_copied(
        self, shape: tuple[int, int], stride: tuple[int, int], copied: list[int]
    ) -> None:
        """Recorded in a BERT-large, batch x sequence 4,096: `a 32768 / a 16777216 / f 32768`."""
        indices = tensor(*shape, dtype=LONG, stride=stride)
        program = Calls().call(aten.embedding.default, tensor(2, 1024), indices)

        assert program == [*copied, "out0", *(-each for each in copied)]

    def test_backward_copies_indices_that_are_not_contiguous(self) -> None:
        """Embedding.cu: the indices, then the gradient, for the duration of the call."""
        indices = tensor(8, 64, dtype=LONG, stride=(0, 1))
        grad = tensor(8, 64, 16, stride=(16, 128, 1))
        program = Calls().call(aten.embedding_dense_backward.default, grad, indices, 2, -1, False)

        copies = [8 * 64 * 8, 8 * 64 * 16 * 4]
        assert program == [*copies, "out0", -copies[1], -copies[0]]

    def test_a_bounded_norm_sorts_the_tokens_and_finds_distinct_ones(self) -> None:
        """Embedding.cu, `embedding_renorm_cuda_`: rows of 10 tokens, then all 40."""
        table, tokens = tensor(100, 16), tensor(4, 10, dtype=LONG)

        program = Calls("h100").call(aten.embedding_renorm_.default, table, tokens, 1.0, 2.0)
        sort = [40 * 8, 40 * 8, 10 * 8, -10 * 8, -40 * 8]
        assert program[:7] == [*sort, 40 * 8, 8]
        storage, freed = program[7:9]
        assert storage == -int(freed) > 0
        assert program[9:] == [-8, -40 * 8, -40 * 8]

    def test_few_tokens_need_no_scratch(self) -> None:
        assert self.gradient(3072, 50_257, 768, HALF) == ["out0"]

    def test_the_liger_row(self) -> None:
        """16,384 tokens, 4,096 rows of 768 floats on an A100: 18,120,704 bytes at the peak, to the
        table's precision of 1 KiB."""
        assert most_at_once(self.gradient(16_384, 4096, 768, torch.float32)) == 18_120_704

    def test_gradients_of_parts_are_kept_in_float32(self) -> None:
        """8,192 tokens, 50,257 rows of 4,096: 8192/10 + 8192 rows."""
        program = self.gradient(8192, 50_257, 4096, HALF)

        assert 147_636_224 == (819 + 8192) * 4096 * 4
        assert 147_636_224 in program

    def test_the_result_is_allocated_after_the_sort(self) -> None:
        """By the 20 bits that 1,000,000 rows need. Sorted, original, range, CUB; the latter two are
        freed."""
        program = self.gradient(4096, 1_000_000, 8, torch.float32)
        n = 4096 * 8
        storage = sort_pairs_bytes(4096, 8, 8, 20, find_gpu("a100"))
        assert storage is not None

        assert program[:7] == [n, n, n, storage, -storage, -n, "out0"]


class TestSoftmax:
    LOGITS = tensor(64, 1000)

    def test_backward_of_softmax_has_a_product_of_full_size(self) -> None:
        program = Calls().call(
            aten._softmax_backward_data.default, self.LOGITS, self.LOGITS, 1, torch.float32
        )

        assert program == ["out0", 256_000, -256_000]

    def test_backward_of_log_softmax_has_none(self) -> None:
        program = Calls().call(
            aten._log_softmax_backward_data.default, self.LOGITS, self.LOGITS, 1, torch.float32
        )

        assert program == ["out0"]

    def test_a_transposed_input_is_copied(self) -> None:
        transposed = tensor(64, 1000, stride=(1, 64))

        assert Calls().call(aten._softmax.default, transposed, 1, False) == [
            "out0",
            256_000,
            -256_000,
        ]

    def test_safe_softmax_looks_for_masked_rows(self) -> None:
        """The result, a mask of the input, the mask of its rows, a zero."""
        program = Calls().call(aten._safe_softmax.default, self.LOGITS, 1)

        assert program == ["out0", 64_000, 64, 4, -4, -64, -64_000]


class TestLosses:
    def test_mse_loss_computes_every_element_twice(self) -> None:
        """Recording mlp01: +256 (the result), +256, -256, of 64 x 1 floats."""
        program = Calls().call(aten.mse_loss.default, tensor(64, 1), tensor(64, 1))

        assert program == ["out0", 256, -256]

    def test_without_a_reduction_there_is_no_scratch(self) -> None:
        program = Calls().call(aten.mse_loss.default, tensor(64, 1), tensor(64, 1), 0)

        assert program == ["out0"]

    def test_logits_keep_the_logarithm_of_their_sigmoid(self) -> None:
        program = Calls().call(
            aten.binary_cross_entropy_with_logits.default, tensor(64, 1), tensor(64, 1)
        )

        assert program == [256, 256, "out0", -256, -256]

    def test_huber_loss_is_reduced_from_a_temporary(self) -> None:
        program = Calls().call(aten.huber_loss.default, tensor(64, 1), tensor(64, 1))

        assert program == [256, "out0", -256]


class TestNorms:
    def test_layer_norm_of_many_short_rows_is_summed_in_two_steps(self) -> None:
        """65,537 rows of 1,024: 32 blocks across, so min(32768/32, 65537/32) = 1,024 down. They are
        summed by the 1,024 x 1,024 column sum of recording cs336med_train, context 256 (8,388,608
        and 32 bytes); each sum replaces a gradient that was allocated first."""
        rows = tensor(65_537, 1024)
        weight, stats = tensor(1024), tensor(65_537, 1)
        program = Calls("a100").call(
            aten.native_layer_norm_backward.default,
            rows, rows, [1024], stats, stats, weight, weight, [True, True, True],
        )  # fmt: skip
        small, partial = 1024 * 4, 1024 * 1024 * 4
        staging = [8_388_608, 32, -32, -8_388_608]

        assert program == [
            "out0", small, small, partial, partial,
            "out1", *staging, -small, "out2", *staging, -small, -partial, -partial,
        ]  # fmt: skip

    def test_a_transposed_gradient_is_copied_after_the_outputs(self) -> None:
        rows, weight, stats = tensor(64, 32), tensor(32), tensor(64, 1)
        program = Calls().call(
            aten.native_layer_norm_backward.default, tensor(64, 32, stride=(1, 64)),
            rows, [32], stats, stats, weight, weight, [True, True, True],
        )  # fmt: skip

        assert program == ["out0", "out1", "out2", 8192, -8192]

    def test_other_layer_norms_need_no_scratch(self) -> None:
        rows, weight, stats = tensor(4096, 1024), tensor(1024), tensor(4096, 1)
        program = Calls().call(
            aten.native_layer_norm_backward.default,
            rows, rows, [1024], stats, stats, weight, weight, [True, True, True],
        )  # fmt: skip

        assert program == ["out0", "out1", "out2"]

    def test_group_norm_has_factors_of_channels(self) -> None:
        """Two of N*C floats each."""
        program = Calls().call(
            aten.native_group_norm.default,
            tensor(2, 32, 8, 8), tensor(32), tensor(32), 2, 32, 64, 4, 1e-5,
        )  # fmt: skip

        assert program == ["out0", "out1", "out2", 256, 256, -256, -256]

    def test_group_norm_backward_has_five_arrays_at_once(self) -> None:
        """The rows of Liger: three of N*C and two of N*G floats beside the outputs."""
        x, stats = tensor(2, 32, 8, 8), tensor(2, 4)
        program = Calls().call(
            aten.native_group_norm_backward.default,
            x, x, stats, stats, tensor(32), 2, 32, 64, 4, [True, True, True],
        )  # fmt: skip
        taken = [step for step in program if isinstance(step, int) and step > 0]

        assert program[:3] == ["out0", "out1", "out2"]
        assert taken == [256, 256, 32, 32, 256]
        assert most_at_once(program) == 5 * 512

    @pytest.mark.parametrize(
        ("release", "forward", "backward"),
        [
            # A copy of 2*32*8*8 halves, its sums and factors of N*C and N*G floats.
            ("2.13", [8192, 256, 256], [8192, 8192, 256, 256, 32, 32, 256]),
            # The mean and rstd of each group in float32 as well.
            ("2.14", [8192, 32, 32, 256, 256], [8192, 8192, 256, 256, 32, 32, 256]),
            # No copy, and no factors of channels in the backward pass.
            ("2.15", [32, 32, 256, 256], [256, 256, 32, 32]),
        ],
    )
    def test_channels_last_group_norm_by_release(
        self, release: str, forward: list[int], backward: list[int]
    ) -> None:
        x = tensor(2, 32, 8, 8, stride=(2048, 1, 256, 32), dtype=HALF)
        w, stats = tensor(32, dtype=HALF), tensor(2, 4, dtype=HALF)
        calls = Calls(version=release)
        sizes = (2, 32, 64, 4)

        programs = (
            calls.call(aten.native_group_norm.default, x, w, w, *sizes, 1e-5),
            calls.call(
                aten.native_group_norm_backward.default, x, x, stats, stats, w, *sizes, [True] * 3
            ),
        )

        taken = [[step for step in each if isinstance(step, int) and step > 0] for each in programs]
        assert taken == [forward, backward]

    def test_channels_last_batch_norm_stages_its_sums(self) -> None:
        """bfloat16 runs PyTorch's own kernel. 2*32*32 rows of 64 channels: blocks of 32 x 16,
        2048/(16*16) = 8 rows of blocks and 2 columns: 4 * 64 * 8 floats, 2 semaphores."""
        x = tensor(2, 64, 32, 32, stride=(65_536, 1, 2048, 64), dtype=HALF)
        w = tensor(64, dtype=HALF)
        program = Calls().call(aten.native_batch_norm.default, x, w, w, w, w, True, 0.1, 1e-5)

        assert program == ["out0", "out1", "out2", 8192, 8, -8, -8192]

    def test_cudnn_batch_norm_is_named_as_unmodelled(self) -> None:
        x, w = tensor(2, 64, 32, 32), tensor(64)
        calls = Calls()
        calls.call(aten.native_batch_norm.default, x, w, w, w, w, True, 0.1, 1e-5)

        assert [each.what for each in calls.assumptions()] == [
            "cuDNN's batch norm: reserve and workspaces"
        ]

    def frozen_batch_norm(self, grad: torch.Tensor, *, train: bool = True) -> list[str | int]:
        x, w = tensor(16, 64, 16, 16), tensor(64)
        return Calls().call(
            aten.native_batch_norm_backward.default,
            grad, x, w, w, w, w, w, train, 1e-5, [True, False, False],
        )  # fmt: skip

    def test_cudnn_computes_the_gradients_of_frozen_weights_anyway(self) -> None:
        """Recorded 30 times: `a 1048576, a 256, a 256, f 256, f 256` for 64 channels."""
        assert self.frozen_batch_norm(tensor(16, 64, 16, 16)) == ["out0", 256, 256, -256, -256]

    def test_in_evaluation_frozen_weights_have_no_gradients(self) -> None:
        """derivatives.yaml, `cudnn_batch_norm`: PyTorch's own kernel, which has a mask."""
        assert self.frozen_batch_norm(tensor(16, 64, 16, 16), train=False) == ["out0"]

    def test_cudnn_gets_a_contiguous_gradient(self) -> None:
        """derivatives.yaml, `grad.contiguous(...)`: that of a mean over height and width is not."""
        grad = tensor(16, 64, 16, 16, stride=(64, 1, 0, 0))
        copy = 16 * 64 * 16 * 16 * 4

        assert self.frozen_batch_norm(grad) == [copy, "out0", 256, 256, -copy, -256, -256]


class TestAttention:
    def heads(self, heads: int, length: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        return tensor(
            2, heads, length, width, dtype=dtype, stride=_sequence_first(heads, length, width)
        )

    def flash_backward(self, width: int, key_heads: int = 4) -> list[str | int]:
        query, key = self.heads(4, 1000, width, HALF), self.heads(key_heads, 1000, width, HALF)
        lse, scalar = tensor(2, 4, 1000), tensor(2, dtype=torch.uint64)
        return Calls("a100").call(
            aten._scaled_dot_product_flash_attention_backward.default,
            query, query, key, key, query, lse, None, None, 1000, 1000, 0.0, True, scalar, scalar,
        )  # fmt: skip

    def test_flash_backward_has_row_sums_and_a_float32_gradient(self) -> None:
        """1,000 queries round up to 1,024 in blocks of 128; a width of 80 to 96 in tiles of 32."""
        rows = 2 * 4 * 1024 * 4

        assert self.flash_backward(64)[3:5] == [rows, rows * 64]
        assert self.flash_backward(80)[3:5] == [rows, rows * 96]

    def test_shared_keys_have_a_gradient_for_each_head_of_queries(self) -> None:
        expanded = 2 * 1000 * 4 * 64 * 2

        assert self.flash_backward(64, key_heads=2)[5:7] == [expanded, expanded]

    def test_a_gradient_in_head_order_is_copied_first(self) -> None:
        query = self.heads(4, 128, 64, HALF)
        lse, scalar = tensor(2, 4, 128), tensor(2, dtype=torch.uint64)
        program = Calls("a100").call(
            aten._scaled_dot_product_flash_attention_backward.default,
            tensor(2, 4, 128, 64, dtype=HALF), query, query, query, query, lse, None, None, 128,
            128, 0.0, True, scalar, scalar,
        )  # fmt: skip

        assert program[:4] == [2 * 4 * 128 * 64 * 2, "out0", "out1", "out2"]

    def test_short_queries_split_the_keys(self) -> None:
        """16 heads of one block of queries on 216 slots; 4,096 keys are 16 blocks of 256. Splits
        of 1, 2, 3, 4, 6, 8 and 16 differ; 8 fills 128/216 of one wave, 16 needs 256 slots, two
        waves at 128/216 each: the first within 85 % of the best is 8."""
        query, key = self.heads(8, 64, 64, HALF), self.heads(8, 4096, 64, HALF)
        program = Calls("a100").call(
            aten._scaled_dot_product_flash_attention.default, query, key, key
        )
        rows = 8 * 16 * 64 * 4

        assert [step for step in program if isinstance(step, int) and step > 0] == [
            rows,
            rows * 64,
        ]

    def test_enough_work_needs_no_split(self) -> None:
        query = self.heads(8, 1024, 64, HALF)
        program = Calls("a100").call(
            aten._scaled_dot_product_flash_attention.default, query, query, query
        )

        assert all(isinstance(step, str) for step in program)

    def test_efficient_backward_copies_a_gradient_in_head_order(self) -> None:
        """32 KiB of float32, as (2, 4, 128, 8)."""
        x, lse, scalar = self.heads(4, 128, 8, torch.float32), tensor(2, 4, 128), tensor(dtype=LONG)
        program = Calls().call(
            aten._scaled_dot_product_efficient_attention_backward.default,
            tensor(2, 4, 128, 8), x, x, x, None, x, lse, scalar, scalar, 0.0,
            [True, True, True, False],
        )  # fmt: skip

        assert program[:2] == [2 * 4 * 128 * 8 * 4, "out0"]

    def efficient_backward(
        self, width: int, dtype: torch.dtype, gpu: str = "a100"
    ) -> list[str | int]:
        x = self.heads(4, 128, width, dtype)
        lse, scalar = tensor(2, 4, 128), tensor(dtype=LONG)
        program = Calls(gpu).call(
            aten._scaled_dot_product_efficient_attention_backward.default,
            x, x, x, x, None, x, lse, scalar, scalar, 0.0, [True, True, True, False],
        )  # fmt: skip
        return program[3:]

    def test_efficient_backward_has_row_sums_and_a_workspace(self) -> None:
        """Two tiles of 16 + 64*64*4 bytes for each of 8 heads; the sums go first, as on an H100."""
        sums, workspace = 8 * 128 * 4, 8 * 2 * (16 + 64 * 64 * 4)

        assert self.efficient_backward(64, HALF) == [sums, workspace, -sums, -workspace]

    def test_in_float32_the_row_sums_come_from_a_product(self) -> None:
        product, sums = 8 * 128 * 64 * 4, 8 * 128 * 4

        assert self.efficient_backward(64, torch.float32)[:5] == [
            product,
            sums,
            sums,
            -sums,
            -product,
        ]

    def test_wide_heads_keep_gradients_of_keys_and_values_in_memory(self) -> None:
        """On an RTX 3090 heads of 128 take tiles of 64 x 64: 2 x 2 tiles of queries, and two
        splits of 64 x (128 + 128) floats; an A100 keeps them in registers with one tile of
        128 x 128."""
        narrow = 8 * (4 * (16 + 64 * 64 * 4) + 2 * 64 * 256 * 4)
        wide = 8 * (16 + 128 * 128 * 4)

        assert narrow in self.efficient_backward(128, HALF, "rtx-3090")
        assert wide in self.efficient_backward(128, HALF, "a100")

    def cudnn(
        self, shape: tuple[int, ...], keys: tuple[int, ...], width: int = 0, causal: bool = False
    ) -> list[str | int]:
        """Scratch of the forward pass after seed, offset, output and logsumexp."""
        query, key = tensor(*shape, dtype=HALF), tensor(*keys, dtype=HALF)
        value = tensor(*keys[:3], width or keys[3], dtype=HALF)
        program = Calls("h100", "2.11").call(
            aten._scaled_dot_product_cudnn_attention.default,
            query, key, value, None, True, 0.0, causal,
        )  # fmt: skip
        assert program[:4] == ["out2", "out3", "out0", "out1"]
        return program[4:]

    def cudnn_backward(
        self, shape: tuple[int, ...], keys: tuple[int, ...], width: int = 0
    ) -> list[str | int]:
        query, key = tensor(*shape, dtype=HALF), tensor(*keys, dtype=HALF)
        value = tensor(*keys[:3], width or keys[3], dtype=HALF)
        out, lse = tensor(*shape[:3], value.shape[3], dtype=HALF), tensor(*shape[:3], 1)
        scalar = tensor(dtype=LONG)
        return Calls("h100", "2.11").call(
            aten._scaled_dot_product_cudnn_attention_backward.default,
            out, query, key, value, out, lse, scalar, scalar, None, None, None, shape[2],
            keys[2], 0.0, False,
        )[3:]  # fmt: skip

    @pytest.mark.parametrize(
        ("query", "key", "nbytes"),
        [
            ((4, 12, 2, 64), (4, 12, 8192, 64), 256),
            ((2, 16, 512, 128), (2, 4, 300, 128), 256),
            ((4, 12, 1, 64), (4, 12, 300, 64), 0),
            ((4, 12, 1, 64), (4, 12, 1024, 64), 50_816),
            ((1, 1, 1, 64), (1, 1, 2048, 64), 4_480),
            ((1, 1, 1, 256), (1, 1, 5000, 256), 33_152),
            ((1, 1, 1, 128), (1, 1, 16384, 128), 33_408),
            ((1, 8, 1, 128), (1, 8, 16384, 128), 133_248),
            ((2, 5, 1, 64), (2, 5, 5000, 64), 42_368),
            ((3, 32, 1, 64), (3, 32, 16384, 64), 0),
            ((2, 32, 1, 128), (2, 8, 4096, 128), 532_608),
            ((2, 32, 1, 64), (2, 1, 2048, 64), 270_464),
        ],
    )
    def test_cudnn_attention_takes_what_it_took_on_an_h100(
        self, query: tuple[int, ...], key: tuple[int, ...], nbytes: int
    ) -> None:
        """torch 2.11.0, cuDNN 9.19: docs/sources.md, "Attention"."""
        assert self.cudnn(query, key) == ([nbytes, -nbytes] if nbytes else [])

    @pytest.mark.parametrize(
        ("keys", "heads", "notes"),
        [(512, 12, 0), (700, 12, 1), (1024, 12, 0), (2048, 20, 1), (2048, 24, 0)],
    )
    def test_unrecorded_sizes_of_a_single_query_are_reported(
        self, keys: int, heads: int, notes: int
    ) -> None:
        """Recorded up to 512 keys and from 1,024 on, up to 48 heads and from 96 on."""
        calls = Calls("h100", "2.11")
        query, key = tensor(4, heads, 1, 64, dtype=HALF), tensor(4, heads, keys, 64, dtype=HALF)
        calls.call(aten._scaled_dot_product_cudnn_attention.default, query, key, key, None, True)

        assert len(calls.assumptions()) == notes

    def test_cudnn_does_not_split_the_keys_of_a_causal_query(self) -> None:
        """On the same H100."""
        assert self.cudnn((2, 32, 1, 128), (2, 8, 4096, 128), causal=True) == []

    @pytest.mark.parametrize(
        ("query", "key", "width", "nbytes"),
        [
            ((4, 12, 512, 64), (4, 12, 512, 64), 64, 6_390_016),
            ((2, 4, 333, 40), (2, 4, 333, 40), 40, 437_152),
            ((1, 3, 5, 24), (1, 3, 9, 24), 24, 1_756),
            ((2, 4, 100, 64), (2, 4, 90, 64), 128, 208_256),
            ((2, 4, 100, 64), (2, 2, 90, 64), 32, 346_496),
            ((2, 16, 512, 256), (2, 2, 512, 256), 256, 33_620_224),
            ((2, 32, 1, 128), (2, 8, 4096, 128), 128, 134_251_008),
        ],
    )
    def test_cudnn_attention_backward_takes_what_it_took_on_an_h100(
        self, query: tuple[int, ...], key: tuple[int, ...], width: int, nbytes: int
    ) -> None:
        """torch 2.11.0, cuDNN 9.19: docs/sources.md, "Attention"."""
        assert self.cudnn_backward(query, key, width) == [nbytes, -nbytes]


class TestOthers:
    def test_dropout_allocates_its_mask_first(self) -> None:
        """aten/src/ATen/native/cuda/Dropout.cu; recording mha_lm128_infer."""
        program = Calls().call(aten.native_dropout.default, tensor(100), 0.5, True)

        assert program == ["out1", "out0"]

    def test_clipping_has_a_partial_norm_for_each_chunk_of_the_largest(self) -> None:
        """Three tensors, the largest of 100,000 elements: two chunks of 65,536 each."""
        tensors = [tensor(100_000), tensor(10), tensor(10)]
        program = Calls().call(aten._foreach_norm.Scalar, tensors, 2)

        assert program == [3 * 2 * 4, "out0", "out1", "out2", -3 * 2 * 4]

    def test_another_norm_is_a_sequence_of_reductions(self) -> None:
        program = Calls().call(aten._foreach_norm.Scalar, [tensor(10), tensor(10)], 3)

        assert program == ["out0", "out1"]

    def test_the_gradient_of_a_convolutions_bias_is_a_sum(self) -> None:
        """(32, 64, 56, 56) in channels-last order is a column sum of 100,352 rows of 64."""
        channels_last = tensor(32, 64, 56, 56, stride=(64 * 3136, 1, 64 * 56, 64))
        program = Calls("a100").call(
            aten.convolution_backward.default,
            channels_last, channels_last, tensor(64, 64, 3, 3), [64], [1, 1], [1, 1], [1, 1],
            False, [0, 0], 1, [True, True, True],
        )  # fmt: skip
        as_matrix = Calls("a100").call(aten.sum.dim_IntList, tensor(100_352, 64), [0])

        assert program == ["out0", "out1", "out2", *as_matrix[1:]]
        assert len(program) == 7

    def half_convolution(
        self, gpu: str, dtype: torch.dtype = HALF, stride: tuple[int, ...] | None = None
    ) -> Calls:
        """(8, 12, 16, 16) by 24 filters of 3x3: 16 and 24 are the next multiples of 8."""
        calls = Calls(gpu)
        x, weight = (
            tensor(8, 12, 16, 16, dtype=dtype, stride=stride),
            tensor(24, 12, 3, 3, dtype=dtype),
        )
        self.program = calls.call(
            aten.convolution.default, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1
        )
        return calls

    @pytest.mark.parametrize(
        ("gpu", "dtype"),
        [("a100", HALF), ("h100", HALF), ("t4", torch.float16), ("v100", torch.float16)],
    )
    def test_tensor_cores_get_padded_channels_last_copies(
        self, gpu: str, dtype: torch.dtype
    ) -> None:
        calls = self.half_convolution(gpu, dtype)
        copies = (8 * 16 * 256 + 24 * 16 * 9 + 8 * 24 * 256) * 2
        copies += 16 if gpu == "h100" else 0  # recorded: conv_* of fixtures/cuda/operators.jsonl.gz

        assert self.program == ["out0", copies, -copies]
        assert [each.what for each in calls.assumptions()] == [
            "workspace of cuDNN's convolutions" + ("" if gpu == "h100" else " in 16 bits")
        ]

    @pytest.mark.parametrize(
        ("gpu", "dtype", "stride"),
        [
            ("t4", HALF, None),  # bfloat16 is emulated there: ResNet-50 of t4_preflight
            ("a100", torch.float32, None),  # nca2d
            ("a100", HALF, (12 * 256, 1, 12 * 16, 12)),  # channels last
        ],
    )
    def test_without_a_transpose_nothing_is_taken(
        self, gpu: str, dtype: torch.dtype, stride: tuple[int, ...] | None
    ) -> None:
        self.half_convolution(gpu, dtype, stride)

        assert self.program == ["out0"]

    def test_a_weight_gradient_takes_partial_sums(self) -> None:
        """Liger's row of length 256 on an RTX 3090: 12.19287109375 MiB were printed, at
        this workspace (fixtures/cases/liger_multi_token_attention.toml)."""
        x, weight = tensor(2, 4, 256, 256, dtype=HALF), tensor(4, 4, 3, 3, dtype=HALF)
        program = Calls("rtx-3090").call(
            aten.convolution_backward.default,
            x, x, weight, [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False],
        )  # fmt: skip
        copies = 2 * (2 * 8 * 256 * 256) * 2 + 4 * 8 * 9 * 2

        assert program == ["out0", copies, -copies, "out1", copies + 1_115_008, -copies - 1_115_008]

    def test_conv2d_weight_takes_the_same_as_the_gradient_does(self) -> None:
        """`torch.nn.grad.conv2d_weight` hands on one number, expanded, for the weight's sizes.

        Liger's own row of that length is 1,115,648 bytes above a peak without the workspace.
        """
        x, weight = tensor(2, 4, 256, 256, dtype=HALF), tensor(1, dtype=HALF).expand(4, 4, 3, 3)
        program = Calls("rtx-3090").call(
            aten.convolution_backward.default,
            x, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0], 1, [False, True, False],
        )  # fmt: skip
        workspace = 2 * (2 * 8 * 256 * 256) * 2 + 4 * 8 * 9 * 2 + 1_115_008

        assert program == ["out0", workspace, -workspace]

    def test_a_depthwise_convolution_takes_no_workspace(self) -> None:
        x, weight = tensor(8, 16, 16, 16, dtype=HALF), tensor(16, 1, 3, 3, dtype=HALF)
        program = Calls("a100").call(
            aten.convolution.default, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 16
        )

        assert program == ["out0"]

    def test_half_of_a_transposed_tensor_is_copied_before_its_convolution(self) -> None:
        """As recorded on an H100 (tf_mamba, events 38 to 40 and 3,697 to 3,701)."""
        rows = tensor(2, 1024, 128, stride=(2 * 1024 * 128, 1, 2 * 1024))
        results, weight = tensor(2, 1024, 131), tensor(1024, 1, 4)
        copy = 2 * 1024 * 128 * 4

        forward = Calls("h100").call(
            aten.convolution.default, rows, weight, tensor(1024), [1], [3], [1], False, [0], 1024
        )
        backward = Calls("h100").call(
            aten.convolution_backward.default,
            results, rows, weight, [1024], [1], [3], [1], False, [0], 1024, [True, True, True],
        )  # fmt: skip

        assert forward == [copy, "out0", -copy]
        assert backward == [copy, "out1", "out0", "out2", -copy]

    def test_short_rows_are_sorted_in_place(self) -> None:
        program = Calls().call(aten.sort.default, tensor(10, 1000), 1)

        assert program == ["out0", "out1", 8000, -8000]

    def test_a_long_row_is_sorted_by_cub(self) -> None:
        """n floats with int64 positions: n*8 and n*4 for the second buffers, four passes of
        256*8, ceil(10000/3072) = 4 tiles of 256*4, 16 bytes of counters, each a multiple of 256,
        and 255."""
        program = Calls("a100").call(aten.sort.default, tensor(10_000), 0)
        storage = 80_128 + 40_192 + 4 * 2048 + 4 * 1024 + 256 + 255

        assert program == ["out0", "out1", 80_000, storage, -storage, -80_000]

    def test_many_long_rows_are_sorted_one_by_one(self) -> None:
        """2,048 rows of 8,192 floats: all positions, then second buffers of keys and positions plus
        255 bytes (Liger's sparsemax rows need the last 512-byte block)."""
        program = Calls().call(aten.sort.default, tensor(2048, 8192), 1)
        count = 2048 * 8192

        positions, storage = count * 8, count * 4 + count * 8 + 255
        assert program == ["out0", "out1", positions, storage, -storage, -positions]

    def test_a_few_long_rows_are_sorted_together(self) -> None:
        """Ten rows of 10,000 floats: rows and positions twice, keys, and CUB's storage, which has
        ceil(100000 / 3072) = 33 tiles of 256*4 and second buffers of keys and pairs; then the
        pairs by the 4 bits of ten rows: ceil(100000 / 3840) = 27 tiles, a single pass."""
        program = Calls("a100").call(aten.sort.default, tensor(10, 10_000), 1)
        storage = 800_000 + 400_128 + 4 * 2048 + 33 * 1024 + 256 + 255

        by_row = 2048 + 27 * 1024 + 256 + 255
        pairs, keys = 800_000, 400_000
        assert program[:4] == ["out0", "out1", pairs, pairs]
        assert program[4:] == [keys, storage, -storage, -keys, by_row, -by_row, -pairs, -pairs]

    def test_columns_are_copied_before_they_are_sorted(self) -> None:
        """The input, its sorted values and their positions, in column-major order."""
        program = Calls().call(aten.sort.default, tensor(8192, 2048), 0)
        count = 2048 * 8192

        assert program[:5] == ["out0", "out1", count * 4, count * 4, count * 8]
        assert program[5:7] == [count * 8, count * 12 + 255]

    def test_a_running_sum_of_bools_converts_them(self) -> None:
        mask = tensor(10, 100, dtype=torch.bool)

        assert Calls().call(aten.cumsum.default, mask, 1) == ["out0", 8000, -8000]

    @pytest.mark.parametrize(("rows", "length"), [(4096, 64), (4000, 799), (1, 19_999)])
    def test_short_rows_of_topk_need_no_scratch(self, rows: int, length: int) -> None:
        calls = Calls()

        assert calls.call(aten.topk.default, tensor(rows, length), 2) == ["out0", "out1"]
        assert not calls.assumptions()

    @pytest.mark.parametrize(("rows", "length"), [(4096, 400), (4000, 800), (1, 20_000)])
    def test_long_rows_of_topk_are_split_over_blocks(self, rows: int, length: int) -> None:
        """A minimal result, two numbers, two digits, then a block's 256 counters of 2 bytes."""
        program = Calls("h100", "2.11").call(aten.topk.default, tensor(rows, length), 2)
        blocks = -(-length // (256 * max(4, -(-rows * length // (132 * 6 * 256))))) * rows

        assert program[2:6] == [rows * 4, rows * 8, rows * 8, blocks * 512]

    def test_operations_on_the_host_have_no_program(self) -> None:
        calls = Calls().begin(PhaseName.BACKWARD)
        calls.call(aten.mm.default, tensor(8, 8), tensor(8, 8))
        [op] = calls.graph.ops
        op.outputs = (op.outputs[0].__class__((8, 8), "float32", None, (8, 1)),)

        assert calls.programs() == {}


def _sequence_first(heads: int, length: int, width: int) -> tuple[int, ...]:
    """Strides of (batch, heads, sequence, width) laid out as (batch, sequence, heads, width)."""
    return (length * heads * width, width, heads * width, 1)


def test_an_operand_without_known_strides_is_named_as_unmodelled() -> None:
    """A sparse tensor has none."""
    calls = Calls()
    calls.call(aten.sum.default, tensor(100))
    [operand] = calls.graph.ops[0].args
    operand.tensor = None

    assert calls.programs() == {}
    assert [each.what for each in calls.assumptions()] == ["scratch memory of aten.sum"]
