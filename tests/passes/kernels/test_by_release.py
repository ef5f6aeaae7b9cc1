"""Kernels whose scratch memory differs between releases; figures derived in each test.

The figures of new releases follow PyTorch's sources and the machine code of the wheels
(docs/versions.md); no recording of them exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch

from tests.support.kernel_calls import Calls, aten, tensor

HALF, LONG = torch.bfloat16, torch.int64


@contextmanager
def _shaped_like(name: str, shape: tuple[int, ...]) -> Iterator[None]:
    """Give an operator whose result's shape depends on data a result in int64 on meta tensors."""
    library = torch.library.Library("aten", "IMPL")
    shaped = lambda *args, **kwargs: tensor(*shape, dtype=LONG)  # noqa: E731
    library.impl(name, shaped, "Meta", allow_override=True)
    try:
        yield
    finally:
        library._destroy()


class TestNormsOfLists:
    """Gradient clipping: tensors of 100,000, 10 and 0 elements have 2, 1 and 0 chunks of 65,536."""

    OUTPUTS = ("out0", "out1", "out2")

    def norm(self, release: str, order: float, dtype: torch.dtype = HALF) -> list[str | int]:
        tensors = [tensor(size, dtype=dtype) for size in (100_000, 10, 0)]
        return Calls(version=release).call(aten._foreach_norm.Scalar, tensors, order)

    def test_until_2_14_each_tensor_has_the_partial_norms_of_the_largest(self) -> None:
        assert self.norm("2.14", 2) == [3 * 2 * 4, *self.OUTPUTS, -3 * 2 * 4]

    def test_since_2_15_each_has_its_own_and_a_table_says_where(self) -> None:
        """Where those of two tensors begin, and the last end, in int64; 2 + 1 partial norms."""
        table, partial = (2 + 1) * 8, (2 + 1) * 4

        assert self.norm("2.15", 2) == [table, partial, *self.OUTPUTS, -partial, -table]

    def test_partial_norms_of_float64_have_eight_bytes(self) -> None:
        assert self.norm("2.15", 2, torch.float64)[:2] == [(2 + 1) * 8, (2 + 1) * 8]

    def test_nonzero_elements_are_counted_at_once_since_2_12(self) -> None:
        assert self.norm("2.11", 0) == [*self.OUTPUTS]
        assert self.norm("2.12", 0) == [3 * 2 * 4, *self.OUTPUTS, -3 * 2 * 4]


class TestExtrema:
    """2^20 values on an A100 (108 multiprocessors of 2,048 threads): one output, blocks of 512
    threads, 2^20 / 512 / 16 = 128 of them, fewer than the 108 * 2048 / 512 that fit: 128 partial
    results and a semaphore. A pair of both extrema is twice as large as one."""

    def histc(self, release: str) -> list[str | int]:
        return Calls("a100", release).call(aten.histc.default, tensor(1 << 20))

    def test_histc_looks_twice_until_2_11(self) -> None:
        look = [4, 128 * 4, 4, -4, -128 * 4, -4]

        assert self.histc("2.11") == ["out0", *look, *look]

    def test_histc_looks_once_since_2_12(self) -> None:
        both = [4, 4, 128 * 8, 4, -4, -128 * 8, -4, -4]

        assert self.histc("2.12") == ["out0", *both]

    def index_put(self, release: str) -> list[str | int]:
        table, index = tensor(100, 50), tensor(8, dtype=LONG)
        calls = Calls(version=release)
        return calls.call(aten.index_put_.default, table, [index], tensor(8, 50), True)

    def test_indices_are_looked_at_twice_until_2_12(self) -> None:
        """The greatest index and its comparison, the least and its comparison, the wrapped one."""
        assert self.index_put("2.12")[:9] == [8, 1, -1, -8, 8, 1, -1, -8, 64]

    def test_indices_are_looked_at_once_since_2_13(self) -> None:
        """The least and the greatest index, a comparison of each, the wrapped one."""
        assert self.index_put("2.13")[:9] == [8, 8, 1, -1, 1, -1, -8, -8, 64]

    @pytest.mark.parametrize(
        ("release", "program"),
        [
            ("2.12", [8, -8, 8, -8, "out0"]),
            ("2.13", [8, 8, "out0", -8, -8]),
        ],
    )
    def test_bincount_holds_both_extrema_since_2_13(
        self, release: str, program: list[str | int]
    ) -> None:
        calls = Calls(version=release)
        with _shaped_like("bincount", (5,)):
            assert calls.call(aten.bincount.default, tensor(100, dtype=LONG)) == program


class TestChoices:
    @pytest.mark.parametrize(
        ("release", "range_and_check", "at_the_end"),
        [
            ("2.11", [4, 1, 4, 1, 1, -1, -4, -1, -4], []),
            ("2.12", [4, 4, 1, 1, 1, -1, -1], [-4, -4]),
        ],
    )
    def test_multinomial_without_replacement(
        self, release: str, range_and_check: list[int], at_the_end: list[int]
    ) -> None:
        """As PyTorch 2.11.0+cu130 and 2.13.0+cu130 above a driver that runs no kernel."""
        program = Calls(version=release).call(aten.multinomial.default, tensor(4, 8), 1)

        rows_of_zeros, quotients = [16, 4, 1, -4, -16, 1, -1], [128, -128]
        assert program == [
            *("out0", *range_and_check, *rows_of_zeros, *quotients, -1, -1, *at_the_end)
        ]

    @pytest.mark.parametrize(("release", "copies"), [("2.14", 3), ("2.15", 2)])
    def test_multinomial_with_replacement(self, release: str, copies: int) -> None:
        """Normalised rows and their sums as large as 4 * 1000 floats; until 2.14 a copy as well."""
        calls = Calls(version=release)
        program = calls.call(aten.multinomial.default, tensor(4, 1000), 2, True)

        assert program == ["out0", *[16_000] * copies, *[-16_000] * copies]

    @pytest.mark.parametrize(
        ("release", "check"),
        [
            # A bool for each of 100 repetitions and one for all; the least of them in int64.
            ("2.14", [100, 1, -1, -100]),
            ("2.15", [8, -8]),
        ],
    )
    def test_repetitions_are_checked(self, release: str, check: list[int]) -> None:
        calls = Calls("a100", release)
        with _shaped_like("repeat_interleave.Tensor", (100,)):
            program = calls.call(aten.repeat_interleave.Tensor, tensor(100, dtype=LONG))
        scan, *others = program[1], *program[3:]

        assert program[:3] == [800, scan, -int(scan)]
        assert others == [*check, "out0", -800]


class TestGroupNorm:
    @pytest.mark.parametrize(
        ("release", "taken"),
        [
            # Two sums of 2 * 32 channels, two factors of 2 * 4 groups, in float32.
            ("2.13", [256, 256, 32, 32]),
            ("2.14", [32, 32]),
            ("2.15", [32, 32]),
        ],
    )
    def test_one_position_has_no_sums_since_2_14(self, release: str, taken: Sequence[int]) -> None:
        x, stats = tensor(2, 32), tensor(2, 4)
        program = Calls(version=release).call(
            aten.native_group_norm_backward.default,
            x, x, stats, stats, tensor(32), 2, 32, 1, 4, [True, True, True],
        )  # fmt: skip

        assert [step for step in program if isinstance(step, int) and step > 0] == taken


class TestAttention:
    """Two batches of 4 heads of 128 queries, 64 wide, whose keys and values have 2 heads."""

    EACH_HEAD = 2 * 4 * 128 * 64 * 2

    def backward(self, bias: torch.Tensor | None = None) -> list[str | int]:
        query, key = self.heads(4), self.heads(2)
        lse, scalar = tensor(2, 4, 128), tensor(dtype=LONG)
        return Calls("a100", "2.14").call(
            aten._scaled_dot_product_efficient_attention_backward.default,
            query, query, key, key, bias, query, lse, scalar, scalar, 0.0,
            [True, True, True, bias is not None],
        )  # fmt: skip

    def heads(self, count: int) -> torch.Tensor:
        return tensor(2, 128, count, 64, dtype=HALF).transpose(1, 2)

    def test_shared_keys_have_a_gradient_for_each_head_of_queries(self) -> None:
        """Row sums; two tiles of 16 + 64 * 64 * 4 bytes for each of 8 heads. The sum of two heads
        needs no staging."""
        sums, workspace = 8 * 128 * 4, 8 * 2 * (16 + 64 * 64 * 4)
        gradients = [self.EACH_HEAD, self.EACH_HEAD]

        assert self.backward() == [
            "out0", "out1", "out2", *gradients, sums, workspace, -sums, -workspace,
            -self.EACH_HEAD, -self.EACH_HEAD,
        ]  # fmt: skip

    def test_the_gradient_of_the_bias_comes_after_them(self) -> None:
        program = self.backward(tensor(2, 4, 128, 128, dtype=HALF))

        assert program[:6] == ["out0", "out1", "out2", self.EACH_HEAD, self.EACH_HEAD, "out3"]


class TestSortedEmbeddings:
    """8,192 indices on an H100, as 2.11.0 and 2.13.0 sort them above a pretended card."""

    def storage(self, release: str, rows: int) -> str | int:
        grad, indices = tensor(8192, 8), tensor(8192, dtype=LONG)
        backward = aten.embedding_dense_backward.default
        return Calls("h100", release).call(backward, grad, indices, rows, -1, False)[3]

    def test_until_2_12_they_are_sorted_by_all_bits(self) -> None:
        assert self.storage("2.12", 255) == self.storage("2.12", 65_536) == 150_015

    @pytest.mark.parametrize(
        ("rows", "nbytes"), [(255, 4607), (256, 137_727), (65_535, 137_727), (65_536, 139_775)]
    )
    def test_since_2_13_by_those_that_the_table_needs(self, rows: int, nbytes: int) -> None:
        """Eight bits are sorted at once; the first eight without a second buffer."""
        assert self.storage("2.13", rows) == nbytes

    def test_the_gradient_of_bags_follows(self) -> None:
        grad, indices = tensor(1024, 8), tensor(8192, dtype=LONG)
        bags = tensor(8192, dtype=LONG), tensor(1024, dtype=LONG), tensor(1024, dtype=LONG)
        backward = aten._embedding_bag_dense_backward.default

        found = {
            release: Calls("h100", release).call(
                backward, grad, indices, *bags, 255, False, 0, None
            )
            for release in ("2.12", "2.13")
        }
        assert (found["2.12"][3], found["2.13"][3]) == (150_015, 4607)
