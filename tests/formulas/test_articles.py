"""Figures of the articles that only `graphmem published` prints, for the articles' sizes.

Expected figures are printed in an article, or derived here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from graphmem.errors import InputError
from graphmem.formulas import formulas_for
from graphmem.formulas.terms import card_term, given_terms
from tests.support.places import FIXTURES
from tests.support.sizes import LT_WORKSPACE

GPT2 = f"{FIXTURES / 'gpt2'}.py:build"
STACK = f"{FIXTURES / 'linear_stack'}.py:build"

Printed = Callable[..., str]
Sections = Callable[..., dict[str, Any]]


@pytest.fixture
def printed(run_graphmem: Callable[..., Any]) -> Printed:
    """What `graphmem published ARGUMENTS…` prints, with runs of blanks collapsed."""

    def run(*arguments: str) -> str:
        outcome = run_graphmem("published", *arguments)
        assert outcome.exit_code == 0, outcome.stderr
        return " ".join(outcome.stdout.split())

    return run


@pytest.fixture
def sections(run_graphmem: Callable[..., Any]) -> Sections:
    """Its JSON output, by formula name."""

    def run(*arguments: str) -> dict[str, Any]:
        outcome = run_graphmem("published", *arguments, "--format", "json")
        assert outcome.exit_code == 0, outcome.stderr
        return {each["name"]: each for each in json.loads(outcome.stdout)["formulas"]}

    return run


class TestLlama3:
    """hepengfei.ml's long-context Llama 3 405B on cards of 40 GB."""

    DEGREES = 8 * 16 * 16  # TP, PP, CP
    STATES = 6480 / (8 * 16 * 8) + 810 / (8 * 16)  # M_o and M_g over TP, PP, DP; M_m over TP, PP
    M_A = 147_366_233_505_792  # as the article prints it

    def test_it_fits_40_gb_from_3_micro_batches(self, printed: Printed) -> None:
        """ "~27.4GB rest memory for activations … as long as MB >= 3, it fits"."""
        text = printed("--example", "llama-3-405b", "--only", "parallel-llama-3")
        activations = self.M_A / self.DEGREES / 1e9

        assert self.STATES + activations / 2 > 40 > self.STATES + activations / 3
        assert "of 40.0 GB 27.4 GB are left for activations: it fits if MB >= 3" in text
        over = self.STATES + activations - 40
        assert (
            f"a rank, as it approximates does not fit, {over:.3f} GB over; fits if MB >= 3" in text
        )

    @pytest.mark.parametrize(("micro_batches", "fits"), [("2", False), ("3", True)])
    def test_the_verdict_changes_at_3(
        self, sections: Sections, micro_batches: str, fits: bool
    ) -> None:
        arguments = ("--example", "llama-3-405b", "--term", f"MB={micro_batches}")
        found = sections(*arguments, "--only", "parallel-llama-3")["parallel-llama-3"]

        assert (found["left"]["a rank, as it approximates"] >= 0) is fits
        assert found["least_micro_batches"]["a rank, as it approximates"] == 3

    def test_a_rank_whose_states_are_too_large_fits_with_no_micro_batches(
        self, printed: Printed
    ) -> None:
        """6.3 + 6.3 GB are more than the 12 GB of the card."""
        asked = ("--example", "llama-3-405b", "--only", "parallel-llama-3")
        text = printed(*asked, "--term", "M_gpu=12e9")

        assert "are left for activations: it fits with no MB" in text
        assert "GB over; no MB is enough" in text

    def test_a_card_by_name_takes_the_place_of_the_articles_40_gb(self, printed: Printed) -> None:
        text = printed("--example", "llama-3-405b", "--gpu", "h100-80gb")

        assert "less" in card_term("h100-80gb").source
        assert "activations: it fits if MB >= 2" in text  # 71.96 GB exceed 67; half does not

    def test_the_factor_of_checkpointing_is_about_9(self, sections: Sections) -> None:
        """With k = 2 the MLP's 9·k·bsh shrink to k·bsh; a whole block's 34·bsh + 5·b·a·s do not."""
        found = sections("--example", "llama-3-405b")["parallel-checkpointing"]
        factors = {name: row[2] for name, row in found["rows"].items()}
        scores = 5 * 128 / 16_384  # of b·a·s, in units of b·s·h, as in the article's figure

        assert factors == pytest.approx(
            {
                "nothing is checkpointed": 1,
                "the MLP alone, 9·k to k": 9,
                "the MLP with its norm, 10·k + 1 to k": 21 / 2,
                "blocks whose MLP and norm keep k": (34 + scores) / (34 + scores - 21 + 2),
                "blocks that keep their input, k": (34 + scores) / 2,
            }
        )
        rank = found["rows"]["the MLP alone, 9·k to k"][-1] / 1e9
        assert rank == pytest.approx(self.STATES + self.M_A / self.DEGREES / 9 / 1e9)
        assert "least_micro_batches" in found

    def test_the_sum_over_all_gpus(self, sections: Sections) -> None:
        """M_o + d·(M_g + M_m + M_a) with d = 8; the last layout runs on 8·8·16·16 GPUs."""
        rows = sections("--example", "llama-3-405b")["parallel-all-gpus"]["rows"]
        bsh, bas2 = 16 * 131_072 * 16_384, 16 * 128 * 131_072**2
        activations = 126 * (34 * bsh + 5 * bas2)
        on_one = 4860 * 10**9 + 8 * (1620 * 10**9 + 810 * 10**9 + activations)

        assert rows["DP, the optimizer on one"][-1] == on_one
        assert rows["DP"][-1] == on_one + 7 * 4860 * 10**9
        assert rows["DP-ZeRO 2 + TP + PP + CP (Llama 3)"][0] == 16_384
        assert rows["TP + SP"][0] == 8
        assert rows["PP"][-1] == (4860 + 1620 + 810) * 10**9 + activations


class TestDeepSpeed:
    """Statements of "Memory Requirements" beyond its tables."""

    def test_a_40_gb_card_fits_11_b_parameters(self, printed: Printed) -> None:
        """ "the model weights take about 22GB and the remaining 18GB are used by other…"."""
        text = printed("--example", "t5-11b")

        assert "offload_optimizer=cpu fits, 18.000 GB (10^9 bytes) left" in text  # 40 - 2·11
        assert "ZeRO-2, optimizer on CPU: 2·P 20,000,000,000 11,000,000,000" in text

    @pytest.mark.parametrize("gpus", [1, 8])
    def test_the_largest_model_is_the_formula_backwards(
        self, sections: Sections, gpus: int
    ) -> None:
        asked = ("--term", "M_gpu=40e9", "--largest-layer", "32e6", "--gpus", str(gpus))
        found = sections(*asked, "--only", "deepspeed-largest-model")["deepspeed-largest-model"]
        largest = {name.rpartition(": ")[2]: row[0] for name, row in found["rows"].items()}
        beside_layer = 40 * 10**9 - 4 * 32 * 10**6

        assert largest == {
            "2·P": 20 * 10**9,
            "4·P + 16·P/G": 40 * 10**9 * gpus // (4 * gpus + 16),
            "2·P + 18·P/G": 40 * 10**9 * gpus // (2 * gpus + 18),
            "4·P_l + 2·P/G": beside_layer * gpus // 2,
            "4·P_l + 18·P/G": beside_layer * gpus // 18,
        }

    def test_pinned_memory(self, printed: Printed) -> None:
        """6 bytes a parameter, 2 more with accumulated gradients, 4 with parameters on the GPU."""
        text = printed("--params", "11e9", "--only", "deepspeed-pinned")

        assert "parameters offloaded: 6·P 66.000" in text
        assert "the same, gradients accumulated: 8·P 88.000" in text
        assert "parameters not offloaded: 4·P 44.000" in text

    def test_the_sketch_of_activations(self, printed: Printed) -> None:
        """(2·seq·heads + 16·hidden)·seq·batch of GPT-2 small."""
        terms = {"s": 1024, "a": 12, "h": 768, "b": 12}
        given = [text for name, value in terms.items() for text in ("--term", f"{name}={value}")]
        expected = (2 * 1024 * 12 + 16 * 768) * 1024 * 12

        text = printed(*given, "--only", "deepspeed-activations")

        assert f"(2·s·a + 16·h)·s·b = {expected:,} bytes" in text

    def test_each_row_of_a_table_has_a_verdict(self, printed: Printed) -> None:
        """T5-3b on 8 GPUs needs 5.7 GB with the optimizer on the CPU, and 17.1 GB without."""
        asked = ("--params", "2851e6", "--gpus", "8", "--term", "M_gpu=16e9")
        text = printed(*asked, "--only", "deepspeed-zero2-table")

        assert "offload_optimizer=cpu fits, 10.298 GB (10^9 bytes) left" in text  # 16 - 5.702
        over = 4 * 2.851 + 16 * 2.851 / 8 - 16
        assert f"offload_optimizer=none does not fit, {over:.3f} GB (10^9 bytes) over" in text


class TestLinearLayersOfGpt2:
    """nanoGPT's arithmetic: "a total allocation of 256.5 MB (21.375MB per layer)"."""

    def test_the_articles_figures(self, printed: Printed) -> None:
        terms = {"s": 1024, "a": 12, "h": 768, "b": 12, "L": 12}
        given = [text for name, value in terms.items() for text in ("--term", f"{name}={value}")]

        text = printed(*given, "--only", "nanogpt-linear-layers")

        assert "as budgeted: 2·N_e 18.000 0.000 216.000" in text
        assert "with the fp16 weight: 2·N_e + 6·h² 21.375 3.375 256.500" in text

    @pytest.mark.slow
    def test_the_traced_step_allocates_them(self, sections: Sections) -> None:
        """In fp16: inputs of 12 x 1024 x 768 that a norm made in fp32, weights, GELU's operand."""
        asked = (GPT2, "--steps", "1", "--only", "nanogpt-linear-layers")
        rows = sections(*asked)["nanogpt-linear-layers"]["rows"]
        cast, h = 2 * 12 * 1024 * 768, 768
        expected = {
            "attn.c_attn": cast + 2 * 3 * h**2,
            "attn.c_proj": 2 * h**2,
            "mlp.c_fc": cast + 2 * 4 * h**2 + 4 * cast,
            "mlp.c_proj": 2 * 4 * h**2,
        }

        assert expected["attn.c_attn"] == 21.375 * 2**20
        traced = {
            name.removeprefix("the traced step, "): row
            for name, row in rows.items()
            if name.startswith("the traced step, ")
        }
        every = traced.pop("every linear layer")
        assert {name: row[0] for name, row in traced.items()} == expected
        assert traced["attn.c_attn"] == [21.375 * 2**20, 3.375 * 2**20, 256.5 * 2**20]
        assert every[0] == sum(expected.values())
        assert every[1] == 2 * 12 * h**2


class TestFootprint:
    """ "model + 2 x model (for Adam optimizer) + MAX(gradients, activations)"."""

    MODEL = 4 * (101 * 100 + 200 * 100 * 100 + 101 * 10)
    ACTIVATIONS = 202 * 25_600

    def test_in_the_articles_stack_gradients_win(self, sections: Sections) -> None:
        """The article measures 49,580,544 after the backward pass: 3·8,135,168 for model
        and Adam in whole blocks of 512 bytes, 8,135,168 of gradients, two workspaces, the loss.
        """
        kept = ("--env", "TORCH_CUBLAS_WORKSPACE_CACHE=1")
        found = sections(STACK, *kept, "--only", "footprint-peak")["footprint-peak"]
        rows = {row["name"]: row for row in found["rows"]}

        assert self.MODEL > self.ACTIVATIONS
        assert found["bytes"] == 3 * self.MODEL + self.MODEL
        assert rows["model"]["exact"] == self.MODEL
        assert rows["Adam"]["exact"] == 2 * self.MODEL
        assert rows["gradients or activations: gradients"]["exact"] == self.MODEL
        assert rows["kernel workspaces"]["exact"] == 2 * 8_519_680 + LT_WORKSPACE
        blocks = 4 * 8_135_168
        assert blocks + 2 * 8_519_680 + 512 == 49_580_544
        # At the peak Adam's update adds a buffer for each parameter.
        assert found["exact"] == 49_580_544 + 8_135_168 + LT_WORKSPACE

    @pytest.mark.slow
    def test_with_a_large_batch_activations_win(self, sections: Sections) -> None:
        asked = (STACK, "--set", "batch=640", "--only", "footprint-peak")
        found = sections(*asked)["footprint-peak"]
        rows = {row["name"]: row for row in found["rows"]}

        assert found["bytes"] == 3 * self.MODEL + 10 * self.ACTIVATIONS
        assert "gradients or activations: activations" in rows

    def test_frozen_layers_have_no_gradients(self, sections: Sections) -> None:
        """200 frozen layers of 100 x 100 leave 101·100 + 101·10 parameters to train."""
        asked = (STACK, "--set", "freeze_end=200", "--only", "footprint-peak", "--steps", "2")
        found = sections(*asked, "--term", "A=1")["footprint-peak"]

        assert found["bytes"] == 3 * self.MODEL + 4 * (101 * 100 + 101 * 10)

    def test_gradients_count_twice_on_several_gpus(self) -> None:
        terms = given_terms({"N": "1000", "N_trained": "900", "A": "1", "GPUs": "2"})
        (section,) = formulas_for(terms, ["footprint-peak"]).sections

        assert section.comparison is not None
        assert section.comparison.estimate == 3 * 4 * 1000 + 2 * 4 * 900


class TestVerdicts:
    def test_every_formula_has_one_where_a_card_is_named(
        self, run_graphmem: Callable[..., Any]
    ) -> None:
        asked = ("published", GPT2, "--set", "layers=2", "--steps", "2")
        with_card = run_graphmem(*asked, "--gpu", "t4", "--format", "json")
        without = run_graphmem(*asked, "--format", "json")
        found = json.loads(with_card.stdout)
        room = found["terms"]["memory"]["value"]
        single = [each for each in found["formulas"] if "bytes" in each]

        assert single
        for each in single:
            assert each["left"] == room - each["bytes"]
            assert each["fits"] is (each["left"] >= 0)
        assert "step" not in json.loads(without.stdout)
        assert '"fits"' not in without.stdout

    def test_the_steps_own_verdict_stands_beside_them(
        self, run_graphmem: Callable[..., Any]
    ) -> None:
        """GPT-2 small with 12 samples needs more than a T4's 15 GB, whatever the formulas say."""
        asked = (GPT2, "--steps", "2", "--gpu", "t4")
        outcome = run_graphmem("published", *asked, "--only", "eleutherai-activations")
        analysis = json.loads(run_graphmem("analyze", *asked, "--format", "json").stdout)
        over = -analysis["memory"]["on_card"]["margin"] / 2**30

        assert "eleutherai-activations 12.023 GiB fits, " in " ".join(outcome.stdout.split())
        assert analysis["memory"]["on_card"]["fits"] is False
        assert f"does not fit, {over:.3f} GiB over" in outcome.stdout

    def test_an_unknown_card(self, run_graphmem: Callable[..., Any]) -> None:
        outcome = run_graphmem("published", "--params", "10", "--gpu", "abacus")

        assert outcome.exit_code == 2
        with pytest.raises(InputError):
            card_term("abacus")
