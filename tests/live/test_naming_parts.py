"""Names of parameters and of what modules keep, in loops that few programs have."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from graphmem.live.gpu import VirtualGpu

Card = Callable[..., VirtualGpu]


class Log:
    """What a trainer gives its model, as Composer's logger, which keeps the trainer's state."""

    outputs: torch.Tensor


Log.__module__ = "library.log"


def owners(gpu: VirtualGpu) -> dict[str, str]:
    held = [owner for one in gpu.report().at_peak.holders for owner in one.owners]
    return {each.name: each.kind for each in held}


def test_a_closure_that_calls_the_model_first_does_not_cost_it_its_names(virtual_gpu: Card) -> None:
    """Composer's Trainer runs its forward and backward passes within `optimizer.step(closure)`."""
    gpu = virtual_gpu("a100")
    model = torch.nn.Sequential(torch.nn.Linear(256, 256)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())

    def closure() -> float:
        model(torch.ones(2, 256, device="cuda")).sum().backward()
        return 0.0

    for _ in range(2):
        optimizer.step(closure)

    found = owners(gpu)
    assert found["0.weight"] == "parameter"
    assert found["0.weight.exp_avg"] == "optimizer_state"
    assert not [name for name in found if "param_groups" in name]


class Adapter(torch.nn.Module):
    """An adapter as kohya's trainers make them: it replaces a layer's `forward`."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.down = torch.nn.Linear(256, 64, bias=False)
        self.up = torch.nn.Linear(64, 256, bias=False)
        self.scale = torch.nn.Parameter(torch.ones(256))
        self.replaced = layer.forward
        layer.forward = self.forward  # type: ignore[method-assign]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.replaced(x) + self.scale * self.up(self.down(x))
        return result


def test_an_adapter_that_no_model_registers_has_the_name_of_its_layer(virtual_gpu: Card) -> None:
    gpu = virtual_gpu("a100")
    model = torch.nn.Sequential(torch.nn.Linear(256, 256)).to("cuda").requires_grad_(False)
    adapter = Adapter(model[0]).to("cuda")
    optimizer = torch.optim.AdamW(adapter.parameters())
    for _ in range(2):
        model(torch.ones(2, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    found = owners(gpu)
    for name in ("0.down.weight", "0.up.weight", "0.scale"):
        assert found[name] == "parameter"
        assert found[f"{name}.exp_avg"] == "optimizer_state"


def test_a_result_that_an_object_of_the_model_keeps_is_no_buffer(virtual_gpu: Card) -> None:
    gpu = virtual_gpu("a100")
    model = torch.nn.Linear(256, 256, device="cuda")
    optimizer = torch.optim.SGD(model.parameters())
    model.log = Log()
    for _ in range(3):
        model.log.outputs = model(torch.ones(64, 256, device="cuda"))
        model.log.outputs.sum().backward()
        optimizer.step()

    assert gpu.report().at_peak.by_category["buffer"] == 0


def test_a_tensor_on_the_host_with_a_gradient_on_the_card_is_copied(virtual_gpu: Card) -> None:
    """As when FSDP1 makes a state dict on the host of a model that has gradients."""
    virtual_gpu("a100")
    weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
    weight.grad = gradient = torch.ones(4, device="cuda")
    weight.data = weight.data.cpu()

    back = torch.empty(4, device="cuda").copy_(weight.detach())
    torch.empty(4, device="cuda").copy_(weight.data)
    with torch.no_grad():
        back.copy_(weight)

    assert weight.grad is gradient


def test_parameters_keep_their_names_in_storages_that_replace_theirs(virtual_gpu: Card) -> None:
    """Sharpness-aware minimisation steps from copies, set by `parameter.data = old`."""
    gpu = virtual_gpu("a100")
    model = torch.nn.Sequential(torch.nn.Linear(256, 256)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        old = {each: each.data.clone() for each in model.parameters()}
        model(torch.ones(2, 256, device="cuda")).sum().backward()
        for parameter in model.parameters():
            parameter.data = old[parameter]
        optimizer.step()

    found = owners(gpu)
    named = {name for name, kind in found.items() if kind in ("parameter", "gradient")}
    assert named == {"0.weight", "0.bias", "0.weight.grad", "0.bias.grad"}


class Unbound:
    """A proxy that stands for nothing yet, as Werkzeug's have no attributes outside a request."""

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise AttributeError


Unbound.__module__ = "library.proxies"


def a_future() -> Any:
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    loop.close()
    return future


@pytest.mark.parametrize(
    "bare", [TypeVar("bare"), a_future(), Unbound()], ids=["TypeVar", "future", "proxy"]
)
def test_an_object_that_hides_its_attributes_is_passed_over(bare: Any, virtual_gpu: Card) -> None:
    """As instances of some classes in C do: futures, and type variables from 3.12 on."""
    with pytest.raises(TypeError):
        vars(Unbound())
    gpu = virtual_gpu("a100")
    model = torch.nn.Sequential(torch.nn.Linear(256, 256)).to("cuda")
    model.types = [bare]  # type: ignore[assignment]
    model.type = bare
    model(torch.ones(2, 256, device="cuda")).sum().backward()

    assert owners(gpu)["0.weight"] == "parameter"


class Functional(torch.optim.SGD):
    """As NVIDIA's `JITLamb`: its step computes new parameters, and replaces the old."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["average"] = state.get("average", 0) + parameter.grad
            parameter.data = parameter.data - 0.1 * state["average"]


def test_parameters_keep_their_names_in_what_a_step_puts_in_their_place(virtual_gpu: Card) -> None:
    gpu = virtual_gpu("a100")
    model = torch.nn.Sequential(torch.nn.Linear(256, 256, bias=False)).to("cuda")
    optimizer = Functional(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 256, device="cuda")).sum().backward()
        optimizer.step()

    found = owners(gpu)
    assert found["0.weight"] == "parameter"
    assert found["0.weight.average"] == "optimizer_state"
    assert not [name for name in found if "param_groups" in name]


def test_a_selective_checkpoint_saves_the_results_that_it_keeps(virtual_gpu: Card) -> None:
    """The product of each block, of 1,024 x 256 x 4 bytes."""
    gpu = virtual_gpu("a100")
    blocks = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(4)]
    torch.nn.Sequential(*blocks).to("cuda")
    chosen = [torch.ops.aten.addmm.default]
    contexts = functools.partial(create_selective_checkpoint_contexts, chosen)
    hidden = torch.ones(1024, 256, device="cuda")
    for block in blocks:
        hidden = checkpoint(block, hidden, use_reentrant=False, context_fn=contexts)
    loss = hidden.sum()

    held = [each for each in gpu.report().at_peak.holders if "a selective" in each.reason]
    assert [each.category for each in held] == ["activation"] * 4
    assert {each.bytes for each in held} == {1024 * 256 * 4}
    loss.backward()
