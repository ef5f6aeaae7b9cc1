"""graphmem leaves the caller's objects and process as it found them."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import graphmem
from graphmem.errors import InputError
from tests.support.places import ROOT


class Net(nn.Module):
    """A model with everything a model can hold: norms, tied weights, a cache, a counter, hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(16, 8, bias=False)
        self.unembed = nn.Linear(8, 16, bias=False)
        self.unembed.weight = self.embed.weight  # tied: [16, 8]
        self.register_buffer("scale", torch.full((8,), 2.0), persistent=False)
        self.seen: list[torch.Tensor] = []
        self.calls = 0
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = self.norm(self.embed(x))
        self.seen.append(self.last.detach())
        return self.unembed(self.head(self.drop(self.last))) * self.scale.mean()


def trained() -> tuple[Net, torch.optim.Optimizer, torch.Tensor]:
    """A model that has trained for a step on the CPU, and has gradients."""
    torch.manual_seed(7)
    net = Net()
    net.embed.weight.register_hook(lambda grad: grad * 1)
    net.head.weight.requires_grad_(True)
    net.norm.bias.requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    x = torch.randn(4, 8)
    net(x).square().mean().backward()
    optimizer.step()
    return net, optimizer, x


def described(value: Any, seen: set[int]) -> Any:
    """A value by identity and by content."""
    if isinstance(value, torch.Tensor):
        if id(value) in seen:
            return id(value)
        seen.add(id(value))
        return (
            id(value),
            type(value),
            value.device,
            value.dtype,
            value.data_ptr(),
            tuple(value.shape),
            value.tolist(),
            value.requires_grad,
            described(value.grad, seen) if value.is_leaf else None,
            dict(value._backward_hooks or {}),
            value._version,
        )
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return id(value), [(id(key), described(each, seen)) for key, each in items]
    if isinstance(value, (nn.Module, torch.optim.Optimizer)):
        if id(value) in seen:
            return id(value)
        seen.add(id(value))
        return id(value), type(value), described(vars(value), seen)
    return value if isinstance(value, (bool, int, float, str, tuple)) else id(value)


def all_of(*objects: Any) -> Any:
    """Everything about objects that must not change."""
    seen: set[int] = set()
    return [described(each, seen) for each in objects]


def defaults() -> dict[str, Any]:
    """The settings and random states of the process."""
    return {
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "anomaly": torch.is_anomaly_enabled(),
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": str(numpy.random.get_state()),
        "stacks": (
            torch._C._len_torch_dispatch_stack(),
            torch._C._len_torch_function_stack(),
        ),
    }


def attributes_of_torch() -> dict[tuple[str, str], int]:
    """Every attribute of every module of torch and of every class in them, by identity."""
    found: dict[tuple[str, str], int] = {}
    for name, module in list(sys.modules.items()):
        if not (name == "torch" or name.startswith("torch.")) or module is None:
            continue
        for attribute, value in list(vars(module).items()):
            found[name, attribute] = id(value)
            if isinstance(value, type) and value.__module__ == name:
                of_class = vars(value).items()
                found |= {(f"{name}.{attribute}", each): id(it) for each, it in of_class}
    for name in ("_bootstrap_inner", "start", "run"):
        found["threading.Thread", name] = id(vars(threading.Thread)[name])
    return found


_COUNTERS = {"cache_hits", "cache_misses", "next_id", "DESCRIBER_NEXT_ID"}


def changed_attributes(before: dict[tuple[str, str], int]) -> dict[tuple[str, str], Any]:
    """The attributes that are different objects now; later imports are new, not changed."""
    now = attributes_of_torch()
    changed = {key: value for key, value in before.items() if now.get(key) != value}
    return {key: value for key, value in changed.items() if key[1] not in _COUNTERS}


def warm_up() -> None:
    """Let torch do its lazy imports and caching."""
    net = nn.Linear(4, 4)
    graphmem.analyze(lambda: (net, torch.randn(2, 4)), steps=1)
    with graphmem.virtual_gpu():
        net.cuda()(torch.randn(2, 4).cuda()).sum().backward()
        torch.optim.SGD(net.parameters()).step()  # torch wraps the method at first use


class Whole:
    """Compares objects and the process with a snapshot of them."""

    def __init__(self, *objects: Any) -> None:
        self._objects = objects
        gc.collect()
        self._before, self._defaults = all_of(*objects), defaults()
        self._torch = attributes_of_torch()

    def check(self) -> None:
        """Nothing has changed."""
        assert all_of(*self._objects) == self._before
        assert defaults() == self._defaults
        assert changed_attributes(self._torch) == {}


@pytest.fixture
def caller() -> Iterator[tuple[Net, torch.optim.Optimizer, torch.Tensor, Whole]]:
    """A trained model, its optimizer and an input, checked for changes when the test ends."""
    warm_up()
    net, optimizer, x = trained()
    whole = Whole(net, optimizer, x)
    yield net, optimizer, x, whole
    whole.check()


def step_of(net: Net, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> graphmem.TrainingStep:
    """The parts, for graphmem to run."""
    return graphmem.TrainingStep(model=net, inputs=x, optimizer=optimizer)


def test_an_analysed_model_is_unchanged(caller: Any) -> None:
    net, optimizer, x, _ = caller
    first = graphmem.analyze(lambda: step_of(net, optimizer, x))
    assert net.embed.weight.device.type == "cpu"
    assert graphmem.analyze(lambda: step_of(net, optimizer, x)).peak == first.peak


@pytest.mark.parametrize(
    "options", [{"inference": True}, {"autocast": "bf16"}, {"grads": "keep"}, {"optimizer": "sgd"}]
)
def test_an_analysed_model_is_unchanged_with_every_option(
    caller: Any, options: dict[str, Any]
) -> None:
    net, optimizer, x, _ = caller
    graphmem.analyze(lambda: step_of(net, optimizer, x), steps=1, **options)


def test_an_analysed_model_is_unchanged_where_the_caller_runs_the_step(caller: Any) -> None:
    net, _, x, _ = caller

    def build() -> graphmem.TrainingStep:
        net.half().cuda()
        net.eval()
        net.head.weight.register_hook(lambda grad: grad)
        net.norm.weight.requires_grad_(False)
        own = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9)

        def step() -> None:
            net(x.cuda().half()).float().mean().backward()
            own.step()
            net.zero_grad()
            x.add_(1)  # the caller's input, on the CPU

        return graphmem.TrainingStep(model=net, step=step)

    graphmem.analyze(build, steps=2)


def test_a_model_that_moved_to_the_virtual_card_comes_back(caller: Any) -> None:
    net, _, x, _ = caller
    with graphmem.virtual_gpu() as gpu:
        net.cuda()
        assert net.embed.weight.is_cuda
        assert net.unembed.weight is net.embed.weight
        own = torch.optim.AdamW(net.parameters())
        loss = net(x.to("cuda")).square().mean()
        loss.backward()
        own.step()
        assert gpu.peak
    assert loss.is_cuda  # tensors made in the block may stay


def test_a_model_that_moved_in_other_ways_comes_back(caller: Any) -> None:
    net, optimizer, _, _ = caller
    with graphmem.virtual_gpu():
        net.embed.weight.data = net.embed.weight.data.cuda()
        net.head.half().to(0)
        net.head.float()
        net.norm.to("cuda").cpu()
        net.register_buffer("scale", torch.ones(8, device="cuda"))
        net.load_state_dict({k: v.cuda() for k, v in net.state_dict().items()}, assign=True)
        net.train(False)
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.param_groups[0]["lr"] = 5.0
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, device="cuda"))]})


def test_a_model_whose_parts_were_replaced_comes_back() -> None:
    net, x = Net(), torch.randn(4, 8)
    kept = net.drop
    values = {name: value.tolist() for name, value in net.state_dict().items()}
    with graphmem.virtual_gpu() as gpu:
        net.cuda()
        before = gpu.allocated
        net.head = nn.Linear(16, 8, bias=False, device="cuda")
        assert gpu.allocated == before  # the old one is gone from the card
        net(x.cuda())
    assert net.drop is kept
    assert {name: value.tolist() for name, value in net.state_dict().items()} == values
    assert isinstance(net.head, nn.Linear)
    assert net.head.weight.is_leaf


def test_a_model_dropped_in_the_block_leaves_the_card() -> None:
    net = nn.Linear(1024, 1024, bias=False)
    with graphmem.virtual_gpu() as gpu:
        net.cuda()
        assert gpu.allocated == 1024 * 1024 * 4
        del net
        assert gpu.allocated == 0


def test_cpu_writes_of_the_block_stay_except_to_modules() -> None:
    figures, norm = torch.zeros(2), nn.BatchNorm1d(3)
    with graphmem.virtual_gpu():
        figures[0] = 5
        norm(torch.randn(4, 3))
    assert figures.tolist() == [5, 0]
    assert norm.state_dict()["running_mean"].tolist() == [0, 0, 0]
    assert norm.state_dict()["num_batches_tracked"].item() == 0


def test_an_earlier_graph_can_still_run_backward() -> None:
    net = nn.Linear(3, 3)
    loss = net(torch.ones(2, 3)).square().sum()
    expected = torch.autograd.grad(loss, net.weight, retain_graph=True)[0]
    graphmem.analyze(lambda: (net, torch.ones(2, 3)), steps=1)
    with graphmem.virtual_gpu():
        net.cuda()
    loss.backward()
    assert net.weight.grad is not None
    assert net.weight.grad.tolist() == expected.tolist()


def _raise(error: BaseException) -> Any:
    raise error


class Refused(nn.Module):
    """Its backward raises the given error."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y.register_hook(lambda grad: _raise(self.error))
        return y


ERRORS = (RuntimeError("no"), KeyboardInterrupt(), SystemExit(3))
PLACES = ("build", "forward", "backward")


@pytest.mark.parametrize(
    ("place", "error"),
    [
        pytest.param(place, error, marks=[] if i == j else pytest.mark.slow)
        for i, place in enumerate(PLACES)
        for j, error in enumerate(ERRORS)
    ],
)
def test_everything_is_put_back_after_an_error(
    caller: Any, error: BaseException, place: str
) -> None:
    net, _, x, _ = caller

    def build() -> Any:
        net.cuda()
        if place == "build":
            raise error
        loss = Refused(error) if place == "backward" else lambda output: _raise(error)
        return graphmem.TrainingStep(net, x.cuda(), lambda y: loss(y).sum())

    with pytest.raises((InputError, KeyboardInterrupt, SystemExit)):
        graphmem.analyze(build, steps=1)


def _fill(net: nn.Module, x: torch.Tensor) -> None:
    with graphmem.virtual_gpu("t4"):
        net.cuda()
        net(x.cuda()).sum().backward()
        torch.empty(20 << 30, device="cuda")


def test_everything_is_put_back_after_out_of_memory(caller: Any) -> None:
    net, _, x, _ = caller
    with pytest.raises(torch.OutOfMemoryError):
        _fill(net, x)


def _set_all_precisions() -> None:
    backends: Any = torch.backends
    # PyTorch's own test helpers, which other tests import, freeze this flag.
    with backends.__allow_nonbracketed_mutation():
        backends.fp32_precision = "tf32"


@pytest.mark.parametrize(
    "change",
    [
        lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
        _set_all_precisions,
        lambda: torch.set_float32_matmul_precision("high"),
    ],
    ids=["of products", "of all", "by the older name"],
)
def test_precisions_are_put_back_whichever_names_set_them(change: Callable[[], None]) -> None:
    """Once the newer names were used, the older ones raise (aten/src/ATen/Context.cpp)."""

    def precisions() -> tuple[str, ...]:
        backends: Any = torch.backends
        newer = (backends, backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
        return torch.get_float32_matmul_precision(), *(each.fp32_precision for each in newer)

    def build() -> Any:
        change()
        return nn.Linear(2, 2), torch.ones(2, 2)

    before = precisions()

    graphmem.analyze(build, steps=1)

    assert precisions() == before


@pytest.mark.slow
def test_settings_are_put_back_in_a_program_that_froze_its_flags() -> None:
    """As `torch.testing._internal` does by `disable_global_flags`."""
    script = (
        "import torch, graphmem, tests.caller.test_caller as t\n"
        "torch.backends.disable_global_flags()\n"
        "t.test_precisions_are_put_back_whichever_names_set_them(t._set_all_precisions)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


@pytest.mark.usefixtures("caller")
def test_defaults_set_by_build_are_put_back() -> None:
    generator = torch.Generator()
    state = generator.get_state().tolist()

    def build() -> graphmem.TrainingStep:
        torch.set_default_device("cuda")
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1 + torch.get_num_threads())
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = True
        torch.autograd.set_detect_anomaly(True)
        torch.set_grad_enabled(True)
        random.seed(1)
        numpy.random.seed(1)
        torch.manual_seed(1)
        torch.randn(3, generator=generator, device="cpu")
        generator.manual_seed(5)
        torch.nn.modules.module.register_module_forward_pre_hook(lambda *args: None)
        return graphmem.TrainingStep(nn.Linear(8, 8), torch.randn(4, 8))

    flags_can_be_set = getattr(torch.backends, "__allow_nonbracketed_mutation")
    with flags_can_be_set():  # torch.testing, which other tests import, removes it
        graphmem.analyze(build, steps=1)
    assert generator.get_state().tolist() == state
    assert torch.tensor([]).device.type == "cpu"


@pytest.mark.parametrize(
    "around", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_a_report_does_not_depend_on_where_it_is_requested(around: Callable[[], Any]) -> None:
    build = lambda: (nn.Linear(8, 8), torch.randn(4, 8))  # noqa: E731
    outside = graphmem.analyze(build)
    with around():
        within = graphmem.analyze(build)
        assert torch.is_inference_mode_enabled() == (around is torch.inference_mode)
        assert torch.is_grad_enabled() == (around not in (torch.no_grad, torch.inference_mode))
    assert within.peak == outside.peak


def test_threads_take_turns(caller: Any) -> None:
    net, optimizer, x, _ = caller
    alone = graphmem.analyze(lambda: step_of(net, optimizer, x)).peak
    found: list[Any] = []

    def analyse() -> None:
        try:
            found.append(graphmem.analyze(lambda: step_of(net, optimizer, x)).peak)
        except BaseException as error:  # noqa: BLE001 - the assertion shows it
            found.append(error)

    threads = [threading.Thread(target=analyse) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 3


def test_a_thread_that_another_starts_meanwhile_is_none_of_the_programs() -> None:
    """It may ask for an analysis of its own, which waits."""
    begun, go_on = threading.Event(), threading.Event()
    found: list[Any] = []

    def build() -> graphmem.TrainingStep:
        begun.set()
        go_on.wait(60)
        return graphmem.TrainingStep(nn.Linear(8, 8), torch.ones(4, 8))

    def analyse() -> None:
        found.append(graphmem.analyze(build, steps=1).peak.allocated)

    threads = [threading.Thread(target=analyse) for _ in range(2)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join()

    assert len(found) == 2
    assert found[0] == found[1]


@pytest.mark.usefixtures("caller")
def test_a_tensor_that_outlived_its_transform_is_left_alone() -> None:
    """`torch.func` wraps tensors, and a wrapper whose level has ended has no storage."""
    kept: list[torch.Tensor] = []

    def total(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x.sum()

    torch.func.grad(total)(torch.ones(5, 8))
    report = graphmem.analyze(lambda: (nn.Linear(8, 8, bias=False), torch.ones(2, 8)), steps=1)

    assert report.model.parameter_bytes == 8 * 8 * 4
    assert torch._C._functorch.is_functorch_wrapped_tensor(kept[0])


def test_a_nested_analysis_is_rejected() -> None:
    caught: list[BaseException] = []

    def build() -> Any:
        try:
            graphmem.analyze(lambda: (nn.Linear(2, 2), torch.ones(1, 2)))
        except InputError as error:
            caught.append(error)
        return nn.Linear(2, 2), torch.ones(1, 2)

    graphmem.analyze(build, steps=1)
    with graphmem.virtual_gpu():
        build()
    assert [str(error) for error in caught] == [
        "an analysis was requested inside an analysis or on a virtual GPU"
    ] * 2


def test_an_interrupt_waits_until_everything_is_put_back(caller: Any) -> None:
    import signal

    net, _, x, _ = caller

    from graphmem.caller import belongings

    notes = belongings.Tensors.__iter__

    def interrupted(tensors: Any) -> Iterator[Any]:
        signal.raise_signal(signal.SIGINT)
        return notes(tensors)  # type: ignore[no-any-return]

    def train(patch: pytest.MonkeyPatch) -> None:
        with graphmem.virtual_gpu():
            net.cuda()(x.cuda())
            patch.setattr(belongings.Tensors, "__iter__", interrupted)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        train(patch)


@pytest.mark.slow
def test_the_fixtures_of_pytest_leave_a_model_alone(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import torch\n"
        "net = torch.nn.Linear(4, 4)\n"
        "def test_one(virtual_gpu):\n"
        "    virtual_gpu('t4')\n"
        "    net.cuda()(torch.ones(2, 4).cuda()).sum().backward()\n"
        "def test_two(graphmem):\n"
        "    assert net.weight.device.type == 'cpu' and net.weight.grad is None\n"
        "    graphmem(lambda: (net, torch.ones(2, 4)))\n"
        "def test_three():\n"
        "    net(torch.ones(2, 4)).sum().backward()\n"
        "    assert net.weight.grad.tolist() == [[2.0] * 4] * 4\n"
    )
    import subprocess

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "3 passed" in done.stdout, done.stdout


AFTER_A_FREEZE = """\
import gc

import torch

import graphmem
from graphmem.caller import freeze

model = torch.nn.Linear(8, 8)
kept = torch.ones(8)
freeze()
late = torch.nn.Linear(8, 8)
{between}


def build():
    late.weight.data.zero_()
    model.weight.data.zero_()
    kept.zero_()
    return torch.nn.Sequential(model, late), kept


sums = [each.double().sum().item() for each in (model.weight, late.weight, kept)]
graphmem.analyze(build)
assert [each.double().sum().item() for each in (model.weight, late.weight, kept)] == sums
assert model.weight.device.type == late.weight.device.type == "cpu"
assert model.weight.grad is late.weight.grad is None
"""


@pytest.mark.parametrize(
    "between",
    [
        "gc.freeze()",
        pytest.param("", marks=pytest.mark.slow),
        pytest.param("gc.unfreeze()", marks=pytest.mark.slow),
    ],
)
def test_objects_from_before_a_freeze_are_put_back_too(between: str) -> None:
    """Whatever the program itself freezes or unfreezes in the garbage collector."""
    program = AFTER_A_FREEZE.format(between=between)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stderr
