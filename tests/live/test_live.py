"""The virtual GPU as a context: its machine, its addresses, its answers, its clean-up."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.checkpoint import checkpoint

import graphmem
from graphmem.analysis import Request, run_analysis
from graphmem.errors import InputError
from graphmem.graph import Source
from graphmem.live.gpu import VirtualGpu
from graphmem.live.messages import EnteredTwiceError, SentTensorError
from graphmem.live.session import EnoughSteps
from graphmem.moments import Moment
from graphmem.report.text import report_as_text
from graphmem.simulate import Timeline, simulate
from graphmem.targets import load_target
from graphmem.trace.loop import TrainingLoop
from graphmem.values.choices import Choices
from tests.support.places import FIXTURES
from tests.support.sizes import HOPPER_WORKSPACE, LT_WORKSPACE, MIB


def train_with_everything() -> None:
    """Mixed precision, checkpointing, accumulation, clipping, evaluation."""
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64))
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for step in range(3):
        for _ in range(2):
            x = torch.randn(32, 64).cuda()
            with torch.autocast("cuda", dtype=torch.float16):
                y = checkpoint(model, x, use_reentrant=False) if step % 2 else model(x)
                loss = y.float().pow(2).mean()
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        with torch.no_grad():
            model(x).sum().item()


def train_a_language_model() -> None:
    """Attention, a tied head, a loss over a large vocabulary."""
    embedding = nn.Embedding(512, 64, device="cuda")
    block = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, device="cuda")
    optimizer = torch.optim.SGD([*embedding.parameters(), *block.parameters()], 0.1, momentum=0.9)
    for _ in range(3):
        tokens = torch.randint(512, (4, 32), device="cuda")
        logits = block(embedding(tokens)) @ embedding.weight.T
        F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def train_an_image_model() -> None:
    """Convolutions, batch norm, and a leak."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    model.to("cuda", memory_format=torch.channels_last)
    kept = []
    for _ in range(4):
        loss = model(torch.randn(2, 3, 16, 16, device="cuda")).square().mean()
        kept.append(loss)
        loss.backward(retain_graph=True)
        model.zero_grad()


def asks_for_a_handle() -> None:
    """The workspace exists before the first product."""
    torch.cuda.current_blas_handle()
    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    (x @ x).sum().backward()


@pytest.mark.parametrize(
    "program",
    [train_with_everything, train_a_language_model, train_an_image_model, asks_for_a_handle],
)
@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_the_live_machine_does_what_the_simulator_does_later(
    program: Callable[[], None], settings: str
) -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {}
    with VirtualGpu("h100", env=env) as gpu:
        program()

    analysis = gpu.analysis()
    programs = analysis.annotations["kernel_memory"].programs
    replayed = simulate(analysis.graph, programs, gpu.runtime.new_allocator())
    assert events_of(analysis.timeline) == events_of(replayed)
    assert len(replayed.moments) > 5


def events_of(timeline: Timeline) -> list[tuple[object, ...]]:
    """All fields of each event; scratch memory has its own numbering."""
    return [
        (
            (moment.tick, moment.allocated, moment.requested, moment.reserved),
            *(
                None if each is None else (each.nbytes, timeline.addresses[each.id])
                for each in (moment.born, moment.died)
            ),
        )
        for moment in timeline.moments
    ]


@pytest.mark.parametrize("fixture", ["lstm.py", "mlp.py", "transformer_block.py"])
def test_a_run_takes_what_an_analysis_predicts(fixture: str) -> None:
    """The same loop, run on the virtual GPU with its CPU real, and analysed: event by event."""
    target = f"{FIXTURES / fixture}:build"
    analysed = run_analysis(target, Request(gpu="h100"))
    with VirtualGpu("h100") as gpu, load_target(target, {}).imported() as build:
        loop = TrainingLoop(build(), torch.device("cuda:0"))
        loop.prepare()
        for _ in range(3):
            loop.iterate()

    seen, said = gpu.analysis().timeline.moments, analysed.timeline.moments
    assert [bytes_of(moment) for moment in seen] == [bytes_of(moment) for moment in said]
    assert gpu.peak == analysed.report.peak.allocated


def bytes_of(moment: Moment) -> tuple[int, int, int]:
    return moment.allocated, moment.requested, moment.reserved


class TestAnswers:
    def test_figures_are_those_of_torch_cuda(self) -> None:
        with graphmem.virtual_gpu("h100") as gpu:
            kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
            torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")

            assert gpu.allocated == torch.cuda.memory_allocated() == 3 * MIB
            assert gpu.reserved == torch.cuda.memory_reserved() == 20 * MIB
            assert gpu.peak == torch.cuda.max_memory_allocated() == 8 * MIB
            del kept
            assert gpu.allocated == 0

    def test_addresses_are_those_of_blocks(self) -> None:
        with graphmem.virtual_gpu("h100"):
            first = torch.empty(100, device="cuda")
            second = torch.empty(100, device="cuda")
            third = second[10:]

            # two adjacent blocks of 512 bytes
            assert second.data_ptr() - first.data_ptr() == 512
            assert third.data_ptr() - second.data_ptr() == 40
            assert third.untyped_storage().data_ptr() == second.data_ptr()
            assert first.data_ptr() % 512 == 0
            address = second.data_ptr()
            del second, third
            assert torch.empty(128, device="cuda").data_ptr() == address

    def test_a_request_that_does_not_fit_leaves_nothing_behind(self) -> None:
        with graphmem.virtual_gpu("h100"):
            x = torch.empty(30, 1 << 30, dtype=torch.uint8, device="cuda")
            before = torch.cuda.memory_allocated()
            with pytest.raises(torch.cuda.OutOfMemoryError, match=r"Tried to allocate 60\.00 GiB"):
                x.to(torch.float16)
            assert torch.cuda.memory_allocated() == before
            stats = torch.cuda.memory_stats()
            assert (stats["num_ooms"], stats["num_alloc_retries"]) == (1, 1)
            assert x.numel() == 30 << 30

    def test_a_request_that_the_program_caught_is_told_as_such(self) -> None:
        """The cache was emptied for it in vain; a later request of 60 GiB needs that of 40."""
        with graphmem.virtual_gpu("h100") as gpu:
            with pytest.raises(torch.cuda.OutOfMemoryError):
                torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
            before = gpu.report().on_card
            torch.empty(40 << 30, dtype=torch.uint8, device="cuda")
            torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
        after = gpu.report().on_card

        assert before
        assert after
        assert [(card.caught, card.cache_emptied) for card in (before, after)] == [(1, 0), (1, 1)]
        text = report_as_text(gpu.report())
        assert "only because PyTorch flushed its cache once (slow)" in text
        assert "the program caught 1 request that did not fit" in text

    def test_tensors_print_as_on_a_card(self) -> None:
        with graphmem.virtual_gpu("h100"):
            assert str(torch.arange(2, device="cuda")) == "tensor([0, 1], device='cuda:0')"
            x = torch.randn(2, 2, device="cuda")
            assert repr(x) == "tensor([[0., 0.],\n        [0., 0.]], device='cuda:0')"
            assert repr(x.requires_grad_().sum()) == (
                "tensor(1., device='cuda:0', grad_fn=<SumBackward0>)"
            )
            assert x.tolist() == [[0.0, 0.0], [0.0, 0.0]]
            with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\) to copy"):
                x.detach().numpy()

    def test_an_array_that_is_forced_is_a_copy_on_the_host(self) -> None:
        """As torchvision's `to_pil_image` makes it, also of a tensor that requires a gradient."""
        with graphmem.virtual_gpu("h100") as gpu:
            x = torch.arange(1024, device="cuda")
            trained = torch.ones(256, device="cuda", requires_grad=True) * 2
            held = gpu.allocated
            assert x.numpy(force=True).tolist() == list(range(1024))
            assert (-x[1::512]).numpy(force=True).tolist() == [-1, -513]
            assert trained.numpy(force=True).shape == (256,)
            assert gpu.allocated == held

    def test_checks_pass_and_no_alarm_is_raised(self) -> None:
        with graphmem.virtual_gpu("h100"):
            x = torch.randn(8, device="cuda")
            assert not torch.isnan(x).any()
            assert (x == x).all()
            assert torch.equal(x, x + 0)
            assert not torch.equal(x, x[:4])
            assert torch.allclose(x, x + 0)

    def test_data_dependent_sizes_are_bounds_or_chosen(self) -> None:
        with graphmem.virtual_gpu("h100") as gpu:
            x = torch.randn(8, 4, device="cuda")
            assert torch.masked_select(x, x > 0).shape == (32,)
            assert x[x > 0].shape == (32,)
            assert [part.shape for part in torch.unique(x, return_counts=True)] == [(32,), (32,)]
            assert torch.bincount(x.flatten().int(), minlength=5).shape == (5,)
        with graphmem.virtual_gpu("h100", assume=["nonzero=0.25"]):
            assert torch.nonzero(torch.randn(8, device="cuda")).shape == (2, 1)
            assert torch.nonzero(torch.ones(8, device="cuda")).shape == (8, 1)
        whats = [each.what for each in gpu.report().assumptions]
        assert "how many elements a mask selects" in whats

    def test_torchscript_frees_after_the_last_use(self) -> None:
        """The interpreter moves a value out of its register at the last use."""

        @torch.jit.script
        def scripted(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            z = torch.tanh(y)
            return z * y + 1.0

        with graphmem.virtual_gpu("h100") as gpu:
            x = torch.randn(2048, device="cuda")
            for _ in range(3):  # profiled, optimized, run
                scripted(x)
        # x, y, z and their product; y, which Python would keep to the end, is freed before the sum
        assert gpu.peak == 4 * 2048 * 4
        (assumed,) = gpu.report().assumptions
        assert (assumed.what, assumed.value, assumed.times) == (
            "TorchScript",
            "run without fusion",
            3,
        )

    def test_torchscript_traces_what_it_traces_on_the_cpu(self) -> None:
        def change(x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            y.copy_(x)
            return torch.cat([y, y], 1).mul_(2).view(x.shape[0], -1).sum()

        block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 4, 3))
        layers = [block, nn.Upsample(scale_factor=2), change]

        def kinds(device: str) -> list[list[str]]:
            x = torch.randn(2, 3, 8, 8, device=device)
            placed = [each.to(device) if isinstance(each, nn.Module) else each for each in layers]
            graphs = [torch.jit.trace(each, x).inlined_graph for each in placed]
            return [[node.kind() for node in graph.nodes()] for graph in graphs]

        on_cpu = kinds("cpu")
        with graphmem.virtual_gpu("t4") as gpu:
            convolution = nn.Conv2d(3, 4, 3).cuda()
            x = torch.randn(2, 3, 8, 8, device="cuda")
            before = gpu.allocated
            traced = torch.jit.trace(convolution, x)
            assert gpu.allocated == before
            result = traced(x)
            assert gpu.allocated == before + -(-result.numel() * 4 // 512) * 512
            assert kinds("cuda") == on_cpu

    def test_torchscript_compiles_replaced_functions(self) -> None:
        """As `import torch.distributed.optim` does, whose functions call `torch.tensor`."""

        def make(x: torch.Tensor) -> torch.Tensor:
            return x + torch.tensor(1.0)

        with graphmem.virtual_gpu("h100"):
            assert torch.jit.script(make)(torch.ones(4)).tolist() == [2.0] * 4

    def test_a_scripted_model_trains(self) -> None:
        with graphmem.virtual_gpu("h100"):
            model = torch.jit.script(nn.Sequential(nn.Linear(64, 64), nn.GELU()).cuda())
            weights = torch.cuda.memory_allocated()
            for _ in range(3):
                loss = model(torch.randn(32, 64, device="cuda")).mean()
                loss.backward()
                del loss
            # gradients as large as the weights, and a cuBLAS workspace for each of two threads
            workspaces = 2 * HOPPER_WORKSPACE + LT_WORKSPACE
            assert torch.cuda.memory_allocated() == 2 * weights + workspaces

    def test_derivatives_of_functions_leave_their_results_alone(self) -> None:
        with graphmem.virtual_gpu("h100"):
            x = torch.randn(256, device="cuda")
            slope = torch.func.grad(lambda x: x.sin().sum())(x)
            assert slope.shape == x.shape
            assert torch.cuda.memory_allocated() == 2 * 1024

    def test_every_assumption_is_printed_once_with_its_line(self) -> None:
        told: list[str] = []
        with graphmem.virtual_gpu("h100", tell=told.append) as gpu:
            loss = torch.randn((), device="cuda")
            for _ in range(3):
                assert loss.item() == 1.0
        assert len(told) == 1
        assert "assuming loss = 1.0 (nothing is computed)" in told[0]
        assert "; override with --assume loss=VALUE" in told[0]
        assert [each.times for each in gpu.report().assumptions] == [3]

    def test_a_line_that_reads_many_tensors_is_told_three_of_them(self) -> None:
        told: list[str] = []
        with graphmem.virtual_gpu("h100", tell=told.append) as gpu:
            norms = {name: torch.randn((), device="cuda") for name in "abcde"}
            assert list(map(float, norms.values())) == [1.0] * 5
        assert len(told) == 4
        assert all(" = 1.0 (nothing is computed)" in line for line in told[:3])
        assert "others read there are assumed likewise" in told[3]
        assert len(gpu.report().assumptions) == 5


@pytest.mark.parametrize(
    ("text", "name", "file", "line", "value"),
    [
        ("loss=2.5", "loss", "a.py", 1, 2.5),
        ("outputs.loss=nan", "outputs.loss", "a.py", 1, float("nan")),
        ("a.py:7=true", None, "src/a.py", 7, 1.0),
        ("src/a.py:7=-1e3", None, "src/a.py", 7, -1000.0),
    ],
)
def test_what_an_assumption_says(
    text: str, name: str | None, file: str, line: int, value: float
) -> None:
    choices = Choices.parse([text])
    found = choices.find(name, Source(file, line, "f"))
    assert found is not None
    assert found[0] == text.partition("=")[0]
    assert found[1] == pytest.approx(value, nan_ok=True)
    assert choices.find("other", Source("b.py", 7, "f")) is None


def test_an_assumption_that_nothing_asks_for_is_listed() -> None:
    def step() -> None:
        loss = torch.randn(4, device="cuda").sum()
        assert loss.item() == 2.5

    report = graphmem.analyze(
        lambda: graphmem.TrainingStep(step=step), steps=1, assume=["loss=2.5", "los=3"]
    )

    listed = {(each.what, each.value) for each in report.assumptions}
    assert ("loss", "2.5") in listed
    assert ("los=3", "not used") in listed
    assert ("loss=2.5", "not used") not in listed


class TestCopies:
    def test_parameters_keep_their_identity_both_ways(self) -> None:
        model = nn.Linear(4, 4)
        weight = model.weight
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with graphmem.virtual_gpu("h100"):
            model.cuda()
            assert weight is model.weight is optimizer.param_groups[0]["params"][0]
            assert weight.is_cuda
            assert isinstance(weight, nn.Parameter)
            model.cpu()
            assert weight is model.weight
            assert type(weight) is nn.Parameter
            assert not weight.is_cuda
            assert weight.requires_grad

    def test_a_deep_copy_is_a_copy_on_the_device(self) -> None:
        with graphmem.virtual_gpu("h100"):
            model = nn.Linear(64, 64, bias=False, device="cuda")
            model(torch.ones(1, 64, device="cuda"))
            before = torch.cuda.memory_allocated()
            copied = copy.deepcopy(model)
            assert torch.cuda.memory_allocated() - before == 64 * 64 * 4
            assert isinstance(copied.weight, nn.Parameter)
            assert copied.weight.data_ptr() != model.weight.data_ptr()

    def test_a_saved_tensor_loads_where_it_was(self) -> None:
        with graphmem.virtual_gpu("h100"):
            x = torch.randn(256, device="cuda")
            file = io.BytesIO()
            torch.save({"x": x, "view": x[128:], "host": torch.arange(3)}, file)
            before = torch.cuda.memory_allocated()

            gc.collect()  # what `torch.save` leaves has the tensor's memory
            file.seek(0)
            loaded = torch.load(file)

            assert str(loaded["x"].device) == "cuda:0"
            assert loaded["view"].data_ptr() == loaded["x"].data_ptr() + 512
            assert torch.cuda.memory_allocated() - before == 1024
            assert loaded["host"].tolist() == [0, 1, 2]
        file.seek(0)
        # without map_location, as for any checkpoint written on a card
        assert torch.load(file, map_location="cpu")["x"].abs().sum() == 0

    def test_a_tensor_without_elements_loads_where_it_was(self) -> None:
        """As YOLOv9's `anchors`; it has no memory on the card by which it could be known."""
        file = io.BytesIO()
        with graphmem.virtual_gpu("h100") as gpu:
            torch.save(torch.empty(0, 3).cuda(), file)
            file.seek(0)
            loaded = torch.load(file)

            assert (str(loaded.device), loaded.shape) == ("cuda:0", (0, 3))
            assert not gpu.report().assumptions

    def test_zeros_take_no_room_in_a_saved_file(self, tmp_path: Path) -> None:
        file, host = tmp_path / "weights.pt", torch.arange(1 << 18)
        with graphmem.virtual_gpu("h100"):
            card = torch.randn(1 << 20, device="cuda")
            torch.save([card, card.cpu(), host], file)

        written = file.stat()
        data = (4 + 4 + 2) << 20
        assert data < written.st_size < data + 4096
        assert 2 << 20 <= 512 * written.st_blocks < (2 << 20) + 65536
        for mmap in (False, True):
            of_card, copied, same = torch.load(file, map_location="cpu", mmap=mmap)
            assert torch.equal(same, host)
            assert not of_card.any()
            assert not copied.any()

    def test_a_separate_addition_allocates_its_result(self) -> None:
        """It is not mistaken for the bias of the preceding product, which is added in place."""
        with graphmem.virtual_gpu("h100"):
            left, right = torch.ones(2, 3, 4).cuda(), torch.ones(2, 4, 1).cuda()
            for _ in range(20):
                rows = torch.matmul(left, right)
                columns = torch.matmul(left, right)
                both = rows + columns.mT
                assert both.shape == (2, 3, 3)

    def test_copies_between_host_and_device(self) -> None:
        with graphmem.virtual_gpu("h100"):
            host = torch.arange(4.0)
            device = torch.empty(4, device="cuda")
            assert device.copy_(host) is device
            assert host.copy_(device) is host
            assert host.tolist() == [0.0, 1.0, 2.0, 3.0]
            assert host.copy_(torch.randn(4, device="cuda")).tolist() == [0.0] * 4
            assert device.cpu().numpy().shape == (4,)


class TestProcess:
    def test_nothing_stays_patched(self) -> None:
        owners = [torch, torch.Tensor, torch._C, torch.cuda, FakeTensor, nn.Module, nn.Parameter]
        owners += [torch.UntypedStorage, torch._utils, threading.Thread, torch.optim.Optimizer]
        owners += [torch.autograd.Variable, torch._C._functions.AddmmBackward0, torch.accelerator]
        owners += [ForkingPickler]
        with graphmem.virtual_gpu("h100"):  # modules imported at first use stay
            train_with_everything()
        before = [dict(vars(owner)) for owner in owners]

        def fail() -> None:
            train_with_everything()
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError), graphmem.virtual_gpu("h100"):
            fail()

        for owner, known in zip(owners, before, strict=True):
            now = vars(owner)
            changed = [name for name in now if known.get(name, None) is not now[name]]
            assert (owner, changed) == (owner, [])
        assert torch._C._len_torch_dispatch_stack() == 0

    def test_nesting_is_rejected_and_leaves_the_first_unchanged(self) -> None:
        with graphmem.virtual_gpu("t4") as outer:
            with (
                pytest.raises(
                    InputError, match="there is a virtual GPU already, Tesla T4"
                ) as error,
                graphmem.virtual_gpu("h100"),
            ):
                pass
            kept = torch.empty(MIB, dtype=torch.uint8, device="cuda")

            assert outer.allocated == kept.nbytes == MIB
        assert error.value.hint is not None
        with graphmem.virtual_gpu("h100") as after:
            assert after.allocated == 0

    def test_card_tensors_count_as_shared_but_cannot_be_sent(self) -> None:
        with graphmem.virtual_gpu("h100"):
            model = nn.Linear(2, 2).cuda()
            assert model.share_memory() is model
            assert model.weight.is_shared()
            assert not torch.ones(1).is_shared()
            assert ForkingPickler.dumps(torch.ones(1))
            with pytest.raises(SentTensorError):
                ForkingPickler.dumps(model.weight)

    def test_other_threads_use_the_device(self) -> None:
        seen: list[tuple[str, int]] = []

        def work() -> None:
            x = torch.ones(256, device="cuda") * 2
            seen.append((str(x.device), torch.cuda.memory_allocated()))

        with graphmem.virtual_gpu("h100"):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert seen == [("cuda:0", 1024)]

    def test_a_dropped_model_is_freed(self) -> None:
        with graphmem.virtual_gpu("h100") as gpu:
            for _ in range(3):
                model = nn.Linear(256, 256, bias=False, device="cuda")
                model(torch.ones(1, 256, device="cuda"))
            # the last model, and cuBLAS's 32 MiB workspace
            assert gpu.allocated == 256 * 256 * 4 + HOPPER_WORKSPACE

    def test_steps_can_be_limited(self) -> None:
        with pytest.raises(EnoughSteps), graphmem.virtual_gpu("h100", max_steps=2) as gpu:
            train_with_everything()
        assert [step.step for step in gpu.report().steps] == [0, 1]

    def test_importing_graphmem_does_not_import_torch(self) -> None:
        code = (
            "import sys, graphmem; before = 'torch' in sys.modules; "
            "from graphmem.virtual_device.patching import replaced; "
            "print(before, callable(graphmem.virtual_gpu))"
        )
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        assert done.stdout == b"False True\n"


def test_the_fixture_is_active_until_the_test_ends(
    virtual_gpu: Callable[..., VirtualGpu],
) -> None:
    gpu = virtual_gpu("a100-80gb")
    x = torch.ones(3, device="cuda")
    assert gpu.allocated == 512
    assert x.is_cuda


def test_a_device_is_entered_once() -> None:
    gpu = graphmem.virtual_gpu("t4")
    with gpu:
        torch.zeros(4, device="cuda")

    with pytest.raises(EnteredTwiceError), gpu:
        pass

    assert not torch.cuda.is_available()
    assert gpu.peak == 512


def test_a_pickled_tensor_has_its_bytes_and_returns_to_the_card() -> None:
    """Without torch.save, as `broadcast_object_list` pickles; on the host the numbers are real."""
    host = torch.ones(1 << 20)
    with VirtualGpu("a100-80gb"):
        weight = torch.nn.Parameter(torch.ones(1 << 20, device="cuda"))
        written = pickle.dumps([weight, host])
        before = torch.cuda.memory_allocated()
        read, same = pickle.loads(written)

        assert (read.device.type, read.shape, read.requires_grad) == ("cuda", weight.shape, True)
        assert torch.cuda.memory_allocated() - before == 4 << 20
        assert torch.equal(same, host)
    assert 0 < len(written) - 2 * (4 << 20) < 2048


def test_a_module_that_was_on_the_card_is_pickled_on_the_host() -> None:
    """Whole, as EDM2 and StyleGAN write their networks."""
    with VirtualGpu("a100-80gb"):
        moved = nn.Linear(4, 4).cuda().cpu()
        moved.weight.note = "the user's"  # type: ignore[assignment]
        read = pickle.loads(pickle.dumps(moved))

        assert (type(read.weight), read.weight.device.type) == (nn.Parameter, "cpu")
        assert vars(read.weight) == {"note": "the user's"}


def test_a_tensor_on_the_meta_device_has_no_data_to_copy() -> None:
    """TD-MPC2 ends here with tensordict 0.14, which leaves such parameters in a module."""
    with VirtualGpu("a100-80gb"):
        layer = nn.Linear(2, 2, device="meta")
        for copy in (
            lambda: layer.to("cuda"),
            layer.weight.cuda,
            layer.weight.cpu,
            lambda: torch.ones(2, 2, device="cuda").copy_(layer.weight),
            lambda: torch.ones(2, device="cuda").to("meta").to("cuda"),
        ):
            with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
                copy()
        assert layer.to("meta").weight.is_meta
        assert layer.to_empty(device="cuda").weight.is_cuda


def test_a_model_on_the_meta_device_trains_beside_the_card() -> None:
    """As litgpt counts its model's operations (`measure_flops`)."""
    with VirtualGpu("a100-80gb"), torch.device("meta"):
        layer = nn.Embedding(10, 4)
        layer(torch.zeros(2, 3, dtype=torch.long)).square().sum().backward()

        assert torch.cuda.max_memory_allocated() == 0
    assert layer.weight.grad is not None
    assert layer.weight.grad.shape == (10, 4)
