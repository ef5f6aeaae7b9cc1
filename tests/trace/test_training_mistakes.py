"""Common mistakes in a training step: reported as the user's, in PyTorch's words, with the line.

PyTorch's words come from PyTorch: every step also runs on the CPU, without graphmem.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import graphmem
from graphmem.errors import InputError
from graphmem.frames import short_path
from graphmem.trace.graph_task import warn_of_cycles
from graphmem.training_step import TrainingStep
from tests.conftest import Outcome

Step = Callable[[str], object]
HERE = short_path(__file__)


def model_on(device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to(device)


def output_on(device: str) -> Tensor:
    output: Tensor = model_on(device)(torch.zeros(2, 4, device=device))
    return output


def leaf_on(device: str) -> Tensor:
    return torch.ones(3, 3, device=device, requires_grad=True)


def backward_twice(device: str) -> None:
    loss = output_on(device).sum()
    loss.backward()
    loss.backward()  # HERE


def one_fake_image_for_both_players(device: str) -> None:
    fake, discriminate = output_on(device), nn.Linear(4, 1).to(device)
    discriminate(fake).sum().backward()
    discriminate(fake).mean().backward()  # HERE


def a_loss_under_no_grad(device: str) -> None:
    with torch.no_grad():
        loss = output_on(device).sum()
    loss.backward()  # HERE


def a_gradient_of_what_was_not_used(device: str) -> None:
    torch.autograd.grad(output_on(device).sum(), [leaf_on(device)])  # HERE


def a_gradient_of_what_needs_none(device: str) -> None:
    torch.autograd.grad(output_on(device).sum(), [torch.zeros(1, device=device)])  # HERE


def a_second_derivative_without_a_graph(device: str) -> None:
    x = leaf_on(device)
    (gradient,) = torch.autograd.grad(x.exp().sum(), [x])
    gradient.sum().backward()  # HERE


def an_output_that_is_no_scalar(device: str) -> None:
    output_on(device).backward()  # HERE


def written_into_a_result(device: str) -> None:
    output = output_on(device)
    output.add_(1)
    output.sum().backward()  # HERE


def written_through_a_detached_alias(device: str) -> None:
    output = output_on(device)
    output.detach().add_(1)
    output.sum().backward()  # HERE


def written_into_an_operand(device: str) -> None:
    operand = leaf_on(device).exp()
    result = operand.sin()
    operand.mul_(2)
    result.sum().backward()  # HERE


def written_into_another_row(device: str) -> None:
    operand = leaf_on(device) * 2
    result = operand.sin()
    operand[0].mul_(2)
    result.sum().backward()  # HERE


def written_into_the_base_of_a_view(device: str) -> None:
    operand = leaf_on(device) * 2
    result = operand[0] * operand[1]
    operand[2].mul_(2)
    result.sum().backward()  # HERE


def written_into_a_leaf(device: str) -> None:
    leaf = leaf_on(device)
    loss = (leaf * leaf).sum()
    with torch.no_grad():
        leaf.mul_(2)
    loss.backward()  # HERE


def written_into_an_index(device: str) -> None:
    values, indices = (leaf_on(device) * 1).max(1)
    indices.add_(1)
    values.sum().backward()  # HERE


def an_optimizer_that_steps_too_early(device: str) -> None:
    model = model_on(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.zeros(2, 4, device=device, requires_grad=True)
    loss = model(x).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    loss.backward()  # HERE


def written_into_what_is_checkpointed(device: str) -> None:
    operand = leaf_on(device) * 2
    result = checkpoint(lambda x: x.sin().cos(), operand, use_reentrant=False)
    operand.mul_(2)
    result.sum().backward()  # HERE


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined] # HERE
        result: Tensor = 2 * x * gradient
        return result


def written_into_what_a_function_saved(device: str) -> None:
    operand = leaf_on(device) * 2
    result = Squared.apply(operand)  # type: ignore[no-untyped-call]
    operand.mul_(2)
    result.sum().backward()


def written_after_the_first_derivative(device: str) -> None:
    x, weight = leaf_on(device), leaf_on(device).sum(0)
    output = nn.functional.layer_norm(x, (3,), weight)
    (gradient,) = torch.autograd.grad(output.exp().sum(), [x], create_graph=True)
    weight.add_(1)
    gradient.sum().backward()  # HERE


class Returning(torch.autograd.Function):
    """Scales by a number, with gradients that its caller chooses."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float, gradients: Any) -> Tensor:
        ctx.gradients = gradients
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.gradients(gradient)


def returning(gradients: Any) -> Step:
    def step(device: str) -> None:
        Returning.apply(leaf_on(device), 2.0, gradients).sum().backward()  # HERE

    return step


def hooked(register: Callable[[Tensor, Any], Any], hook: Any) -> Step:
    def step(device: str) -> None:
        output = leaf_on(device) * 2
        register(output, hook)
        (output * 3).sum().backward()  # HERE

    return step


def with_hook(gradient: Tensor) -> Tensor:
    return gradient[:1]


def a_hook_after_accumulation_that_returns(device: str) -> None:
    leaf = leaf_on(device)
    leaf.register_post_accumulate_grad_hook(lambda leaf: leaf.grad)  # type: ignore[arg-type,return-value]
    leaf.sum().backward()  # HERE


ON_TENSOR, ON_NODE, BEFORE_NODE = (
    lambda output, hook: output.register_hook(hook),
    lambda output, hook: output.grad_fn.register_hook(hook),
    lambda output, hook: output.grad_fn.register_prehook(hook),
)

MISTAKES: list[Step] = [
    written_after_the_first_derivative,
    returning(lambda gradient: (gradient, gradient.sum(), None)),
    returning(lambda gradient: (gradient, None)),
    returning(lambda gradient: (gradient[:2], None, None)),
    returning(lambda gradient: (2.0, None, None)),
    hooked(ON_TENSOR, with_hook),
    hooked(ON_TENSOR, lambda gradient: gradient.half()),
    hooked(ON_NODE, lambda results, gradients: (results[0], results[0])),
    hooked(BEFORE_NODE, lambda gradients: (gradients[0], gradients[0])),
    a_hook_after_accumulation_that_returns,
    backward_twice,
    one_fake_image_for_both_players,
    a_loss_under_no_grad,
    a_gradient_of_what_was_not_used,
    a_gradient_of_what_needs_none,
    a_second_derivative_without_a_graph,
    an_output_that_is_no_scalar,
    written_into_a_result,
    written_through_a_detached_alias,
    written_into_an_operand,
    written_into_another_row,
    written_into_the_base_of_a_view,
    written_into_a_leaf,
    written_into_an_index,
    an_optimizer_that_steps_too_early,
    written_into_what_is_checkpointed,
    written_into_what_a_function_saved,
]


def line_of(step: Step) -> int:
    """The first marked line from the start of the step, or of its function."""
    wanted = Squared if step is written_into_what_a_function_saved else step
    lines, first = inspect.getsourcelines(wanted)
    return first + next(i for i, line in enumerate(lines) if "# HERE" in line)


@pytest.mark.parametrize("step", MISTAKES, ids=lambda step: step.__name__)
def test_a_mistake_is_reported_as_pytorch_reports_it(step: Step) -> None:
    with pytest.raises(RuntimeError) as real:
        step("cpu")
    with pytest.raises(InputError) as told:
        graphmem.analyze(lambda: TrainingStep(step=lambda: step("cuda")), steps=1)

    said = re.sub(r"torch\.(?=\w+Tensor)", "torch.cuda.", str(real.value))
    assert str(told.value) == f"the step raised RuntimeError: {said} ({HERE}:{line_of(step)})"


def harmless_writes() -> Iterator[Step]:
    def into_data(device: str) -> None:
        output = output_on(device)
        output.data.add_(1)
        output.sum().backward()

    def into_what_is_not_saved(device: str) -> None:
        output = leaf_on(device) + 1
        output.mul_(2)
        output.sum().backward()

    def behind_hooks_of_the_users_own(device: str) -> None:
        leaf = leaf_on(device)
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            loss = (leaf * leaf).sum()
        with torch.no_grad():
            leaf.mul_(2)
        loss.backward()

    def before_it_is_saved(device: str) -> None:
        output = leaf_on(device) * 2
        output.exp_()
        output.sum().backward()

    def two_passes_through_one_norm(device: str) -> None:
        norm = nn.BatchNorm1d(4).to(device)
        x = torch.ones(2, 4, device=device)
        (norm(x) + norm(x)).sum().backward()

    yield from (
        into_data,
        into_what_is_not_saved,
        behind_hooks_of_the_users_own,
        before_it_is_saved,
        two_passes_through_one_norm,
    )


@pytest.mark.parametrize("step", harmless_writes(), ids=lambda step: step.__name__)
def test_a_write_that_pytorch_allows_is_allowed(step: Step) -> None:
    step("cpu")
    graphmem.analyze(lambda: TrainingStep(step=lambda: step("cuda")), steps=1)


KEPT = """
    import torch

    def build():
        kept = []

        def loss(output):
            total = output.sum() + sum(kept)
            kept.append(total)
            return total

        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        return model, torch.zeros(2, 4), loss
"""


def test_a_loss_that_keeps_the_previous_one_names_its_line(
    run_graphmem: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`build()` leaves `backward()` to graphmem, so the line is that of the sum, the root."""
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(dedent(KEPT).lstrip())
    run = run_graphmem("analyze", "model.py")

    assert run.exit_code == 2
    assert "Trying to backward through the graph a second time" in run.stderr
    assert "(model.py:7)" in run.stderr


def test_a_reference_cycle_of_gradients_is_warned_of_in_pytorchs_words() -> None:
    def warned(device: str) -> tuple[str, str]:
        torch.set_warn_always(True)  # the engine warns once in a process
        warn_of_cycles.cache_clear()
        with pytest.warns(UserWarning, match="reference cycle") as found:
            output_on(device).sum().backward(create_graph=True)  # type: ignore[no-untyped-call]
        torch.set_warn_always(False)
        return str(found[0].message).partition(" (Triggered")[0], found[0].filename

    with graphmem.virtual_gpu("t4"):
        on_card = warned("cuda")
    assert on_card == warned("cpu")
