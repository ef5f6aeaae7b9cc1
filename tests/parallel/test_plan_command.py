"""`graphmem plan`: what it prints, and its exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.places import FIXTURES

LLAMA = f"{FIXTURES / 'llama'}.py:build"
TINY = [
    *("--set", "vocab=1000", "--set", "batch=4", "--set", "seq=64", "--set", "width=64"),
    *("--set", "layers=4", "--set", "heads=8", "--set", "kv_heads=4", "--set", "ffn=96"),
    *("--gpu", "h100", "--steps", "1"),
]
Run = Callable[..., Any]


def test_json_lists_each_stage(run_graphmem: Run) -> None:
    outcome = run_graphmem(
        *("plan", LLAMA, *TINY, "--gpus", "8", "--tp", "2", "--pp", "2", "--zero", "1"),
        *("--micro-batches", "4", "--format", "json"),
    )

    assert outcome.exit_code == 0
    plan = json.loads(outcome.stdout)
    assert plan["schema"] == "graphmem.plan/1"
    assert plan["layout"]["data"] == 2
    assert [stage["blocks"] for stage in plan["stages"]] == [2, 2]
    assert [stage["in_flight"] for stage in plan["stages"]] == [2, 1]
    for stage in plan["stages"]:
        assert sum(stage["at_peak"].values()) == stage["peak"]
    reduced = next(
        each for each in plan["stages"][0]["traffic"] if each["collective"] == "all-gather"
    )
    # The embedding (1000 x 64) and two layers in fp32, all but the norms halved by tensor
    # parallelism; a rank of two sends half of that.
    layer = (64 * 64 * 2 + 2 * 32 * 64 + 3 * 64 * 96) // 2 + 2 * 64
    assert reduced["bytes"] == (1000 * 64 // 2 + 2 * layer) * 4 // 2


def test_text_says_what_is_exact(run_graphmem: Run, tmp_path: Path) -> None:
    file = tmp_path / "plan.txt"

    outcome = run_graphmem("plan", LLAMA, *TINY, "--gpus", "4", "--fsdp", "-o", str(file))

    assert outcome.exit_code == 0
    text = file.read_text()
    assert text.startswith("dp 4, fsdp on 4 x NVIDIA H100 80GB HBM3\nfits: peak ")
    assert "how exact this is" in text
    assert "NCCL" in text


@pytest.mark.parametrize(
    ("options", "halves"),
    [
        # Each of 4 layers sums the results of two products and the gradients of two inputs; then
        # the embedding in fp32, and the gradient of the head's input.
        ((), 2 * (4 * (2 + 2) + 2 + 1)),
        # Attention's product again; that of the MLP is behind the last tensor that is saved.
        (("--checkpoint", "layers.*"), 2 * (4 * (2 + 2 + 1) + 2 + 1)),
        # Two inputs gathered, gathered again and their gradients scattered; two results scattered
        # and their gradients gathered.
        (("--sp",), 4 * (2 * 3 + 2 * 2) + 2 * 2 + 3),
    ],
)
def test_tensor_parallel_ranks_send_what_they_sum_and_gather(
    run_graphmem: Run, options: tuple[str, ...], halves: int
) -> None:
    """Of two ranks each sends a sum once, and half of what is gathered or scattered."""
    split = ("--gpus", "2", "--tp", "2", *options, "--format", "json")
    plan = json.loads(run_graphmem("plan", LLAMA, *TINY, *split).stdout)

    (sent,) = (each for each in plan["stages"][0]["traffic"] if "tensor" in each["what"])
    hidden = 4 * 64 * 64 * 2  # batch, sequence, width in bf16
    assert sent["bytes"] == halves * hidden // 2


@pytest.mark.parametrize(("stage", "at_the_loss"), [("2", False), ("3", True)])
def test_deepspeed_collects_gradients_in_a_buffer(
    run_graphmem: Run, tmp_path: Path, stage: str, at_the_loss: bool
) -> None:
    """5e8 numbers: ZeRO-3's from the beginning on, ZeRO-2's from the first gradient on.

    `ipg_buckets` of stage3.py, `setup_buckets` of stage_1_and_2.py. The loss needs more than that:
    2^29 numbers each for its logarithms and two gradients.
    """
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "def build():\n"
        "    model = torch.nn.Linear(2, 1 << 20)\n"
        "    return model, torch.randn(512, 2), lambda y: -y.log_softmax(-1).mean()\n"
    )
    options = ("--gpus", "2", "--zero", stage, "--format", "json", "--gpu", "b200")

    outcome = run_graphmem("plan", f"{tmp_path / 'model.py'}:build", *options)

    (found,) = json.loads(outcome.stdout)["stages"]
    buffer = found["at_peak"].get("communication", 0)
    assert buffer == 4 * 500_000_000 * at_the_loss


DISTILLED = """
import torch
from torch import nn


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = nn.ModuleList(nn.Sequential(nn.Linear(64, 64, False)) for _ in range(3))
        self.student = nn.ModuleList(nn.Sequential(nn.Linear(64, 64, False)) for _ in range(2))
        self.head = nn.Linear(64, 8, False)
        self.teacher.requires_grad_(False)

    def forward(self, x):
        y = x
        with torch.no_grad():
            for layer in self.teacher:
                x = layer(x)
        for layer in self.student:
            y = layer(y)
        return self.head(y - x)


def build():
    return Pair(), torch.randn(4, 64)
"""


@pytest.mark.parametrize("wrap", [(), ("--wrap", "student.*", "--wrap", "teacher.*")])
def test_fsdp_gathers_for_the_backward_pass_what_runs_in_it(
    run_graphmem: Run, tmp_path: Path, wrap: tuple[str, ...]
) -> None:
    """The units are blocks that train. The root stays gathered, the teacher runs only forward."""
    (tmp_path / "model.py").write_text(DISTILLED)
    target = f"{tmp_path / 'model.py'}:build"

    outcome = run_graphmem("plan", target, "--gpus", "2", "--fsdp", *wrap, "--format", "json")

    plan = json.loads(outcome.stdout)
    sent = {each["collective"]: each["bytes"] for each in plan["stages"][0]["traffic"]}
    square, head = 64 * 64 * 4, 64 * 8 * 4
    assert sent["all-gather"] == (3 * square + head + 2 * 2 * square) // 2
    assert sent["reduce-scatter"] == (2 * square + head) // 2
    units = "student.[0-1] and teacher.[0-2]" if wrap else "student.[0-1]"
    assert f"FSDP: a unit for each of {units} and one for the rest" in " ".join(plan["notes"])


AVERAGED = """
import copy
import graphmem, torch
from torch import nn


def build():
    model = nn.Linear(64, 64).cuda()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters())

    def step():
        model(torch.zeros(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight, 0.1)

    return graphmem.TrainingStep(model=model, step=step)
"""


def test_an_average_of_the_weights_is_neither_sharded_nor_gathered(
    run_graphmem: Run, tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(AVERAGED)
    target = f"{tmp_path / 'model.py'}:build"

    outcome = run_graphmem("plan", target, "--gpus", "2", "--fsdp", "--format", "json")

    (stage,) = json.loads(outcome.stdout)["stages"]
    weights = 4 * (64 * 64 + 64)
    sent = {each["collective"]: each["bytes"] for each in stage["traffic"]}
    assert sent == {"all-gather": weights // 2, "reduce-scatter": weights // 2}
    assert stage["at_peak"]["parameter"] == weights // 2 + weights  # its share, and all gathered


def test_one_gpu_says_that_it_is_exact(run_graphmem: Run) -> None:
    planned = run_graphmem("plan", LLAMA, *TINY, "--format", "json")
    analyzed = run_graphmem("analyze", LLAMA, *TINY, "--format", "json")

    plan, report = json.loads(planned.stdout), json.loads(analyzed.stdout)
    assert plan["notes"] == ["exact: one GPU, the same events as `graphmem analyze`"]
    assert plan["stages"][0]["peak"] == report["peak"]["allocated"]


def test_gradients_that_live_in_ddps_buckets_are_gradients(run_graphmem: Run) -> None:
    """As in a run with `gradient_as_bucket_view`; else the buckets are there beside them."""
    held = []
    for options in ([], ["--bucket-view"]):
        outcome = run_graphmem("plan", LLAMA, *TINY, "--gpus", "2", *options, "--format", "json")
        held.append(json.loads(outcome.stdout)["stages"][0]["most"])

    separate, views = held
    assert separate["communication"] == separate["gradient"] == separate["parameter"]
    assert "communication" not in views
    assert views["gradient"] == views["parameter"] == separate["parameter"]


def test_what_does_not_fit_exits_1(run_graphmem: Run) -> None:
    """16 GB cannot hold the logits of 4 x 4096 tokens and 200,000 classes: 13 GB in fp32, twice."""
    outcome = run_graphmem(
        *("plan", LLAMA, *TINY, "--gpu", "v100", "--set", "seq=4096", "--set", "vocab=200000"),
        *("--gpus", "2", "--zero", "1", "--steps", "1"),
    )

    assert outcome.exit_code == 1
    assert "does NOT fit" in outcome.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", "6", "--tp", "4"], "make 4 ranks, but there are 6"),
        (["--gpus", "8", "--dp", "3", "--tp", "2"], "make 6 ranks, but there are 8"),
        (["--gpus", "5", "--tp", "5"], "heads"),
        (["--gpus", "8", "--pp", "8"], "8 stages are too many for the 4 blocks"),
        (["--fsdp", "--zero", "2"], "two ways of sharding"),
        (["--gpus", "2", "--wrap", "layers.*"], "--wrap is for weights that are sharded"),
        (["--gpus", "2", "--no-reshard", "--zero", "2"], "--no-reshard is for weights"),
        (["--gpus", "2", "--bucket-view", "--fsdp"], "DDP's buckets; dp 2, fsdp has none"),
        (["--bucket-view"], "DDP's buckets; one GPU has none"),
        (["--gpus", "2", "--offload", "parameters"], "needs weights that replicas shard"),
        (["--fsdp", "--offload", "optimizer,parameters"], "needs weights that replicas shard"),
        (["--offload", "activations"], "is unknown"),
        (["--stages", "a,b"], "are not numbers"),
        (["--sp"], "tensor-parallel ranks"),
        (["--fsdp", "--gpus", "2", "--wrap", "layer.*"], "no module is called"),
        (["--blocks", "h"], "no list of modules is called 'h'"),
        (["--dask", "tcp://nowhere:1"], "are for searches"),
        (["--top", "3"], "are for searches"),
        (["--sort", "traffic"], "are for searches"),
        (["--gpus", "2", "--ep", "2"], "expert parallelism 2 has no experts to split"),
        (["--gpus", "2", "--ep", "2", "--search"], "expert parallelism 2 has no experts to split"),
        (["--search", "--dask", "nowhere"], "no Dask scheduler at nowhere"),
        (["--search", "--gpus", "2", "--wrap", "layers.*"], "not those of --wrap"),
    ],
)
def test_impossible_layouts_exit_2(run_graphmem: Run, options: list[str], message: str) -> None:
    outcome = run_graphmem("plan", LLAMA, *TINY, *options)

    assert outcome.exit_code == 2
    assert message in outcome.stderr
    assert "hint: " in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_the_help_names_the_default_degrees(run_graphmem: Run) -> None:
    words = " ".join(run_graphmem("plan", "--help").stdout.replace("│", " ").split())

    for option in ("tensor", "pipeline", "context", "expert"):
        assert re.search(rf"{option} parallel: [^\[]*\[default: 1\]", words, re.IGNORECASE)
    assert "How many layouts a search shows. [default: 10]" in words


def test_search_ranks_layouts_that_fit_by_bytes_sent(run_graphmem: Run) -> None:
    outcome = run_graphmem(
        *("plan", LLAMA, *TINY, "--gpus", "4", "--search", "--sort", "traffic", "--top", "4"),
        *("--tp", "2", "--format", "json"),
    )

    assert outcome.exit_code == 0
    found = json.loads(outcome.stdout)
    assert found["tried"] > 50
    sent = [each["traffic"] for each in found["fitting"]]
    assert len(sent) == 4
    assert sent == sorted(sent)
    assert {each["layout"]["tensor"] for each in found["fitting"]} == {2}


def test_search_on_dask(run_graphmem: Run) -> None:
    """The workers' sampling profiler, which holds frames and so their tensors, does no harm."""
    distributed = pytest.importorskip("distributed")
    import dask

    watched = dask.config.set({"distributed.worker.profile.interval": "1ms"})
    with (
        watched,
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
    ):
        outcome = run_graphmem(
            *("plan", LLAMA, *TINY, "--gpus", "2", "--search", "--top", "1", "--format", "json"),
            *("--dask", cluster.scheduler_address, "--also", LLAMA, "--checkpoint", "layers.*"),
        )

    assert outcome.exit_code == 0
    one, other = json.loads(outcome.stdout)
    assert one["fitting"] == other["fitting"]


def test_a_step_of_its_own_names_its_parameters_after_the_first_backward_pass(
    run_graphmem: Run, tmp_path: Path
) -> None:
    """Its `w` is the parameter, which the first step of the optimizer names."""
    (tmp_path / "model.py").write_text(
        "import torch\nfrom graphmem import TrainingStep\n"
        "def build():\n"
        "    model = torch.nn.Linear(256, 256, bias=False).cuda()\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    def step():\n"
        "        w = model.weight\n"
        "        model(torch.randn(16, 256, device='cuda')).sum().backward()\n"
        "        optimizer.step()\n"
        "    return TrainingStep(step=step)\n"
    )
    done = run_graphmem("plan", f"{tmp_path / 'model.py'}:build", "--gpus", "4", "--format", "json")

    assert done.exit_code == 0, done.stderr
    (stage,) = json.loads(done.stdout)["stages"]
    assert stage["at_peak"]["parameter"] == 256 * 256 * 4


@pytest.mark.parametrize(
    ("layout", "further"),
    [
        (("--gpus", "4", "--fsdp"), 0),
        (("--gpus", "4", "--tp", "2"), 1),
        (("--gpus", "8", "--tp", "2", "--pp", "2", "--micro-batches", "2"), 2),
    ],
)
def test_a_rank_leaves_room_for_nccl(
    run_graphmem: Run, layout: tuple[str, ...], further: int
) -> None:
    """An H100's context, 751 MiB, and as `graphmem run` counts 902 MiB and 388 for each further.

    Ranks are connected by one communicator for each degree (graphmem/gpus/nccl.py).
    """
    plan = json.loads(run_graphmem("plan", LLAMA, *TINY, *layout, "--format", "json").stdout)

    assert plan["context"] == (751 + 902 + 388 * further) << 20
    for stage in plan["stages"]:
        assert stage["headroom"] == plan["memory"] - plan["context"] - stage["reserved"]
