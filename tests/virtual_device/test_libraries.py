"""Fine-tuning libraries on the virtual card; each test is skipped without its library."""

from __future__ import annotations

import copy
import gzip
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import ModuleType

import pytest
import torch

import graphmem
from tests.support.places import ROOT, SCRIPTS
from tests.support.sizes import KIB, in_blocks

RECORDED = ROOT / "fixtures" / "cuda" / "scripts"


def needs(*names: str) -> pytest.MarkDecorator:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")


def run(*arguments: str | Path) -> str:
    """What a program prints under `graphmem run` on an H100 with torch 2.11."""
    command = [sys.executable, "-m", "graphmem", "run", "--gpu", "h100-80gb", "--torch", "2.11"]
    path = os.environ.get("PYTHONPATH", "")
    done = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


class Rounded(torch.nn.Parameter):
    """A parameter that quantises itself when it moves, as bitsandbytes' do."""

    def __new__(cls, data: torch.Tensor, scale: float = 1.0) -> Rounded:
        made = torch.Tensor._make_subclass(cls, data, False)
        made.scale = scale
        return made

    def cuda(self, device: object = None, non_blocking: bool = False) -> Rounded:
        self.data = self.data.cuda().to(torch.int8)
        self.absmax = torch.ones(4, device="cuda")
        return self


def test_a_subclass_of_parameter_keeps_class_identity_and_attributes_on_the_card() -> None:
    module = torch.nn.Linear(64, 64, bias=False)
    weight = module.weight = Rounded(torch.ones(64, 64), scale=0.5)

    with graphmem.virtual_gpu("t4") as gpu:
        module.cuda()
        moved = module.weight
        assert moved is weight
        assert isinstance(moved, Rounded)
        assert (moved.device.type, moved.dtype, moved.scale) == ("cuda", torch.int8, 0.5)
        assert isinstance(Rounded(moved.data), Rounded)
        del moved
        assert gpu.allocated == 64 * 64 + 512  # `absmax` fits one block

    assert type(weight) is Rounded
    assert weight.device.type == "cpu"
    assert weight.scale == 0.5


class Marked(torch.nn.Parameter):
    """A parameter made by the constructor of its base, as nanotron's and vLLM's are."""

    def __new__(cls, data: torch.Tensor, requires_grad: bool = True) -> Marked:
        made = torch.nn.Parameter.__new__(cls, data=data.detach(), requires_grad=requires_grad)
        made.marks = ["sharded"]
        return made

    def mark(self, name: str) -> list[str]:
        self.marks.append(name)
        return self.marks


def test_a_subclass_made_by_the_constructor_of_parameter_keeps_its_class() -> None:
    with graphmem.virtual_gpu("t4"):
        layer = torch.nn.Linear(64, 64, bias=False, device="cuda")
        layer.weight = Marked(layer.weight)
        again = copy.deepcopy(layer)
        assert isinstance(layer.weight, Marked)
        assert isinstance(again.weight, Marked)
        assert layer.weight.mark("tied") == ["sharded", "tied"]
        layer(torch.ones(64, 64, device="cuda")).sum().backward()
        assert [each.shape for each in (layer.weight.grad,) if each is not None] == [(64, 64)]


def test_a_program_may_replace_the_constructors_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As nanotron does while it builds a model on the card; values come from the host."""

    def on_card(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda *sizes, **options: make(*sizes, **options | {"device": "cuda"})

    with graphmem.virtual_gpu("t4"):
        for name in ("empty", "zeros", "ones", "full"):
            monkeypatch.setattr(torch, name, on_card(getattr(torch, name)))
        counts = torch.empty(3, dtype=torch.int64)
        counts.copy_(torch.arange(3))
        assert counts.is_cuda
        assert counts.tolist() == [0, 1, 2]
        assert torch.nn.Linear(8, 8)(torch.randn(8, 8, device="cuda")).cos().is_cuda
        monkeypatch.undo()


class Tagged(torch.nn.Parameter):
    """A parameter that says something about itself, and is made as `Parameter` is."""

    tag = "tagged"


def test_a_parameter_made_of_data_on_the_card_has_its_class() -> None:
    """`Parameter.__new__` makes `cls` of a plain tensor, which a fake one is not to it."""

    with graphmem.virtual_gpu("t4"):
        weight = Tagged(torch.ones(64, device="cuda"), requires_grad=False)
        assert isinstance(weight, Tagged)
        assert (weight.tag, weight.requires_grad) == ("tagged", False)
        assert isinstance(copy.deepcopy(weight), Tagged)
        assert isinstance(torch.nn.Parameter(weight.data), torch.nn.Parameter)


@pytest.mark.parametrize("attributes", ["all", "none"])
def test_a_parameter_made_by_type_of_another_is_a_parameter(attributes: str) -> None:
    """accelerate's `init_empty_weights` passes the attributes along; others pass none."""
    with graphmem.virtual_gpu("t4"):
        old = torch.nn.Linear(8, 8, device="cuda").weight
        given = vars(old) if attributes == "all" else {}
        made = type(old)(old.to("meta"), **given | {"requires_grad": False})

    assert isinstance(made, torch.nn.Parameter)
    assert (made.device.type, made.requires_grad) == ("meta", False)


def reasons_of(module: torch.nn.Module, rows: int = 8) -> set[tuple[str, int]]:
    """Why storages at the peak are alive, with their bytes, when a module is called once."""
    with graphmem.virtual_gpu("t4") as gpu:
        module.cuda()
        module(torch.ones(rows, 64, device="cuda"))
    return {(each.reason, each.bytes) for each in gpu.report().at_peak.holders}


class Packed(torch.nn.Linear):
    """A layer whose weight holds an object with statistics, as in bitsandbytes."""

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return data @ (self.weight * self.weight.statistics.absmax[0])


def test_quantisation_statistics_of_a_parameter_have_a_name() -> None:
    class Statistics:
        pass

    class WithStatistics(Rounded):
        def cuda(self, device: object = None, non_blocking: bool = False) -> WithStatistics:
            super().cuda()
            self.statistics = Statistics()
            self.statistics.absmax = torch.ones(16, device="cuda")
            return self

    layer = Packed(64, 64, bias=False)
    layer.weight = WithStatistics(torch.ones(64, 64))

    assert reasons_of(torch.nn.Sequential(layer)) >= {
        ("the parameter 0.weight, packed by Packed", 64 * 64),
        ("absmax of the parameter 0.weight", 4 * 4),
        ("statistics.absmax of the parameter 0.weight", 16 * 4),
    }


def test_a_parameter_that_quantises_itself_in_place_is_on_the_card_in_analyze(
    tmp_path: Path,
) -> None:
    """`Params4bit.to` assigns its own `.data` and returns itself."""
    (tmp_path / "model.py").write_text(
        """
import torch

class InPlace(torch.nn.Parameter):
    def __new__(cls, data):
        return torch.Tensor._make_subclass(cls, data, False)

    def to(self, *args, **options):
        self.data = self.data.to("cuda").to(torch.int8)
        return self

class Layer(torch.nn.Linear):
    def forward(self, data):
        return data @ self.weight.float()

def build():
    layer = Layer(64, 64, bias=False)
    layer.weight = InPlace(layer.weight.data)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), layer), torch.ones(8, 64)
"""
    )

    report = graphmem.analyze(f"{tmp_path}/model.py:build", gpu="t4")

    assert ("the parameter 1.weight, packed by Layer", 64 * 64) in {
        (each.reason, each.bytes) for each in report.at_peak.holders
    }


def test_an_unpack_hook_may_hook_the_node_that_runs() -> None:
    """torchtune frees an offloaded tensor after the node that unpacked it."""
    ran: list[str] = []

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        node = torch._C._current_autograd_node()
        node.register_hook(lambda outputs, inputs: ran.append(node.name()))
        return tensor

    with graphmem.virtual_gpu("t4"):
        data = torch.ones(8, 8, device="cuda", requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
            loss = data.exp().sum()
        assert torch._C._current_autograd_node() is None
        loss.backward()

    assert ran == ["ExpBackward0"]


def test_a_function_table_filled_on_the_card_is_found_again() -> None:
    """torchao's tensors look up the function PyTorch passes (`implements_torch_function`)."""

    class Packed(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func in table:
                return table[func]
            return super().__torch_function__(func, types, args, kwargs)

    with graphmem.virtual_gpu("t4"):
        table = {torch.Tensor.to: "to", torch.Tensor.cuda: "cuda", torch.Tensor.half: "half"}
        packed = torch.ones(4).as_subclass(Packed)
        assert (packed.to(torch.float16), packed.half()) == ("to", "half")
        assert torch.Tensor.to in table


def test_tensors_with_weak_references_can_be_swapped() -> None:
    """torchtune's `FrozenNF4Linear` swaps its weight for the packed one."""
    with graphmem.virtual_gpu("t4") as gpu:
        layer = torch.nn.Linear(256, 256, bias=False, device="cuda")
        weight = layer.weight
        packed = torch.zeros(256, 128, dtype=torch.uint8, device="cuda")
        torch.utils.swap_tensors(weight, torch.nn.Parameter(packed, requires_grad=False))
        del packed
        assert layer.weight is weight
        assert (weight.dtype, tuple(weight.shape)) == (torch.uint8, (256, 128))
        assert gpu.allocated == 256 * 128


@needs("bitsandbytes")
def test_a_dequantised_4_bit_weight_is_named_with_its_statistics() -> None:
    """NF4, nested: an absmax byte per block of 64, an absmax float per block of 256 of those."""
    bnb = importlib.import_module("bitsandbytes")
    layer = bnb.nn.Linear4bit(64, 1024, bias=False, quant_type="nf4", compress_statistics=True)

    too_many = 4096  # for the kernel that multiplies by packed weights
    assert reasons_of(torch.nn.Sequential(layer), rows=too_many) >= {
        ("the parameter 0.weight, packed by Linear4bit", 1024 * 64 // 2),
        ("quant_state.absmax of the parameter 0.weight", 1024 * 64 // 64),
        ("quant_state.state2.absmax of the parameter 0.weight", 1024 * 4 // 256),
        ("made by bitsandbytes.gemm_4bit for 0.weight", 1024 * 64 * 4),
    }


def test_a_transposed_tensor_is_made_contiguous_before_it_is_copied_to_pinned_memory() -> None:
    """`copy_requires_temporaries` (Copy.cu); the recording offload_save_pin shows it."""
    with graphmem.virtual_gpu("t4") as gpu:
        table = torch.ones(64, 128, device="cuda")
        pinned = torch.empty(128, 64, pin_memory=True)
        pinned.copy_(table.t())
        assert gpu.peak == 64 * 128 * 4 * 2
        pinned.copy_(table.view(128, 64))
        torch.cuda.reset_peak_memory_stats()
        pinned.copy_(table.view(128, 64))
        assert gpu.allocated == torch.cuda.max_memory_allocated() == 64 * 128 * 4


def test_a_non_blocking_copy_converts_dtypes_on_the_card() -> None:
    """The recording parameter_golf has 131,074 bytes beside 524,296 for tokens of an evaluation."""
    tokens = torch.zeros(65537, dtype=torch.uint16)
    narrow, wide = (in_blocks(65537 * size) for size in (2, 8))
    with graphmem.virtual_gpu("h100-80gb") as gpu:
        first = tokens.to("cuda", torch.int64, non_blocking=True)
        assert torch.cuda.max_memory_allocated() == wide + narrow
        second = tokens.to("cuda", torch.int64)
        assert gpu.allocated == torch.cuda.max_memory_allocated() == 2 * wide
        first.to("cpu", torch.uint16, non_blocking=True)
        assert torch.cuda.max_memory_allocated() == 2 * wide + narrow
        del second


@needs("bitsandbytes")
def test_bitsandbytes_layers_and_optimizers_take_what_their_formats_say() -> None:
    """NF4: half a byte per weight, a float32 per block of 64, a code of 16; 8-bit Adam: two bytes
    per weight, two float32 per block of 256, two codes of 256. Paged states are managed memory,
    which is not PyTorch's."""
    elements = 1024 * 4096
    statistics = 2 * 4 * elements // 256 + 2 * KIB

    printed = run(SCRIPTS / "four_bits.py").splitlines()

    weight = elements // 2 + 4 * elements // 64 + 512
    assert printed[0] == f"weight {weight} Params4bit True nf4"
    assert printed[1:] == [f"states {2 * elements + statistics}", f"states {statistics}"]


def events_of(recording: dict) -> list[tuple]:
    """Each allocation by its bytes, each run of frees as an unordered collection.

    Autocast frees its copies in the order of their addresses' hashes.
    """
    made: dict[int, int] = {}
    events = []
    for number, row in enumerate(row for row in recording["events"] if row[1]):
        if row[0] == "a":
            made[row[2]] = number
        kept = number if row[0] == "a" else made.pop(row[2], None)
        events.append((row[0], row[1], kept))
    runs = ((kind, list(group)) for kind, group in groupby(events, key=lambda event: event[0]))
    return [tuple(sorted(group)) if kind == "f" else tuple(group) for kind, group in runs]


H100 = [
    pytest.param("offload_save_pin", marks=needs("transformers")),
    pytest.param("optim_bnb", marks=needs("bitsandbytes")),
    pytest.param("qlora_nf4_double", marks=needs("bitsandbytes", "peft", "transformers")),
]


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.11"), reason="recorded with torch 2.11")
@pytest.mark.parametrize("name", H100)
def test_a_script_allocates_what_an_h100_recorded(name: str, tmp_path: Path) -> None:
    recorded = json.loads(gzip.decompress((RECORDED / f"{name}.events.json.gz").read_bytes()))

    target = [recorded["target"], *recorded["arguments"]]
    run("tools/record_cuda.py", "-o", tmp_path / name, *target)

    predicted = json.loads((tmp_path / f"{name}.events.json").read_text())
    assert events_of(predicted) == events_of(recorded)


@torch.library.custom_op("graphmem_test::squared_norms", mutates_args=())
def squared_norms(x: torch.Tensor) -> torch.Tensor:
    return x.float().square().sum(-1)


@squared_norms.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("graphmem_test::compiled_norms", mutates_args=())
def compiled_norms(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError(f"an extension needs the address {x.data_ptr()}")


@compiled_norms.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[:-1], dtype=torch.float32)


def test_a_custom_operator_takes_what_its_python_kernel_takes() -> None:
    """The kernel's 32-bit copy and its squares, 4 MiB each, beside the input of 2 MiB."""
    rows, columns = 1024, 1024
    with graphmem.virtual_gpu("h100") as gpu:
        x = torch.zeros(rows, columns, device="cuda", dtype=torch.bfloat16)
        before = gpu.allocated
        norms = torch.ops.graphmem_test.squared_norms(x)
        assert gpu.allocated - before == rows * 4
        assert torch.cuda.max_memory_allocated() - before == 2 * rows * columns * 4
    assert norms.shape == (rows,)


def test_a_custom_operator_whose_kernel_needs_the_card_is_listed() -> None:
    with graphmem.virtual_gpu("h100") as gpu:
        x = torch.zeros(1024, 1024, device="cuda")
        before = gpu.allocated
        norms = torch.ops.graphmem_test.compiled_norms(x)
        assert gpu.allocated - before == norms.numel() * 4
    [listed] = [each for each in gpu.report().assumptions if "scratch" in each.what]
    assert listed.what == "scratch memory of graphmem_test.compiled_norms"
    assert listed.value == "none"


@needs("bitsandbytes")
def test_each_card_has_the_kernels_of_its_own_kind() -> None:
    """bitsandbytes caches its choice: for 1,024 rows an H100 unpacks the weight, a T4 does not."""
    import bitsandbytes as bnb

    def build() -> tuple[torch.nn.Module, torch.Tensor]:
        half = torch.float16
        packed = bnb.nn.Linear4bit(1024, 1024, False, compute_dtype=half, quant_type="nf4")
        model = torch.nn.Sequential(torch.nn.Linear(1024, 1024, dtype=half), packed)
        return model, torch.ones(1024, 1024, dtype=half)

    def forward(gpu: str) -> int:
        return graphmem.analyze(build, gpu=gpu, inference=True, steps=1).peak.requested

    assert forward("t4") < forward("h100-80gb") - 1024 * 1024
    assert forward("t4") < forward("h100-80gb") - 1024 * 1024


def test_a_torchvision_without_its_compiled_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.ops.boxes", ModuleType("torchvision.ops.boxes"))
    with graphmem.virtual_gpu("t4"):
        assert torch.nn.Linear(2, 2).cuda()(torch.ones(1, 2, device="cuda")).shape == (1, 2)


FUSED_ADAM = """
import torch
from deepspeed.ops.adam import FusedAdam

weight = torch.nn.Parameter(torch.empty(512, 512, device="cuda"))
optimizer = FusedAdam([weight])
weight.grad = torch.ones_like(weight)
optimizer.step()
print(torch.cuda.max_memory_allocated())
"""


@needs("deepspeed")
def test_deepspeeds_adam_allocates_its_moments_only(tmp_path: Path) -> None:
    """The weight, its gradient and two moments of 1 MiB, and an overflow flag, one block."""
    script = tmp_path / "adam.py"
    script.write_text(FUSED_ADAM)

    assert int(run(script).splitlines()[-1]) == 4 * 512 * 512 * 4 + 512


SAME_AS_FIRST = """
import deepspeed
from deepspeed.runtime.zero.utils import assert_ints_same_as_other_ranks

deepspeed.init_distributed()
assert_ints_same_as_other_ranks([3, 5, 7])
print("the same")
assert_ints_same_as_other_ranks([deepspeed.comm.get_rank()])
"""


@needs("deepspeed")
def test_zero3_finds_the_numbers_of_a_rank_that_runs_alone_to_be_those_of_rank_0(
    tmp_path: Path,
) -> None:
    script = tmp_path / "same.py"
    script.write_text(SAME_AS_FIRST)

    assert run("--nproc-per-node", "2", "--rank", "1", script).splitlines()[-1] == "the same"


@needs("deepspeed")
def test_zero3_still_finds_different_numbers_of_ranks_that_run_side_by_side(tmp_path: Path) -> None:
    script = tmp_path / "same.py"
    script.write_text(SAME_AS_FIRST)

    with pytest.raises(
        AssertionError, match="disagreement on list contents between rank0 and rank1"
    ):
        run("--nproc-per-node", "2", "--rank", "all", script)
