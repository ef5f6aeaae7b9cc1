"""`torch.export.export` traces a program on its own tensors: nothing of it is on the card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from graphmem.live.gpu import VirtualGpu
from tests.conftest import Outcome

Virtual = Callable[..., VirtualGpu]

PROGRAM = """
import torch
table = torch.nn.Embedding(1000, 512)  # too large to have values
ids = torch.ones(4, 8, dtype=torch.long).chunk(2)[0]
module = torch.export.export(table, (ids,)).module()
print(torch.cuda.max_memory_allocated())
module.to("cuda")
held = module(ids.to("cuda"))
print(torch.cuda.memory_allocated(), tuple(held.shape))
"""


@pytest.fixture
def run(run_graphmem: Callable[..., Outcome], tmp_path: Path) -> Callable[[str], Outcome]:
    """Run a script that ends well."""

    def run(program: str) -> Outcome:
        path = tmp_path / "script.py"
        path.write_text(program)
        done = run_graphmem("run", "--gpu", "h100", str(path))
        assert done.exit_code == 0, done.stderr
        return done

    return run


def test_an_exported_module_runs_on_the_card(run: Callable[[str], Outcome]) -> None:
    """A table of 1,000 x 512 floats, the rows of 2 x 8 ids, and these, which autograd saves."""
    done = run(PROGRAM)

    there = 1000 * 512 * 4 + 2 * 8 * 512 * 4 + 512
    assert done.stdout == f"0\n{there} (2, 8, 512)\n"


STRICT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.ReLU()).cuda()
batch = torch.randn(32, 64, device="cuda")
exported = torch.export.export(model, (batch,), strict=True).module()
before = torch.cuda.memory_allocated()
loss = exported(batch).sum()
loss.backward()
print(before, exported.get_parameter("0.weight").grad.shape)
"""


def test_dynamo_exports_without_the_hooks_of_the_trace(run: Callable[[str], Outcome]) -> None:
    """Before the step there are the weight and the batch, of 64 x 64 and 32 x 64 floats."""
    done = run(STRICT)

    assert done.stdout == f"{64 * 64 * 4 + 32 * 64 * 4} torch.Size([64, 64])\n"
    assert "script.py:7" in done.stderr  # not a line of the code that PyTorch writes
    assert "eval_with_key" not in done.stderr


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_make_fx_in_a_program_notes_each_operation(virtual_gpu: Virtual, mode: str) -> None:
    """Its mode is below those of a program; what it runs meanwhile is on the card."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def of(device: str) -> list[str]:
        inputs = torch.ones(4, 8, device=device), torch.ones(8, 8, device=device)

        def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return (x @ weight).relu().sum()

        made = make_fx(torch.func.grad(loss), tracing_mode=mode)(*inputs)
        assert made(*inputs).shape == (4, 8)
        return [str(node.target) for node in made.graph.nodes]

    on_host = of("cpu")
    gpu = virtual_gpu("t4")
    assert of("cuda") == on_host
    assert gpu.peak > 0


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_make_fx_on_fake_tensors_takes_nothing_of_the_card(virtual_gpu: Virtual, mode: str) -> None:
    """Its sizes are symbols there as well, so that a graph made from one batch serves another."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def force(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        place = x.detach().requires_grad_()
        energy = (place @ weight).sigmoid().sum()
        (slope,) = torch.autograd.grad(energy, place, create_graph=True)
        return slope + torch.zeros(x.shape[0], 1, device=x.device)

    def of(device: str) -> str:
        inputs = torch.ones(4, 8, device=device), torch.ones(8, 6, device=device)
        before = torch.cuda.memory_allocated() if device == "cuda" else 0
        made = make_fx(force, tracing_mode=mode)(*inputs)
        if device == "cuda":
            assert torch.cuda.max_memory_allocated() == before
        if mode == "symbolic":
            assert made(torch.ones(5, 8, device=device), inputs[1]).shape == (5, 8)
        return made.code.replace("type='cuda', index=0", "type='cpu'")

    on_host = of("cpu")
    virtual_gpu("t4")
    assert of("cuda") == on_host


def test_a_fake_mode_of_the_programs_own_takes_nothing_of_the_card(virtual_gpu: Virtual) -> None:
    """As torchtitan's `minimal_fx_tracer` has, and programs that estimate before they train."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    virtual_gpu("t4")
    x = torch.ones(1024, 1024, device="cuda", requires_grad=True)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        fake = mode.from_tensor(x)
        model = torch.nn.Linear(1024, 1024, device="cuda")
        (model(fake) + x.detach()).relu().sum().backward()  # to the mode, the latter is real
        assert model.weight.grad is not None
        assert model.weight.grad.device == torch.device("cuda", 0)
        made = make_fx(lambda a: torch.autograd.grad((a @ a).sum(), a))(fake)
    model(fake).sum().backward()  # as their mode runs it outside the context too

    assert [node.op for node in made.graph.nodes].count("call_function") > 3
    assert torch.cuda.max_memory_allocated() == 1024 * 1024 * 4
    assert x.grad is None
    (x * x).sum().backward()
    assert torch.cuda.memory_allocated() == 2 * 1024 * 1024 * 4
