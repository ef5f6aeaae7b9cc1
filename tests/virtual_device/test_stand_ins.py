"""Stand-ins for compiled packages. Figures are derived by hand from the sources cited."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graphmem
from graphmem.errors import InputError
from graphmem.virtual_device.messages import (
    NoStandInPartError,
    UnknownStandInError,
    UnsupportedReleaseError,
)
from tests.conftest import Outcome
from tests.support.places import ROOT

HALF, FLOAT = 2, 4
STATE = 512  # two numbers of 8 bytes, in a block


def tensor(*size: int) -> torch.Tensor:
    return torch.zeros(size, device="cuda", dtype=torch.float16, requires_grad=True)


def extra_peak(before: int) -> int:
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("compiled", [False, True])
def test_flash_attention_allocates_what_its_source_says(compiled: bool) -> None:
    """`mha_fwd` and `mha_bwd` of csrc/flash_attn/flash_api.cpp; 8 heads share 2 of keys."""
    queries, keys = 2 * 256 * 8 * 64, 2 * 256 * 2 * 64
    sums = 2 * 8 * 256 * FLOAT
    with graphmem.virtual_gpu("a100", stand_in=["flash_attn"]) as gpu:
        attend = importlib.import_module("flash_attn").flash_attn_func
        attend = torch.compile(attend, fullgraph=True) if compiled else attend
        q, k, v = tensor(2, 256, 8, 64), tensor(2, 256, 2, 64), tensor(2, 256, 2, 64)
        before = gpu.allocated
        out = attend(q, k, v, causal=True)
        assert gpu.allocated - before == queries * HALF + sums + STATE

        gradient = torch.ones_like(out)
        torch.cuda.reset_peak_memory_stats()
        before = gpu.allocated
        out.backward(gradient)
        gradients = (queries + 2 * keys) * HALF
        of_every_head = 2 * queries * HALF
        assert extra_peak(before) == gradients + sums + queries * FLOAT + of_every_head
    assert "flash_attn" not in sys.modules


def test_flash_attention_3_allocates_what_its_source_says() -> None:
    """`mha_fwd` and `mha_bwd` of hopper/flash_api.cpp; 8 heads share 2 of keys, tiles of 128."""
    queries, keys = 2 * 256 * 8 * 64, 2 * 256 * 2 * 64
    sums = 2 * 8 * 256 * FLOAT
    few_numbers = 512  # of the scheduler and the semaphore, a block each
    with graphmem.virtual_gpu("h100", stand_in=["flash_attn_3"]) as gpu:
        attend = importlib.import_module("flash_attn_interface").flash_attn_func
        q, k, v = tensor(2, 256, 8, 64), tensor(2, 256, 2, 64), tensor(2, 256, 2, 64)
        torch.cuda.reset_peak_memory_stats()
        before = gpu.allocated
        out = attend(q, k, v, causal=True)
        assert gpu.allocated - before == queries * HALF + sums
        assert extra_peak(before) == queries * HALF + sums + few_numbers

        gradient = torch.ones_like(out)
        torch.cuda.reset_peak_memory_stats()
        before = gpu.allocated
        out.backward(gradient)
        gradients = (queries + 2 * keys) * HALF
        in_float32 = (queries + 2 * keys) * FLOAT
        assert extra_peak(before) == gradients + 2 * sums + in_float32 + few_numbers
    assert "flash_attn_interface" not in sys.modules


def test_flash_attention_3_pads_each_packed_sequence_to_a_tile() -> None:
    """Width 128 in a window: tiles of 64 queries; 3 sequences of 300 rows in all."""
    rows, heads, width, sequences = 300, 4, 128, 3
    padded = 512  # 300 rows and 64 for each sequence, up to a multiple of 64
    with graphmem.virtual_gpu("h100", stand_in=["flash_attn_3"]) as gpu:
        # As Hugging Face's kernel hub provides it.
        kernel = importlib.import_module("kernels").get_kernel("varunneal/flash-attention-3")
        q, k, v = (tensor(rows, heads, width) for _ in range(3))
        starts = torch.tensor([0, 100, 200, 300], dtype=torch.int32, device="cuda")
        out = kernel.flash_attn_interface.flash_attn_varlen_func(
            q, k, v, starts, starts, 200, 200, causal=True, window_size=(63, 0)
        )
        gradient = torch.ones_like(out)
        torch.cuda.reset_peak_memory_stats()
        before = gpu.allocated
        out.backward(gradient)
        gradients = 3 * rows * heads * width * HALF
        sums, in_float32 = heads * padded * FLOAT, heads * padded * width * FLOAT
        semaphore = 512  # ceil(200 / 64) * 3 * 4 numbers
        assert semaphore >= -(-200 // 64) * sequences * heads * FLOAT
        assert extra_peak(before) == gradients + 2 * sums + in_float32 + semaphore


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("size", [(3, 8), (24,)], ids=["stacked", "in a row"])
def test_flash_attention_3_has_one_gradient_of_packed_operands(
    size: tuple[int, ...], compiled: bool
) -> None:
    """`FlashAttnQKVPackedFunc`; 8 heads of each, 64 wide: two row sums in float32."""
    each, sums = 2 * 256 * 8 * 64, 2 * 8 * 256 * FLOAT
    with graphmem.virtual_gpu("h100", stand_in=["flash_attn_3"]) as gpu:
        attend = importlib.import_module("flash_attn_interface").flash_attn_qkvpacked_func

        def attention(qkv: Any) -> Any:
            return attend(qkv, causal=True, num_heads_q=None if len(size) == 2 else 8)

        attention = torch.compile(attention, fullgraph=True) if compiled else attention
        qkv = tensor(2, 256, *size, 64)
        before = gpu.allocated
        out = attention(qkv)
        assert gpu.allocated - before == each * HALF + sums

        gradient = torch.ones_like(out)
        torch.cuda.reset_peak_memory_stats()
        before = gpu.allocated
        out.backward(gradient)
        in_float32, semaphore = each * FLOAT, 512
        assert extra_peak(before) == 3 * each * HALF + 2 * sums + in_float32 + semaphore
        assert qkv.grad is not None
        assert qkv.grad.shape == qkv.shape


def test_flash_attention_3_has_no_gradient_in_chunks() -> None:
    """Its backward pass asserts so."""
    with graphmem.virtual_gpu("h100", stand_in=["flash_attn_3"]):
        module = importlib.import_module("flash_attn_interface")
        q = tensor(1, 64, 2, 64)
        with pytest.raises(AssertionError, match="attention_chunk"):
            module.flash_attn_func(q, q, q, attention_chunk=32).sum().backward()


def test_flash_attention_3_is_one_operator_of_a_compiled_graph() -> None:
    with graphmem.virtual_gpu("h100", stand_in=["flash_attn_3"]):
        attend = importlib.import_module("flash_attn_interface").flash_attn_func

        @torch.compile(fullgraph=True)
        def loss(q: Any, k: Any, v: Any) -> Any:
            return attend(q, k, v, causal=True).square().sum()

        q, k, v = (tensor(2, 256, 8, 64) for _ in range(3))
        loss(q, k, v).backward()
        assert q.grad is not None
        assert q.grad.shape == q.shape


def test_flash_attention_3_rejects_what_it_lacks_by_name() -> None:
    with graphmem.virtual_gpu("h100", stand_in=["flash_attn_3"]):
        module = importlib.import_module("flash_attn_interface")
        with pytest.raises(InputError, match="flash_attn_with_kvcache"):
            module.flash_attn_with_kvcache()
        with pytest.raises(InputError, match="someone/rotary"):
            importlib.import_module("kernels").get_kernel("someone/rotary")


def test_flash_attention_splits_few_queries_over_many_keys() -> None:
    """One block of 64 rows for 108 multiprocessors, 16 blocks of 256 keys: 16 splits."""
    splits = 16 * 64 * FLOAT + 16 * 64 * 64 * FLOAT
    with graphmem.virtual_gpu("a100", stand_in=["flash_attn"]) as gpu:
        attend = importlib.import_module("flash_attn").flash_attn_func
        q, k = tensor(1, 64, 1, 64), tensor(1, 4096, 1, 64)
        before = gpu.allocated
        out = attend(q, k, k)
        assert extra_peak(before) == 64 * 64 * HALF + 512 + splits + STATE
        del out


@pytest.mark.parametrize("compiled", [False, True])
def test_packed_sequences_pad_each_to_a_block(compiled: bool) -> None:
    """`mha_varlen_bwd`: 128 more rows for each of three sequences."""
    rows, heads, width = 600, 4, 64
    padded = (rows + 3 * 128) * heads
    with graphmem.virtual_gpu("a100", stand_in=["flash_attn"]) as gpu:
        attend = importlib.import_module("flash_attn").flash_attn_varlen_func
        attend = torch.compile(attend, fullgraph=True) if compiled else attend
        starts = torch.tensor([0, 100, 300, 600], dtype=torch.int32, device="cuda")
        q, k, v = (tensor(rows, heads, width) for _ in range(3))
        out = attend(q, k, v, starts, starts, 300, 300, causal=True)
        gradient = torch.ones_like(out)
        torch.cuda.reset_peak_memory_stats()
        before = gpu.allocated
        out.backward(gradient)
        gradients = 3 * rows * heads * width * HALF
        scratch = -(-padded * FLOAT // 512) * 512 + padded * width * FLOAT
        assert extra_peak(before) == gradients + scratch


def test_stacked_operands_have_stacked_gradients() -> None:
    """`FlashAttnQKVPackedFunc` and `FlashAttnKVPackedFunc`: 40 wide, their kernels' scratch 64."""
    rows, heads, width = 256, 8, 40
    each, sums = rows * heads * width * HALF, rows * heads * FLOAT
    scratch = sums + rows * heads * 64 * FLOAT
    for stacked in (3, 2):
        with graphmem.virtual_gpu("a100", stand_in=["flash_attn"]) as gpu:
            package = importlib.import_module("flash_attn")
            name = "qkv" if stacked == 3 else "kv"
            attend = getattr(package, f"flash_attn_{name}packed_func")
            alone = [tensor(1, rows, heads, width) for _ in range(3 - stacked)]
            last = tensor(1, rows, stacked, heads, width)
            before = gpu.allocated
            out = attend(*alone, last, causal=True)
            assert gpu.allocated - before == each + sums + STATE  # views of the stacked are saved

            gradient = torch.ones_like(out)
            torch.cuda.reset_peak_memory_stats()
            before = gpu.allocated
            out.backward(gradient)
            assert extra_peak(before) == 3 * each + scratch
            assert last.grad is not None
            assert last.grad.is_contiguous()


def test_stacked_operands_of_packed_sequences_are_padded_in_width() -> None:
    """`FlashAttnVarlenQKVPackedFunc`: 36 wide is padded to 40, and three copies are saved.

    Each padded gradient is cut to 36, and autograd copies the cut view into `.grad`.
    """
    rows, heads = 512, 4
    with graphmem.virtual_gpu("a100", stand_in=["flash_attn"]) as gpu:
        attend = importlib.import_module("flash_attn").flash_attn_varlen_qkvpacked_func
        starts = torch.tensor([0, 256, 512], dtype=torch.int32, device="cuda")
        qkv = tensor(rows, 3, heads, 36)
        before = gpu.allocated
        out = attend(qkv, starts, 256)
        padded, sums = rows * heads * 40 * HALF, rows * heads * FLOAT
        assert gpu.allocated - before == 3 * padded + padded + sums + STATE
        out.backward(torch.ones_like(out))
        assert qkv.grad is not None
        assert qkv.grad.shape == qkv.shape

        kv, q = tensor(rows, 2, 2, 64), tensor(rows, heads, 64)
        attend = importlib.import_module("flash_attn").flash_attn_varlen_kvpacked_func
        attend(q, kv, starts, starts, 256, 256, 0.0, None, True).sum().backward()
        assert kv.grad is not None
        assert kv.grad.shape == kv.shape


def test_signatures_show_the_options_of_the_package() -> None:
    """transformers passes what it finds there (modeling_flash_attention_utils.py)."""
    with graphmem.virtual_gpu("a100", stand_in=["flash_attn"]):
        package: Any = importlib.import_module("flash_attn")
        shown = list(inspect.signature(package.flash_attn_varlen_qkvpacked_func).parameters)
        assert shown[:5] == ["qkv", "cu_seqlens", "max_seqlen", "dropout_p", "softmax_scale"]
        assert shown[-2:] == ["deterministic", "return_attn_probs"]
        assert "block_table" in inspect.signature(package.flash_attn_varlen_func).parameters
        with pytest.raises(TypeError, match="scale"):
            package.flash_attn_func(None, None, None, scale=1.0)


def test_libraries_find_the_package_and_its_version() -> None:
    with graphmem.virtual_gpu("a100", stand_in=["flash_attn"]):
        assert importlib.util.find_spec("flash_attn") is not None
        assert importlib.metadata.version("flash-attn") == "2.8.3"
        assert importlib.import_module("flash_attn.bert_padding").pad_input is not None
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("flash-attn")


def test_the_report_names_what_stands_in() -> None:
    with graphmem.virtual_gpu("a100", stand_in=["flash_attn"]) as gpu:
        torch.ones(4, device="cuda")
    assert "flash_attn" in {each.what for each in gpu.report().assumptions}


def test_what_a_stand_in_lacks_is_rejected_by_name() -> None:
    with graphmem.virtual_gpu("a100", stand_in=["flash_attn"]):
        package: Any = importlib.import_module("flash_attn")
        with pytest.raises(NoStandInPartError):
            package.flash_attn_with_kvcache()
    with graphmem.virtual_gpu("a100", stand_in=["mamba_ssm"]):
        mamba: Any = importlib.import_module("mamba_ssm")
        assert not isinstance(package, mamba.Mamba2)
        with pytest.raises(NoStandInPartError, match="Mamba2"):
            type("Own", (mamba.Mamba2,), {})
    with pytest.raises(UnknownStandInError):
        graphmem.virtual_gpu("a100", stand_in=["no_such_package"])


@pytest.mark.parametrize(
    ("package", "too_old", "install"),
    [
        ("causal_conv1d", "1.5.0.post8", "FORCE_BUILD=TRUE"),
        ("flash_attn", "2.6.3", "FORCE_BUILD=TRUE"),
        ("transformer_engine", "2.18.0", "--no-deps"),
    ],
)
def test_an_installed_release_that_calls_other_kernels_is_refused(
    package: str, too_old: str, install: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """causal_conv1d 1.5.1, flash-attn 2.7.0, TE 2.19 changed what they pass, take or allocate."""
    metadata = tmp_path / f"{package}-{too_old}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {package}\nVersion: {too_old}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnsupportedReleaseError, match=too_old) as caught:
        graphmem.virtual_gpu("a100", stand_in=[package])
    assert install in str(caught.value.hint)


def test_a_release_without_its_last_number_is_that_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2.7 is 2.7.0 (PEP 440)."""
    metadata = tmp_path / "flash_attn-2.7.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: flash_attn\nVersion: 2.7\n")
    monkeypatch.syspath_prepend(tmp_path)
    graphmem.virtual_gpu("a100", stand_in=["flash_attn"])


def test_a_missing_package_that_has_a_stand_in_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_graphmem: Callable[..., Outcome]
) -> None:
    (tmp_path / "train.py").write_text("import flash_attn_3.kernels")
    monkeypatch.chdir(tmp_path)
    done = run_graphmem("run", "train.py")
    assert "; --stand-in flash_attn_3 stands in for it" in done.stderr


def test_a_module_that_a_stand_in_lacks_is_told_with_what_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_graphmem: Callable[..., Outcome]
) -> None:
    (tmp_path / "train.py").write_text("import flash_attn.layers.rotary")
    monkeypatch.chdir(tmp_path)
    done = run_graphmem("run", "--stand-in", "flash_attn", "train.py")
    assert "No module named 'flash_attn.layers'; the stand-in lacks it" in done.stderr
    assert "pip install flash-attn --no-deps" in done.stderr


def test_a_name_that_a_stand_in_lacks_is_told_with_what_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_graphmem: Callable[..., Outcome]
) -> None:
    name = "unpad_input_for_concatenated_sequences"
    (tmp_path / "train.py").write_text(f"from flash_attn.bert_padding import {name}")
    monkeypatch.chdir(tmp_path)
    done = run_graphmem("run", "--stand-in", "flash_attn", "train.py")
    assert f"cannot import name '{name}'" in done.stderr
    assert "; the stand-in lacks it: install the package's Python part" in done.stderr


def test_programs_import_einops_from_the_padding_of_flash_attention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flash_attn/bert_padding.py has `from einops import rearrange, repeat`."""
    (tmp_path / "einops.py").write_text("rearrange, repeat = 'rearranged', 'repeated'")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "einops", raising=False)
    with graphmem.virtual_gpu("a100", stand_in=["flash_attn"]):
        padding: Any = importlib.import_module("flash_attn.bert_padding")
        assert (padding.rearrange, padding.repeat) == ("rearranged", "repeated")
    sys.modules.pop("einops")


@pytest.mark.parametrize(
    ("options", "module", "release"),
    [
        ((), "flash_attn.flash_attention", "flash_attn 2.8.3"),
        (("--stand-in", "flash_attn"), "flash_attn.flash_attention", "flash_attn 2.8.3"),
        ((), "apex.parallel.LARC", "apex 0.1"),
    ],
)
def test_a_module_of_an_earlier_release_is_told_to_be_one(
    options: tuple[str, ...],
    module: str,
    release: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_graphmem: Callable[..., Outcome],
) -> None:
    """flash-attn 2 has no `flash_attention.py`, nor has Apex `parallel` since cb65b8ed.

    A stand-in or an installation would not help.
    """
    (tmp_path / "train.py").write_text(f"from {module} import Anything")
    monkeypatch.chdir(tmp_path)
    done = run_graphmem("run", *options, "train.py")
    assert f"; {release} no longer has that module, nor has its stand-in" in done.stderr
    assert "stands in for it" not in done.stderr
    assert "pip install" not in done.stderr


def test_a_package_whose_import_fails_is_told_so_unless_it_is_stood_in_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_graphmem: Callable[..., Outcome]
) -> None:
    """As Transformer Engine's does without its libraries."""
    (tmp_path / "apex.py").write_text("raise RuntimeError('no library')")
    (tmp_path / "train.py").write_text("import apex")
    monkeypatch.chdir(tmp_path)
    done = run_graphmem("run", "train.py")
    assert "RuntimeError: no library; --stand-in apex stands in for it" in done.stderr
    done = run_graphmem("run", "--stand-in", "apex", "train.py")
    assert "stands in for it" not in done.stderr


STRANGER = """
import torch
from graphmem.virtual_device.stand_ins import StandIn


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, data):
        inverse = data.new_empty(data.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(data, inverse)
        return torch.empty_like(data)

    @staticmethod
    def backward(ctx, gradient):
        data, inverse = ctx.saved_tensors
        return torch.empty_like(data)


STAND_IN = StandIn(
    distribution="fast_norm",
    version="1.2",
    source="fast_norm 1.2, csrc/norm.cu",
    modules=lambda gpu: {"fast_norm": {"norm": Norm.apply}},
)
"""
SCRIPT = """
import torch
from fast_norm import norm
data = torch.ones(64, 256, device="cuda", requires_grad=True)
before = torch.cuda.memory_allocated()
out = norm(data)
print("kept", torch.cuda.memory_allocated() - before)
out.sum().backward()
"""


def test_a_third_party_package_adds_a_stand_in_by_an_entry_point(tmp_path: Path) -> None:
    metadata = tmp_path / "norms-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: norms\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[graphmem.stand_ins]\nfast_norm = norms_stand_in:STAND_IN\n"
    )
    (tmp_path / "norms_stand_in.py").write_text(STRANGER)
    (tmp_path / "train.py").write_text(SCRIPT)

    command = [sys.executable, "-m", "graphmem", "run", "--stand-in", "fast_norm", "train.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == f"kept {64 * 256 * FLOAT + 512}\n"  # the output, and a float a row
    assert "fast_norm: a stand-in allocates for it; fast_norm 1.2, csrc/norm.cu" in done.stderr


def test_flash_attns_norm_returns_what_its_source_allocates() -> None:
    """csrc/layer_norm/ln_api.cpp; at most 256 registers for each of 128 threads: two blocks run."""
    rows, width, processors = 512, 1024, 108
    with graphmem.virtual_gpu("a100", stand_in=["flash_attn"]) as gpu:
        norm = importlib.import_module("dropout_layer_norm")
        x = torch.zeros(rows, width, dtype=torch.bfloat16, device="cuda")
        gamma = torch.ones(width, dtype=torch.bfloat16, device="cuda")
        before = gpu.allocated
        options = (None, None, None, None)
        given = (x, None, gamma, None, *options, 0.1, 1e-5, 1.0, 0, None, True, True)
        normed, summed, mask, mean, deviation = norm.dropout_add_ln_fwd(*given)
        assert gpu.allocated - before == rows * (width * (2 + 4 + 1) + 2 * 4)
        assert (normed.dtype, summed.dtype, mask.dtype) == (x.dtype, torch.float32, torch.uint8)

        before = gpu.allocated
        saved = (summed, None, mask, mean, deviation, gamma, *options, 0.1, 1.0, 0, True, True)
        found = norm.dropout_add_ln_bwd(normed, None, *saved)
        partial = 2 * (2 * processors) * width * 4
        assert gpu.allocated - before == rows * width * (2 + 4) + 2 * width * 2 + partial
        assert len(found) == 6


def test_flash_attns_loss_may_write_its_gradient_into_the_logits() -> None:
    with graphmem.virtual_gpu("a100", stand_in=["flash_attn"]) as gpu:
        loss = importlib.import_module("xentropy_cuda_lib")
        logits = torch.zeros(256, 1024, device="cuda")
        labels = torch.zeros(256, dtype=torch.int64, device="cuda")
        before = gpu.allocated
        losses, sums = loss.forward(logits, labels, 0.0)
        assert gpu.allocated - before == 2 * 256 * 4
        assert loss.backward(losses, logits, sums, labels, 0.0, True) is logits
        assert loss.backward(losses, logits, sums, labels, 0.0, False).shape == logits.shape
