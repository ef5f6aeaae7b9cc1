"""cuBLAS and cublasLt workspaces, by thread, version, card and environment, and copied operands."""

from __future__ import annotations

import pytest
import torch

from graphmem.graph import PhaseName
from graphmem.runtime import LtWorkspace, WrongBlasConfigError, WrongBlasLtSizeError
from tests.support.kernel_calls import Calls, aten, tensor

CUBLAS = 4096 * 1024 * 2 + 16 * 1024 * 8
CUBLAS_HOPPER = 4096 * 1024 * 8
LT = 1024 * 1024


def linear(calls: Calls, rows: int, inputs: int, outputs: int) -> list[str | int]:
    """`nn.Linear`: the weight arrives transposed."""
    weight = tensor(inputs, outputs, stride=(1, inputs))
    return calls.call(aten.addmm.default, tensor(outputs), tensor(rows, inputs), weight)


class TestCublas:
    def test_each_thread_takes_one_after_the_output_of_its_first_product(self) -> None:
        calls = Calls()
        a = tensor(8, 8)

        assert calls.call(aten.mm.default, a, a) == ["out0", CUBLAS]
        assert calls.call(aten.bmm.default, tensor(2, 8, 8), tensor(2, 8, 8)) == ["out0"]
        calls.begin(PhaseName.BACKWARD)
        assert calls.call(aten.mm.default, a, a) == ["out0", CUBLAS]
        calls.begin(PhaseName.FORWARD)
        assert calls.call(aten.mm.default, a, a) == ["out0"]

    @pytest.mark.parametrize(
        ("gpu", "version", "nbytes"),
        [
            ("t4", "2.13", CUBLAS),
            ("a100", "2.13", CUBLAS),
            ("h100", "2.4", CUBLAS_HOPPER),
            ("b200", "2.11", CUBLAS),
            ("b200", "2.12", CUBLAS_HOPPER),
            ("rtx-5090", "2.13", CUBLAS_HOPPER),
        ],
    )
    def test_the_card_and_the_version_decide_the_size(
        self, gpu: str, version: str, nbytes: int
    ) -> None:
        calls = Calls(gpu, version)

        assert calls.call(aten.mm.default, tensor(8, 8), tensor(8, 8)) == ["out0", nbytes]

    def test_since_2_15_each_product_takes_one_and_returns_it(self) -> None:
        """`getCurrentCUDABlasHandleWithWorkspace`, in aten/src/ATen/cuda/CublasHandlePool.cpp."""
        calls = Calls(version="2.15")
        expanded = tensor(8, 8, stride=(0, 0))

        for _ in range(2):
            assert calls.call(aten.mm.default, tensor(8, 8), tensor(8, 8)) == [
                "out0",
                CUBLAS,
                -CUBLAS,
            ]
        copied = calls.call(aten.mm.default, tensor(8, 8), expanded)
        assert copied == ["out0", 8 * 8 * 4, CUBLAS, -CUBLAS, -8 * 8 * 4]

    def test_since_2_15_the_environment_may_have_handles_keep_theirs(self) -> None:
        calls = Calls(version="2.15", env={"TORCH_CUBLAS_WORKSPACE_CACHE": "1"})

        assert linear(calls, 32, 100, 4096) == ["out0", CUBLAS]
        assert calls.call(aten.mm.default, tensor(8, 8), tensor(8, 8)) == ["out0"]

    @pytest.mark.parametrize(
        ("config", "nbytes"),
        [
            (":16:8", 131_072),  # recordings ckpt02, ckpt09
            (":4096:2:16:8", CUBLAS),
            # pytorch's test/test_cuda.py
            (":128:8:64:16:32:32", 3072 * 1024),
        ],
    )
    def test_the_environment_overrides_it(self, config: str, nbytes: int) -> None:
        calls = Calls(env={"CUBLAS_WORKSPACE_CONFIG": config})

        assert calls.call(aten.mm.default, tensor(8, 8), tensor(8, 8)) == ["out0", nbytes]

    def test_a_size_of_zero_takes_nothing(self) -> None:
        """Recordings ckpt01 and ckpt03 to ckpt07."""
        calls = Calls(env={"CUBLAS_WORKSPACE_CONFIG": ":0:0"})

        assert calls.call(aten.mm.default, tensor(8, 8), tensor(8, 8)) == ["out0", 0]

    @pytest.mark.parametrize("config", ["", "16:8:4", ":16", ":16:x", ":-1:8"])
    def test_a_malformed_setting_is_an_error(self, config: str) -> None:
        calls = Calls(env={"CUBLAS_WORKSPACE_CONFIG": config})

        with pytest.raises(WrongBlasConfigError):
            calls.call(aten.mm.default, tensor(8, 8), tensor(8, 8))

    def test_an_empty_product_requests_no_handle(self) -> None:
        assert Calls().call(aten.mm.default, tensor(8, 0), tensor(0, 8)) == ["out0"]

    @pytest.mark.parametrize(
        ("func", "args"),
        [
            (aten.mv.default, (tensor(8, 4), tensor(4))),
            (aten.addmv.default, (tensor(8), tensor(8, 4), tensor(4))),
            (aten.dot.default, (tensor(4), tensor(4))),
            (aten.baddbmm.default, (tensor(2, 8, 8), tensor(2, 8, 8), tensor(2, 8, 8))),
        ],
    )
    def test_other_products_take_a_workspace_too(self, func: object, args: object) -> None:
        assert Calls().call(func, *args) == ["out0", CUBLAS]  # type: ignore[misc]


class TestCublasLt:
    def test_up_to_2_8_each_linear_layer_has_a_block_taken_before_that_of_cublas(self) -> None:
        """Recording ckpt11: three layers in the forward pass."""
        calls = Calls(version="2.6")

        assert linear(calls, 32, 100, 4096) == ["out0", LT, CUBLAS, -LT]
        assert linear(calls, 32, 4096, 4096) == ["out0", LT, -LT]
        assert linear(calls, 32, 4096, 10) == ["out0", LT, -LT]

    def test_since_2_9_each_handle_keeps_one_taken_after_that_of_cublas(self) -> None:
        """Recording mha_lm128_infer: one block of 1,048,576 bytes, never freed."""
        calls = Calls(version="2.9")

        assert linear(calls, 32, 100, 4096) == ["out0", CUBLAS, LT]
        assert linear(calls, 32, 100, 4096) == ["out0"]

    def test_since_2_12_it_shares_that_of_cublas(self) -> None:
        assert linear(Calls(version="2.12"), 32, 100, 4096) == ["out0", CUBLAS]

    def test_since_2_15_each_linear_layer_has_a_block_and_takes_none_of_cublas(self) -> None:
        calls = Calls(version="2.15")

        for _ in range(2):
            assert linear(calls, 32, 100, 4096) == ["out0", LT, -LT]

    def test_since_2_12_one_of_its_own_does_not_bring_that_of_cublas(self) -> None:
        env = {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0"}

        assert linear(Calls(version="2.11", env=env), 32, 100, 4096) == ["out0", CUBLAS, LT]
        assert linear(Calls(version="2.12", env=env), 32, 100, 4096) == ["out0", LT]

    def test_a_product_of_integers_has_none(self) -> None:
        """`int8_gemm` in aten/src/ATen/cuda/CUDABlas.cpp asks for the handle only."""
        whole = tensor(32, 32, dtype=torch.int8)

        for version, expected in {"2.11": ["out0", CUBLAS], "2.12": ["out0"]}.items():
            calls = Calls(version=version)
            assert calls.call(aten._int_mm.default, whole, whole) == expected

    @pytest.mark.parametrize(
        ("version", "setting", "kind"),
        [
            ("2.7", "1", LtWorkspace.EACH_CALL),
            ("2.8", "1", LtWorkspace.SHARED),
            ("2.9", "1", LtWorkspace.SHARED),
            ("2.13", "0", LtWorkspace.KEPT),
            ("2.15", "1", LtWorkspace.EACH_CALL),
        ],
    )
    def test_sharing_can_be_set_since_2_8(
        self, version: str, setting: str, kind: LtWorkspace
    ) -> None:
        env = {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": setting}

        assert Calls(version=version, env=env).runtime.cublaslt_workspace is kind

    @pytest.mark.parametrize(("kib", "nbytes"), [("0", 0), ("4096", 4096 * 1024)])
    def test_its_size_is_set_in_kib(self, kib: str, nbytes: int) -> None:
        calls = Calls(version="2.6", env={"CUBLASLT_WORKSPACE_SIZE": kib})

        assert linear(calls, 32, 100, 4096) == ["out0", nbytes, CUBLAS, -nbytes]

    def test_a_malformed_size_is_an_error(self) -> None:
        calls = Calls(version="2.6", env={"CUBLASLT_WORKSPACE_SIZE": "1MB"})

        with pytest.raises(WrongBlasLtSizeError):
            linear(calls, 32, 100, 4096)

    def test_a_layer_of_one_output_does_without(self) -> None:
        """Recording mlp01: Linear(20, 1)."""
        assert linear(Calls(version="2.3"), 64, 20, 1) == ["out0", CUBLAS]

    def test_one_row_does_without_since_2_10(self) -> None:
        assert linear(Calls(version="2.9"), 1, 20, 20)[2:] == [LT]
        assert linear(Calls(version="2.10"), 1, 20, 20)[2:] == []

    @pytest.mark.parametrize(
        ("bias", "options"),
        [
            (tensor(32, 16), {}),  # a full matrix
            (tensor(16), {"beta": 2}),
            (tensor(16, stride=(2,)), {}),
            (tensor(1), {}),  # one number for all
        ],
    )
    def test_only_a_vector_of_the_right_length_takes_that_path(
        self, bias: torch.Tensor, options: dict[str, int]
    ) -> None:
        calls = Calls(version="2.6")
        program = calls.call(aten.addmm.default, bias, tensor(32, 8), tensor(8, 16), **options)

        assert program == ["out0", CUBLAS]

    def test_it_can_be_disabled(self) -> None:
        calls = Calls(version="2.6", env={"DISABLE_ADDMM_CUDA_LT": "1"})

        assert linear(calls, 32, 100, 4096) == ["out0", CUBLAS]


class TestCopiedOperands:
    def test_an_expanded_gradient_is_copied_before_the_handle_is_requested(self) -> None:
        """Recording ckpt09: 32 x 10 elements of stride 0, in the backward pass of sum()."""
        expanded = tensor(32, 10, stride=(0, 0))
        program = Calls().call(aten.mm.default, expanded, tensor(10, 128))

        assert program == ["out0", 32 * 10 * 4, CUBLAS, -32 * 10 * 4]

    def test_an_expanded_batch_is_copied(self) -> None:
        """Recording attn01: (8, 4096, 16) of stride 0."""
        expanded = tensor(8, 4096, 16, stride=(0, 0, 0))
        program = Calls().call(aten.bmm.default, tensor(8, 4096, 4096), expanded)

        assert program[1] == 8 * 4096 * 16 * 4 == 2_097_152

    @pytest.mark.parametrize(
        "stride",
        [(8, 1), (1, 8), (20, 1), (1, 20)],
        ids=["rows", "columns", "rows of a larger matrix", "columns of a larger matrix"],
    )
    def test_row_and_column_major_operands_are_not_copied(self, stride: tuple[int, int]) -> None:
        calls = Calls()

        assert calls.call(aten.mm.default, tensor(8, 8, stride=stride), tensor(8, 8)) == [
            "out0",
            CUBLAS,
        ]

    def test_a_matrix_with_gaps_in_both_directions_is_copied(self) -> None:
        program = Calls().call(aten.mm.default, tensor(8, 8, stride=(32, 2)), tensor(8, 8))

        assert program[1] == 8 * 8 * 4

    def test_a_vector_of_stride_0_is_copied(self) -> None:
        program = Calls().call(aten.mv.default, tensor(8, 4), tensor(4, stride=(0,)))

        assert program == ["out0", 16, CUBLAS, -16]
