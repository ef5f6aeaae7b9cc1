"""Copies and arrays that kernels need for layouts they cannot read; sizes from an H100.

The recordings are in fixtures/cuda/zoo.tar.xz and random.tar.xz, made with torch 2.11.
"""

from __future__ import annotations

import torch

from graphmem.gpus import find_gpu
from graphmem.passes.kernel_memory import find_kernel_memory
from graphmem.runtime import Runtime
from tests.support.kernel_calls import Calls, aten, readable, tensor
from tests.support.traced_step import traced


def h100() -> Calls:
    return Calls("h100", "2.11")


def test_pooling_a_transposed_matrix_copies_it_beside_the_results() -> None:
    """random_120: 144 x 144 numbers, 82,944 bytes."""
    image = tensor(1, 144, 1, 144, stride=(144, 1, 20_736, 144))
    result, indices = tensor(1, 144, 1, 144), tensor(1, 144, 1, 144, dtype=torch.int64)
    pooling = ([1, 3], [1, 1], [0, 1], [1, 1], False)

    forward = h100().call(aten.max_pool2d_with_indices.default, image, *pooling)
    gradient = aten.max_pool2d_with_indices_backward.default
    backward = h100().call(gradient, result, image, *pooling, indices)

    assert forward == ["out0", "out1", 82_944, -82_944]
    assert backward == ["out0", 82_944, -82_944]


def test_pooling_images_of_either_layout_copies_nothing() -> None:
    images = tensor(2, 8, 6, 6), tensor(2, 8, 6, 6, stride=(288, 1, 48, 8))
    for image in images:
        program = h100().call(aten.avg_pool2d.default, image, [2, 2])

        assert program == ["out0"]


def test_small_triangular_systems_need_pointer_arrays() -> None:
    """zoo_qwen3_5_text: 12 matrices of 64 x 64, 96 bytes of pointers twice."""
    matrices, sides = tensor(3, 4, 64, 64), tensor(3, 4, 64, 128)
    program = h100().call(aten.linalg_solve_triangular.default, matrices, sides, upper=False)

    assert program == ["out0", 96, 96, -96, -96]


def test_few_or_very_wide_triangular_systems_need_no_pointer_arrays() -> None:
    """Up to 8 matrices are solved one by one; MAGMA's arrays are on the host."""
    for shape in ((8, 64, 64), (12, 513, 513)):
        program = h100().call(
            aten.linalg_solve_triangular.default, tensor(*shape), tensor(*shape), upper=False
        )

        assert program == ["out0"]


def test_the_gradient_of_a_depthwise_convolution_is_copied_first() -> None:
    """zoo_nystromformer: the gradient, 61,440 bytes, the input for the weight, then the input's."""
    heads, length, width = 4, 40, 32
    batch = 3
    swapped = (heads * length * width, width, heads * width, 1)
    image = tensor(batch, heads, length, width, stride=swapped)
    weight = tensor(heads, 1, 65, 1)
    program = h100().call(
        aten.convolution_backward.default, image, image, weight, None,
        [1, 1], [32, 0], [1, 1], False, [0, 0], heads, [True, True, False],
    )  # fmt: skip

    assert program == [61_440, 61_440, "out1", -61_440, "out0", -61_440]


def test_the_transposed_gradient_of_a_row_is_copied() -> None:
    """zoo_convbert, a 1-d convolution of width 1: 30,720 bytes before the results."""
    gradient = tensor(3, 64, 40, stride=(2560, 1, 64))
    program = h100().call(
        aten.convolution_backward.default, gradient, tensor(3, 128, 40), tensor(64, 128, 1), None,
        [1], [0], [1], False, [0], 1, [True, True, False],
    )  # fmt: skip

    assert program == [30_720, "out0", "out1", 98_304, -98_304, -30_720]


def test_a_cholesky_factor_is_copied_to_solve_with_it() -> None:
    """fixtures/real/gaussian_process.py on an H200: `a 4, a 16000, a 64000000, f, f`."""
    sides, factor = tensor(4000, 1), tensor(4000, 4000)

    program = h100().call(aten.cholesky_solve.default, sides, factor)

    assert program == [4, "out0", 4000 * 4000 * 4, -4000 * 4000 * 4, -4]


def test_several_systems_of_one_side_have_pointers() -> None:
    """`apply_cholesky_cusolver_potrsBatched`: two arrays of 3 pointers."""
    program = h100().call(aten.cholesky_solve.default, tensor(3, 8, 1), tensor(3, 8, 8))

    assert program == [4, "out0", 3 * 8 * 8 * 4, 3 * 8, 3 * 8, -3 * 8, -3 * 8, -3 * 8 * 8 * 4, -4]


def test_an_inverse_is_made_of_factors_and_pivots() -> None:
    """anomalib's Padim inverts the covariance of 100 features at each of 64 x 64 places."""
    program = h100().call(aten.linalg_inv_ex.default, tensor(4096, 100, 100))

    factors, pivots = 4096 * 100 * 100 * 4, 4096 * 100 * 4
    assert program == ["out0", "out1", factors, pivots, -pivots, -factors]


def test_a_solver_looks_at_the_status_of_each_matrix() -> None:
    """`_linalg_check_errors`: `infos.any().item()`, of bools (recorded as `a 1, a 1, f 1, f 1`)."""
    graph = traced(lambda: torch.linalg.cholesky(torch.randn(300, 300, device="cuda")))

    (looked,) = (op for op in graph.ops if op.target == "aten.any.default")
    programs = find_kernel_memory(graph, Runtime(find_gpu("h200"), "2.11", {}), {}).programs
    assert readable(programs[looked.index]) == ["out0", 1, -1]
    assert "it passes" in [each.value for each in graph.assumptions]


def test_eigenvectors_come_before_eigenvalues() -> None:
    """fixtures/real/shampoo.py on an H200: `a 4194304, a 4096, a 4`, and cuSOLVER's workspace."""
    graph = traced(lambda: torch.linalg.eigh(torch.randn(1024, 1024, device="cuda")))

    (found,) = (op for op in graph.ops if op.target == "aten._linalg_eigh.default")
    programs = find_kernel_memory(graph, Runtime(find_gpu("h200"), "2.11", {}), {}).programs
    assert readable(programs[found.index]) == ["out1", "out0", 4, 1, 1, -1, -1, -4]


def test_a_sparse_gradient_of_bags_is_their_rows_by_index() -> None:
    """fixtures/real/tabular.py --sparse on an H200: 8,388,608 bytes for 8,192 bags of 4."""

    def step() -> None:
        bags = torch.nn.EmbeddingBag(100, 64, mode="sum", sparse=True).to("cuda")
        bags(torch.randint(100, (8192, 4), device="cuda")).sum().backward()

    graph = traced(step)
    (found,) = (op for op in graph.ops if op.target == "aten._embedding_bag_backward.default")
    programs = find_kernel_memory(graph, Runtime(find_gpu("h200"), "2.11", {}), {}).programs

    (values,) = found.births
    assert graph.storages[values].nbytes == 8192 * 4 * 64 * 4 == 8_388_608
    assert found.index not in programs or readable(programs[found.index]) == ["out0"]
