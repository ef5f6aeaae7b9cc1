"""`torch.compile` compiles, in `analyze` and in `run`; with `--no-compile` it does not."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import graphmem
from graphmem import Report, TrainingStep
from graphmem.torch_releases import installed_release
from graphmem.virtual_device.libraries import triton
from tests.conftest import Outcome
from tests.support.places import FIXTURES

pytest.importorskip("triton")

RECORDED = FIXTURES / "cuda" / "compiled"
ORDERED_SINCE_2_10 = pytest.mark.skipif(
    installed_release() < (2, 10),
    reason="until 2.9 Inductor orders this backward pass otherwise: it counts on freeing the "
    "tangents (torch/_inductor/memory.py, get_freeable_input_buf), so that another order has the "
    "lowest peak (reorder_for_peak_memory); the recording is of 2.11",
)

MODEL = """
import torch

{decorated}
def act(x):
    return torch.sin(x) * x

class Net(torch.nn.Linear):
    def forward(self, x):
        return act(super().forward(x)).sum()

def build():
    model = Net(8, 8)
    {compiled}
    return model, torch.randn(4, 8)
"""

ASKED = [("@torch.compile", ""), ("", "model.compile()"), ("", "model = torch.compile(model)")]


@ORDERED_SINCE_2_10
def test_a_compiled_step_takes_what_it_took_on_the_card(
    run_graphmem: Callable[..., Outcome],
) -> None:
    """Every event of the second and third step of a recording, and both peaks."""
    outcome = run_graphmem("verify", str(RECORDED / "mlp_compiled.events.json.gz"))

    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert outcome.stdout.count(" none ") == 1


class TestPadding:
    """A card decides by a benchmark whether Inductor pads products of unaligned matrices.

    An H100 decided to pad some: the recording's peak lies between none and all.
    """

    TARGET = (
        "fixtures/linear_stack.py:build",
        "--set",
        "layers=20",
        "--gpu",
        "h100-80gb",
        "--torch",
        "2.11",
    )
    RECORDED = 88_444_248
    """Of the tensors' bytes in fixtures/cuda/compiled/linear_stack_compiled.events.json.gz."""

    def test_the_peak_is_between_the_two_that_are_reported(
        self, run_graphmem: Callable[..., Outcome]
    ) -> None:
        outcome = run_graphmem("analyze", *self.TARGET, "--compile", "--format", "json")

        report = json.loads(outcome.stdout)
        assert report["peak"]["allocated"] < self.RECORDED <= report["padded_peak"]

    def test_the_choice_stands_beside_the_peak(self, run_graphmem: Callable[..., Outcome]) -> None:
        chosen = ("--compile", "--assume", "padding=false", "--steps", "1")
        outcome = run_graphmem("analyze", *self.TARGET, "--set", "layers=2", *chosen)

        _, _, rest = outcome.stdout.partition("\npeak ")
        first, _, _ = rest.partition("\n\n")
        assert "assumes that the compiler pads no product of unaligned matrices" in first
        assert "--assume padding=true" in first


CHAIN = """
import torch

MIB = 1 << 20

@torch.compile
def chain(x):
    y = x.sin().cos().tan()
    {breaks}
    return y.exp().log()

x = torch.randn(4 * MIB, device="cuda")
chain(x)  # Inductor tries two ways to cut the kernel into blocks, with a buffer of its own
before = torch.cuda.memory_allocated()
torch.cuda.reset_peak_memory_stats()
y = chain(x)
print((torch.cuda.max_memory_allocated() - before) / MIB)
"""


@pytest.mark.parametrize(
    ("breaks", "mib"),
    [
        ("", 16),  # a single kernel: of 4 Mi floats only the result is allocated
        ("torch._dynamo.graph_break()", 32),  # two kernels: the first result is allocated too
    ],
)
def test_fused_intermediates_are_never_allocated(
    breaks: str, mib: int, tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    script = tmp_path / "chain.py"
    script.write_text(CHAIN.format(breaks=breaks))

    outcome = run_graphmem("run", str(script))

    assert outcome.stdout == f"{float(mib)}\n"


@pytest.mark.parametrize(("decorated", "compiled"), ASKED)
def test_with_no_compile_a_step_is_as_large_as_an_eager_one(
    decorated: str, compiled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.py").write_text(MODEL.format(decorated="", compiled=""))
    Path("model.py").write_text(MODEL.format(decorated=decorated, compiled=compiled))

    eager = graphmem.analyze("plain.py", steps=1)
    report = graphmem.analyze("model.py", steps=1, compile=False)

    assert msgspec.structs.replace(report.peak, source=eager.peak.source) == eager.peak
    (assumed,) = [each for each in report.assumptions if each.what == "torch.compile"]
    assert assumed.source is not None
    assert "model.py" in assumed.source


def test_no_compile_is_told_once(tmp_path: Path, run_graphmem: Callable[..., Outcome]) -> None:
    """Megatron-LM decorates sixty functions when it is imported."""
    script = tmp_path / "train.py"
    functions = (f"@torch.compile\ndef scale_{n}(x): return {n} * x\n" for n in range(3))
    script.write_text(f"import torch\n{''.join(functions)}")

    outcome = run_graphmem("run", "--no-compile", str(script))

    assert outcome.stderr.count("torch.compile is run eagerly") == 1
    assert "train.py:2, 3 times)" in outcome.stderr


@pytest.mark.parametrize(("decorated", "compiled"), ASKED)
def test_without_triton_it_says_what_to_install(
    decorated: str,
    compiled: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_graphmem: Callable[..., Outcome],
) -> None:
    monkeypatch.setattr(triton, "is_installed", lambda: False)
    model = tmp_path / "model.py"
    model.write_text(MODEL.format(decorated=decorated, compiled=compiled))

    outcome = run_graphmem("analyze", f"{model}:build")

    assert outcome.exit_code == 2
    assert "which is not installed" in outcome.stderr
    assert "pip install 'graphmem[compile]'" in outcome.stderr


class Classifier(torch.nn.Module):
    """Computes its loss itself, outside of its layers, as llama2.c's `Transformer`."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(1000, 64)
        self.head = torch.nn.Linear(64, 1000, bias=False)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(self.embedding(ids))
        return torch.nn.functional.cross_entropy(logits, ids), logits


def test_a_gradient_of_the_models_own_operations_has_no_layers_name() -> None:
    """That of 2^15 x 1,000 logits is beside them, larger than what benchmarks flush."""
    ids = torch.randint(1000, (1 << 15,))
    report = graphmem.analyze(Classifier(), ids, loss=lambda output: output[0], compile=True)

    gradients = [each for each in report.at_peak.holders if "nll_loss_backward" in each.reason]
    assert [(each.module, each.bytes) for each in gradients] == [("", (1 << 15) * 1000 * 4)]


@ORDERED_SINCE_2_10
def test_a_compiled_buffer_says_what_it_is_and_why_it_is_kept() -> None:
    """The wrapper an H100 ran is in fixtures/cuda/compiled/output_code.tar.xz."""
    report = graphmem.analyze(
        "fixtures/mlp.py:build", gpu="h100-80gb", steps=2, compile=True, assume=("tuned=true",)
    )

    kept = [each for each in report.at_peak.holders if each.category == "activation"]
    assert [each.module for each in kept] == ["up", "activation"]
    assert [each.dtype for each in kept] == ["bfloat16", "bool"]
    held = "saved for the compiled backward pass, which still reads it"
    assert kept[0].reason == f"buf0 of compiled code, addmm; {held}"
    assert kept[1].reason == f"buf3 of compiled code, threshold_backward; {held}"
    assert kept[1].source == "fixtures/mlp.py:36"  # x = self.activation(x)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(64, 256)
        self.down = torch.nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(self.up(x).relu())
        return result


def test_what_layers_make_that_are_compiled_by_themselves_has_their_names() -> None:
    """As torchtitan compiles its blocks; Dynamo names `up` from the block that it compiles."""
    model = torch.nn.Sequential(Block(), Block())
    for block in model:
        block.compile()

    rows = torch.randn(1 << 16, 64)
    report = graphmem.analyze(model, rows, loss=torch.sum, assume=("tuned=true",))

    size = (1 << 16) * 256 * 4
    kept = {each.module for each in report.at_peak.holders if each.bytes == size}
    assert {"0.up", "1.up"} <= kept


def test_afterwards_the_compiler_targets_the_host_again() -> None:
    graphmem.analyze("fixtures/mlp.py:build", gpu="h100-80gb", steps=1, compile=True)

    compiled = torch.compile(lambda x: x.sin() + 1, backend="aot_eager")

    x = torch.randn(8, requires_grad=True)
    compiled(x).sum().backward()
    assert torch.equal(compiled(x), x.sin() + 1)
    assert x.grad is not None
    assert torch.allclose(x.grad, x.cos())


def test_dynamo_follows_an_aliased_function_and_a_device_property() -> None:
    """As Triton kernels do: `run = Doubled.apply`, and a grid sized by the multiprocessors."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * torch.cuda.get_device_properties("cuda").multi_processor_count

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    with graphmem.virtual_gpu("h100"):
        run = Doubled.apply
        compiled = torch.compile(lambda x: run(x) + 1, fullgraph=True)
        x = torch.ones(4, device="cuda", requires_grad=True)
        compiled(x).sum().backward()
        assert x.grad is not None


def test_dynamo_writes_a_switch_of_devices_into_its_graph() -> None:
    """As flash-linear-attention does around its kernels (`CUDADeviceVariable`)."""

    def double(x: torch.Tensor) -> torch.Tensor:
        with torch.cuda.device(x.device.index):
            return x * 2

    with graphmem.virtual_gpu("h100"):
        compiled = torch.compile(double, fullgraph=True)
        assert compiled(torch.ones(4, device="cuda")).shape == (4,)


def test_a_result_of_another_shape_than_its_buffer_is_no_view() -> None:
    """The product of 64 rows, with its three dimensions (`_reinterpret_tensor`).

    A view would keep its base, so that the engine could not add a second gradient to it.
    """
    with graphmem.virtual_gpu("h100"):
        product = torch.compile(torch.nn.Linear(8, 8, bias=False).cuda())(
            torch.ones(1, 64, 8, device="cuda")
        )
        assert (product.shape, product._base) == ((1, 64, 8), None)


def report_of_autotuning(gpu: str) -> Report:
    def step() -> None:
        a, b = torch.randn(2, 512, 512, device="cuda").unbind()
        torch.compile(torch.mm, mode="max-autotune-no-cudagraphs")(a, b)

    return graphmem.analyze(lambda: TrainingStep(step=step), gpu=gpu, steps=1)


def assumed_of_autotuning(report: Report) -> bool:
    return "which kernels max-autotune chooses" in {each.what for each in report.assumptions}


def test_max_autotune_reports_what_only_a_card_knows() -> None:
    """fixtures/cuda/scripts/mlp_autotune: a step that compares kernels peaks higher.

    At the peak, its kernels have two operands and a result of their own (`get_inputs`,
    torch/_inductor/select_algorithm.py).
    """
    report = report_of_autotuning("h100-80gb")

    assert assumed_of_autotuning(report)
    reasons = [each.reason for each in report.at_peak.holders if each.bytes == 4 * 512 * 512]
    assert reasons == ["made while Inductor times kernels"] * 3


def test_coordinate_descent_tries_configurations_that_nobody_compiles() -> None:
    """`benchmark_one_config` (torch/_inductor/runtime/triton_heuristics.py)."""
    with graphmem.virtual_gpu("h100"):
        options = {"coordinate_descent_tuning": True}
        compiled = torch.compile(lambda x: torch.relu(x).sum(-1), options=options)
        assert compiled(torch.ones(4096, 512, device="cuda")).shape == (4096,)


@pytest.mark.slow
def test_max_autotune_copies_what_a_fused_kernel_overwrites_to_compare_it(
    run_graphmem: Callable[..., Outcome], tmp_path: Path
) -> None:
    """fixtures/cuda/scripts/mlp_autotune: what lives at the peak of its first step."""
    path = tmp_path / "first_step.py"
    text = (FIXTURES / "finetune" / "compiled_mlp.py").read_text()
    shown = "    loss.backward()\n    print(torch.cuda.max_memory_allocated())\n    break\n"
    path.write_text(text.replace("    loss.backward()\n", shown))
    weights, x, hidden = 2048 * 8192 * 4, 4096 * 2048 * 4, 4096 * 8192 * 4

    outcome = run_graphmem("run", "--gpu", "h100-80gb", str(path))

    of_step = 2 * weights + 2 * x + hidden  # x and y, the result saved for the backward pass
    gradients = 2 * x  # of the loss and of the model's result
    compared = 3 * hidden  # the kernel's two arguments, and a copy of the one that it overwrites
    assert of_step + gradients + compared <= int(outcome.stdout) <= 1_108_386_304


@pytest.mark.parametrize("gpu", ["h200", "name=mine,memory=95GiB,sm=90,multiprocessors=132"])
def test_a_benchmark_flushes_the_cache_of_any_card(gpu: str) -> None:
    """`InductorBenchmarker.benchmark_gpu` allocates `L2_cache_size` bytes.

    A description does not say it: an H200's 60 MiB is the most of compute capability 9.0.
    """
    x = 4 * 4096 * 512

    def step() -> None:
        options = {"coordinate_descent_tuning": True}
        compiled = torch.compile(lambda x: torch.relu(x).sum(-1), options=options)
        compiled(torch.ones(4096, 512, device="cuda"))

    report = graphmem.analyze(lambda: TrainingStep(step=step), gpu=gpu, steps=1)

    assert report.peak.allocated == x + 4 * 4096 + 60 * 2**20
    assert report.at_peak.holders[0].reason == "made while Inductor times kernels"
    assumed = any("L2 cache" in each.what for each in report.assumptions)
    assert assumed == gpu.startswith("name=")


@pytest.mark.parametrize("descends", [False, True])
@pytest.mark.parametrize(("tuned", "flushed"), [(False, 50 * 2**20), (True, 0)])
def test_a_later_run_finds_tuned_kernels(*, descends: bool, tuned: bool, flushed: int) -> None:
    """What a run chose is kept in a file for the next (runtime/autotune_cache.py)."""
    x = y = 4 * 4096 * 512

    def step() -> None:
        options = {"coordinate_descent_tuning": descends}
        torch.compile(torch.relu, options=options)(torch.ones(4096, 512, device="cuda"))

    target = TrainingStep(step=step, assume={"tuned": tuned})
    report = graphmem.analyze(lambda: target, gpu="h100-80gb", steps=1)

    assert report.peak.allocated == x + y + flushed
    found = [line for each in report.findings for line in each.lines]
    assert any("tuned=true" in line for line in found) is not tuned


def test_the_compiler_forgets_a_card_though_its_functions_are_frozen() -> None:
    """`is_big_gpu` (torch/_inductor/utils.py) wants 68 multiprocessors; a T4 has 40.

    A server freezes its objects before it forks.
    """
    assert not assumed_of_autotuning(report_of_autotuning("t4"))
    gc.freeze()

    assert assumed_of_autotuning(report_of_autotuning("h100-80gb"))


def test_dynamo_leaves_graphmem_alone_though_its_functions_are_frozen() -> None:
    """A break in a loop leaves its frame to Python, and Dynamo looks at all that it calls.

    The command sets aside what it imported; each round's sine is as large as `x`.
    """

    def build() -> TrainingStep:
        x = torch.randn(64, 256, device="cuda")

        @torch.compile
        def rounds() -> torch.Tensor:
            kept = []
            for _ in range(3):
                kept.append(x.sin())
                torch._dynamo.graph_break()
            return torch.cat(kept)

        return TrainingStep(step=rounds)

    gc.freeze()
    try:
        report = graphmem.analyze(build, steps=1)
    finally:
        gc.unfreeze()

    x, sines = 64 * 256 * 4, 3 * 64 * 256 * 4
    assert report.peak.allocated == x + sines + sines


LOOP = """
import torch
from torch._higher_order_ops.while_loop import while_loop

@torch.compile
def halve(x):
    go_on = lambda i, y: {condition}
    halved = lambda i, y: (i + 1, y * 0.5)
    start = torch.zeros((), dtype=torch.int64, device=x.device)
    return while_loop(go_on, halved, (start, x))[1]

class Net(torch.nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            x = halve(x @ self.weight)
        return super().forward(x).sum()

def build():
    return Net(8, 8), torch.randn(4, 8)
"""


def test_a_compiled_while_loop_that_is_said_to_go_on_is_refused(
    run_graphmem: Callable[..., Outcome], tmp_path: Path
) -> None:
    script = tmp_path / "loop.py"
    script.write_text(LOOP.format(condition="y.sum() > 5"))
    asked = run_graphmem("analyze", f"{script}:build", "--steps", "1")
    place = asked.stderr.rpartition("--assume ")[2].partition("=")[0]

    outcome = run_graphmem(
        "analyze", f"{script}:build", "--steps", "1", "--assume", f"{place}=true"
    )

    assert outcome.exit_code == 2
    assert f"the loop around {place} does not end: in 100 rounds" in outcome.stderr
    assert f"--assume {place}=0" in outcome.stderr


def test_constants_that_the_compiler_computes_on_the_card() -> None:
    """`proxy_call` (torch/fx/experimental/proxy_tensor.py) computes those of up to one element.

    The first is that of an empty cache of transformers.
    """

    class Net(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nothing = torch.tensor([], dtype=x.dtype, device=x.device)
            factor = torch.tensor(2.0, device=x.device)
            return (torch.cat([nothing, super().forward(x)], dim=-2) * factor).sum()

    report = graphmem.analyze(lambda: (Net(8, 8), torch.randn(4, 8)), steps=2, compile=True)

    assert not [each for each in report.assumptions if "break" in each.what]
    assert report.peak.allocated > 0


def test_a_product_with_zero_is_a_constant() -> None:
    """`_add_peephole_patterns` (torch/_inductor/fx_passes/joint_graph.py) reads it from the card.

    torchao's float8 layers multiply a weight by zero to save something of its size.
    """
    x, y, flushed = 4 * 1024 * 256, 4 * 1024 * 256, 50 * 2**20

    def step() -> None:
        nothing = torch.compile(lambda x: x * 0)(torch.ones(1024, 256, device="cuda"))
        assert nothing.shape == (1024, 256)

    report = graphmem.analyze(lambda: TrainingStep(step=step), gpu="h100-80gb", steps=1)

    assert report.peak.allocated == x + y + flushed  # while the kernel is tuned
    assert not [each for each in report.assumptions if "break" in each.what]


@pytest.mark.skipif(installed_release() < (2, 9), reason="until 2.8 it has one configuration")
def test_code_that_is_compiled_again_is_not_tuned_again() -> None:
    """The autotuner keeps what it chose beside the kernel's source (runtime/autotune_cache.py).

    A benchmark flushes the card's cache with 50 MiB. Recordings of CLIP and ConvNeXt, which are
    compiled again in their second step, have such buffers in the first step alone.
    """

    class Net(torch.nn.Linear):
        mode: str | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.mode is None:  # a guard, which fails in the second step
                self.mode = "again"
            return super().forward(x).softmax(-1).square().sum()

    report = graphmem.analyze(
        lambda: (Net(64, 4096), torch.randn(64, 64)), gpu="h100-80gb", steps=3, compile=True
    )

    first, second, third = (max(phase.peak for phase in step.phases) for step in report.steps)
    assert first > second == third


def test_a_module_with_hooks_is_compiled_once() -> None:
    """As the layers of `parallelize_module`: guards compared graphmem's own hooks at each call."""
    compiled: list[str] = []

    def train(device: str) -> None:
        def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            compiled.append(device)
            return graph.forward

        inner = torch.nn.Linear(8, 8)
        inner.register_forward_hook(lambda module, inputs, output: output * 2)
        model = torch.compile(torch.nn.Sequential(inner).to(device), backend=backend)
        for _ in range(3):
            model(torch.zeros(2, 8, device=device)).sum().backward()

    train("cpu")
    torch._dynamo.reset()
    with graphmem.virtual_gpu("h100"):
        train("cuda")

    assert compiled == ["cpu", "cuda"]


def test_a_graphs_inputs_have_the_order_of_a_program_without_hooks() -> None:
    """`F.embedding` passes the weight on before the ids."""
    pytest.importorskip("triton")
    order: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        order.append([node.name for node in graph.graph.nodes if node.op == "placeholder"])
        return graph.forward

    def train(device: str) -> None:
        model = torch.compile(torch.nn.Embedding(8, 4).to(device), backend=backend)
        model(torch.zeros(2, dtype=torch.int64, device=device))

    train("cpu")
    torch._dynamo.reset()
    with graphmem.virtual_gpu("h100"):
        train("cuda")

    assert order[0] == order[1]
    assert "weight" in order[0][0]
