"""Sparse COO matrices on the card: a graph network of two layers."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn

from graphmem.live.gpu import VirtualGpu
from graphmem.trace.messages import SparseOperatorError
from graphmem.virtual_device.sparse import sorting_bytes
from tests.support.sizes import CUBLAS_WORKSPACE, in_blocks

NODES, FEATURES, HIDDEN, CLASSES = 300, 40, 16, 8
EDGES = 900
INDICES, VALUES = 2 * EDGES * 8, EDGES * 4
Virtual = Callable[..., VirtualGpu]


def ring() -> torch.Tensor:
    """Each node linked to the next three, on the host: 900 edges."""
    start = torch.arange(NODES).repeat_interleave(3)
    end = (start + torch.arange(1, 4).repeat(NODES)) % NODES
    edges = torch.stack([start, end])
    shares = torch.full((EDGES,), 1 / 3)
    matrix = torch.sparse_coo_tensor(edges, shares, (NODES, NODES), check_invariants=True)
    return matrix.coalesce()


class GraphNetwork(nn.Module):
    """Two layers that average the neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, HIDDEN, bias=False)
        self.second = nn.Linear(HIDDEN, CLASSES, bias=False)

    def forward(self, x: torch.Tensor, neighbours: torch.Tensor) -> torch.Tensor:
        hidden = torch.spmm(neighbours, self.first(x)).relu()
        return torch.sparse.mm(neighbours, self.second(hidden))


def test_a_copy_on_the_card_has_indices_and_values(virtual_gpu: Virtual) -> None:
    gpu = virtual_gpu("t4")
    matrix = ring().to("cuda")

    assert matrix.is_sparse
    assert matrix.is_cuda
    assert (matrix._nnz(), matrix.is_coalesced()) == (EDGES, True)
    assert matrix._indices().shape == (2, EDGES)
    assert matrix._values().shape == (EDGES,)
    assert matrix.coalesce() is matrix
    shown = "device='cuda:0', size=(300, 300), nnz=900, layout=torch.sparse_coo)"
    assert repr(matrix).endswith(shown)
    assert gpu.allocated == in_blocks(INDICES) + in_blocks(VALUES)

    shared = matrix.detach()
    assert gpu.allocated == in_blocks(INDICES) + in_blocks(VALUES)
    del matrix
    assert gpu.allocated == in_blocks(INDICES) + in_blocks(VALUES)
    del shared
    assert gpu.allocated == 0


def test_a_dense_copy(virtual_gpu: Virtual) -> None:
    gpu = virtual_gpu("t4")
    matrix = ring().to("cuda")
    dense = matrix.to_dense()
    del matrix
    assert dense.shape == (NODES, NODES)
    assert gpu.allocated == in_blocks(NODES * NODES * 4)


def test_a_transpose_is_a_copy_that_is_not_coalesced(virtual_gpu: Virtual) -> None:
    gpu = virtual_gpu("t4")
    host = ring()
    turned = host.to("cuda").t()
    assert turned.is_coalesced() == host.t().is_coalesced()
    assert host.t()._is_view()  # so that it holds the matrix, although they share no storage
    assert gpu.allocated == 2 * (in_blocks(INDICES) + in_blocks(VALUES))


def train(steps: int) -> nn.Module:
    neighbours = ring().cuda()
    net = GraphNetwork().cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x, y = torch.randn(NODES, FEATURES).cuda(), torch.zeros(NODES).long().cuda()
    for _ in range(steps):
        loss = nn.functional.cross_entropy(net(x, neighbours), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return net


def test_a_graph_network_trains_and_leaks_nothing(virtual_gpu: Virtual) -> None:
    gpu = virtual_gpu("t4")
    net = train(2)
    weights = in_blocks(FEATURES * HIDDEN * 4) + in_blocks(HIDDEN * CLASSES * 4)
    workspaces = 2 * CUBLAS_WORKSPACE  # cuBLAS: two threads have run dense products
    gc.collect()
    assert gpu.allocated == weights + workspaces
    del net
    assert gpu.allocated == workspaces


def test_backward_multiplies_by_the_transpose(virtual_gpu: Virtual) -> None:
    gpu = virtual_gpu("t4")
    neighbours = ring().cuda()
    support = torch.randn(NODES, HIDDEN).cuda().requires_grad_()
    output = torch.spmm(neighbours, support)
    del neighbours
    saved = in_blocks(INDICES) + in_blocks(VALUES)  # by autograd alone
    rows = in_blocks(NODES * HIDDEN * 4)
    assert gpu.allocated == saved + 2 * rows

    output.sum().backward()
    assert output.shape == (NODES, HIDDEN)
    assert support.grad is not None
    assert support.grad.shape == (NODES, HIDDEN)
    assert gpu.allocated == 3 * rows


def test_the_scratch_of_a_sparse_product(virtual_gpu: Virtual) -> None:
    """`_sparse_mm` and `s_addmm_out_sparse_dense_cuda`, in blocks of 512 bytes."""
    gpu = virtual_gpu("t4")
    neighbours, support = ring().cuda(), torch.randn(NODES, HIDDEN).cuda()
    before = gpu.allocated
    torch.cuda.reset_peak_memory_stats()
    product = torch.spmm(neighbours, support)
    rows = in_blocks(NODES * HIDDEN * 4)
    pointers, numbers = in_blocks((NODES + 1) * 4), in_blocks(EDGES * 4)

    assert product.shape == (NODES, HIDDEN)
    assert gpu.allocated == before + rows
    # Zeros, the result, and the result in columns; row pointers and column numbers.
    assert torch.cuda.max_memory_allocated() == before + 3 * rows + pointers + numbers
    left_out = [each.what for each in gpu.report().assumptions]
    assert "cuSPARSE's buffer for products of a sparse matrix" in left_out


def test_a_transpose_is_coalesced_for_a_product(virtual_gpu: Virtual) -> None:
    gpu = virtual_gpu("t4")
    turned, support = ring().cuda().t(), torch.randn(NODES, CLASSES).cuda()
    before = gpu.allocated
    torch.cuda.reset_peak_memory_stats()
    torch.addmm(support, turned, support)
    result, row = in_blocks(NODES * CLASSES * 4), in_blocks(EDGES * 8)

    coalesced = in_blocks(INDICES) + in_blocks(VALUES)
    sorting = 3 * row + coalesced
    assert torch.cuda.max_memory_allocated() == before + result + sorting


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_a_product_without_a_cuda_kernel(virtual_gpu: Virtual, dtype: torch.dtype) -> None:
    virtual_gpu("t4")
    matrix = ring().to("cuda", dtype)
    with pytest.raises(SparseOperatorError):
        torch.spmm(matrix, torch.ones(NODES, 2, device="cuda", dtype=dtype))


def test_the_hint_for_rows_of_a_matrix_is_to_make_it_dense(virtual_gpu: Virtual) -> None:
    virtual_gpu("t4")
    with pytest.raises(SparseOperatorError) as refused:
        ring().to("cuda").unbind()
    assert refused.value.hint.startswith("make it dense first, with to_dense(): ")


@pytest.mark.parametrize("is_expanded", [False, True])
def test_a_sparse_gradient(virtual_gpu: Virtual, *, is_expanded: bool) -> None:
    """Autograd keeps the gradient backward made, or copies one that is not contiguous.

    torch/csrc/autograd/functions/accumulate_grad.h. The former's indices are the input's.
    """
    gpu = virtual_gpu("t4")
    table = nn.Embedding(1000, 64, sparse=True).cuda()
    places, factors = torch.arange(200).cuda(), torch.ones(200, 64).cuda()
    before = gpu.allocated
    rows = table(places)
    (rows if is_expanded else rows * factors).sum().backward()
    del rows

    assert table.weight.grad is not None
    assert table.weight.grad.is_sparse
    indices = in_blocks(200 * 8) if is_expanded else 0
    assert gpu.allocated == before + in_blocks(200 * 64 * 4) + indices
    table.weight.grad = None
    assert gpu.allocated == before


def test_a_sparse_host_matrix_stays_on_the_host(virtual_gpu: Virtual) -> None:
    gpu = virtual_gpu("t4")
    support = torch.ones(NODES, 2, requires_grad=True)
    torch.spmm(ring(), support).sum().backward()
    assert support.grad is not None
    assert torch.allclose(support.grad, torch.ones(NODES, 2))  # three neighbours, a third each
    assert gpu.peak == 0


def test_sgd_adds_the_rows_of_a_sparse_gradient_in_place(virtual_gpu: Virtual) -> None:
    """`add_out_dense_sparse_cuda` allocates nothing."""
    gpu = virtual_gpu("t4")
    table = nn.Embedding(1000, 64, sparse=True).cuda()
    optimizer = torch.optim.SGD(table.parameters(), 0.1)
    table(torch.arange(200).cuda()).sum().backward()
    before = gpu.allocated
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()

    assert torch.cuda.max_memory_allocated() == gpu.allocated == before
    optimizer.zero_grad()
    assert gpu.allocated == in_blocks(1000 * 64 * 4)


def a_gradient_of_200_rows_150_of_them_distinct() -> tuple[nn.Embedding, torch.Tensor]:
    table = nn.Embedding(1000, 64, sparse=True).cuda()
    factors = torch.ones(200, 64).cuda()
    (table((torch.arange(200) % 150).cuda()) * factors).sum().backward()
    assert table.weight.grad is not None
    return table, table.weight.grad


def test_coalescing_leaves_as_many_rows_as_distinct_tokens(virtual_gpu: Virtual) -> None:
    """The new indices lie in memory for 200; two permutations of them are needed meanwhile.

    `_coalesce_sparse_cuda` (aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu).
    """
    gpu = virtual_gpu("t4")
    _, gradient = a_gradient_of_200_rows_150_of_them_distinct()
    before = gpu.allocated
    torch.cuda.reset_peak_memory_stats()
    coalesced = gradient.coalesce()

    assert (coalesced._nnz(), coalesced.is_coalesced()) == (150, True)
    assert gpu.allocated == before + in_blocks(200 * 8) + in_blocks(150 * 64 * 4)
    assert torch.cuda.max_memory_allocated() == gpu.allocated + 2 * in_blocks(200 * 8)


def test_unknown_rows_are_assumed_distinct(virtual_gpu: Virtual) -> None:
    virtual_gpu("t4")
    table = nn.Embedding(1000, 64, sparse=True).cuda()
    tokens = (torch.randn(200, device="cuda") * 1000).long()
    table(tokens).sum().backward()

    assert table.weight.grad is not None
    assert table.weight.grad.coalesce()._nnz() == 200


def test_sparse_adam_selects_its_moments_by_row(virtual_gpu: Virtual) -> None:
    """`sparse_mask` multiplies the rows it selects by a one (ATen's SparseTensor.cpp)."""
    gpu = virtual_gpu("t4")
    _, gradient = a_gradient_of_200_rows_150_of_them_distinct()
    mask, moments = gradient.coalesce(), torch.zeros(1000, 64, device="cuda")
    before = gpu.allocated
    torch.cuda.reset_peak_memory_stats()
    picked = moments.sparse_mask(mask)

    rows = in_blocks(150 * 64 * 4)
    assert picked._nnz() == 150
    assert gpu.allocated == before + in_blocks(150 * 8) + rows
    assert torch.cuda.max_memory_allocated() == gpu.allocated + in_blocks(4) + rows


@pytest.mark.parametrize(("kind", "moments"), [("SparseAdam", 2), ("Adagrad", 1)])
def test_optimizers_of_sparse_gradients_keep_dense_moments(
    kind: str, moments: int, virtual_gpu: Virtual
) -> None:
    gpu = virtual_gpu("t4")
    table = a_gradient_of_200_rows_150_of_them_distinct()[0]
    optimizer = getattr(torch.optim, kind)(list(table.parameters()))
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()

    assert gpu.allocated == (1 + moments) * in_blocks(1000 * 64 * 4)


def uncoalesced() -> torch.Tensor:
    """The ring's matrix as a program on the card makes it: 900 indices, of which 300 are double."""
    start = torch.arange(NODES).repeat_interleave(3)
    end = (start + torch.tensor([1, 2, 2]).repeat(NODES)) % NODES
    shares = torch.ones(EDGES, device="cuda", requires_grad=True)
    return torch.sparse_coo_tensor(torch.stack([start, end]).cuda(), shares, (NODES, NODES))


def test_coalescing_a_matrix_frees_its_indices_as_one_number(virtual_gpu: Virtual) -> None:
    """`_coalesce_sparse_cuda`: indices as one number, two orders of them, values, indices.

    Thrust sorts in one more piece: where its tile begins, 4 bytes, and copies of 8 bytes, all
    aligned to 256 bytes (cub/device/dispatch/dispatch_merge_sort.cuh).
    """
    gpu = virtual_gpu("t4")
    matrix = uncoalesced()
    before = gpu.allocated
    torch.cuda.reset_peak_memory_stats()
    coalesced = matrix.coalesce()

    distinct = 2 * NODES
    assert (coalesced._nnz(), coalesced.is_coalesced()) == (distinct, True)
    assert gpu.allocated == before + in_blocks(2 * distinct * 8) + in_blocks(distinct * 4)
    sorting = 256 + 2 * (29 * 256) + 255  # 28 * 256 < 900 * 8 < 29 * 256
    assert torch.cuda.max_memory_allocated() == before + 3 * in_blocks(EDGES * 8) + in_blocks(
        sorting
    )


@pytest.mark.parametrize("is_in_place", [False, True])
def test_a_sparse_matrix_is_added_to_a_dense_one(
    virtual_gpu: Virtual, *, is_in_place: bool
) -> None:
    """`add_out_dense_sparse_cuda`: its indices become one number, by a product and a sum."""
    gpu = virtual_gpu("t4")
    matrix, dense = uncoalesced(), torch.zeros(NODES, NODES, device="cuda")
    before = gpu.allocated
    torch.cuda.reset_peak_memory_stats()
    result = dense.add_(matrix) if is_in_place else dense + matrix

    rows = 0 if is_in_place else in_blocks(NODES * NODES * 4)
    assert (result is dense) == is_in_place
    assert gpu.allocated == before + rows
    factors, multiplied, number = in_blocks(2 * 8), in_blocks(INDICES), in_blocks(EDGES * 8)
    assert torch.cuda.max_memory_allocated() == before + rows + factors + multiplied + number


def test_sparse_matrices_are_concatenated_by_their_sum(virtual_gpu: Virtual) -> None:
    gpu = virtual_gpu("t4")
    matrix = uncoalesced()
    before = gpu.allocated
    both = matrix + matrix

    assert both._nnz() == 2 * EDGES
    assert gpu.allocated == before + in_blocks(2 * INDICES) + in_blocks(2 * VALUES)


def test_the_values_of_a_sparse_sum_get_what_a_dense_gradient_has_there(
    virtual_gpu: Virtual,
) -> None:
    """As PEFT's SHiRA trains; a real run on the CPU has the same shapes."""
    virtual_gpu("t4")
    matrix = uncoalesced()
    (torch.zeros(NODES, NODES, device="cuda") + matrix).sum().backward()
    values = matrix.grad_fn.next_functions[0][0].variable  # type: ignore[union-attr]
    assert values.grad.shape == (EDGES,)


def test_the_values_of_a_coalesced_matrix_are_looked_up_in_its_gradient(
    virtual_gpu: Virtual,
) -> None:
    """As PEFT's FRoD trains (sparse/SparseBinaryOpIntersectionCommon.h)."""
    gpu = virtual_gpu("t4")
    matrix = uncoalesced().detach()
    gradient = matrix.coalesce()
    before = gpu.allocated
    torch.cuda.reset_peak_memory_stats()
    looked_up = gradient.sparse_mask(matrix)

    distinct = 2 * NODES
    hashing = in_blocks(EDGES * 8) + in_blocks(distinct * 8) + in_blocks(2 * EDGES * 8)
    assert looked_up._nnz() == EDGES
    assert gpu.allocated == before + in_blocks(INDICES) + in_blocks(VALUES)
    assert torch.cuda.max_memory_allocated() == gpu.allocated + hashing


def test_a_layer_that_multiplies_by_a_matrix_of_trained_values(virtual_gpu: Virtual) -> None:
    virtual_gpu("t4")
    matrix = uncoalesced()
    torch.sparse.mm(matrix.coalesce(), torch.ones(NODES, 8, device="cuda")).sum().backward()
    values = matrix.grad_fn.next_functions[0][0].variable  # type: ignore[union-attr]
    assert values.grad.shape == (EDGES,)


def test_a_dense_tensor_becomes_sparse_and_dense_again(virtual_gpu: Virtual) -> None:
    """`dense_to_sparse`: indices, then values; copies of both are made of what it finds."""
    gpu = virtual_gpu("t4")
    host = torch.zeros(NODES, NODES)
    host[:, :3] = 1
    dense = host.cuda()
    before = gpu.allocated
    sparse = dense.to_sparse()

    assert (sparse._nnz(), sparse.is_coalesced()) == (EDGES, True)
    assert gpu.allocated == before + in_blocks(INDICES) + in_blocks(VALUES)
    assert sparse.to_dense().shape == (NODES, NODES)


def test_an_unknown_dense_tensor_has_no_zeros_when_it_becomes_sparse(virtual_gpu: Virtual) -> None:
    virtual_gpu("t4")
    scores = torch.nn.Linear(16, NODES).cuda()(torch.ones(4, 16, device="cuda"))
    with torch.no_grad():
        assert scores.to_sparse()._nnz() == 4 * NODES


def test_thrust_sorts_indices_in_memory_that_was_recorded() -> None:
    """Recording `tabular_sparse`: 32,768 tokens of a batch, before distinct ones are found."""
    assert sorting_bytes(32_768) == 524_799
