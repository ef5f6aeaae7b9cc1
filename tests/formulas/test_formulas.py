"""Published formulas: their figures to the digit, their terms, and what each leaves out."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from graphmem import TrainingStep
from graphmem.analysis import Analysis, Request, run_analysis
from graphmem.formulas import Sheet, deepspeed, formulas_for, formulas_of, korthikanti, nanogpt
from graphmem.formulas import parallel_training as parallel
from graphmem.formulas.blocks import find_blocks
from graphmem.formulas.comparison import FormulaComparison
from graphmem.formulas.estimate import total
from graphmem.formulas.examples import example_terms
from graphmem.formulas.find_terms import FoundTerms, find_terms
from graphmem.formulas.messages import MissingTermsError, NoPhaseError, TermNotWholeError
from graphmem.formulas.sheet import FORMULAS, section_names
from graphmem.formulas.terms import given_terms, values
from tests.support.places import FIXTURES
from tests.support.sizes import KEPT_WORKSPACES

GPT2 = f"{FIXTURES / 'gpt2'}.py:build"
EIGHT_GPUS = deepspeed.Hardware(gpus_per_node=8)

# "Transformer Memory Arithmetic": nanoGPT's GPT-2 small, batch 12.
GPT2_SMALL = {"batch": 12, "sequence": 1024, "hidden": 768, "heads": 12, "layers": 12}
BSH = 12 * 1024 * 768
BAS2 = 12 * 12 * 1024**2
BSV = 12 * 1024 * 50_304

# What the article counts, and what it leaves out: autocast's copies, masks, statistics of 25 norms,
# tokens and targets, positions, and the weight of all targets.
SAVED_BY_GPT2 = 12 * (36 * BSH + 6 * BAS2) + 6 * BSH + 6 * BSV
SAVED_BY_GPT2 += 247_136_256 + 12 * 1024**2 + 25 * 2 * 4 * 12 * 1024
SAVED_BY_GPT2 += 2 * 8 * 12 * 1024 + 8 * 1024 + 4


def analyzed(build: Callable[[], Any], **options: Any) -> Analysis:
    return run_analysis(build, Request(**{"steps": 2, **options}))


def terms_of(build: Callable[[], Any]) -> FoundTerms:
    graph = analyzed(build).graph
    return find_terms(graph, find_blocks(graph))


@pytest.fixture(scope="module")
def gpt2() -> Analysis:
    return run_analysis(GPT2, Request(grads="keep", env=KEPT_WORKSPACES))


@pytest.fixture(scope="module")
def sheet(gpt2: Analysis) -> Sheet:
    return formulas_of(gpt2)


def comparison(sheet: Sheet, name: str) -> FormulaComparison:
    (section,) = (each for each in sheet.sections if each.name == name)
    assert section.comparison is not None
    return section.comparison


def differences(found: FormulaComparison) -> dict[str, int]:
    return {row.name: row.difference for row in found.rows if row.difference}


def parameters_of(model: nn.Module) -> tuple[int, int]:
    """All parameters, and those of the largest layer, as DeepSpeed's `model_to_params` counts."""
    total = sum(parameter.numel() for parameter in model.parameters())
    layers = (
        sum(parameter.numel() for parameter in module.parameters(recurse=False))
        for module in model.modules()
    )
    return total, max(layers)


class TestDeepSpeed:
    """The tables and the script of DeepSpeed's documentation, "Memory Requirements"."""

    ZERO_2 = """\
Estimated memory needed for params, optim states and gradients for a:
HW: Setup with 1 node, 8 GPUs per node.
SW: Model with 2851M total params.
  per CPU  |  per GPU |   Options
  {cpu}GB |   5.31GB | offload_optimizer=cpu\x20
  {cpu}GB |  15.93GB | offload_optimizer=none"""

    ZERO_3_COLD = """\
Estimated memory needed for params, optim states and gradients for a:
HW: Setup with 1 node, 8 GPUs per node.
SW: Model with 2851M total params, 32M largest layer params.
  per CPU  |  per GPU |   Options
   71.69GB |   0.12GB | offload_param=cpu , offload_optimizer=cpu , zero_init=1
  127.45GB |   0.12GB | offload_param=cpu , offload_optimizer=cpu , zero_init=0
   63.72GB |   0.78GB | offload_param=none, offload_optimizer=cpu , zero_init=1
  127.45GB |   0.78GB | offload_param=none, offload_optimizer=cpu , zero_init=0
    1.43GB |   6.09GB | offload_param=none, offload_optimizer=none, zero_init=1
  127.45GB |   6.09GB | offload_param=none, offload_optimizer=none, zero_init=0"""

    ZERO_3_LIVE = """\
Estimated memory needed for params, optim states and gradients for a:
HW: Setup with 1 node, 8 GPUs per node.
SW: Model with 2851M total params, 32M largest layer params.
  per CPU  |  per GPU |   Options
   71.71GB |   0.12GB | offload_param=cpu , offload_optimizer=cpu , zero_init=1
  127.48GB |   0.12GB | offload_param=cpu , offload_optimizer=cpu , zero_init=0
   63.74GB |   0.79GB | offload_param=none, offload_optimizer=cpu , zero_init=1
  127.48GB |   0.79GB | offload_param=none, offload_optimizer=cpu , zero_init=0
    1.47GB |   6.10GB | offload_param=none, offload_optimizer=none, zero_init=1
  127.48GB |   6.10GB | offload_param=none, offload_optimizer=none, zero_init=0"""

    T5_LARGE = """\
total params:         737.67M
largest layer params:  32.90M
largest layer memory:    125MB
case1 gpu memory:   3291MB
case2 gpu memory:    125MB
case3 gpu memory:    477MB"""

    @pytest.fixture
    def t5(self) -> Callable[[str], nn.Module]:
        pytest.importorskip("transformers")
        if str(FIXTURES) not in sys.path:
            sys.path.append(str(FIXTURES))
        from t5 import make_model

        def on_meta(size: str) -> nn.Module:
            with torch.device("meta"):
                return make_model(size)

        return on_meta

    def test_tables_of_given_counts(self) -> None:
        assert deepspeed.zero2_table(2851e6, EIGHT_GPUS) == self.ZERO_2.format(cpu="127.45")
        assert deepspeed.zero3_table(2851e6, 32e6, EIGHT_GPUS) == self.ZERO_3_COLD

    def test_tables_of_a_live_t5_3b(self, t5: Callable[[str], nn.Module]) -> None:
        counts = parameters_of(t5("3b"))

        assert deepspeed.zero2_table(counts[0], EIGHT_GPUS) == self.ZERO_2.format(cpu="127.48")
        assert deepspeed.zero3_table(*counts, EIGHT_GPUS) == self.ZERO_3_LIVE

    def test_the_script_for_t5_large(self, t5: Callable[[str], nn.Module]) -> None:
        counts = parameters_of(t5("large"))

        assert deepspeed.zero3_cases(*counts, gpus=4) == self.T5_LARGE
        example = values(example_terms("t5-large").values())
        assert counts == (example["parameters"], example["largest_layer"])

    def test_the_command_prints_the_tables_as_they_are(
        self, run_graphmem: Callable[..., Any]
    ) -> None:
        outcome = run_graphmem(
            *("published", "--params", "2851e6", "--largest-layer", "32e6"),
            *("--gpus", "8", "--nodes", "1"),
        )

        assert outcome.exit_code == 0
        assert self.ZERO_2.format(cpu="127.45") in outcome.stdout
        assert self.ZERO_3_COLD in outcome.stdout

    def test_zero_2_was_corrected_in_0_14_3(self) -> None:
        """#5099: 2 bytes of 16-bit parameters everywhere, 18 divided; 4 and 16 before."""
        documented = deepspeed.zero2(8000, EIGHT_GPUS)
        current = deepspeed.zero2(8000, EIGHT_GPUS, release=deepspeed.Release.CURRENT)

        assert [row.gpu for row in documented] == [2 * 8000, 4 * 8000 + 16 * 1000]
        assert [row.gpu for row in current] == [2 * 8000, 2 * 8000 + 18 * 1000]
        assert [row.cpu for row in documented] == [row.cpu for row in current]

    @given(
        parameters=st.integers(1, 10**11),
        largest=st.integers(1, 10**9),
        gpus=st.integers(1, 1024),
    )
    def test_the_parts_sum_to_the_tables(self, parameters: int, largest: int, gpus: int) -> None:
        hardware = deepspeed.Hardware(gpus)
        zero2 = deepspeed.zero2(parameters, hardware, release=deepspeed.Release.CURRENT)
        zero3 = deepspeed.zero3(parameters, largest, hardware)

        assert total(deepspeed.zero2_parts(parameters=parameters, gpus=gpus)) == zero2[-1].gpu
        zero3_parts = deepspeed.zero3_parts(parameters=parameters, largest_layer=largest, gpus=gpus)
        assert total(zero3_parts) == zero3[-1].gpu

    def test_beside_one_of_eight_ranks(self, gpt2: Analysis) -> None:
        """As `graphmem plan` splits the traced step, whose parameters are fp32 and whole."""
        found = formulas_of(gpt2, given_terms({"GPUs": "8"}), ["deepspeed-zero2"])
        exact = {row.name: row.exact for row in comparison(found, "deepspeed-zero2").rows}
        parameters = 124_373_760

        assert exact["fp32 parameters"] == 4 * parameters
        assert exact["16-bit and fp32 gradients"] == 4 * parameters // 8
        # DeepSpeed's buffer comes with the first gradient (`setup_buckets`), after the loss's peak.
        assert "communication buffers" not in exact
        assert "one of 8 GPUs" in comparison(found, "deepspeed-zero2").of

    def test_several_machines(self) -> None:
        """stage_1_and_2.py takes all GPUs for the first row, those of a machine for the second."""
        zero2 = deepspeed.zero2(1000, deepspeed.Hardware(gpus_per_node=8, nodes=4))
        zero3 = deepspeed.zero3(1000, 10, deepspeed.Hardware(gpus_per_node=2, nodes=4))

        assert [row.cpu for row in zero2] == [1000 * 4 * 32 * 1.5, 1000 * 4 * 8 * 1.5]
        assert [row.cpu for row in zero3] == [
            *(1000 * 18 / 4 * 1.5, 1000 * 4 * 2 * 1.5),
            *(1000 * 16 / 4 * 1.5, 1000 * 4 * 2 * 1.5),
            *(10 * 4 * 2 * 1.5, 1000 * 4 * 2 * 1.5),
        ]
        assert [row.gpu for row in zero3] == [40, 40, *[40 + 2 * 125] * 2, *[40 + 18 * 125] * 2]
        assert "4 nodes, 8 GPUs per node." in deepspeed.zero2_table(
            1000, deepspeed.Hardware(gpus_per_node=8, nodes=4)
        )

    def test_a_tied_head_with_a_bias_is_the_largest_layer(self) -> None:
        """DeepSpeed counts what each module holds itself, so tied weights count more than once."""

        def build() -> tuple[nn.Module, torch.Tensor]:
            model = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 7))
            model[1].weight = model[0].weight
            return model, torch.zeros(2, dtype=torch.long)

        found = terms_of(build)

        assert values(found.terms.values())["parameters"] == 7 * 3 + 7
        assert values(found.terms.values())["largest_layer"] == 7 * 3 + 7
        assert found.terms["largest_layer"].source == "module 1"

    def test_gpus_that_machines_cannot_share(self, run_graphmem: Callable[..., Any]) -> None:
        outcome = run_graphmem("published", "--params", "10", "--gpus", "10", "--nodes", "4")

        assert outcome.exit_code == 2
        assert "10 GPUs cannot be spread evenly over 4 machines" in outcome.stderr
        assert "the nearest number that can is 8" in outcome.stderr


class TestNanoGpt:
    """The article's figures for GPT-2 small, and what it could not explain."""

    def test_terms_are_read_from_the_trace(self, sheet: Sheet) -> None:
        assert values(sheet.terms.values()) == {
            **GPT2_SMALL,
            "kv_heads": 12,
            "vocabulary": 50_304,
            "parameters": 124_373_760,
            "trained": 124_373_760,
            "saved": SAVED_BY_GPT2,
            "largest_layer": 50_304 * 768,
            "buffers": 12 * 1024**2,
            "width": 4,
        }

    def test_the_figures_of_the_article(self, sheet: Sheet) -> None:
        steady = comparison(sheet, "nanogpt-steady").estimate
        activations = comparison(sheet, "nanogpt-activations").estimate
        peak = comparison(sheet, "nanogpt-peak").estimate

        assert steady == 2_057_547_776
        assert activations == 12 * (36 * BSH + 6 * BAS2) + 6 * BSH + 6 * BSV
        assert f"{activations / 2**30:.3f}" == "17.429"
        assert peak == steady + activations + 4 * BSV
        assert f"{peak / 2**30:.3f}" == "21.648"

    def test_what_the_activations_leave_out(self, sheet: Sheet) -> None:
        """The 250 MB that the article could not explain, by name."""
        found = differences(comparison(sheet, "nanogpt-activations"))
        rounding = found.pop("rounding by the allocator")

        assert found == {
            "autocast's weight copies": 247_136_256,
            "masks, blocks": 12 * 1024**2,
            "statistics of norms, blocks": 24 * 2 * 4 * 12 * 1024,
            "statistics of norms, outside of blocks": 2 * 4 * 12 * 1024,
            "inputs": 2 * 8 * 12 * 1024,
            "indices, outside of blocks": 8 * 1024,
            "cross entropy": 4,  # the weight of all targets, one fp32 number
            "temporaries": 4,  # the loss itself
        }
        assert 0 < rounding < 2**22  # tails of blocks, each below 1 MiB

    def test_the_peak_is_the_one_of_the_report(self, gpt2: Analysis, sheet: Sheet) -> None:
        found = comparison(sheet, "nanogpt-peak")

        assert found.exact == gpt2.report.peak.allocated
        left_out = differences(found)
        assert left_out["rounding by the allocator"] == gpt2.report.at_peak.by_category["rounding"]
        assert left_out["two moments of Adam"] == 75 * 4  # a step count for each tensor

    def test_without_kept_gradients_the_formula_overestimates(self) -> None:
        found = formulas_of(analyzed_file(GPT2, batch="1", layers="1"))

        assert differences(comparison(found, "nanogpt-steady"))["gradients"] < 0


def analyzed_file(target: str, **settings: str) -> Analysis:
    return run_analysis(target, Request(steps=2, settings=settings))


class TestDifferences:
    def test_they_sum_to_the_whole(self, sheet: Sheet) -> None:
        for formula in FORMULAS:
            found = comparison(sheet, formula.name)
            assert found.exact is not None
            assert sum(row.difference for row in found.rows) == found.exact - found.estimate
            assert sum(row.estimate for row in found.rows) == total(found.parts)

    @pytest.mark.parametrize(
        ("fixture", "settings"),
        [
            ("llama", {"vocab": "50", "seq": "8", "layers": "2", "checkpoint": "non-reentrant"}),
            ("moe", {"vocab": "50", "seq": "8", "layers": "2", "experts": "4"}),
            ("vit", {"image": "16", "patch": "8", "batch": "2", "layers": "2"}),
            ("lstm", {"vocab": "50", "batch": "2", "seq": "5"}),
        ],
    )
    def test_they_sum_to_the_reports_peak(self, fixture: str, settings: dict[str, str]) -> None:
        """For any model: every byte at the peak is in exactly one row."""
        analysis = analyzed_file(f"{FIXTURES / fixture}.py:build", **settings)
        given = given_terms(dict.fromkeys(("b", "s", "h", "a", "L", "v"), "3"))
        found = formulas_of(analysis, given)

        for name in ("nanogpt-peak", "parallel-regular", "parallel-mixed"):
            peak = comparison(found, name)
            assert peak.exact == analysis.report.peak.allocated
            assert peak.difference == analysis.report.peak.allocated - peak.estimate

    def test_no_storage_is_counted_twice(self) -> None:
        names = ("parameters", "trained", "saved", "largest_layer", "buffers", "vocabulary")
        terms = dict.fromkeys(names, 1)
        for formula in FORMULAS:
            roles = [role for part in formula.estimate(terms | GPT2_SMALL) for role in part.roles]
            assert len(roles) == len(set(roles)), formula.name

    def test_the_exact_sides_are_the_reports(self, gpt2: Analysis, sheet: Sheet) -> None:
        steady = comparison(sheet, "nanogpt-steady").exact
        states = comparison(sheet, "deepspeed-zero3").rows
        model = gpt2.report.model

        assert steady == gpt2.report.steps[-1].phases[0].start
        assert {row.name: row.exact for row in states if row.expression} == {
            "the largest layer, gathered": 0,
            "16-bit parameters": 0,
            "fp32 parameters": model.parameter_bytes,
            "fp32 gradients": model.gradient_bytes,
            "two moments of Adam": model.optimizer_state_bytes,
        }

    def test_no_saved_tensor_is_missing(self, gpt2: Analysis, sheet: Sheet) -> None:
        """What autograd holds, including inputs, is the report's `saved_for_backward`."""
        found = comparison(sheet, "nanogpt-activations")
        requested = sum(row.exact for row in found.rows if row.name != "rounding by the allocator")

        assert requested - 4 == gpt2.report.saved_for_backward  # the loss is not saved


class TestKorthikanti:
    """ "Reducing Activation Recomputation", arXiv 2205.05198; EleutherAI's is its first formula."""

    def test_eleutherai_says_12_02_gib(self, sheet: Sheet) -> None:
        """The nanoGPT article's figure for GPT-2 small."""
        found = comparison(sheet, "eleutherai-activations")

        assert found.estimate == 12 * BSH * (34 + 5 * 12 * 1024 // 768)
        assert f"{found.estimate / 2**30:.2f}" == "12.02"

    def test_autocast_keeps_what_a_16_bit_model_would_not(self, sheet: Sheet) -> None:
        found = differences(comparison(sheet, "eleutherai-activations"))

        assert found["layer norms"] == 12 * 4 * BSH  # fp32, not 16 bits
        assert found["softmax"] == 12 * 2 * BAS2
        assert found["dropout masks"] == -12 * 2 * BSH  # there is no dropout
        assert found["mask of its dropout"] == -12 * BAS2
        assert found["operands of the loss, outside of blocks"] == 6 * BSV + 4

    def test_dropout_is_where_the_paper_has_it(self) -> None:
        small = {"batch": "2", "seq": "64", "width": "64", "layers": "2", "heads": "4"}
        found = comparison(
            formulas_of(analyzed_file(GPT2, vocab="80", dropout="0.1", **small)),
            "korthikanti-activations",
        )
        exact = {row.name: row.exact for row in found.rows}
        sbh, as2b = 64 * 2 * 64, 4 * 64**2 * 2

        assert exact["dropout masks"] == 2 * 2 * sbh
        assert exact["dropout of the embeddings"] == sbh
        assert exact["mask of its dropout"] == 2 * as2b
        assert exact["its dropout"] == 2 * 2 * as2b
        assert exact["inputs of linear layers"] == 2 * 14 * sbh
        assert exact["queries, keys, values"] == 2 * 6 * sbh
        assert exact["input of GELU"] == 2 * 8 * sbh

    def test_table_2(self) -> None:
        terms = {"batch": 1, "sequence": 2048, "hidden": 12_288, "heads": 96, "layers": 1}
        rows = korthikanti.per_rank(**terms, tp=8)
        sbh, scores = 2048 * 12_288, Fraction(5 * 96 * 2048, 12_288)

        assert dict(rows) == {
            "no parallelism": sbh * (34 + scores),
            "tensor": sbh * (10 + Fraction(24, 8) + scores / 8),
            "tensor, sequence": sbh * (Fraction(34, 8) + scores / 8),
            "tensor, selective recomputation": sbh * (10 + Fraction(24, 8)),
            "tensor, sequence, selective recomputation": sbh * Fraction(34, 8),
            "full recomputation": sbh * 2,
        }
        assert total(korthikanti.blocks(**terms)) == rows["no parallelism"]


class TestParallelTraining:
    """The Llama 3 405B example of hepengfei.ml."""

    @pytest.fixture
    def terms(self) -> dict[str, int]:
        return values(example_terms("llama-3-405b").values())

    @pytest.fixture
    def printed(self, terms: dict[str, int]) -> parallel.ModelMemory:
        memory = parallel.memory_of(parallel.MIXED.estimate(terms))
        return parallel.as_printed(memory, terms)

    def test_the_figures_of_the_article(
        self, printed: parallel.ModelMemory, terms: dict[str, int]
    ) -> None:
        rank = parallel.LLAMA_3.approximate(printed, terms)

        assert printed.optimizer == 4860 * 10**9
        assert printed.gradients == 1620 * 10**9
        assert printed.model == 810 * 10**9
        assert printed.activations == 147_366_233_505_792
        assert f"{float(rank['optimizer'] + rank['gradients']) / 1e9:.1f}" == "6.3"
        assert f"{float(rank['model']) / 1e9:.1f}" == "6.3"
        assert int(rank["inner"] / 10**9) == 71  # 71.96, which the article truncates

    def test_its_figure_has_s_where_its_formula_has_s_squared(self, terms: dict[str, int]) -> None:
        memory = parallel.memory_of(parallel.MIXED.estimate(terms))
        bsh, bas = 16 * 131_072 * 16_384, 16 * 128 * 131_072

        assert 126 * (34 * bsh + 5 * bas) == 147_366_233_505_792
        assert memory.activations == 126 * (34 * bsh + 5 * bas * 131_072)

    def test_its_first_stated_error(
        self, printed: parallel.ModelMemory, terms: dict[str, int]
    ) -> None:
        """What TP leaves unsplit: two norm inputs and two masks per block, 6·b·s·h."""
        bsh = 16 * 131_072 * 16_384
        rank = parallel.LLAMA_3.per_rank(printed, terms)

        assert printed.outer == 126 * 6 * bsh
        assert rank["outer"] == Fraction(126 * 6 * bsh, 16 * 16)
        assert rank["inner"] == Fraction(printed.inner, 8 * 16 * 16)

    def test_its_second_stated_error(
        self, printed: parallel.ModelMemory, terms: dict[str, int]
    ) -> None:
        """Grouped-query attention: 120 of the 128 heads of keys and values do not exist."""
        shared = parallel.without_shared_heads(printed, terms)

        assert printed.inner - shared.inner == 126 * 2 * 2 * 16 * 131_072 * 120 * 128

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("DP", (1, 1, 1, 1, 1)),
            ("DP-ZeRO 1", (1, 8, 1, 1, 1)),
            ("DP-ZeRO 2", (1, 8, 8, 1, 1)),
            ("DP-ZeRO 3 / FSDP", (8, 8, 8, 1, 1)),
            ("TP", (2, 2, 2, 2, 1)),
            ("TP + SP", (2, 2, 2, 2, 11)),
            ("PP", (3, 3, 3, 3 * 7, 3 * 7)),
            ("TP + PP", (6, 6, 6, 6 * 7, 3 * 7)),
            ("TP + PP + SP", (6, 6, 6, 6 * 7, 3 * 7 * 11)),
            ("TP + PP + CP", (6, 6, 6, 6 * 7 * 5, 3 * 7 * 5)),
            ("DP-ZeRO 1 + TP + PP + CP", (6, 48, 6, 6 * 7 * 5, 3 * 7 * 5)),
            ("DP-ZeRO 2 + TP + PP + CP (Llama 3)", (6, 48, 48, 6 * 7 * 5, 3 * 7 * 5)),
        ],
    )
    def test_every_layout_divides_as_the_article_says(
        self, name: str, expected: tuple[int, ...]
    ) -> None:
        (layout,) = (each for each in parallel.LAYOUTS if each.name == name)
        degrees = {"dp": 8, "tp": 2, "sp": 11, "pp": 3, "cp": 5, "micro_batches": 7}

        rank = layout.per_rank(parallel.ModelMemory(1, 1, 1, 1, 1), degrees)

        assert tuple(rank.values()) == tuple(Fraction(1, divisor) for divisor in expected)

    def test_the_bytes_of_the_traced_step(self) -> None:
        """A bf16 Llama with 2 key heads for 4 query heads: what TP splits and what it does not.

        As Korthikanti et al. say, the inputs of norms, attention and MLP stay whole, and so do the
        norms' statistics and the state of attention's random numbers.
        """
        sizes = {"width": "64", "heads": "4", "kv_heads": "2", "layers": "2", "ffn": "96"}
        target = f"{FIXTURES / 'llama'}.py:build"
        analysis = analyzed_file(target, dtype="bf16", autocast="none", seq="32", **sizes)
        found = formulas_of(analysis, given_terms({"TP": "2"}), ["parallel-llama-3"])
        (table,) = (section.table for section in found.sections)
        assert table is not None

        whole, rank = (
            dict(zip(table.columns, table.rows[f"the traced step, {which}"], strict=True))
            for which in ("the whole", "a rank")
        )
        bsh = 32 * 64
        statistics = 2 * 4 * 32  # two norms a block, one fp32 number a row
        random_state = 16 + 8  # two 64-bit numbers, and an unused one
        assert whole["M_a2"] == 2 * (2 * 2 * bsh + 2 * 2 * bsh + statistics + random_state)
        assert (rank["M_a1"], rank["M_a2"]) == (whole["M_a1"] / 2, whole["M_a2"])
        assert whole["M_m"] == analysis.report.model.parameter_bytes


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.attention(x, x, x, need_weights=True)
        return self.norm(x + mixed)


class TestTerms:
    def test_a_softmax_that_joins_batch_and_heads(self) -> None:
        def build() -> tuple[nn.Module, torch.Tensor]:
            return nn.Sequential(Attention(), Attention(), Attention()), torch.randn(3, 5, 8)

        found = values(terms_of(build).terms.values())

        assert [found[name] for name in ("batch", "sequence", "heads")] == [3, 5, 2]
        assert [found[name] for name in ("layers", "hidden", "kv_heads")] == [3, 8, 2]

    def test_grouped_query_attention(self) -> None:
        sizes = {"width": "64", "heads": "4", "kv_heads": "2", "layers": "3", "ffn": "96"}
        graph = analyzed_file(f"{FIXTURES / 'llama'}.py:build", seq="32", vocab="70", **sizes).graph

        found = values(find_terms(graph, find_blocks(graph)).terms.values())

        assert found["kv_heads"] == 2
        assert [found[name] for name in ("heads", "hidden", "layers")] == [4, 64, 3]
        assert [found[name] for name in ("batch", "sequence", "vocabulary")] == [1, 32, 70]

    def test_the_softmax_of_a_router_is_not_attention(self) -> None:
        class Router(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.gate = nn.Linear(8, 4)
                self.block = Attention()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                weights, _ = self.gate(x).softmax(-1).topk(1)
                return self.block(x) * weights

        found = values(terms_of(lambda: (Router(), torch.randn(3, 5, 8))).terms.values())

        assert [found[name] for name in ("batch", "sequence", "heads")] == [3, 5, 2]

    def test_a_model_that_is_not_a_transformer_says_so(
        self, run_graphmem: Callable[..., Any]
    ) -> None:
        outcome = run_graphmem("published", f"{FIXTURES / 'mlp'}.py:build", "--steps", "2")

        assert outcome.exit_code == 0
        assert "the step has no attention operation, so it is not a transformer" in " ".join(
            outcome.stdout.split()
        )
        assert "Estimated memory needed for params" in outcome.stdout

    def test_two_stacks_of_blocks_are_not_one(self) -> None:
        class TwoStacks(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.encoder = nn.ModuleList([Attention(), Attention()])
                self.decoder = nn.ModuleList([Attention()])

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for block in (*self.encoder, *self.decoder):
                    x = block(x)
                return x

        found = terms_of(lambda: (TwoStacks(), torch.randn(3, 5, 8)))

        assert found.unknown["layers"] == (
            "several stacks of blocks, where formulas know one: encoder (2), decoder (1)"
        )
        assert found.terms["heads"].value == 2

    def test_blocks_without_modules_are_not_counted(self) -> None:
        """An exported program is a single module, whatever it was made from."""

        class Flat(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for _ in range(3):
                    x = nn.functional.scaled_dot_product_attention(x, x, x)
                return x

        found = terms_of(lambda: (Flat(), torch.randn(2, 4, 8, 16, requires_grad=True)))

        assert found.terms["heads"].value == 4
        assert found.unknown["layers"] == (
            "3 attention operations, and no numbered modules around them"
        )

    def test_terms_given_by_hand_win(self, gpt2: Analysis) -> None:
        found = formulas_of(
            gpt2, given_terms({"L": "1", "heads": "24"}), ["eleutherai-activations"]
        )

        assert found.sections[0].comparison is not None
        assert found.sections[0].comparison.estimate == 34 * BSH + 5 * 2 * BAS2
        assert found.terms["layers"].source == "given"

    @pytest.mark.parametrize("text", ["0", "-3", "1.5", "many", "inf"])
    def test_a_term_that_is_not_an_integer(self, text: str) -> None:
        with pytest.raises(TermNotWholeError):
            given_terms({"h": text})

    def test_terms_without_a_target(self) -> None:
        found = formulas_for(given_terms({"N": "2_851e6"}), ["deepspeed-zero2-table"])

        assert found.terms["parameters"].value == 2_851_000_000
        with pytest.raises(MissingTermsError):
            formulas_for({})


class TestCommand:
    def test_json_has_what_the_text_says(
        self, run_graphmem: Callable[..., Any], tmp_path: Path
    ) -> None:
        file = tmp_path / "formulas.json"
        asked = ("published", GPT2, "--set", "batch=1", "--set", "layers=2", "--steps", "2")
        written = run_graphmem(*asked, "--format", "json", "-o", str(file))
        printed = run_graphmem(*asked)
        found = json.loads(file.read_text())

        assert (written.exit_code, written.stdout) == (0, "")
        assert found["schema"] == "graphmem.formulas/1"
        assert [each["name"] for each in found["formulas"]] == list(section_names())
        for each in found["formulas"]:
            if each["name"] == "deepspeed-zero3-table":
                assert [len(each["rows"]), set(each["rows"][0])] == [6, {"cpu", "gpu", "options"}]
                assert each["printed"] in printed.stdout
            if "exact" in each:
                assert sum(row["difference"] for row in each["rows"]) == each["difference"]
                assert f"{each['difference']:+,}" in printed.stdout

    def test_the_llama_3_example(self, run_graphmem: Callable[..., Any]) -> None:
        outcome = run_graphmem("published", "--example", "llama-3-405b")

        assert outcome.exit_code == 0
        assert "147,366,233,505,792 bytes" in outcome.stdout
        assert "6.3 + 6.3 + 71/MB" in outcome.stdout

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--example", "gpt-5"),
            ("--only", "horoscope", "--params", "1"),
            ("--term", "q=1"),
            ("--term", "h"),
            (),
        ],
    )
    def test_wrong_input(
        self, run_graphmem: Callable[..., Any], arguments: tuple[str, ...]
    ) -> None:
        outcome = run_graphmem("published", *arguments)

        assert outcome.exit_code == 2
        assert "Traceback" not in outcome.stderr

    def test_inference_has_no_published_formula(self) -> None:
        analysis = run_analysis(f"{FIXTURES / 'mlp'}.py:build", Request(steps=1, inference=True))

        with pytest.raises(NoPhaseError):
            formulas_of(analysis)


def test_nanogpt_functions_alone() -> None:
    """The formulas work as plain functions of their terms."""
    parts = nanogpt.activations(**GPT2_SMALL, vocabulary=50_304)

    assert total(parts) == 18_713_935_872


def test_an_average_of_the_weights_is_not_counted_with_the_models_parameters() -> None:
    def build() -> TrainingStep:
        model = nn.Linear(8, 4)
        average = copy.deepcopy(model)
        average.cuda()

        def step() -> None:
            model(torch.zeros(2, 8, device="cuda")).sum().backward()
            average.weight.data.lerp_(model.weight.data, 0.1)

        return TrainingStep(model=model.cuda(), step=step)

    assert terms_of(build).terms["parameters"].value == 8 * 4 + 4
