"""quanto's kernels, which it compiles for a card, as optimum-quanto 0.2.7 calls them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import graphmem

EXTENSION = """
import torch

class Extension:
    _lib = None

    @property
    def lib(self):
        assert self._lib is not None, "no compiler"
        return self._lib

ext = Extension()
torch.library.define(
    "quanto::pack_fp8_marlin",
    "(Tensor b_q_weight, Tensor perm, int size_k, int size_n, int num_bits) -> Tensor",
)

@torch.library.impl("quanto::pack_fp8_marlin", ["CUDA"])
def repack(b_q_weight, perm, size_k, size_n, num_bits):
    return ext.lib.gptq_marlin_repack(b_q_weight, perm, size_k, size_n, num_bits)

torch.library.define("quanto::gemm_f16f8_marlin", "(Tensor a, Tensor b_q_weight, Tensor b_scales, "
    "Tensor workspace, int num_bits, int size_m, int size_n, int size_k) -> Tensor")

@torch.library.impl("quanto::gemm_f16f8_marlin", ["CUDA"])
def product(a, b_q_weight, b_scales, workspace, num_bits, size_m, size_n, size_k):
    return ext.lib.fp8_marlin_gemm(
        a, b_q_weight, b_scales, workspace, num_bits, size_m, size_n, size_k)
"""
INNER, COLUMNS, ROWS = 256, 512, 64


def test_float8_weights_are_packed_and_multiplied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four weights in an integer; a product has the left operand's type."""
    folder = tmp_path / "optimum/quanto/library/extensions/cuda"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(EXTENSION)
    monkeypatch.syspath_prepend(tmp_path)
    with graphmem.virtual_gpu("h100") as gpu:
        import optimum.quanto.library.extensions.cuda  # type: ignore[import-not-found] # noqa: F401

        weight = torch.ones(INNER // 4, COLUMNS, dtype=torch.int32, device="cuda")
        none = torch.ones(0, dtype=torch.int32, device="cuda")
        before = gpu.allocated
        packed = torch.ops.quanto.pack_fp8_marlin(weight, none, INNER, COLUMNS, 8)
        assert packed.shape == (INNER // 16, COLUMNS * 4)
        assert gpu.allocated == before + INNER * COLUMNS
        left = torch.ones(ROWS, INNER, dtype=torch.float16, device="cuda")
        before = gpu.allocated
        sizes = 8, ROWS, COLUMNS, INNER
        made = torch.ops.quanto.gemm_f16f8_marlin(left, packed, none, none, *sizes)
        assert gpu.allocated == before + made.numel() * 2 == before + ROWS * COLUMNS * 2
    for name in [each for each in sys.modules if each.partition(".")[0] == "optimum"]:
        monkeypatch.delitem(sys.modules, name)
