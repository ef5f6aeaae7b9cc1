"""A step that is the user's own loop body: its phases, and the models that it only holds."""

from __future__ import annotations

import copy

import torch
from torch import nn

import graphmem
from graphmem import Report, TrainingStep

WEIGHTS = 64 * 32 + 32


def averaged(*, samples: bool = False, trains_again: bool = False) -> Report:
    def build() -> TrainingStep:
        model = nn.Linear(64, 32)
        model.cuda()
        average = copy.deepcopy(model).requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters())

        def train() -> None:
            optimizer.zero_grad()
            model(torch.zeros(8, 64, device="cuda")).sum().backward()
            optimizer.step()

        def step() -> None:
            train()
            with torch.no_grad():
                for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(weight, 0.1)
                if samples:
                    model(torch.zeros(512, 64, device="cuda"))
            if trains_again:
                train()

        return TrainingStep(model=model, step=step)

    return graphmem.analyze(build, gpu="t4", steps=2)


def test_an_average_that_is_never_called_is_a_model_under_its_own_name() -> None:
    report = averaged()

    assert report.at_peak.by_category["parameter"] == 2 * 4 * WEIGHTS
    reasons = {holder.reason for holder in report.at_peak.holders}
    assert {"the parameter weight", "the parameter average.weight"} <= reasons


def test_what_runs_without_gradients_after_the_step_is_an_evaluation() -> None:
    """Its peak adds 512 rows of samples to their input, which the optimizer's has at its end.

    From 2.15 on a product with a bias allocates cublasLt's workspace.
    """
    samples, workspace = 4 * 512 * 32, 1 << 20
    report = averaged(samples=True)

    for step in report.steps:
        phases = {phase.name: phase for phase in step.phases}
        assert list(phases) == ["forward", "backward", "optimizer", "evaluation"]
        added = phases["evaluation"].peak - phases["evaluation"].start
        assert added in (samples, samples + workspace)


def test_a_forward_pass_ends_an_evaluation() -> None:
    (first, _) = averaged(samples=True, trains_again=True).steps

    passes = ["forward", "backward", "optimizer"]
    assert [phase.name for phase in first.phases] == [*passes, "evaluation", *passes]


def test_a_teacher_between_two_updates_is_part_of_the_forward_pass_that_reads_it() -> None:
    def build() -> TrainingStep:
        teacher, student = (nn.Sequential(nn.Linear(8, 8)).cuda() for _ in "ab")
        optimizer = torch.optim.SGD(student.parameters())

        def step() -> None:
            for _ in range(2):
                x = torch.zeros(4, 8, device="cuda")
                with torch.no_grad():
                    wanted = teacher(x)
                (student(x) - wanted).sum().backward()
                optimizer.step()

        return TrainingStep(model=student, step=step)

    report = graphmem.analyze(build, gpu="t4", steps=1)

    (step,) = report.steps
    assert [phase.name for phase in step.phases] == ["forward", "backward", "optimizer"] * 2
    reasons = {holder.reason for holder in report.at_peak.holders}
    assert {"the parameter 0.weight", "the parameter teacher.0.weight"} <= reasons
