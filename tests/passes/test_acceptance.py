"""GPT-2 under fp16 autocast as its article derives it; in every fixture, a reason for each byte."""

from __future__ import annotations

from functools import cache

import pytest

from graphmem.analysis import Analysis, Request, run_analysis
from graphmem.graph import OwnerKind, PhaseName
from graphmem.passes.saved_tensors import Saved
from tests.support.places import FIXTURES

BATCH, TOKENS, WIDTH, HEADS, LAYERS = 12, 1024, 768, 12, 12
N_E = BATCH * TOKENS * WIDTH
N_A = BATCH * HEADS * TOKENS**2
MASK = TOKENS**2
STATISTICS = 4 * BATCH * TOKENS * 4
"""Mean and 1/deviation of two layer norms in fp32, which the article leaves out."""


@cache
def gpt2() -> Analysis:
    return run_analysis(f"{FIXTURES / 'gpt2'}.py:build", Request(steps=1))


def saved_in(module: str) -> dict[int, tuple[Saved, ...]]:
    """What operations of the module save, by storage, without parameters and buffers."""
    analysis = gpt2()
    forward = next(each for each in analysis.graph.phases if each.name is PhaseName.FORWARD)
    return {
        storage: analysis.annotations["saved_tensors"].holding(storage, forward.end)
        for storage, saved in analysis.annotations["saved_tensors"].by_storage.items()
        if not analysis.graph.storages[storage].owned_as(OwnerKind.PARAMETER)
        and not analysis.graph.storages[storage].owned_as(OwnerKind.AUTOCAST_CACHE)
        and any(
            f"{analysis.graph.ops[each.op].module}.".startswith(f"{module}.")
            for each in saved
            if each.op is not None
        )
    }


def nbytes(storages: dict[int, tuple[Saved, ...]]) -> int:
    return sum(gpt2().graph.storages[storage].nbytes for storage in storages)


@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_block_saves_what_the_article_derives(layer: int) -> None:
    """36 N_e + 6 N_a, the layer norms' statistics, and the boolean causal mask."""
    expected = 36 * N_E + 6 * N_A + STATISTICS + MASK

    assert nbytes(saved_in(f"h.{layer}")) == expected


@pytest.mark.parametrize(
    ("module", "field", "expected"),
    [
        ("h.3.ln_1", "NativeLayerNormBackward0.input", 4 * N_E),
        ("h.3.attn.c_attn", "MmBackward0.self", 2 * N_E),
        ("h.3.attn", "SoftmaxBackward0.result", 4 * N_A),
        ("h.3.attn.c_proj", "MmBackward0.self", 2 * N_E),
        ("h.3.ln_2", "NativeLayerNormBackward0.input", 4 * N_E),
        ("h.3.mlp.c_fc", "MmBackward0.self", 2 * N_E),
        ("h.3.mlp.gelu", "GeluBackward0.self", 8 * N_E),
        ("h.3.mlp.c_proj", "MmBackward0.self", 8 * N_E),
    ],
)
def test_line_by_line(module: str, field: str, expected: int) -> None:
    storages = {
        storage: saved
        for storage, saved in saved_in(module).items()
        if any(f"{each.name}.{each.field}" == field for each in saved)
    }

    assert nbytes(storages) == expected


def test_the_unexplained_250_mb_are_copies_of_named_weights() -> None:
    """Every linear weight and the tied head in fp16."""
    casts = [each for each in gpt2().annotations["autocast"].casts if each.weight]
    per_block = sum(each.nbytes for each in casts if (each.weight or "").startswith("h.3."))

    assert sum(each.nbytes for each in casts) == 247_136_256
    assert per_block == 4_718_592 + 4_718_592 + 3_538_944 + 1_179_648
    assert {each.nbytes for each in casts if each.weight == "wte.weight"} == {77_266_944}
    assert len(casts) == 4 * LAYERS + 1


OF_LAYERS = ["gpt2", "linear_stack", "vit", "bert", "llama", "moe"]
OTHERS = ["mlp", "transformer_block", "resnet", "lstm", "unet_block"]


@pytest.mark.parametrize("fixture", OF_LAYERS + OTHERS)
def test_no_byte_at_the_peak_is_without_a_reason(fixture: str) -> None:
    """A category, an owner, and for activations a formula in brackets."""
    settings = {"layers": "2"} if fixture in OF_LAYERS else {}
    request = Request(steps=2, settings=settings)
    report = run_analysis(f"{FIXTURES / fixture}.py:build", request).report

    for holder in report.at_peak.holders:
        assert holder.owners
        assert holder.reason
        assert "unknown" not in holder.reason
        if holder.category == "activation":
            assert "saved for the backward pass by" in holder.reason
            assert "(" in holder.reason
