"""Figures printed by CUDA runs and published by others (sources in the fixtures), byte for byte."""

from __future__ import annotations

from functools import cache

import pytest

import graphmem
from graphmem import Report
from graphmem.analysis import Request, run_analysis
from tests.support.places import FIXTURES
from tests.support.sizes import KEPT_WORKSPACES, LT_WORKSPACE

SCALAR_BLOCK = 512


@cache
def analyzed(fixture: str, *, grads: str = "none", steps: int = 3, **settings: object) -> Report:
    return graphmem.analyze(
        f"{FIXTURES / fixture}.py:build",
        grads=grads,
        steps=steps,
        env=KEPT_WORKSPACES,
        settings={key: str(value) for key, value in settings.items()},
    )


def marks(report: Report, step: int) -> dict[str, int]:
    return {mark.name: mark.allocated for mark in report.steps[step].marks}


class TestLinearStack:
    """The article "Memory footprint of a neural net during backpropagation"."""

    def test_the_four_figures_of_the_third_iteration(self) -> None:
        forward, backward, optimizer = analyzed("linear_stack").steps[2].phases
        after_step = marks(analyzed("linear_stack"), 2)["optimizer.step"]

        figures = (forward.end, backward.end, after_step, optimizer.end)
        assert [figure - LT_WORKSPACE for figure in figures] == [
            46_616_576,
            49_580_544,
            49_580_544,
            41_445_376,
        ]

    def test_the_changes_between_them(self) -> None:
        forward, backward, optimizer = analyzed("linear_stack").steps[2].phases

        assert forward.end - forward.start == 5_171_200 == 202 * 25_600
        assert backward.end - backward.start == 2_963_968
        assert optimizer.end - optimizer.start == -8_135_168

    def test_parameters_are_rounded_tensor_by_tensor(self) -> None:
        first = analyzed("linear_stack").steps[0].phases[0]

        assert first.start == 8_135_168

    def test_frozen_linear_layers_keep_no_input(self) -> None:
        """Only the inputs of the first and the last layer are kept: a frozen linear layer needs
        only its weight to pass a gradient on."""
        report = analyzed("linear_stack", freeze_start=0, freeze_end=200)

        assert report.saved_for_backward == 2 * 64 * 100 * 4

    def test_frozen_layers_with_relu_between_keep_their_outputs(self) -> None:
        """ReLU's derivative uses its result: 200 of them, and the first input; the last layer's
        input is the last ReLU's result."""
        report = analyzed("linear_stack", relu=True, freeze_start=0, freeze_end=200)

        assert report.saved_for_backward == 201 * 64 * 100 * 4

    def test_gradients_and_optimizer_state_exist_for_trained_parameters_only(self) -> None:
        """Two linear layers with biases train: 100x100 + 100 and 10x100 + 10 elements."""
        model = analyzed("linear_stack", freeze_start=0, freeze_end=200).model
        trained = 4 * (100 * 100 + 100 + 10 * 100 + 10)

        assert model.gradient_bytes == trained
        assert model.optimizer_state_bytes == 2 * trained


class TestActivationMemory:
    """The article "Activation memory: a deep dive using PyTorch"."""

    @pytest.mark.parametrize(
        ("fixture", "activation", "expected"),
        [
            ("mlp", "relu", 83_886_080),
            ("mlp", "gelu", 150_994_944),
            ("transformer_block", "relu", 201_523_216),
            ("transformer_block", "gelu", 268_632_080),
        ],
    )
    def test_saved_bytes(self, fixture: str, activation: str, expected: int) -> None:
        assert analyzed(fixture, activation=activation, steps=1).saved_for_backward == expected

    @pytest.mark.parametrize(("activation", "expected"), [("relu", 5), ("gelu", 9)])
    def test_bytes_newly_allocated_and_alive(self, activation: str, expected: int) -> None:
        """In units of the input's 16,777,216 bytes: its copy on the card is the input itself, the
        MLP's output is alive as in the article, its sum takes 512 bytes, cuBLAS its workspace."""
        forward = analyzed("mlp", activation=activation, steps=1).steps[0].phases[0]
        new = forward.end - forward.start - 8_519_680 - LT_WORKSPACE - SCALAR_BLOCK

        assert new == expected * 16_777_216

    def test_leaky_relu_saves_its_input_unless_in_place(self) -> None:
        plain = analyzed("mlp", activation="leaky_relu", steps=1).saved_for_backward
        in_place = analyzed("mlp", activation="leaky_relu_inplace", steps=1).saved_for_backward

        assert (plain, in_place) == (150_994_944, 83_886_080)


class TestGpt2:
    """The article "Transformer memory arithmetic: all the bytes in nanoGPT"."""

    @pytest.fixture
    def report(self) -> Report:
        return analyzed("gpt2", grads="keep")

    def test_parameters(self, report: Report) -> None:
        assert report.model.parameters == 124_373_760
        assert report.model.parameter_bytes + report.model.buffer_bytes == 547_826_688

    def test_gradients(self, report: Report) -> None:
        assert report.model.gradient_bytes == 497_495_040

    def test_fused_adam_keeps_two_moments_and_75_step_scalars(self, report: Report) -> None:
        assert report.model.optimizer_state_bytes == 994_990_380 == 2 * 497_495_040 + 75 * 4

    def test_two_cublas_workspaces(self, report: Report) -> None:
        assert report.at_peak.by_category["workspace"] == 2 * 8_519_680

    def test_autocast_keeps_a_copy_of_every_linear_weight(self, report: Report) -> None:
        """What the article could not explain, by name: the tied head and 48 linear weights."""
        copies = [
            holder for holder in report.at_peak.holders if holder.category == "autocast_cache"
        ]

        assert report.at_peak.by_category["autocast_cache"] == 247_136_256
        assert len(copies) == 1 + 12 * 4
        assert any("wte.weight" in holder.reason for holder in copies)

    def test_the_second_step_from_its_start_to_its_peak(self) -> None:
        """The article's `memory_allocated`, and its bytes in gaps; the rest was requested.

        It adds up to 2,057,547,776 for weights and masks, gradients, two moments, two workspaces
        and two batches of int64; 78 scalars of 4 bytes are 75 steps, loss, scale and its tracker.
        Which block a request takes, and so the gaps, depends on everything the process did before:
        `recorded_nanogpt` does what its published trace shows.
        """
        request = Request(gpu="a100", torch="2.0", steps=2)
        analysis = run_analysis(f"{FIXTURES / 'recorded_nanogpt'}.py:build", request)
        timeline, start = analysis.timeline, analysis.graph.phases_of(1)[0].start
        moment = timeline.moments[timeline.index_at(start - 1)]
        published, gaps = 2_064_403_456, 6_855_368

        assert (moment.allocated, moment.allocated - moment.requested) == (published, gaps)
        assert moment.requested == 2_057_547_776 + (75 + 3) * 4
        assert f"{timeline.peak()[0].allocated / 2**30:.3f}" == "21.898"

    def test_activations_after_forward(self, report: Report) -> None:
        assert f"{report.saved_for_backward / 2**30:.3f}" == "17.673"

    def test_the_peak_comes_early_in_the_backward_pass(self, report: Report) -> None:
        assert (report.peak.phase, report.peak.op) == (
            "backward",
            "aten.nll_loss_backward.default",
        )

    def test_returned_logits_cost_their_bytes(self, report: Report) -> None:
        """A variable that holds the logits keeps 12 x 1024 x 50304 fp16 elements alive."""
        held = analyzed("gpt2", grads="keep", return_logits=True)
        temporary = [each.at_peak.by_category["temporary"] for each in (held, report)]

        assert temporary[0] - temporary[1] == 1_236_271_104 == 12 * 1024 * 50_304 * 2
