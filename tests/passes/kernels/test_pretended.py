"""Scratch memory that torch 2.13.0 showed above a pretended card (tools/pretended_card)."""

from __future__ import annotations

import pytest
import torch

from tests.support.kernel_calls import Calls, aten, tensor


class TestDistances:
    """Gradients of float32: rows of 64 numbers."""

    def test_pdist_has_a_share_for_each_pair_of_rows(self) -> None:
        """256 rows, of which each has 255 others: 16,711,680 bytes were recorded."""
        rows, distances = tensor(256, 64), tensor(256 * 255 // 2)
        shares = 255 * 256 * 64 * 4

        program = Calls().call(aten._pdist_backward.default, distances, rows, 2.0, distances)
        assert program == ["out0", shares, -shares]
        assert shares == 16_711_680

    @pytest.mark.parametrize("batch", [(), (3,)])
    def test_cdist_has_one_for_each_row_of_both(self, batch: tuple[int, ...]) -> None:
        one, other, distances = (
            tensor(*batch, 512, 64),
            tensor(*batch, 128, 64),
            tensor(*batch, 512, 128),
        )
        shares = (3 if batch else 1) * 512 * 128 * 64 * 4

        program = Calls().call(aten._cdist_backward.default, distances, one, other, 1.0, distances)
        assert program == ["out0", shares, -shares]

    def test_there_is_no_gradient_of_how_many_numbers_differ(self) -> None:
        rows, distances = tensor(512, 64), tensor(512, 512)

        program = Calls().call(aten._cdist_backward.default, distances, rows, rows, 0.0, distances)
        assert program == ["out0"]


class TestFactors:
    """`lu_unpack` of matrices of five rows: 8 bytes for the number of each."""

    def program(self, *batch: int, pivots: bool = True) -> list[str | int]:
        matrices, pivots_of = tensor(*batch, 5, 5), tensor(*batch, 5, dtype=torch.int32)
        return Calls().call(aten.lu_unpack.default, matrices, pivots_of, True, pivots)[3:]

    def test_rows_are_numbered_to_be_permuted(self) -> None:
        assert self.program() == [5 * 8, -5 * 8]

    def test_each_matrix_has_numbers_of_its_own(self) -> None:
        assert self.program(6) == [5 * 8, 6 * 5 * 8, -5 * 8, -6 * 5 * 8]

    def test_pivots_may_stay_packed(self) -> None:
        assert self.program(pivots=False) == []


def test_a_single_number_is_summed_without_a_scan() -> None:
    """`cumsum_out` fills the result if there is no dimension; a row of one is scanned."""
    assert Calls().call(aten.cumsum.default, tensor(), 0) == ["out0"]
    assert Calls().call(aten.cumsum.default, tensor(1), 0) == ["out0", 1023, -1023]
