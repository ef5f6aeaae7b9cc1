"""xformers' own Python over PyTorch's attention kernels; figures are derived from the sources.

flash: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp of PyTorch; efficient:
.../cuda/attention_backward.cu and mem_eff_attention/kernel_backward.h; Python: xformers 0.0.35,
xformers/ops/fmha/__init__.py (`_fMHA`), flash.py and cutlass.py.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import graphmem
from graphmem.virtual_device.messages import NoStandInPartError, UnsupportedReleaseError
from graphmem.virtual_device.stand_ins.xformers import STAND_IN
from tests.support.card_bytes import kept_and_peak
from tests.support.sizes import in_blocks

HALF, FLOAT = 2, 4
BATCH, ROWS, HEADS, WIDTH = 2, 250, 8, 64
ELEMENTS = BATCH * ROWS * HEADS * WIDTH


@pytest.fixture(params=["installed", "stand-in"])
def attention(request: pytest.FixtureRequest) -> Iterator[Any]:
    with graphmem.virtual_gpu("a100") as gpu:
        if request.param == "installed":
            yield pytest.importorskip("xformers.ops")
        else:
            modules = STAND_IN.modules(gpu.runtime.gpu)
            masks = SimpleNamespace(**modules["xformers.ops.fmha.attn_bias"])
            fmha = SimpleNamespace(attn_bias=masks)
            yield SimpleNamespace(**modules["xformers.ops"], fmha=fmha)


def operands(dtype: torch.dtype, batch: int = BATCH, rows: int = ROWS) -> list[torch.Tensor]:
    size = (batch, rows, HEADS, WIDTH)
    return [torch.zeros(size, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]


def packed(attention: Any, dtype: torch.dtype) -> torch.Tensor:
    """Attention of sequences of 100, 200 and 300 rows."""
    mask = attention.fmha.attn_bias.BlockDiagonalMask.from_seqlens([100, 200, 300], device="cuda")
    out: torch.Tensor = attention.memory_efficient_attention(
        *operands(dtype, batch=1, rows=600), attn_bias=mask
    )
    return out


def backward_peak(out: torch.Tensor) -> int:
    gradient = torch.ones_like(out)
    return kept_and_peak(lambda: out.backward(gradient))[2]


def test_half_precision_runs_flash_attention(attention: Any) -> None:
    """`_fMHA` keeps the output and the log-sum-exp, of which autograd makes a gradient of zeros."""
    sums = in_blocks(BATCH * HEADS * ROWS * FLOAT)
    states = 2 * 512  # of the generator, freed when `_flash_fwd` returns
    q, k, v = operands(torch.float16)
    out, kept, peak = kept_and_peak(lambda: attention.memory_efficient_attention(q, k, v))
    assert (kept, peak) == (ELEMENTS * HALF + sums, ELEMENTS * HALF + sums + states)

    in_tiles = BATCH * HEADS * 256 * FLOAT  # 250 rows up to a multiple of 128
    assert backward_peak(out) == 3 * ELEMENTS * HALF + sums + in_tiles + in_tiles * WIDTH


def test_single_precision_runs_the_memory_efficient_kernel(attention: Any) -> None:
    """Its log-sum-exp is padded to 32 rows (`get_padded_lse`): here 250 become 256."""
    sums = BATCH * HEADS * 256 * FLOAT
    q, k, v = operands(torch.float32)
    out, kept, _ = kept_and_peak(lambda: attention.memory_efficient_attention(q, k, v))
    assert kept == ELEMENTS * FLOAT + sums

    workspace = BATCH * HEADS * 4 * (4 + 64 * 64) * FLOAT  # 4 blocks of 64 queries, and their locks
    rows = in_blocks(BATCH * HEADS * ROWS * FLOAT)
    products = ELEMENTS * FLOAT + 2 * rows  # the product, its sums, and these transposed
    scratch = max(products, rows + workspace)
    assert backward_peak(out) == 3 * ELEMENTS * FLOAT + sums + scratch


def test_flash_pads_each_packed_sequence_to_a_block(attention: Any) -> None:
    """`mha_varlen_bwd`: 128 more rows for each of three sequences."""
    total = 600 * HEADS * WIDTH
    rows = (600 + 3 * 128) * HEADS * FLOAT
    sums = in_blocks(600 * HEADS * FLOAT)
    expected = 3 * total * HALF + sums + in_blocks(rows) + rows * WIDTH
    assert backward_peak(packed(attention, torch.float16)) == expected


def test_the_efficient_kernel_works_on_each_packed_sequence(attention: Any) -> None:
    """`num_batches` is 3, `num_queries` 300: 5 blocks of 64 each, also of the short ones."""
    total = 600 * HEADS * WIDTH
    sums = 3 * HEADS * 320 * FLOAT  # of each sequence, 300 rows padded to 320
    workspace = 3 * HEADS * 5 * (4 + 64 * 64) * FLOAT
    rows = in_blocks(600 * HEADS * FLOAT)
    scratch = max(total * FLOAT + 2 * rows, rows + in_blocks(workspace))
    assert backward_peak(packed(attention, torch.float32)) == 3 * total * FLOAT + sums + scratch


@pytest.mark.parametrize("rows", [256, 250])
def test_three_dimensions_are_one_head_and_a_mask_takes_the_efficient_kernel(
    attention: Any, rows: int
) -> None:
    """As diffusers calls it; in 16 bits a width of 64 keeps gradients in registers."""
    q, k, v = (operands(torch.float16, rows=256)[0][:, :, 0].detach() for _ in range(3))
    q = q.requires_grad_()
    mask = torch.zeros(BATCH, 256, 256, device="cuda", dtype=torch.float16)[:, :, :rows]
    out, kept, _ = kept_and_peak(
        lambda: attention.memory_efficient_attention(q, k[:, :rows], v[:, :rows], mask, scale=1.0)
    )
    sums = BATCH * 256 * FLOAT
    assert kept == BATCH * 256 * WIDTH * HALF + sums

    gradients = BATCH * (256 + 2 * rows) * WIDTH * HALF
    workspace = BATCH * 4 * (4 + 64 * 64) * FLOAT
    assert backward_peak(out) == gradients + 2 * sums + in_blocks(workspace)


@pytest.mark.parametrize("rows", [256, 250])
def test_rows_of_a_tensor_as_mask_begin_at_multiples_of_16_bytes(attention: Any, rows: int) -> None:
    """`_check_bias_alignment` of cutlass.py: 250 numbers of 2 bytes are 500."""
    given = operands(torch.float16, rows=rows)
    mask = torch.zeros(BATCH, HEADS, rows, rows, device="cuda", dtype=torch.float16)
    if rows == 256:
        assert attention.memory_efficient_attention(*given, mask).shape == given[0].shape
        return
    error = "No operator found for `memory_efficient_attention_forward` with inputs:"
    with pytest.raises(NotImplementedError, match=error) as caught:
        attention.memory_efficient_attention(*given, mask)
    reason = "attn_bias.stride(-2) % 8 != 0 (attn_bias.stride() = (500000, 62500, 250, 1))"
    assert reason in str(caught.value)


def test_a_trained_mask_has_the_shape_of_the_products(attention: Any) -> None:
    """`Inputs.validate_inputs` of common.py."""
    mask = torch.zeros(1, HEADS, 256, 256, device="cuda", requires_grad=True)
    with pytest.raises(ValueError, match="Invalid shape for attention bias"):
        attention.memory_efficient_attention(*operands(torch.float32, rows=256), mask)


def test_one_head_without_training_may_have_a_tensor_as_mask(attention: Any) -> None:
    """As diffusers samples; `_is_bias_type_supported_in_BMK` of common.py looks up its type."""
    q, k, v = (each[:, :, 0].detach() for each in operands(torch.float32, rows=256))
    mask = torch.zeros(BATCH, 256, 256, device="cuda")
    assert attention.memory_efficient_attention(q, k, v, mask).shape == q.shape


def test_a_mask_packs_a_list_into_a_copy_and_splits_it_without(attention: Any) -> None:
    """`BlockDiagonalMask.from_tensor_list`: two sequences of 100 rows, one of 300."""
    batches = [torch.zeros(size, rows, 64, device="cuda") for size, rows in ((2, 100), (1, 300))]
    kind = attention.fmha.attn_bias.BlockDiagonalMask
    (mask, whole), kept, _ = kept_and_peak(lambda: kind.from_tensor_list(batches))
    assert mask.q_seqinfo.seqstart_py == [0, 100, 200, 500]
    assert kept == in_blocks(500 * 64 * FLOAT) + 512  # the copy, and where sequences start

    parts, kept, _ = kept_and_peak(lambda: mask.make_causal().split(whole))
    assert ([each.shape for each in parts], kept) == ([each.shape for each in batches], 0)


@pytest.mark.parametrize("shares_storage", [False, True])
def test_unbind_stacks_gradients_unless_they_are_one(attention: Any, shares_storage: bool) -> None:
    """`_stack_or_none_fw`: gradients that are slices of a tensor are not copied."""
    whole = torch.zeros(BATCH, ROWS, 3, HEADS, WIDTH, device="cuda", requires_grad=True)
    parts = attention.unbind(whole, 2)
    one = torch.zeros_like(whole).unbind(2)
    own = [torch.zeros_like(each) for each in one]
    given = one if shares_storage else own

    _, _, peak = kept_and_peak(lambda: torch.autograd.grad(parts, whole, given))
    assert peak == (0 if shares_storage else 3 * ELEMENTS * FLOAT)


def test_nothing_that_trains_keeps_no_sums(attention: Any) -> None:
    """`compute_log_sumexp=False`."""
    q, k, v = (each.detach() for each in operands(torch.float32))
    _, kept, peak = kept_and_peak(lambda: attention.memory_efficient_attention(q, k, v))
    assert kept == peak == ELEMENTS * FLOAT


def test_what_the_stand_in_lacks_names_the_installation() -> None:
    with graphmem.virtual_gpu("a100") as gpu:
        attend = STAND_IN.modules(gpu.runtime.gpu)["xformers.ops"]["memory_efficient_attention"]
        with pytest.raises(NoStandInPartError) as caught:
            attend(*operands(torch.float16), op=object())
        bias = STAND_IN.modules(gpu.runtime.gpu)["xformers.ops.fmha.attn_bias"]
        with pytest.raises(NoStandInPartError, match="BlockDiagonalPaddedKeysMask"):
            bias["BlockDiagonalPaddedKeysMask"].from_seqlens([1])
        mask = bias["BlockDiagonalMask"].from_seqlens([1])
        with pytest.raises(NoStandInPartError, match=r"BlockDiagonalMask\.materialize"):
            mask.materialize((1, 1))
    assert "pip install --no-deps xformers" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["ops", "ops.fmha", "ops.fmha.attn_bias"])
def test_the_stand_in_has_or_refuses_every_public_name(name: str) -> None:
    with graphmem.virtual_gpu("a100") as gpu:
        package = vars(pytest.importorskip(f"xformers.{name}"))
        modules = STAND_IN.modules(gpu.runtime.gpu)
    defined = {
        key
        for key, each in package.items()
        if getattr(each, "__module__", "") == f"xformers.{name}"
    }
    public = {key for key in {*defined, *package.get("__all__", ())} if not key.startswith("_")}
    here = {*modules[f"xformers.{name}"], *(key.rpartition(".")[2] for key in modules)}
    assert public
    assert public - here == set()


def test_a_release_with_kernels_of_its_own_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.0.33 brings FlashAttention 3 (`xformers/flash_attn_3/_C.so`)."""
    package, metadata = tmp_path / "xformers", tmp_path / "xformers-0.0.33.post2.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").write_text("from . import _cpp_lib\n")
    (package / "_cpp_lib.py").touch()
    (metadata / "METADATA").write_text("Name: xformers\nVersion: 0.0.33.post2\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [each for each in sys.modules if each.partition(".")[0] == "xformers"]:
        monkeypatch.delitem(sys.modules, name)

    with graphmem.virtual_gpu("a100"), pytest.raises(UnsupportedReleaseError, match=r"0\.0\.34"):
        importlib.import_module("xformers")
