"""What sharded training gathers and adds up is called what it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Outcome

WHOLE = 4 * 1024 * 1024
"""The bytes of the parameter in float32, of which each of two ranks has half."""
BEGIN = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
model = torch.nn.Linear(1024, 1024, bias=False)
rows = torch.ones(2, 1024, device="cuda")
"""
FSDP1 = """
from torch.distributed.fsdp import FullyShardedDataParallel
FullyShardedDataParallel(model, device_id=0, use_orig_params={use_orig_params})(rows)
"""
WRAPPED = """
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel
layers = torch.nn.Sequential(*(checkpoint_wrapper(torch.nn.Linear(1024, 1024)) for _ in "ab"))
for place, layer in enumerate(layers):
    layers[place] = FullyShardedDataParallel(layer, device_id=0, use_orig_params=True)
model = FullyShardedDataParallel(layers, device_id=0, use_orig_params=True)
model(rows).sum().backward()
"""
REDUCED = """
from torch.distributed.fsdp import FullyShardedDataParallel
def block():
    layers = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 1024))
    return FullyShardedDataParallel(layers, device_id=0, use_orig_params={use_orig_params})
def peak(gradient):
    torch.empty(1 << 26, device="cuda")
model = torch.nn.Sequential(block(), torch.nn.Identity(), block())
model[1].register_forward_hook(lambda module, args, result: result.register_hook(peak) and None)
model(rows).sum().backward()
"""
TWO_MODELS = """
from torch.distributed.fsdp import fully_shard
actor, critic = (torch.nn.Linear(1024, 1024).cuda() for _ in range(2))
fully_shard(actor), fully_shard(critic)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (actor, critic)]
for peak in 1, 1 << 26:
    loss = (actor(rows) + critic(rows)).sum()
    torch.empty(peak, device="cuda")
    loss.backward()
    for each in optimizers:
        each.step()
"""
ACCUMULATED = """
from torch.distributed.fsdp import FullyShardedDataParallel
model = FullyShardedDataParallel(model, device_id=0, use_orig_params={use_orig_params})
with model.no_sync():
    model(rows).sum().backward()
torch.empty(1 << 26, device="cuda")
"""
LOCAL = """
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(model.cuda(), gradient_as_bucket_view=True)
with model.no_sync():
    model(rows).sum().backward()
torch.empty(1 << 26, device="cuda")
"""
FSDP2 = """
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
fully_shard(model.cuda(), mp_policy=MixedPrecisionPolicy({types}))
model.set_requires_gradient_sync(False)
model(rows).sum().backward()
torch.empty(1 << 26, device="cuda")
"""
GATHERED_AGAIN = """
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
policy = MixedPrecisionPolicy(torch.bfloat16)
fully_shard(model.cuda(), mp_policy=policy, reshard_after_forward=True)
model(rows).sum().backward()
model.unshard()
torch.empty(1 << 26, device="cuda")
"""
FROZEN = """
from torch.distributed.fsdp import fully_shard
teacher = torch.nn.Linear(1024, 1024, bias=False).requires_grad_(False)
fully_shard(model.cuda()), fully_shard(teacher.cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.no_grad():
    teacher(rows)
model(rows).sum().backward()
optimizer.step()
"""
DEEPSPEED = {
    "utils.debug": """
def debug_extract_module_and_param_names(model): ...
def debug_param2name(param): return "unknown"  # to the second engine's
""",
    "runtime.zero.partition_parameters": """
import torch
class AllGatherHandle:
    def wait(self): ...
class AllGatherCoalescedHandle:
    def __init__(self, allgather_handle, params, partitions):
        self.params, self.partitions = params, partitions
    def wait(self):
        for param in self.params:
            param.data = torch.cat(self.partitions).view(param.ds_shape)
class NoGatherHandle:
    def __init__(self, param):
        param.data = param.ds_tensor.data.to("cuda").view(param.ds_shape)
class NoGatherCoalescedHandle:
    def __init__(self, params):
        for param in params:
            param.data = param.ds_tensor.data.to("cuda").view(param.ds_shape)
""",
    "runtime.zero.stage3": """
import torch
class IPGBucketZ3:
    def __init__(self): self.buffer = torch.empty(1024, device="cuda")
class DeepSpeedZeroOptimizer_Stage3:
    def __init__(self, shard):
        self.ipg_buckets = {torch.float32: IPGBucketZ3()}
        self.grad_partitions_flat_buffer = torch.zeros_like(shard)
        self.fp32_partitioned_groups_flat = [shard.clone()]
""",
    "runtime.zero.stage_1_and_2": """
import torch
class IPGBucket:
    def __init__(self): self.buffer = []
class DeepSpeedZeroOptimizer:
    def __init__(self):
        self.ready_for_gradients, self.ipg_buckets = False, {torch.float32: IPGBucket()}
        self.all_grad_tensors, self.averaged_gradients = {0: None}, {}
    def setup_buckets(self):
        if not self.ready_for_gradients:
            for bucket in self.ipg_buckets.values():
                bucket.buffer = [torch.empty(1024, device="cuda") for _ in range(2)]
            self.ready_for_gradients = True
    def independent_gradient_partition_epilogue(self):
        self.averaged_gradients[0] = [torch.zeros(512 * 1024, device="cuda")]
""",
}
"""As in DeepSpeed 0.19.8: what graphmem replaces, and what that touches."""
ZERO3 = """
from deepspeed.runtime.zero.partition_parameters import AllGatherCoalescedHandle
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.utils.debug import debug_extract_module_and_param_names
weight = model.weight
weight.ds_shape, weight.ds_tensor = weight.shape, torch.empty(512 * 1024, device="cuda")
weight.data = torch.empty(0, device="cuda")
debug_extract_module_and_param_names(torch.nn.ModuleDict({"head": model}))
debug_extract_module_and_param_names(torch.nn.Linear(1, 1))  # of another engine: a reference model
optimizer = DeepSpeedZeroOptimizer_Stage3(weight.ds_tensor)
flat = torch.empty(1024 * 1024, device="cuda")
handle = AllGatherCoalescedHandle(None, [weight], [flat[:512 * 1024], flat[512 * 1024:]])
handle.wait()
model(rows)
"""
ZERO3_ON_THE_HOST = """
from deepspeed.runtime.zero import partition_parameters
from deepspeed.utils.debug import debug_extract_module_and_param_names
weight = model.weight
weight.ds_shape, weight.ds_tensor = weight.shape, torch.empty({at})
weight.data = torch.empty(0, device="cuda")
debug_extract_module_and_param_names(model)
partition_parameters.{handle}
model(rows)
"""
ZERO2 = """
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
optimizer = DeepSpeedZeroOptimizer()
optimizer.setup_buckets()
optimizer.setup_buckets()
optimizer.independent_gradient_partition_epilogue()
torch.empty(1 << 20, device="cuda")
"""

Report = Callable[..., Any]


@pytest.fixture
def at_peak(report_of: Report) -> Report:
    return lambda script: report_of(script)["at_peak"]


@pytest.fixture
def report_of(run_graphmem: Callable[..., Outcome], tmp_path: Path) -> Report:
    def run(script: str) -> Any:
        (tmp_path / "train.py").write_text(BEGIN + script)
        output = tmp_path / "report.json"
        options = ("--gpu", "a100", "--nproc-per-node", "2", "--format", "json", "-o", str(output))
        done = run_graphmem("run", *options, str(tmp_path / "train.py"))
        assert done.exit_code == 0, done.stderr
        return json.loads(output.read_text())

    return run


def reasons(held: Any, category: str) -> set[str]:
    return {each["reason"] for each in held["holders"] if each["category"] == category}


def test_wrappers_have_no_part_in_names(report_of: Report) -> None:
    report = report_of(WRAPPED)

    assert {each["module"] for each in report["at_peak"]["holders"]} <= {"", "0", "1", None}
    assert any("the parameter 0.weight" in each["reason"] for each in report["at_peak"]["holders"])


def test_a_parameter_may_be_called_as_if_it_were_gathered(report_of: Report) -> None:
    more = "torch.nn.Parameter(torch.ones(1024, 1024))"
    called = f"model.register_parameter('weight (all-gathered)', {more})\nmodel.cuda()(rows)"

    assert report_of(called)["model"]["parameters"] == 2 * 1024 * 1024


@pytest.mark.parametrize("use_orig_params", [False, True])
def test_the_flat_parameter_that_fsdp1_gathers_is_a_parameter(
    at_peak: Report, use_orig_params: bool
) -> None:
    held = at_peak(FSDP1.format(use_orig_params=use_orig_params))

    assert held["by_category"]["parameter"] == WHOLE // 2 + WHOLE
    assert any(
        "weight (all-gathered)" in each or "_flat_param (all-gathered)" in each
        for each in reasons(held, "parameter")
    )


@pytest.mark.parametrize(
    ("use_orig_params", "whole", "shard"),
    [(False, "{}._flat_param", "{}._flat_param"), (True, "{}.*", "{}.0.*")],
)
def test_fsdp1_has_names_for_what_a_shard_is_part_of(
    at_peak: Report, use_orig_params: bool, whole: str, shard: str
) -> None:
    """The first of two ranks has the first half of each block, which is its first layer."""
    held = at_peak(REDUCED.format(use_orig_params=use_orig_params))

    gathered = f"the parameter {whole.format(0)} (all-gathered)"
    reduced = f"{shard.format(2)}.grad, the gradient that the optimizer reads"
    assert any(each.startswith(gathered) for each in reasons(held, "parameter"))
    assert reasons(held, "gradient") == {reduced}


def test_fsdp2_tells_two_models_apart(at_peak: Report) -> None:
    names = " ".join(reasons(at_peak(TWO_MODELS), "parameter"))

    assert "actor.weight (all-gathered)" in names
    assert "critic.weight (all-gathered)" in names


def test_what_is_gathered_again_has_its_type(at_peak: Report) -> None:
    """`alloc_storage` of `fully_shard` resizes a storage, which knows bytes alone."""
    held = at_peak(GATHERED_AGAIN)

    gathered = [each for each in held["holders"] if each["reason"].endswith("(all-gathered)")]
    assert [(each["dtype"], each["bytes"]) for each in gathered] == [("bfloat16", WHOLE // 2)]


def test_a_frozen_model_that_stays_gathered_is_counted_once(report_of: Report) -> None:
    """As torchtune's teacher; the root of `fully_shard` is not resharded after its forward."""
    model = report_of(FROZEN)["model"]

    assert model["parameters"] == 2 * 1024 * 1024 // 2
    assert model["parameter_bytes"] == 2 * WHOLE // 2


@pytest.mark.parametrize("use_orig_params", [False, True])
def test_gradients_that_fsdp1_has_not_reduced_are_gradients(
    at_peak: Report, use_orig_params: bool
) -> None:
    held = at_peak(ACCUMULATED.format(use_orig_params=use_orig_params))

    assert held["by_category"]["gradient"] == WHOLE
    assert any(".grad (not reduced yet)" in each for each in reasons(held, "gradient"))


def test_gradients_that_ddps_buckets_will_replace_are_gradients(at_peak: Report) -> None:
    held = at_peak(LOCAL)

    assert held["by_category"]["gradient"] == 2 * WHOLE  # and the buckets
    assert any("weight.grad (not reduced yet)" in each for each in reasons(held, "gradient"))


@pytest.mark.parametrize("types", ["", "torch.bfloat16, torch.float32"])
def test_gradients_that_fsdp2_has_not_reduced_are_gradients(at_peak: Report, types: str) -> None:
    held = at_peak(FSDP2.format(types=types))

    assert held["by_category"]["gradient"] == WHOLE
    assert any("weight.grad (not reduced yet)" in each for each in reasons(held, "gradient"))


@pytest.fixture
def _deepspeed(make_module: Callable[[str, str], None]) -> None:
    for name, source in DEEPSPEED.items():
        make_module(f"deepspeed.{name}", source)


@pytest.mark.usefixtures("_deepspeed")
def test_zero3_has_shards_gathered_parameters_and_buffers(report_of: Report) -> None:
    report = report_of(ZERO3)

    held = report["at_peak"]
    assert held["by_category"]["parameter"] == 2 * WHOLE // 2 + WHOLE  # the shard, and its copy
    assert report["model"]["parameters"] == 1024 * 1024 // 2
    assert held["by_category"]["gradient"] == WHOLE // 2
    assert held["by_category"]["communication"] == WHOLE + 4 * 1024
    assert "ds_tensor of the parameter weight" in reasons(held, "parameter")
    assert "all-gather buffer of head" in reasons(held, "communication")
    assert "reduce-scatter buffer" in reasons(held, "communication")


@pytest.mark.usefixtures("_deepspeed")
@pytest.mark.parametrize("handle", ["NoGatherHandle(weight)", "NoGatherCoalescedHandle([weight])"])
def test_what_zero3_copies_from_the_host_of_a_rank_that_is_alone_is_a_parameter(
    at_peak: Report, handle: str
) -> None:
    held = at_peak(ZERO3_ON_THE_HOST.format(at="1 << 20", handle=handle))

    assert held["by_category"]["parameter"] == WHOLE
    assert "the parameter weight (copied from the host)" in reasons(held, "parameter")


@pytest.mark.usefixtures("_deepspeed")
def test_the_shard_of_a_rank_that_is_alone_is_the_parameter(at_peak: Report) -> None:
    on_the_card = '1 << 20, device="cuda"'
    held = at_peak(ZERO3_ON_THE_HOST.format(at=on_the_card, handle="NoGatherHandle(weight)"))

    assert held["by_category"]["parameter"] == WHOLE
    assert not any("copied" in each for each in reasons(held, "parameter"))


@pytest.mark.usefixtures("_deepspeed")
def test_zero2_has_buckets_and_a_shard_of_the_gradients(at_peak: Report) -> None:
    held = at_peak(ZERO2)

    assert held["by_category"]["communication"] == 2 * 4 * 1024
    assert held["by_category"]["gradient"] == WHOLE // 2
    assert reasons(held, "communication") == {"gradient bucket"}
