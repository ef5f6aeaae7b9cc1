"""Why a tensor is alive."""

from __future__ import annotations

import warnings

import torch

import graphmem
from tests.support.sizes import KEPT_WORKSPACES


def test_a_parameter_is_named_before_the_models_first_call() -> None:
    """DLRM's script moves its embeddings to the card one by one, and ended before it trained."""
    with graphmem.virtual_gpu("t4") as gpu:
        model = torch.nn.ModuleList([torch.nn.Embedding(4096, 64)])
        model[0].to("cuda")

    [table] = gpu.report().at_peak.holders
    assert table.reason == "the parameter 0.weight"


def test_a_parameter_that_was_computed_is_named_without_a_warning() -> None:
    """Meta-learning replaces parameters by updated ones, which are no leaves of autograd."""
    with graphmem.virtual_gpu("t4") as gpu, warnings.catch_warnings():
        warnings.simplefilter("error")
        model = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
        model._parameters["weight"] = model.weight * 0.5
        model(torch.ones(2, 1024, device="cuda")).sum().backward()

    reasons = [holder.reason for holder in gpu.report().at_peak.holders]
    assert any("the parameter weight" in reason for reason in reasons)


def test_a_batch_loaded_after_a_step_is_no_temporary_of_the_optimizer() -> None:
    """transformers' Trainer loads all that it accumulates over before the next forward pass."""
    with graphmem.virtual_gpu("t4") as gpu:
        model = torch.nn.Linear(1 << 20, 1, device="cuda")
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 1 << 20, device="cuda")).sum().backward()
        optimizer.step()
        sum(torch.ones(2, 1 << 20).to("cuda") for _ in range(6))

    held = [each for each in gpu.report().at_peak.holders if each.shape == [2, 1 << 20]]
    assert held
    assert not [each.reason for each in held if "optimizer" in each.reason]


def test_what_an_optimizers_step_needs_is_its_temporary() -> None:
    with graphmem.virtual_gpu("t4", env=KEPT_WORKSPACES) as gpu:
        model = torch.nn.Linear(1 << 20, 1, bias=False, device="cuda")
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 1 << 20, device="cuda")).sum().backward()
        torch.cuda.empty_cache()
        optimizer.step()

    reasons = [holder.reason for holder in gpu.report().at_peak.holders]
    assert "a temporary result of aten._foreach_sqrt in the optimizer" in reasons
