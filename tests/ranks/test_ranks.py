"""One of many ranks runs alone: `graphmem run` in a launcher's environment or with options.

The references are real NCCL runs of the same scripts on H100s, `fixtures/cuda/ranks`
(tools/recordings_ranks.txt has their arguments): the sizes a rank allocates, in order.
"""

from __future__ import annotations

import gzip
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphmem.torch_releases import installed_release
from tests.conftest import Outcome
from tests.support.places import ROOT

Run = Callable[..., Outcome]
RANKS = ROOT / "fixtures" / "ranks"
RECORDED = ROOT / "fixtures" / "cuda" / "ranks"

SLOW = pytest.mark.slow
REDUCED_AND_DROPPED = (
    "weight = torch.ones(1 << 18, device='cuda', requires_grad=True)",
    "for _ in range(3):",
    "    (weight * weight).sum().backward()",
    "    dist.all_reduce(weight.grad, async_op=True).get_future().wait()",
    "    weight.grad = None",
)
"""Three steps' gradients, of 1 MiB each, as a program reduces and drops them."""
BEFORE_2_15 = pytest.mark.skipif(
    installed_release() >= (2, 15), reason="its Python frees and gathers in another order"
)
ONLY_2_11 = pytest.mark.skipif(
    not torch.__version__.startswith("2.11"),
    reason="later releases' pipeline stages exchange other objects, and send tensors separately",
)


@pytest.fixture
def run(run_graphmem: Run) -> Run:

    def run_it(*arguments: str | Path) -> Outcome:
        return run_graphmem("run", *map(str, arguments))

    return run_it


def allocations(events: dict[str, Any]) -> list[int]:
    return [row[1] for row in events["events"] if row[0] == "a" and row[1]]


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        (
            "torchrun --nproc_per_node=8 --nnodes 2 train.py --lr 1",
            "--nproc-per-node 8 train.py --lr 1",
        ),
        (
            "-m torch.distributed.run --nproc-per-node 4 -m pkg.train",
            "--nproc-per-node 4 -m pkg.train",
        ),
        ("/usr/bin/accelerate launch --num_processes 2 train.py", "--nproc-per-node 2 train.py"),
        ("python3.12 train.py 'a b'", "train.py 'a b'"),
        ("deepspeed", "SCRIPT"),
    ],
)
def test_a_launcher_is_refused_with_the_command_to_run_instead(
    run: Run, command: str, instead: str
) -> None:
    done = run(*shlex.split(command))

    assert done.exit_code == 2
    assert "starts other processes, which graphmem does not follow" in done.stderr
    assert f"name the script itself: graphmem run {instead}\n" in done.stderr


class TestRecordedRanks:
    """Two iterations of each script; the recordings have four."""

    @pytest.mark.parametrize(
        ("name", "rank", "script"),
        [
            ("ddp", 1, "ddp.py"),
            pytest.param(
                *("ddp_bf16_hook", 0, "ddp.py --bf16-hook --autocast"),
                marks=SLOW,  # test_a_race_has_a_bound runs it, too
            ),
            pytest.param("ddp_bucket_view", 0, "ddp.py --gradient-as-bucket-view", marks=SLOW),
            pytest.param("ddp_find_unused", 0, "ddp.py --find-unused", marks=SLOW),
            pytest.param(
                *("ddp_static_graph", 0, "ddp.py --static-graph --gradient-as-bucket-view"),
                marks=SLOW,  # as is this one
            ),
            pytest.param("fsdp2", 1, "fsdp2.py", marks=BEFORE_2_15),
            pytest.param(
                *("fsdp2_checkpoint", 0, "fsdp2.py --checkpoint --meta"),
                marks=[BEFORE_2_15, SLOW],
            ),
            ("fsdp1", 1, "fsdp1.py"),
            ("fsdp1_offload", 0, "fsdp1_more.py --offload"),
            pytest.param("ddp_powersgd", 1, "ddp_more.py --hook powersgd --steps 4", marks=SLOW),
            pytest.param("tp", 1, "tensor_parallel.py", marks=SLOW),
            ("tp_sequence", 0, "tensor_parallel.py --sequence-parallel"),
            pytest.param("pipeline_gpipe", 0, "pipeline.py --schedule gpipe", marks=ONLY_2_11),
            pytest.param(
                *("pipeline_interleaved", 1, "pipeline.py --schedule interleaved"), marks=ONLY_2_11
            ),
            ("zero", 1, "zero_optimizer.py"),
            pytest.param("collectives", 0, "collectives.py", marks=BEFORE_2_15),
        ],
    )
    def test_a_rank_allocates_what_it_did_on_the_card(
        self,
        run: Run,
        tmp_path: Path,
        name: str,
        rank: int,
        script: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.delitem(sys.modules, "model", raising=False)  # another test's
        target, *arguments = script.split()
        record = [ROOT / "tools" / "record_cuda.py", "-o", tmp_path / name, RANKS / target]
        options = ["--nproc-per-node", "2", "--rank", str(rank), "--torch", "2.11"]

        if name != "collectives" and "--steps" not in arguments:
            arguments += ["--steps", "2"]
        done = run("--gpu", "h100-80gb", *options, *record, *arguments)

        assert done.exit_code == 0, done.stderr
        made = f"{name}.rank{rank}.events.json"
        predicted = json.loads((tmp_path / made).read_text())
        found = allocations(predicted)
        recorded = json.loads(gzip.decompress((RECORDED / f"{made}.gz").read_bytes()))
        expected = allocations(recorded)
        if name == "fsdp2_checkpoint":  # PyTorch's fake tensors look for the card: `empty(1)`
            assert expected.pop(0) == 4
        assert found == expected[: len(found)]
        assert len(found) > (150 if name == "collectives" else 300)
        if name.startswith(("tp", "pipeline")):
            marks = [events["marks"][-1]["max_allocated"] for events in (predicted, recorded)]
            assert marks[0] == marks[1]


def _report(run: Run, tmp_path: Path, *script: str) -> Any:
    report = tmp_path / "report.json"
    options = ["--nproc-per-node", "2", "--format", "json", "-o", report]
    done = run(*options, RANKS / script[0], *script[1:], "--steps", "2")
    assert done.exit_code == 0, done.stderr
    return json.loads(report.read_text())


class TestOwners:
    """The decoder of fixtures/ranks has 16,927,744 parameters of 4 bytes, 3,150,336 in a block."""

    PARAMETERS = 4 * 16_927_744
    BLOCK = 4 * 3_150_336

    @pytest.fixture(autouse=True)
    def _own_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "model", raising=False)  # another test's

    def test_buckets_of_gradients_are_communication(self, run: Run, tmp_path: Path) -> None:
        found = _report(run, tmp_path, "ddp.py")

        held = found["at_peak"]
        assert held["by_category"]["communication"] == self.PARAMETERS
        assert held["by_category"]["parameter"] == self.PARAMETERS
        assert held["by_category"]["optimizer_state"] == 2 * self.PARAMETERS
        assert found["model"]["gradient_bytes"] == self.PARAMETERS
        assert "gradient bucket 2" in {each["reason"] for each in held["holders"]}

    def test_gradients_in_buckets_are_gradients(self, run: Run, tmp_path: Path) -> None:
        found = _report(run, tmp_path, "ddp.py", "--gradient-as-bucket-view")

        assert found["at_peak"]["by_category"]["communication"] == 0
        assert found["model"]["gradient_bytes"] == self.PARAMETERS

    def test_shards_are_parameters_gradients_and_state(self, run: Run, tmp_path: Path) -> None:
        """Half of each; gathered parameters are parameters, but their buffers are not."""
        found = _report(run, tmp_path, "fsdp2.py")

        model, held = found["model"], found["at_peak"]
        assert model["parameter_bytes"] == model["gradient_bytes"] == self.PARAMETERS // 2
        assert model["optimizer_state_bytes"] == 2 * self.PARAMETERS // 2
        assert held["by_category"]["communication"] == self.BLOCK
        buffers = [each for each in held["holders"] if each["category"] == "communication"]
        assert [each["reason"] for each in buffers] == ["all-gather buffer of blocks.2"]
        owners = {each["name"]: each["kind"] for one in held["holders"] for each in one["owners"]}
        gathered = {kind for name, kind in owners.items() if name.endswith("(all-gathered)")}
        assert gathered == {"parameter"}

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("ddp_static_graph", ["--static-graph", "--gradient-as-bucket-view"]),
            ("ddp_bf16_hook", ["--bf16-hook", "--autocast"]),
        ],
    )
    def test_a_race_has_a_bound(self, run: Run, name: str, options: list[str]) -> None:
        """NCCL's thread held a bucket longer in one recording, and copies of some in the other."""
        recording = json.loads(
            gzip.decompress((RECORDED / f"{name}.rank0.events.json.gz").read_bytes())
        )
        recorded = recording["marks"][-1]["max_allocated"]
        card = ["--gpu", "h100-80gb", "--torch", "2.11", "--nproc-per-node", "2"]

        done = run(*card, RANKS / "ddp.py", *options, "--steps", "4")

        told = " ".join(done.stderr.split())
        peak, late_peak = (
            int(re.search(before + r" [^(]*\(([\d,]+) bytes\)", told)[1].replace(",", ""))
            for before in ("peak", "the peak is then")
        )
        assert peak < recorded <= late_peak
        assert name != "ddp_static_graph" or recorded == late_peak


class TestWorlds:
    def script(self, folder: Path, *lines: str) -> Path:
        path = folder / "script.py"
        path.write_text("\n".join(["import torch, torch.distributed as dist", *lines]) + "\n")
        return path

    def test_options_make_the_environment_of_torchrun(self, run: Run, tmp_path: Path) -> None:
        script = self.script(
            tmp_path,
            "dist.init_process_group('nccl')",
            "print(dist.get_rank(), dist.get_world_size(), dist.get_backend())",
            "dist.barrier()",
            "import os",
            "print(os.environ['LOCAL_RANK'], os.environ['GROUP_RANK'])",
            "print(dist.is_torchelastic_launched())",  # so DINOv3 knows that there are ranks
            "dist.destroy_process_group()",
        )

        done = run("--nproc-per-node", "8", "--nnodes", "2", "--rank", "9", script)

        assert (done.exit_code, done.stdout) == (0, "9 16 nccl\n1 1\nTrue\n")

    def test_a_timeout_can_be_set(self, run: Run, tmp_path: Path) -> None:
        """As torchtitan does after its first step (`set_pg_timeouts`), of NCCL's groups."""
        script = self.script(
            tmp_path,
            "import datetime, warnings",
            "warnings.simplefilter('error')",
            "from torch.distributed import distributed_c10d",
            "dist.init_process_group('nccl')",
            "set_it = getattr(dist, 'set_timeout', distributed_c10d._set_pg_timeout)",  # since 2.15
            "set_it(datetime.timedelta(seconds=9), dist.group.WORLD)",
            "print('set')",
            "dist.destroy_process_group()",
        )

        done = run("--nproc-per-node", "2", script)

        assert (done.exit_code, done.stdout) == (0, "set\n"), done.stderr

    def test_a_communicator_takes_its_part_of_the_card(self, run: Run, tmp_path: Path) -> None:
        """902 MiB for NCCL's first, none for gloo's, 388 for the next: graphmem/gpus/nccl.py."""
        script = self.script(
            tmp_path,
            "dist.init_process_group('nccl')",
            "held = torch.ones(8, device='cuda')",
            "left = [torch.cuda.mem_get_info()[0] >> 20]",
            "for group in (None, None, dist.new_group(backend='gloo'), dist.new_group()):",
            "    dist.all_reduce(held, group=group)",
            "    left.append(torch.cuda.mem_get_info()[0] >> 20)",
            "print(*(left[0] - each for each in left))",
        )

        done = run("--nproc-per-node", "2", script)

        assert (done.exit_code, done.stdout) == (0, "0 902 902 902 1290\n")
        assert "902.0 MiB of the card (378.0 MiB to 906.0 MiB were seen)" in " ".join(
            done.stderr.split()
        )

    def test_an_optimizer_may_keep_a_sharded_tensor(self, run: Run, tmp_path: Path) -> None:
        """As torchrec's do; it answers few questions. 1,000 x 16 numbers of it are here."""
        script = self.script(
            tmp_path,
            "from torch.distributed._shard import sharded_tensor, sharding_spec",
            "dist.init_process_group('nccl')",
            "weight = torch.ones(1000, 16, device='cuda', requires_grad=True)",
            "moment = sharded_tensor.zeros(",
            "    sharding_spec.ChunkShardingSpec(0, ['rank:0/cuda:0', 'rank:1/cuda:1']), 2000, 16)",
            "optimizer = torch.optim.SGD([weight])",
            "optimizer.state[weight]['moment'] = moment",
            "for _ in range(2):",
            "    weight.sum().backward()",
            "    optimizer.step()",
            "    optimizer.zero_grad()",
        )

        done = run("--nproc-per-node", "2", "--rank", "0", script)

        assert done.exit_code == 0, done.stderr
        assert re.search(rf"optimizer state +62.5 KiB +{4 * 1000 * 16:,}", done.stderr)

    def test_a_barrier_of_new_groups_waits_for_nobody(self, run: Run, tmp_path: Path) -> None:
        """OLMo-core sets the variable; for each group PyTorch would wait ten minutes here."""
        script = tmp_path / "train.py"
        lines = (
            "import os, torch.distributed as dist",
            "os.environ['TORCH_DIST_INIT_BARRIER'] = '1'",
            "dist.init_process_group('nccl')",
            "print(dist.get_world_size(), dist.get_world_size(dist.new_group([1, 2])))",
        )
        script.write_text("\n".join(lines))

        done = run("--nproc-per-node", "4", "--rank", "2", script)

        assert done.stdout == "4 2\n"

    def test_one_group_is_destroyed(self, run: Run, tmp_path: Path) -> None:
        """`destroy_process_group` forgets the group's name before it asks the group for it."""
        script = self.script(
            tmp_path,
            "dist.init_process_group('nccl')",
            "dist.destroy_process_group(dist.new_group([0, 1]))",
            "print(dist.is_initialized())",
        )

        done = run("--nproc-per-node", "2", script)

        assert (done.exit_code, done.stdout) == (0, "True\n"), done.stderr

    def test_a_device_mesh_needs_no_other_rank(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", "5")
        monkeypatch.setenv("WORLD_SIZE", "8")
        script = self.script(
            tmp_path,
            "from torch.distributed.device_mesh import init_device_mesh",
            "mesh = init_device_mesh('cuda', (2, 4), mesh_dim_names=('dp', 'tp'))",
            "print(mesh['dp'].get_local_rank(), mesh['tp'].get_local_rank())",
        )

        done = run(script)

        assert (done.exit_code, done.stdout) == (0, "1 1\n")

    @pytest.mark.slow  # objects of one rank reach the others by other collectives, too
    def test_an_object_of_another_rank_is_what_that_rank_sends(
        self, run: Run, tmp_path: Path
    ) -> None:
        """As pipeline stages exchange shapes; rank 0 runs until it has sent the object."""
        script = self.script(
            tmp_path,
            "dist.init_process_group('nccl')",
            "torch.cuda.set_device(dist.get_rank())",
            "found = [{'shape': (2, 3), 'rank': dist.get_rank()}]",
            "if dist.get_rank() == 0: dist.send_object_list(found, dst=1)",
            "else: dist.recv_object_list(found, src=0); print(found)",
        )

        done = run("--nproc-per-node", "2", "--rank", "1", script)

        assert (done.exit_code, done.stdout) == (0, "[{'shape': (2, 3), 'rank': 0}]\n")

    def test_waiting_for_an_object_nobody_sends_is_an_error(self, run: Run, tmp_path: Path) -> None:
        """Each waits for the other, which would hang on real cards."""
        script = self.script(
            tmp_path,
            "dist.init_process_group('nccl')",
            "torch.cuda.set_device(dist.get_rank())",
            "dist.recv_object_list([None], src=1 - dist.get_rank())",
        )

        done = run("--nproc-per-node", "2", "--rank", "1", script)

        assert done.exit_code == 2
        assert "rank 1 waits for a message that rank 0 does not send" in done.stderr

    def test_remote_calls_are_rejected_at_once(self, run: Run, tmp_path: Path) -> None:
        """No process answers; PyTorch would wait for one in C++, where no signal is handled."""
        script = self.script(
            tmp_path,
            "import torch.distributed.rpc as rpc",
            "rpc.init_rpc('worker0', rank=0, world_size=2)",
        )

        done = run("--nproc-per-node", "2", script)

        assert done.exit_code == 2
        assert "torch.distributed.rpc does not work under graphmem run" in done.stderr

    @pytest.mark.parametrize(
        ("call", "told"),
        [
            (
                "dist.reduce_scatter_tensor(card(3), card(7))",
                "ValueError: input tensor must be the same size as output size times world size",
            ),
            (
                "dist.reduce_scatter_tensor(card(3), card(6).int())",
                "TypeError: input tensor must be the same type as the output tensor.",
            ),
            (
                "dist.all_gather_into_tensor(card(7), card(3))",
                "output tensor size must be equal to world_size times input tensor size",
            ),
            (
                "dist.all_gather_into_tensor(card(6), card(3).int())",
                "TypeError: output tensor must have the same type as input tensor",
            ),
            (
                "dist.all_to_all_single(card(7), card(7), [3, 3], [4, 3])",
                "RuntimeError: Split sizes doesn't match total dim 0 size",
            ),
            (
                "dist.all_to_all_single(card(7), card(7), [7], [4, 3])",
                "RuntimeError: Number of tensor splits not equal to group size",
            ),
            (
                "dist.all_to_all_single(card(7), card(7), [3, 4])",
                "RuntimeError: Tensor's dim 0 does not divide equally across group size",
            ),
            ("dist.send(card(2), 2)", "Send: invalid root 2 (root should be in the 0..2 range)"),
            ("dist.recv(card(2), -1)", "Recv: invalid root -1"),
            ("dist.broadcast(card(2), 9)", "Broadcast: invalid root 9"),
            ("dist.reduce(card(2), 2)", "Reduce: invalid root 2"),
            ("dist.all_reduce(torch.ones(2))", "No backend type associated with device type cpu"),
            ("dist.recv(card(2))", "ProcessGroupNCCL does not support recvAnysource"),
        ],
    )
    def test_an_uneven_shard_or_a_rank_outside_is_the_error_of_nccl(
        self, run: Run, tmp_path: Path, call: str, told: str
    ) -> None:
        """test/distributed/test_c10d_nccl.py, `test_reduce_scatter_base_basics` and its kin."""
        script = self.script(
            tmp_path,
            "dist.init_process_group('nccl')",
            "def card(size): return torch.ones(size, device='cuda')",
            call,
        )

        done = run("--nproc-per-node", "2", script)

        assert done.exit_code == 1
        assert told in done.stderr
        assert ", line 4" in done.stderr

    def test_a_rank_finds_modules_by_its_python_path(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ranks are started by `python -P`, which adds no folder; PYTHONPATH=. stays."""
        (tmp_path / "packages").mkdir()
        (tmp_path / "packages" / "beside.py").write_text("name = 'found'")
        script = self.script(tmp_path, "import beside", "print(beside.name)")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))

        command = [sys.executable, "-P", "-m", "graphmem", "run", "--nproc-per-node", "2", script]
        done = subprocess.run(command, capture_output=True, text=True, check=False)

        assert (done.returncode, done.stdout) == (0, "found\n"), done.stderr

    @pytest.mark.parametrize(
        ("lines", "told"),
        [
            (
                ("", "dist.init_process_group(rank=3, world_size=2)"),
                "rank 3 is not in a world of 2",
            ),
            (
                ("dist.init_process_group()", "dist.recv(torch.ones(2))"),
                "a message without a source is not modelled",
            ),
        ],
        ids=["a rank outside its world", "a message from any rank"],
    )
    def test_what_is_refused_is_told_with_the_programs_line(
        self, lines: tuple[str, str], told: str, run: Run, tmp_path: Path
    ) -> None:
        """The place is no line of a method that the standard library writes."""
        script = self.script(tmp_path, *lines)

        done = run("--nproc-per-node", "2", script)

        assert done.exit_code == 2
        assert f"stopped at {script}:3" in done.stderr
        assert told in done.stderr

    def test_fully_shard_makes_its_mesh_of_the_card(self, run: Run, tmp_path: Path) -> None:
        script = self.script(
            tmp_path,
            "from torch.distributed.fsdp import fully_shard",
            "dist.init_process_group()",
            "model = fully_shard(torch.nn.Linear(64, 64))",
            "print(model.weight.device, *model.weight.to_local().shape)",
        )

        done = run("--nproc-per-node", "4", script)

        assert (done.exit_code, done.stdout) == (0, "cuda:0 16 64\n")

    @pytest.mark.skipif(installed_release() < (2, 10), reason="until 2.9 they are padded twice")
    def test_uneven_shards_are_padded_once(self, run: Run, tmp_path: Path) -> None:
        """7 rows are shards of 4 and 3, and the rank with the padded one allocates no more often.

        tests/ranks/test_gloo.py compares both with real ones.
        """
        script = self.script(
            tmp_path,
            "from torch.distributed.fsdp import fully_shard",
            "dist.init_process_group()",
            "torch.cuda.set_device(dist.get_rank())",
            "model = fully_shard(torch.nn.Linear(24, 7, bias=False))",
            "count = lambda: torch.cuda.memory_stats()['allocation.all.allocated']",
            "rows = torch.zeros(2, 24, device='cuda')",
            "before = count()",
            "model(rows)",
            "print(count() - before)",
        )

        whole, padded = (run("--nproc-per-node", "2", "--rank", rank, script) for rank in "01")

        assert int(padded.stdout) == int(whole.stdout) > 0

    def test_offloaded_shards_made_on_meta_are_those_given_memory_on_the_host(
        self, run: Run, tmp_path: Path
    ) -> None:
        """Neither the old ones nor the new ones are on the card, which does not make them equal."""
        script = self.script(
            tmp_path,
            "from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard",
            "dist.init_process_group('cpu:gloo,cuda:nccl')",
            "with torch.device('meta'):",
            "    model = torch.nn.Linear(64, 64)",
            "fully_shard(model, offload_policy=CPUOffloadPolicy())",
            "model.to_empty(device='cpu')",
            "print(*model(torch.zeros(2, 64, device='cuda')).shape)",
        )

        done = run("--nproc-per-node", "2", script)

        assert (done.exit_code, done.stdout) == (0, "2 64\n")

    def test_a_random_tensor_in_shards_has_the_memory_of_its_shard(
        self, run: Run, tmp_path: Path
    ) -> None:
        """1 MiB of 8; the generator's state was on the card briefly."""
        script = self.script(
            tmp_path,
            "from torch.distributed.tensor import init_device_mesh, randn, Shard",
            "mesh = init_device_mesh('cuda', (8,))",
            "held = randn(8, 1 << 18, device_mesh=mesh, placements=[Shard(0)])",
            "print(torch.cuda.memory_allocated() >> 20)",
        )

        done = run("--nproc-per-node", "8", script)

        assert (done.exit_code, done.stdout) == (0, "1\n")

    def test_a_list_of_equal_tensors_is_gathered_through_a_flat_one(
        self, run: Run, tmp_path: Path
    ) -> None:
        """8 tensors of 4 MiB, the one sent, and 8 x 4 MiB during the gather."""
        script = self.script(
            tmp_path,
            "dist.init_process_group('nccl')",
            "sent = torch.ones(1 << 20, device='cuda')",
            "gathered = [torch.empty_like(sent) for _ in range(8)]",
            "dist.all_gather(gathered, sent)",
            "print(torch.cuda.memory_allocated() >> 20, torch.cuda.max_memory_allocated() >> 20)",
        )

        done = run("--nproc-per-node", "8", script)

        assert (done.exit_code, done.stdout) == (0, "36 68\n")

    def test_a_list_that_nobody_keeps_is_held_by_its_collective(
        self, run: Run, tmp_path: Path
    ) -> None:
        """1 MiB, two of the list and two of the flat tensor; nanochat's peak has such lists."""
        script = self.script(
            tmp_path,
            "dist.init_process_group('nccl')",
            "sent = torch.ones(1 << 18, device='cuda')",
            "def listed(): return [torch.empty_like(sent) for _ in range(2)]",
            "dist.all_gather(listed(), sent, async_op=True).get_future().wait()",
            "print(torch.cuda.memory_allocated() >> 20)",
        )

        done = run("--nproc-per-node", "2", script)

        assert (done.exit_code, done.stdout) == (0, "5\n")

    def test_a_barrier_leaves_a_byte_on_the_card(self, run: Run, tmp_path: Path) -> None:
        """A block of 512 bytes, which the next barrier replaces."""
        script = self.script(
            tmp_path,
            "dist.init_process_group('nccl')",
            "for _ in range(2): dist.barrier()",
            "print(torch.cuda.memory_allocated())",
        )

        done = run("--nproc-per-node", "2", script)

        assert (done.exit_code, done.stdout) == (0, "512\n")

    def test_a_message_is_held_by_its_work_and_one_of_a_batch_by_nothing(
        self, run: Run, tmp_path: Path
    ) -> None:
        """A batch has one work without a result; 1 MiB, sent and received."""
        script = self.script(
            tmp_path,
            "dist.init_process_group('nccl')",
            "def tensors(): return (torch.empty(1 << 18, device='cuda') for _ in range(2))",
            "def held(): return torch.cuda.memory_allocated() >> 20",
            "works = [dist.isend(next(tensors()), 1), dist.irecv(next(tensors()), 1)]",
            "for work in works: work.wait()",
            "print(len(works), held())",
            "del work, works",
            "kinds = (dist.isend, dist.irecv)",
            "messages = [dist.P2POp(each, next(tensors()), 1) for each in kinds]",
            "works = dist.batch_isend_irecv(messages)",
            "del messages",
            "print(len(works), held())",
        )

        done = run("--nproc-per-node", "2", script)

        assert (done.exit_code, done.stdout) == (0, "2 2\n1 0\n")

    def test_an_optimizer_holds_gradients_that_it_reduces_until_its_next_step(
        self, run: Run, tmp_path: Path
    ) -> None:
        """A gradient of 1 MiB, whose reduction is waited for by its future only.

        A second collective of the step comes before NCCL's thread has polled; the first one of the
        next step releases the gradient, and that step's holds the next.
        """
        script = self.script(
            tmp_path,
            "dist.init_process_group('nccl')",
            "weight = torch.ones(1 << 18, device='cuda', requires_grad=True)",
            "small = torch.ones(1, device='cuda')",
            "before = torch.cuda.memory_allocated()",
            "for _ in range(2):",
            "    (weight * weight).sum().backward()",
            "    print('backward', torch.cuda.memory_allocated() - before >> 20)",
            "    dist.all_reduce(small, async_op=True).get_future().wait()",
            "    dist.all_reduce(weight.grad, async_op=True).get_future().wait()",
            "    dist.all_reduce(small, async_op=True).get_future().wait()",
            "    weight.grad = None",
            "    print('step', torch.cuda.memory_allocated() - before >> 20)",
        )

        done = run("--nproc-per-node", "2", script)

        assert done.stdout.split() == ["backward", "1", "step", "1", "backward", "2", "step", "1"]

    def test_gradients_that_a_hook_reduces_outlast_the_collectives_of_the_optimizer(
        self, run: Run, tmp_path: Path
    ) -> None:
        """1 MiB: the optimizer's collective begins before NCCL's thread has polled.

        So one H100 held modded-nanogpt's 5 gradients of 50304 x 768, and as much that they are
        reduced to, into the next step: 736.875 MiB (docs/accuracy_compiled.md). The hook of that
        step's own gradient releases this one.
        """
        script = self.script(
            tmp_path,
            "dist.init_process_group('nccl')",
            "weight = torch.ones(1 << 18, device='cuda', requires_grad=True)",
            "small = torch.ones(1, device='cuda')",
            "def reduce(it): dist.all_reduce(it.grad, async_op=True).get_future().wait()",
            "weight.register_post_accumulate_grad_hook(reduce)",
            "before = torch.cuda.memory_allocated()",
            "for _ in range(2):",
            "    (weight * weight).sum().backward()",
            "    print('backward', torch.cuda.memory_allocated() - before >> 20)",
            "    dist.all_reduce(small, async_op=True).get_future().wait()",
            "    weight.grad = None",
            "    print('step', torch.cuda.memory_allocated() - before >> 20)",
        )

        done = run("--nproc-per-node", "2", script)

        assert done.stdout.split() == ["backward", "1", "step", "1", "backward", "1", "step", "1"]

    def test_after_the_last_optimizer_step_the_next_collective_releases_gradients(
        self, run: Run, tmp_path: Path
    ) -> None:
        """1 MiB of zeros for each step that another rank still runs, as under `Join`.

        Of three passes the H200 held two at most, until its group's next collectives began
        (fixtures/ranks/ddp_more.py --join 2).
        """
        script = self.script(
            tmp_path,
            "dist.init_process_group('nccl')",
            "weight = torch.ones(1, device='cuda', requires_grad=True)",
            "optimizer = torch.optim.SGD([weight], lr=0.1)",
            "weight.square().sum().backward()",
            "optimizer.step()",
            "def shadow():",
            "    zeros = torch.zeros(1 << 18, device='cuda')",
            "    dist.all_reduce(zeros, async_op=True).get_future().wait()",
            "for _ in range(3):",
            "    shadow()",
            "    print(torch.cuda.memory_allocated() >> 20)",
        )

        done = run("--nproc-per-node", "2", script)

        assert done.stdout.split() == ["1", "1", "1"]

    def test_collectives_in_flight_hold_their_tensors_until_they_are_waited_for(
        self, run: Run, tmp_path: Path
    ) -> None:
        """Three of 1 MiB in and out, faster than NCCL's thread polls; then what is received.

        Of those that nobody can wait for, the last holds its tensor until another begins.
        """
        script = self.script(
            tmp_path,
            "dist.init_process_group('nccl')",
            "def begin():",
            "    sent, got = (torch.empty(1 << 18, device='cuda') for _ in range(2))",
            "    return got, dist.all_to_all_single(got, sent, async_op=True)",
            "def allocated(): return torch.cuda.memory_allocated() >> 20",
            "begun = [begin() for _ in range(3)]",
            "print(allocated())",
            "for _, work in begun: work.wait()",
            "print(allocated())",
            "for _ in range(3): begin()",
            "print(allocated())",
        )

        done = run("--nproc-per-node", "2", script)

        assert done.stdout.split() == ["6", "3", "5"]

    def test_the_report_says_what_the_peak_is_if_a_gradient_is_held_for_one_step_more(
        self, run: Run, tmp_path: Path
    ) -> None:
        """1 MiB: the peak of the second step with the gradient of the first, and without."""
        script = self.script(
            tmp_path,
            "dist.init_process_group('nccl')",
            *REDUCED_AND_DROPPED,
            "print(torch.cuda.max_memory_allocated() + (1 << 20))",
        )

        done = run("--nproc-per-node", "2", script)

        told = " ".join(done.stderr.split())
        assert "up to 1.0 MiB (1,048,576 bytes) may be held until the one after that" in told
        assert f"and the peak is then 5.0 MiB ({int(done.stdout):,} bytes)" in told
        assert f"may be 5.0 MiB ({int(done.stdout):,} bytes), for collectives that" in told
        assert told.startswith("fits on NVIDIA A100-SXM4-80GB (79.256 GiB) 7")

    def test_what_is_held_longer_counts_as_blocks(self, run: Run, tmp_path: Path) -> None:
        """A gradient of 21 numbers, 84 bytes, is in a block of 512."""
        script = self.script(
            tmp_path,
            "dist.init_process_group('nccl')",
            *(line.replace("1 << 18", "21") for line in REDUCED_AND_DROPPED),
            "print(torch.cuda.max_memory_allocated() + 512)",
        )

        done = run("--nproc-per-node", "2", script)

        told = " ".join(done.stderr.split())
        assert "up to 512 B (512 bytes) may be held" in told
        assert f"({int(done.stdout):,} bytes), for collectives that" in told

    def test_the_verdict_doubts_a_card_that_gradients_held_longer_may_fill(
        self, run: Run, tmp_path: Path
    ) -> None:
        """1 MiB more, where half a MiB is left beside the 6 MiB that are reserved."""
        script = self.script(
            tmp_path,
            "dist.init_process_group('nccl')",
            "torch.cuda.set_per_process_memory_fraction(6.5 / 81157)  # of an A100's MiB",
            *REDUCED_AND_DROPPED,
        )

        done = run("--nproc-per-node", "2", script)

        assert (
            "fits on NVIDIA A100-SXM4-80GB (79.256 GiB), but may not: 1.0 MiB more" in done.stderr
        )

    def test_a_functional_collective_holds_nothing_once_waited_for(
        self, run: Run, tmp_path: Path
    ) -> None:
        """1 MiB is gathered from both ranks during a backward pass."""
        script = self.script(
            tmp_path,
            "import torch.distributed._functional_collectives as functional",
            "dist.init_process_group('nccl')",
            "class Gather(torch.autograd.Function):",
            "    @staticmethod",
            "    def forward(ctx, x): return x.clone()",
            "    @staticmethod",
            "    def backward(ctx, gradient):",
            "        before = torch.cuda.memory_allocated()",
            "        sent = torch.empty(1 << 18, device='cuda')",
            "        gathered = functional.all_gather_tensor(sent, 0, dist.group.WORLD)",
            "        whole = gathered.sum()",
            "        del sent, gathered, whole",
            "        print(torch.cuda.memory_allocated() - before)",
            "        return gradient",
            "Gather.apply(torch.ones(1, device='cuda', requires_grad=True)).backward()",
        )

        done = run("--nproc-per-node", "2", script)

        assert (done.exit_code, done.stdout) == (0, "0\n")

    @pytest.mark.parametrize(
        ("environment", "options", "told"),
        [
            ({"WORLD_SIZE": "many", "RANK": "0"}, [], "WORLD_SIZE=many is not a number"),
            ({"WORLD_SIZE": "4", "RANK": "4"}, [], "rank 4 is not in a world of 4"),
            ({}, ["--nproc-per-node", "2", "--rank", "2"], "rank 2 is not in a world of 2"),
            ({}, ["--nproc-per-node", "2", "--rank", "0,2"], "rank 2 is not in a world of 2"),
            ({}, ["--nproc-per-node", "2", "--rank", "one"], "--rank one names no rank"),
            (
                {},
                ["--nproc-per-node", "2", "--rank", "all", "--html", "page.html"],
                "--html and --save keep one rank",
            ),
            ({}, ["--nproc-per-node", "9", "--rank", "all"], "would work on card 8 of its node"),
            (
                {"RANK": "9", "WORLD_SIZE": "64", "LOCAL_RANK": "9", "LOCAL_WORLD_SIZE": "64"},
                [],
                "would work on card 9 of its node",
            ),
            ({}, ["--rank", "1"], "--rank needs --nproc-per-node"),
            ({}, ["--nnodes", "2"], "--nnodes needs --nproc-per-node"),
        ],
    )
    def test_a_nonexistent_rank_is_a_one_line_error(
        self,
        run: Run,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        environment: dict[str, str],
        options: list[str],
        told: str,
    ) -> None:
        for name, text in environment.items():
            monkeypatch.setenv(name, text)

        done = run(*options, self.script(tmp_path, "print('ran')"))

        assert done.exit_code == 2
        assert told in done.stderr
        assert done.stdout == ""


class TestCards:
    """A rank sees the cards of its node and works on one of them, as under torchrun."""

    @pytest.fixture
    def script(self, tmp_path: Path) -> Callable[..., Path]:
        def write(*lines: str) -> Path:
            path = tmp_path / "script.py"
            path.write_text("\n".join(["import torch", "import torch.distributed as dist", *lines]))
            return path

        return write

    def test_each_rank_works_on_the_card_of_its_local_rank(
        self, run: Run, script: Callable[..., Path]
    ) -> None:
        path = script(
            "print(torch.cuda.device_count(), torch.accelerator.device_count())",
            "torch.cuda.set_device(3)",
            "held = [torch.empty(256, device='cuda'), torch.empty(256).cuda(), torch.ones(256)]",
            "held += [held[2].to('cuda'), torch.nn.Linear(256, 1, bias=False).cuda().weight]",
            "print(*(tensor.device for tensor in held))",
            "print([torch.cuda.memory_allocated(card) for card in (0, 3)])",
            "print(torch.cuda.current_stream().device, torch.Generator('cuda').device)",
        )

        done = run("--nproc-per-node", "4", "--nnodes", "2", "--rank", "7", path)

        assert done.exit_code == 0, done.stderr
        assert done.stdout.splitlines() == [
            "4 4",
            "cuda:3 cuda:3 cpu cuda:3 cuda:3",
            "[0, 4096]",  # four of 1,024 bytes
            "cuda:3 cuda:3",
        ]

    def test_a_device_mesh_chooses_the_card(self, run: Run, script: Callable[..., Path]) -> None:
        path = script(
            "from torch.distributed.device_mesh import init_device_mesh",
            "init_device_mesh('cuda', (2,))",
            "print(torch.cuda.current_device(), torch.empty(1, device='cuda').device)",
        )

        done = run("--nproc-per-node", "2", "--rank", "1", path)

        assert (done.exit_code, done.stdout) == (0, "1 cuda:1\n")

    def test_a_tensor_on_the_card_of_another_rank_is_refused(
        self, run: Run, script: Callable[..., Path]
    ) -> None:
        done = run("--nproc-per-node", "2", "--rank", "1", script("torch.empty(1, device='cuda')"))

        assert done.exit_code == 2
        assert "this rank works on cuda:1, and a tensor goes to cuda:0" in done.stderr
        assert "script.py:3" in done.stderr

    def test_a_card_that_the_node_lacks_is_the_drivers_error(
        self, run: Run, script: Callable[..., Path]
    ) -> None:
        done = run("--nproc-per-node", "2", script("torch.cuda.set_device(2)"))

        assert done.exit_code == 1
        assert "CUDA error: invalid device ordinal" in done.stderr

    @pytest.mark.parametrize(
        "environment",
        [
            {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"},
            {
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
            },
            {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4"},
            {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_NNODES": "2"},
        ],
        ids=["torchrun", "mpirun", "srun", "srun of nodes"],
    )
    @pytest.mark.parametrize(("visible", "expected"), [(None, "5 8 1 4"), ("2", "5 8 1 1")])
    def test_launchers_are_understood(
        self,
        run: Run,
        script: Callable[..., Path],
        monkeypatch: pytest.MonkeyPatch,
        environment: dict[str, str],
        visible: str | None,
        expected: str,
    ) -> None:
        """Rank 5 on two nodes of four cards; a launcher may show each rank a single card."""
        for name, text in environment.items():
            monkeypatch.setenv(name, text)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        path = script(
            "import os",
            "dist.init_process_group('nccl')",
            "local = os.environ['LOCAL_RANK']",
            "print(dist.get_rank(), dist.get_world_size(), local, torch.cuda.device_count())",
        )

        done = run(path)

        assert (done.exit_code, done.stdout) == (0, f"{expected}\n")

    def test_cards_named_by_the_shell_are_real_ones(
        self, run: Run, script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")

        path = script(
            "import os",
            "print(torch.cuda.device_count(), os.environ['CUDA_VISIBLE_DEVICES'])",
        )

        done = run("--nproc-per-node", "8", path)

        assert (done.exit_code, done.stdout) == (0, "8 0,1,2,3,4,5,6,7\n")

    @pytest.mark.parametrize("rank", [0, pytest.param(2, marks=SLOW)])
    def test_objects_of_one_rank_reach_the_others(
        self, run: Run, script: Callable[..., Path], rank: int
    ) -> None:
        """Rank 2 has no such objects: ranks 0 and 1 run for it, for more than one iteration."""
        path = script(
            "dist.init_process_group('nccl')",
            "rank = dist.get_rank()",
            "torch.cuda.set_device(rank)",
            "weight = torch.nn.Parameter(torch.ones(4, device='cuda'))",
            "optimizer = torch.optim.SGD([weight])",
            "for _ in range(2): weight.sum().backward(); optimizer.step()",
            "sent = ['a', {1: 2}] if rank == 0 else [None, None]",
            "dist.broadcast_object_list(sent, src=0)",
            "got = [None]",
            "parts = [f'for {each}' for each in range(3)] if rank == 1 else None",
            "dist.scatter_object_list(got, parts, src=1)",
            "print(sent, got)",
        )

        done = run("--nproc-per-node", "3", "--rank", str(rank), path)

        assert (done.exit_code, done.stdout) == (0, f"['a', {{1: 2}}] ['for {rank}']\n")

    def test_a_long_object_is_gathered(self, run: Run, script: Callable[..., Path]) -> None:
        """Its bytes fill a part of one tensor for both ranks."""
        path = script(
            "dist.init_process_group('nccl')",
            "gathered = [None, None]",
            "dist.all_gather_object(gathered, 'x' * 20_000)",
            "print(*map(len, gathered))",
        )

        done = run("--nproc-per-node", "2", path)

        assert (done.exit_code, done.stdout) == (0, "20000 20000\n"), done.stderr

    @pytest.mark.parametrize("rank", [0, 1])
    def test_optimizer_states_of_other_shards_are_gathered(
        self, run: Run, script: Callable[..., Path], rank: int
    ) -> None:
        """Of 4 x 8 + 4 and 4 x 4 + 4 numbers each shard has 28, so no shard has all parameters."""
        path = script(
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP",
            "dist.init_process_group('nccl')",
            "torch.cuda.set_device(dist.get_rank())",
            "model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 4))",
            "model = FSDP(model, use_orig_params=True).cuda()",
            "optimizer = torch.optim.AdamW(model.parameters())",
            "model(torch.ones(2, 8, device='cuda')).sum().backward()",
            "optimizer.step()",
            "states = FSDP.optim_state_dict(model, optimizer)['state']",
            "for name, state in states.items():",
            "    print(name, *state['exp_avg'].shape, float(state['step']))",
        )

        done = run("--nproc-per-node", "2", "--rank", str(rank), path)

        assert done.exit_code == 0, done.stderr
        assert done.stdout.splitlines() == [
            "0.bias 4 1.0",
            "0.weight 4 8 1.0",
            "1.bias 4 1.0",
            "1.weight 4 4 1.0",
        ]

    def test_fsdp_takes_the_number_of_a_card(self, run: Run, script: Callable[..., Path]) -> None:
        """As Lightning passes it; it also reads DDP's statistics."""
        path = script(
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP",
            "dist.init_process_group('nccl')",
            "torch.cuda.set_device(1)",
            "model = FSDP(torch.nn.Linear(256, 256, bias=False), device_id=1)",
            "print(sum(each.numel() for each in model.parameters()))",
            "net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1).cuda(), [1])",
            "print(net._get_ddp_logging_data())",
        )

        done = run("--nproc-per-node", "2", "--rank", "1", path)

        assert (done.exit_code, done.stdout) == (0, "32768\n{}\n"), done.stderr

    @pytest.mark.parametrize(
        ("reducer", "ends"), [("python_reducer", "done"), ("ddp_optimizer", "C++ DDP Reducer")]
    )
    def test_ddp_under_compiled_autograd(
        self, run: Run, script: Callable[..., Path], reducer: str, ends: str
    ) -> None:
        """Only hooks in Python reduce there (`Reducer::Reducer`, c10d/reducer.cpp)."""
        path = script(
            "from torch._dynamo import compiled_autograd",
            f"torch._dynamo.config.optimize_ddp = '{reducer}'",
            "dist.init_process_group('nccl')",
            "net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())",
            "with compiled_autograd._enable(lambda graph: torch.compile(graph, backend='eager')):",
            "    net(torch.ones(2, 8).cuda()).sum().backward()",
            "print('done')",
        )

        done = run("--nproc-per-node", "2", "--rank", "0", path)

        assert ends in (done.stdout if reducer == "python_reducer" else done.stderr), done.stderr
        assert done.exit_code == (reducer != "python_reducer")

    def test_a_forward_pass_under_compiled_autograd_takes_no_more(
        self, run: Run, script: Callable[..., Path]
    ) -> None:
        """FSDP frees gathered weights that are saved, and gathers them again for the backward."""

        def printed(is_on: bool) -> str:
            path = script(
                "from torch.distributed.fsdp import fully_shard",
                "dist.init_process_group('nccl')",
                "net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(3)]).cuda()",
                "shards = [fully_shard(each) for each in (*net, net)]",
                f"torch._dynamo.config.compiled_autograd = {is_on}",
                "compiled = torch.compile(net, backend='eager')",
                "compiled(torch.ones(8, 256, device='cuda')).square().sum().backward()",
                "print(torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated())",
            )
            done = run("--nproc-per-node", "2", "--rank", "0", path)
            assert done.exit_code == 0, done.stderr
            return done.stdout

        assert printed(True) == printed(False)

    def test_a_store_of_a_script_uses_no_network(
        self, run: Run, script: Callable[..., Path]
    ) -> None:
        """TCPStore would wait for the other rank as a server, and for the server as a client."""
        path = script(
            "import datetime",
            "store = dist.TCPStore('localhost', 29555, 2, is_master=False)",
            "store.set('mine', 'here')",
            "print(store.get('mine').decode(), store.host, store.port)",
            "store.wait(['nobody'], datetime.timedelta(minutes=9))",
        )

        done = run("--nproc-per-node", "2", "--rank", "1", path)

        assert (done.exit_code, done.stdout) == (1, "here localhost 29555\n")
        assert "DistStoreError" in done.stderr

    def test_a_store_of_a_script_makes_no_file(
        self, run: Run, script: Callable[..., Path], tmp_path: Path
    ) -> None:
        """FileStore waits five minutes for what another rank should write."""
        kept = tmp_path / "kept"
        done = run(
            *("--nproc-per-node", "2"),
            script(f"store = dist.FileStore({str(kept)!r}, 2)", "store.wait(['nobody'])"),
        )

        assert done.exit_code == 1
        assert "DistStoreError" in done.stderr
        assert not kept.exists()

    def test_nccl_is_there(self, run: Run, script: Callable[..., Path]) -> None:
        path = script("print(dist.is_nccl_available(), torch.cuda.nccl.version() >= (2, 10))")

        done = run("--nproc-per-node", "2", path)

        assert (done.exit_code, done.stdout) == (0, "True True\n")


class TestSpawned:
    """`torch.multiprocessing.spawn` of the DDP tutorials: the chosen rank runs in this process."""

    SCRIPT = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def main(rank, size):
    address = "tcp://127.0.0.1:29501"
    dist.init_process_group("nccl", rank=rank, world_size=size, init_method=address)
    torch.cuda.set_device(rank)
    print(rank, dist.get_rank(), dist.get_world_size(), torch.empty(256).cuda().device)

if __name__ == "__main__":
    size = int(sys.argv[1]) if sys.argv[1:] else torch.cuda.device_count()
    mp.spawn(main, (size,), nprocs=size)
"""

    @pytest.mark.parametrize(
        ("options", "printed"),
        [
            (["--nproc-per-node", "3", "--rank", "2"], "2 2 3 cuda:2\n"),
            (["--nproc-per-node", "3"], "0 0 3 cuda:0\n"),
            ([], "0 0 1 cuda:0\n"),
        ],
    )
    def test_one_of_them_runs(
        self, run: Run, tmp_path: Path, options: list[str], printed: str
    ) -> None:
        path = tmp_path / "script.py"
        path.write_text(self.SCRIPT)

        done = run(*options, path)

        assert (done.exit_code, done.stdout) == (0, printed), done.stderr

    def test_what_one_leaves_the_next_does_not_find(self, run: Run, tmp_path: Path) -> None:
        """Weights of 512 x 512 floats, and DDP's bucket of them, as in a recipe."""
        path = tmp_path / "script.py"
        path.write_text(
            """
import os, torch
import torch.distributed as dist
import torch.multiprocessing as mp

def main(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method="tcp://127.0.0.1:29501")
    layer = torch.nn.Linear(512, 512, bias=False).to(rank)
    model = torch.nn.parallel.DistributedDataParallel(layer, [rank])
    print(torch.cuda.max_memory_allocated(rank) >> 20, os.environ.get("LEFT"))
    model(torch.ones(1, 512, device=rank)).sum().backward()
    os.environ["LEFT"] = "here"

for _ in range(2):
    mp.spawn(main, nprocs=2)
"""
        )

        done = run("--gpu", "h100", "--nproc-per-node", "2", "--rank", "1", path)

        assert (done.exit_code, done.stdout) == (0, "2 None\n" * 2), done.stderr

    def test_spawning_more_than_the_world_size_is_an_error(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "script.py"
        path.write_text(self.SCRIPT)

        done = run(path, "4")

        assert done.exit_code == 2
        assert "the script starts 4 processes, and this node has 1 rank" in done.stderr
        assert "graphmem run --nproc-per-node 4 --rank 0" in done.stderr


class TestSeveralRanks:
    """Rank r holds r + 1 MiB; the last one fails."""

    @pytest.fixture
    def script(self, tmp_path: Path) -> Path:
        path = tmp_path / "script.py"
        path.write_text(
            "import os, torch\n"
            "rank = int(os.environ['RANK'])\n"
            "held = torch.empty(rank + 1, 1 << 18, device=f'cuda:{rank}')\n"
            "print('rank', rank)\n"
            "assert rank < 2, 'the last one'\n"
        )
        return path

    def test_each_has_a_row_and_the_fullest_its_report(
        self, run: Run, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where the command runs, a file has the name of a module that graphmem imports."""
        (tmp_path / "here").mkdir()
        (tmp_path / "here" / "queue.py").write_text("raise SystemExit('not the library')")
        monkeypatch.chdir(tmp_path / "here")
        done = run("--nproc-per-node", "3", "--rank", "0,1", script)

        assert (done.exit_code, done.stdout) == (0, "rank 0\nrank 1\n")
        assert "fullest: rank 1, peak 2,097,152 bytes" in done.stderr
        assert "emptiest: rank 0, peak 1,048,576 bytes" in done.stderr
        assert "2.0 MiB  float32 [2 x 262144]" in done.stderr

    @pytest.mark.slow
    def test_a_failing_rank_is_reported_and_sets_the_exit_code(
        self, run: Run, script: Path, tmp_path: Path
    ) -> None:
        report = tmp_path / "report.json"

        done = run(
            *("--nproc-per-node", "3", "--rank", "all", "--format", "json", "-o", report), script
        )

        assert done.exit_code == 1
        assert "AssertionError: the last one" in done.stderr
        found = json.loads(report.read_text())
        assert (found["world_size"], found["fullest"], found["emptiest"]) == (3, 1, 0)
        assert [rank["exit_code"] for rank in found["ranks"]] == [0, 0, 1]
        peaks = [rank["report"]["peak"]["allocated"] for rank in found["ranks"]]
        assert peaks == [1 << 20, 2 << 20, 3 << 20]

    @pytest.mark.slow
    def test_the_first_of_many_says_how_long_all_may_take(self, run: Run, tmp_path: Path) -> None:
        quick = tmp_path / "quick.py"
        quick.write_text("print(1)")
        ranks = ",".join(map(str, range(9)))

        done = run("--nproc-per-node", "8", "--nnodes", "2", "--rank", ranks, quick)

        assert done.exit_code == 0, done.stderr
        assert re.search(r"9 ranks run \d+ at once, and the first took \d+ s: about", done.stderr)


class TestCompiled:
    def test_two_models_of_one_graph_are_compiled_in_one_rank(
        self, run: Run, tmp_path: Path
    ) -> None:
        """Inductor's cache holds the second graph, and asks the process group for its backend."""
        script = tmp_path / "train.py"
        script.write_text(
            """import torch
import torch.distributed as dist
dist.init_process_group("nccl")
first, second = (torch.nn.Linear(64, 64).cuda() for _ in range(2))
for model in (first, second):
    torch._dynamo.reset()
    torch.compile(model)(torch.ones(8, 64, device="cuda")).sum().backward()
print("compiled twice")
"""
        )

        done = run("--gpu", "h100", "--nproc-per-node", "2", "--rank", "0", script)

        assert done.exit_code == 0, done.stderr
        assert "compiled twice" in done.stdout
