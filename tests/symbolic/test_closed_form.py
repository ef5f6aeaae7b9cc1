"""`graphmem closed-form`: polynomials derived by hand, published figures, predicted sizes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphmem
from graphmem import InputError, TrainingStep
from graphmem.graph import Category
from graphmem.symbolic import ClosedForm, closed_form
from graphmem.symbolic.messages import NotPolynomialError
from tests.support.places import FIXTURES
from tests.support.sizes import CUBLAS_WORKSPACE

GPT2 = f"{FIXTURES / 'gpt2'}.py:build"
FLOAT, HALF = 4, 2


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, foreach=False)


def stack(batch: int = 6, width: int = 10, layers: int = 3) -> TrainingStep:
    modules: list[nn.Module] = []
    for _ in range(layers):
        modules += [nn.Linear(width, width, bias=False), nn.ReLU()]
    return TrainingStep(
        model=nn.Sequential(*modules),
        inputs=torch.randn(batch, width),
        loss=lambda output: output.sum(),
        optimizer=sgd,
    )


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2) * 0.5
        return scores.softmax(-1) @ self.v(x)


def attention(batch: int = 3, seq: int = 7, width: int = 10) -> TrainingStep:
    return TrainingStep(
        model=Attention(width),
        inputs=torch.randn(batch, seq, width),
        loss=lambda output: output.sum(),
        optimizer=sgd,
    )


def coefficients(form: ClosedForm) -> dict[tuple[int, ...], int]:
    assert form.irregular == []
    assert form.is_checked
    return {powers: int(each) for powers, each in form.polynomial.terms.items()}


class TestByHand:
    def test_a_linear_layer_saves_its_input_and_relu_its_result(self) -> None:
        """The input and the results of three ReLUs, which are also the linear layers' inputs:
        4 x 4·B·d."""
        form = closed_form(stack, {"batch": "B", "width": "d"}, of="saved")

        assert coefficients(form) == {(1, 1): (1 + 3) * FLOAT}

    def test_parameters(self) -> None:
        form = closed_form(stack, {"width": "d"}, of="parameters")

        assert coefficients(form) == {(2,): 3 * FLOAT}

    def test_the_number_of_layers_can_be_a_symbol(self) -> None:
        """Saved: 4·B·d·(1 + L). The number of modules varies between traces, so storages are
        matched by their role."""
        form = closed_form(stack, {"batch": "B", "width": "d", "layers": "L"}, of="saved")

        assert coefficients(form) == {(1, 1, 0): FLOAT, (1, 1, 1): FLOAT}
        assert form.counting == (False, False, True)

    def test_attention(self) -> None:
        """x, q, k and v, 4·B·T·d each, and the result of softmax, 4·B·T²; scaling saves nothing."""
        symbols = {"batch": "B", "seq": "T", "width": "d"}
        form = closed_form(attention, symbols, of="saved")

        assert coefficients(form) == {(1, 1, 1): 4 * FLOAT, (1, 2, 0): FLOAT}

    def test_the_steady_state(self) -> None:
        """Three weights, their kept gradients, one cuBLAS workspace for each of two threads, and
        the output (6 rows) and the loss, held by variables."""
        form = closed_form(stack, {"width": "d"}, of="steady", grads="keep")

        assert coefficients(form) == {
            (2,): 2 * 3 * FLOAT,
            (1,): 6 * FLOAT,
            (0,): 2 * CUBLAS_WORKSPACE + FLOAT,
        }


class TestGpt2:
    """The article "Transformer memory arithmetic: all the bytes in nanoGPT"."""

    @pytest.fixture(scope="class")
    @staticmethod
    def saved() -> ClosedForm:
        symbols = {"batch": "B", "seq": "T", "layers": "L"}
        return closed_form(GPT2, symbols, of="saved", steps=1, settings={"layers": "2"})

    def test_a_block_saves_36_and_6(self) -> None:
        """The article: 36·N_e + 6·N_a a block, N_e = B·T·768, N_a = B·12·T². What it leaves out:
        mean and deviation of two layer norms, 4 bytes each, and the mask in bool, T²."""
        form = closed_form(
            GPT2, {"batch": "B", "seq": "T"}, of="saved", steps=1, settings={"layers": "2"}
        )
        (block,) = (
            group
            for group in form.groups
            if group.category is Category.ACTIVATION and group.where == "h.0, h.1"
        )

        assert block.modules == 2
        assert {(term.powers, term.constant): term.coefficient for term in block.terms} == {
            ((1, 1), 768): 36,
            ((1, 2), 12): 6,
            ((1, 1), 1): 2 * 2 * FLOAT,
            ((0, 2), 1): 1,
        }

    def test_the_loss_saves_6(self, saved: ClosedForm) -> None:
        """6·N_l, N_l = B·T·50304: fp16 log-probabilities and their fp32 cast."""
        terms = [term for group in saved.groups for term in group.terms if term.constant == 50304]

        assert [(term.coefficient, term.powers) for term in terms] == [(FLOAT + HALF, (1, 1, 0))]

    def test_all_activations(self, saved: ClosedForm) -> None:
        """L(36·N_e + 6·N_a) + 6·N_e + 6·N_l, and what the article leaves out: statistics of 2·L + 1
        layer norms, masks, int64 inputs and targets, positions, a scalar; and autocast's copies of
        weights, 12·768² a block and the head's 50304·768, 2 bytes each."""
        n_e, n_a, n_l = 768, 12, 50304

        assert coefficients(saved) == {
            (1, 2, 1): 6 * n_a,
            (1, 1, 1): 36 * n_e + 2 * 2 * FLOAT,
            (1, 1, 0): 6 * n_e + 6 * n_l + 2 * FLOAT + 2 * 8,
            (0, 2, 1): 1,
            (0, 1, 0): 8,
            (0, 0, 1): 12 * 768**2 * HALF,
            (0, 0, 0): 50304 * 768 * HALF + FLOAT,
        }

    def test_two_layers_predict_twelve(self, saved: ClosedForm) -> None:
        """Published: 17.673 GiB with 12 layers, which was not traced."""
        assert all(sizes[2] < 12 for sizes in saved.traced)
        assert f"{saved.bytes_at(batch=12, seq=1024, layers=12) / 2**30:.3f}" == "17.673"

    @pytest.mark.slow
    def test_the_peak(self) -> None:
        """The article: activations, the steady state and 4·N_l; in requested bytes 21.892 GiB
        (the published 21.898 includes gaps), again predicted from two layers."""
        form = closed_form(
            GPT2, {"batch": "B", "layers": "L"}, grads="keep", steps=2, settings={"layers": "2"}
        )

        assert "nll_loss_backward" in form.moment
        assert f"{form.bytes_at(B=12, L=12) / 2**30:.3f}" == "21.892"


@pytest.mark.parametrize(
    "sizes", [{"batch": 2, "seq": 7}, {"batch": 31, "seq": 65}, {"batch": 1000, "seq": 3}]
)
def test_another_size_matches_its_trace(
    sizes: dict[str, int], form_of_attention: ClosedForm
) -> None:
    report = graphmem.analyze(
        attention, settings={key: str(size) for key, size in sizes.items()}, grads="keep"
    )

    assert form_of_attention.bytes_at(**sizes) == report.peak.requested


@pytest.fixture(scope="module")
def form_of_attention() -> ClosedForm:
    return closed_form(attention, {"batch": "B", "seq": "T"}, grads="keep")


def test_the_traced_size_matches_analyze(form_of_attention: ClosedForm) -> None:
    peak = graphmem.analyze(attention, grads="keep").peak

    assert form_of_attention.requested == form_of_attention.bytes_at(batch=3, seq=7)
    assert (form_of_attention.requested, form_of_attention.allocated) == (
        peak.requested,
        peak.allocated,
    )


def wide(batch: int = 100, width: int = 512) -> TrainingStep:
    return TrainingStep(
        model=nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU()),
        inputs=torch.randn(batch, width),
        loss=lambda output: output.sum(),
        optimizer=lambda parameters: torch.optim.Adam(parameters, foreach=False),
        keep_output=False,
    )


def test_another_peak_moment_has_a_formula_too() -> None:
    """With few samples the peak is in Adam: weight, gradient, two moments and one temporary of
    512² floats; with many it is in the backward pass, with the batch's activations.
    """
    env = {"CUBLAS_WORKSPACE_CONFIG": ":0:0"}
    form = closed_form(wide, {"batch": "B"}, env=env)

    assert "optimizer" in form.moment
    assert coefficients(form)[0,] >= 5 * FLOAT * 512**2
    assert any("backward" in moment for moment, _ in form.others)
    for batch in (3, 6400, 70_000):
        peak = graphmem.analyze(wide, settings={"batch": str(batch)}, env=env).peak
        assert form.bytes_at(batch=batch) == peak.requested


class TestNotPolynomial:
    def attention(self, seq: int) -> ClosedForm:
        settings = {"attention": "sdpa", "autocast": "none", "layers": "1", "seq": str(seq)}
        return closed_form(GPT2, {"seq": "T"}, of="saved", steps=1, settings=settings)

    def log_sum_exp(self, form: ClosedForm) -> Any:
        (line,) = (line for line in form.lines if "log_sumexp" in line.what)
        return line.polynomial

    @pytest.mark.slow
    def test_padding_is_a_polynomial_in_aligned_sizes(self) -> None:
        """The efficient kernel pads the logarithms of 12 x 12 rows to a multiple of 32."""
        form = self.attention(128)

        assert self.log_sum_exp(form).terms == {(1,): 12 * 12 * FLOAT}
        assert form.nodes[0].at(1) - form.nodes[0].at(0) == 64

    @pytest.mark.slow
    def test_near_an_unaligned_size_padding_looks_constant(self) -> None:
        """100 is padded to 128, as 101 is: T + 28 in steps of 64. The check detects it."""
        form = self.attention(100)

        assert form.is_checked
        assert self.log_sum_exp(form).terms == {
            (1,): 12 * 12 * FLOAT,
            (0,): 12 * 12 * FLOAT * (128 - 100),
        }

    def test_non_polynomial_terms_are_named(self) -> None:
        """A square root is not a polynomial at any alignment."""

        def rooted(batch: int = 100) -> TrainingStep:
            return TrainingStep(
                model=nn.Linear(5, 5, bias=False),
                inputs=torch.randn(batch, 5),
                loss=lambda output: output[: math.isqrt(len(output))].exp().sum(),
                optimizer=sgd,
            )

        form = closed_form(rooted, {"batch": "B"}, of="saved")

        (line,) = form.irregular
        assert (line.nbytes, "ExpBackward0" in line.what) == (10 * 5 * FLOAT, True)
        assert form.requested == form.polynomial.at((100,)) + line.nbytes
        assert form.polynomial.terms == {(1,): Fraction(5 * FLOAT)}
        with pytest.raises(NotPolynomialError):
            form.bytes_at(batch=50)


class TestStructure:
    def branching(self, batch: int = 8) -> TrainingStep:
        def loss(output: Tensor) -> Tensor:
            return (output.exp() if len(output) > 8 else output.sin()).sum()

        return TrainingStep(
            model=nn.Linear(5, 5), inputs=torch.randn(batch, 5), loss=loss, optimizer=sgd
        )

    def test_samples_stay_on_one_side_of_a_branch(self) -> None:
        form = closed_form(self.branching, {"batch": "B"}, of="saved")

        assert max(sizes[0] for sizes in form.traced) == 8
        assert coefficients(form) == {(1,): 2 * 5 * FLOAT}

    def test_the_first_difference_is_named(self) -> None:
        with pytest.raises(InputError, match=r"batch=9: aten.exp.*where it has aten.sin"):
            closed_form(self.branching, {"batch": "B"}, sizes={"batch": [9, 10, 11]})

    def test_sizes_that_build_rejects_are_skipped(self) -> None:
        def even(width: int = 8) -> TrainingStep:
            if width % 8:
                raise ValueError("width must be a multiple of 8")
            return stack(width=width)

        form = closed_form(even, {"width": "d"}, of="parameters")

        assert coefficients(form) == {(2,): 3 * FLOAT}
        assert form.nodes[0].at(1) == 16


class TestCommand:
    @pytest.fixture
    def target(self, tmp_path: Path) -> str:
        (tmp_path / "model.py").write_text(
            "import torch\n"
            "def build(batch=6, width=10, unused=3, rate=0.5, seq_len=4):\n"
            "    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU())\n"
            "    return model, torch.randn(batch, seq_len, width)\n"
        )
        return f"{tmp_path / 'model.py'}:build"

    def test_text(self, run_graphmem: Callable[..., Any], target: str) -> None:
        """Saved: the input and ReLU's result, 4·B·T·10 each."""
        arguments = ("--symbols", "batch=B,seq_len=T", "--of", "saved", "--names", "10=d")
        outcome = run_graphmem("closed-form", target, *arguments)

        assert outcome.exit_code == 0
        assert "in all  80·B·T\n" in outcome.stdout
        assert "4·B·T·d" in outcome.stdout
        assert "at batch=6, seq_len=4: 1,920 bytes requested" in outcome.stdout
        assert "all 2 storages equal" in outcome.stdout

    @pytest.mark.slow
    def test_the_python_output_runs(
        self, run_graphmem: Callable[..., Any], target: str, tmp_path: Path
    ) -> None:
        file = tmp_path / "formula.py"
        arguments = ("--symbols", "batch=B,width", "--format", "python", "-o", str(file))
        assert run_graphmem("closed-form", target, *arguments, "--names", "4=T").exit_code == 0

        names: dict[str, Any] = {}
        exec(file.read_text(), names)
        # Sizes the allocator does not round, since the peak is in allocated bytes.
        for batch, width in ((6, 128), (20, 256), (12, 128), (2, 384)):
            settings = {"batch": str(batch), "width": str(width)}
            peak = graphmem.analyze(target, settings=settings).peak
            assert names["peak_bytes"](B=batch, width=width) == peak.requested

    def test_json_sums_to_what_analyze_says(
        self, run_graphmem: Callable[..., Any], target: str
    ) -> None:
        outcome = run_graphmem("closed-form", target, "--symbols", "batch", "--format", "json")

        found = json.loads(outcome.stdout)
        peak = graphmem.analyze(target).peak
        assert found["schema"] == "graphmem.formula/1"
        assert found["own"] == {
            "sizes": {"batch": 6},
            "requested": peak.requested,
            "allocated": peak.allocated,
        }
        assert sum(group["bytes"] for group in found["groups"]) == peak.requested
        assert sum(each["bytes"] for each in found["storages"]) == peak.requested
        assert found["check"]["differing"] == 0

    @pytest.mark.slow
    def test_latex(self, run_graphmem: Callable[..., Any], target: str) -> None:
        arguments = ("--symbols", "width=d", "--of", "parameters", "--format", "latex")
        outcome = run_graphmem("closed-form", target, *arguments)

        assert r"M ={}& 4 \cdot d^{2} + 4 \cdot d && \text{parameters, 0}" in outcome.stdout

    def test_a_check_that_fails_is_exit_code_1(
        self, run_graphmem: Callable[..., Any], tmp_path: Path
    ) -> None:
        """Half of an odd size is rounded down: (B - 1) / 2 in steps of 2 from 7 on."""
        (tmp_path / "half.py").write_text(
            "import torch\n"
            "def build(batch=7):\n"
            "    loss = lambda output: output[: batch // 2].exp().sum()\n"
            "    return torch.nn.Linear(5, 5), torch.randn(batch, 5), loss\n"
        )
        arguments = ("--symbols", "batch=B", "--sizes", "batch=9,11,13", "--check", "batch=10")
        target = f"{tmp_path / 'half.py'}:build"
        outcome = run_graphmem("closed-form", target, "--of", "saved", *arguments)

        assert outcome.exit_code == 1
        assert "NOT confirmed at batch=10" in outcome.stdout

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--symbols", "bach=B"], "did you mean batch?"),
            (["--symbols", "rate=r"], "rate is 0.5: a symbol stands for a positive whole number"),
            (["--symbols", "unused=u"], "unused changes nothing"),
            (["--symbols", "batch=B,width=B"], "B stands for two things"),
            (["--symbols", "batch=2"], "'2' is not a name for a symbol"),
            (["--symbols", ""], "no symbol"),
            (["--symbols", "batch", "--sizes", "width=3"], "names 'width', which is not a symbol"),
            (["--symbols", "batch", "--sizes", "batch=3"], "2 sizes (6, 3) are too few"),
            (["--symbols", "batch", "--check", "batch=6"], "batch=6 was used"),
            (["--symbols", "batch", "--names", "x=d"], "'x' is not a positive whole number"),
            (["--symbols", "batch", "--set", "batch=0"], "batch is '0'"),
        ],
    )
    def test_mistakes(
        self,
        run_graphmem: Callable[..., Any],
        target: str,
        arguments: list[str],
        message: str,
    ) -> None:
        outcome = run_graphmem("closed-form", target, *arguments)

        assert outcome.exit_code == 2
        assert message in outcome.stderr
        assert "Traceback" not in outcome.stderr
