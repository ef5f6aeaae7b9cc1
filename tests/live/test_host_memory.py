"""The host's memory in reports: pinned bytes, and the peak of tensors on the CPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import graphmem
from graphmem.live.gpu import VirtualGpu
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import HOST_STATISTICS_ARE_RENAMED
from tests.conftest import Outcome
from tests.support.places import ROOT
from tests.support.sizes import KIB, MIB

Run = Callable[..., Outcome]
HostOf = Callable[..., tuple[dict, Outcome]]

OFFLOADING = """
import torch

weight = torch.ones(3, 1024, 1024, device="cuda", requires_grad=True)


def step():
    with torch.autograd.graph.save_on_cpu(pin_memory=PIN):
        x = weight
        for _ in range(4):
            x = x.sin()
        loss = x.sum()
    loss.backward()
    weight.grad = None
"""
AS_SCRIPT = """
for _ in range(2):
    step()
for key, value in torch.cuda.host_memory_stats().items():
    print(key, value)
"""
SAVED = 4 * 3 * MIB * 4  # each sine saves its input, of 3 Mi elements in float32
COPIED = 2 * SAVED  # in two steps
NOTHING = dict.fromkeys(("pinned", "pinned_requested", "tensors", "copied"), 0)
BLOCKS = 4 * 16 * MIB  # of 12 MiB: the next power of two


NEW_NAMES = pytest.mark.skipif(
    not HOST_STATISTICS_ARE_RENAMED.holds_in(installed_release()), reason="the names are others"
)


@pytest.fixture
def host_of(run_graphmem: Run, tmp_path: Path) -> HostOf:
    """The report's `host` after `graphmem run` of a program, and the text that it printed."""

    def call(program: str) -> tuple[dict, Outcome]:
        script, saved = tmp_path / "program.py", tmp_path / "step.graphmem"
        script.write_text(program)
        outcome = run_graphmem("run", "--save", str(saved), str(script))
        host = graphmem.analyze(str(saved)).host
        assert host is not None
        return asdict(host), outcome

    return call


class TestOffloading:
    @NEW_NAMES
    def test_pinned_blocks_are_powers_of_two_and_used_again(self, host_of: HostOf) -> None:
        """The second step gets the blocks of the first."""
        host, outcome = host_of(OFFLOADING.replace("PIN", "True") + AS_SCRIPT)

        assert host == {
            "pinned": BLOCKS,
            "pinned_requested": SAVED,
            "tensors": SAVED,
            "copied": COPIED,
        }
        stats = dict(line.split() for line in outcome.stdout.splitlines() if line.count(" ") == 1)
        assert int(stats["allocated_bytes.current"]) == BLOCKS
        assert int(stats["active_bytes.peak"]) == BLOCKS
        assert int(stats["active_bytes.current"]) == 0
        assert (int(stats["num_host_alloc"]), int(stats["num_host_free"])) == (4, 0)
        assert int(stats["active_requests.allocated"]) == 2 * 4

    def test_pageable_copies_are_not_rounded(self, host_of: HostOf) -> None:
        host, outcome = host_of(OFFLOADING.replace("PIN", "False") + AS_SCRIPT)
        assert host == {**NOTHING, "tensors": SAVED, "copied": COPIED}
        assert "host: peak of tensors on the CPU 48.0 MiB (50,331,648 bytes)" in outcome.stderr

    def test_a_trace_knows_the_same_and_keeps_it(self, run_graphmem: Run, tmp_path: Path) -> None:
        model, saved = tmp_path / "model.py", tmp_path / "step.graphmem"
        build = (
            "\n\nimport graphmem\n\n\ndef build():\n    return graphmem.TrainingStep(step=step)\n"
        )
        model.write_text(OFFLOADING.replace("PIN", "True") + build)
        line = (
            "host: 64.0 MiB pinned (67,108,864 bytes), "
            "peak of tensors on the CPU 48.0 MiB (50,331,648 bytes)"
        )

        assert line in run_graphmem("analyze", f"{model}:build", "--save", str(saved)).stdout
        report = graphmem.analyze(str(saved))
        assert report.host is not None
        assert (report.host.pinned, report.host.tensors) == (BLOCKS, SAVED)
        assert line in report.to_text()
        assert line in report.to_html()

    def test_sharded_parameters_and_gradients(self, host_of: HostOf) -> None:
        """FSDP pins each shard, and the gradient by a copy with `non_blocking`."""
        host, _ = host_of(
            "import torch, torch.distributed as dist\n"
            "from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard\n"
            "dist.init_process_group('cpu:gloo,cuda:nccl', rank=0, world_size=1,\n"
            "                        store=dist.HashStore())\n"
            "model = torch.nn.Linear(1024, 1536, bias=False)\n"
            "fully_shard(model, offload_policy=CPUOffloadPolicy())\n"
            "optimizer = torch.optim.SGD(model.parameters(), foreach=False)\n"
            "for _ in range(2):\n"
            "    model(torch.randn(8, 1024, device='cuda')).sum().backward()\n"
            "    optimizer.step()\n"
            "    optimizer.zero_grad()\n"
        )
        weight = 1024 * 1536 * 4
        assert host["pinned_requested"] == 2 * weight
        assert host["pinned"] == 2 * 8 * MIB  # 6 MiB each

    def test_batches_of_a_pinning_loader(self, host_of: HostOf) -> None:
        """The next batch is pinned while the variable still holds the last one."""
        host, outcome = host_of(
            "import torch\n"
            "from torch.utils.data import DataLoader\n"
            "for batch in DataLoader(torch.zeros(400, 1000), batch_size=100, pin_memory=True):\n"
            "    batch.cuda(non_blocking=True)\n"
        )
        batch = 100 * 1000 * 4
        assert host["pinned_requested"] == 2 * batch
        assert host["pinned"] == 2 * 512 * KIB
        assert "host:" not in outcome.stderr  # less than the report shows


class TestTensorsOnTheCpu:
    PROGRAM = """
import torch
from torch import nn


def train():
    torch.manual_seed(0)
    first, last = nn.Linear(256, 512, bias=False), nn.Linear(512, 64, bias=False)
    model = nn.Sequential(first, nn.GELU(), last)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for _ in range(3):
        loss = model(torch.randn(1024, 256)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    OBSERVED = """
with torch.profiler.profile(profile_memory=True) as profile:
    train()
events, changes = profile.profiler.kineto_results.experimental_event_tree(), []
while events:
    event = events.pop()
    events += event.children
    if event.name == "[memory]":
        changes.append((event.start_time_ns, event.extra_fields.alloc_size))
current = peak = 0
for _, nbytes in sorted(changes):
    current += nbytes
    peak = max(peak, current)
print("peak", peak)
"""

    def test_agree_with_a_real_run_but_for_scalars(self) -> None:
        program = self.PROGRAM + self.OBSERVED
        printed = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
        )
        observed = int(printed.stdout.split()[-1])
        names: dict = {}
        exec(self.PROGRAM, names)
        with VirtualGpu("a100") as gpu:
            names["train"]()

        host = gpu.report().host
        assert host is not None
        assert 0 <= observed - host.tensors < 1 * KIB
        assert host.tensors > 8 * MIB

    def test_those_of_the_set_up_count_if_they_live_on(self, host_of: HostOf) -> None:
        host, outcome = host_of(
            "import torch\n"
            "kept, dropped = torch.ones(20 << 18), torch.ones(100 << 18)\n"
            "del dropped\n"
            "torch.nn.Linear(8, 8, device='cuda')(torch.ones(8, device='cuda')).sum().backward()\n"
        )
        assert host == {**NOTHING, "tensors": 20 * MIB}
        assert "host:" not in outcome.stderr  # nothing was offloaded

    def test_meta_tensors_take_nothing(self, host_of: HostOf) -> None:
        host, outcome = host_of("import torch\nkept = torch.ones(100 << 18, device='meta')\n")
        assert host == NOTHING
        assert "host:" not in outcome.stderr


class TestPinning:
    def test_by_any_function(self) -> None:
        with VirtualGpu("a100"):
            like, on_card = torch.ones(3), torch.ones(3, device="cuda")

            assert like.new_zeros(3, pin_memory=True).is_pinned()
            assert like.new_full((3,), 1.0, pin_memory=True).tolist() == [1, 1, 1]
            assert torch.ops.aten.empty.memory_format([3], pin_memory=True).is_pinned()
            assert on_card.to("cpu", non_blocking=True).is_pinned()
            assert not on_card.to("cpu").is_pinned()
            with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
                torch.empty(3, device="cuda", pin_memory=True)

    @NEW_NAMES
    def test_pytorch_pins_the_number_that_it_reads(self) -> None:
        """One float for `item`; no block for a tensor of no bytes."""
        with VirtualGpu("a100"):
            torch.ones(1, device="cuda").item()
            torch.empty(0, pin_memory=True)
            stats = torch.cuda.host_memory_stats()

        assert (stats["allocated_bytes.current"], stats["active_bytes.current"]) == (4, 0)
        assert stats["num_host_alloc"] == 1

    @NEW_NAMES
    def test_peaks_of_active_blocks_are_those_of_each_size(self) -> None:
        """`add_bucket_stats`: 4 KiB and 8 KiB, though never at the same time."""
        with VirtualGpu("a100"):
            torch.empty(4 * KIB, dtype=torch.uint8, pin_memory=True)
            torch.empty(8 * KIB, dtype=torch.uint8, pin_memory=True)
            assert torch.cuda.host_memory_stats()["active_bytes.peak"] == 12 * KIB

    def test_names_of_release_2_9(self) -> None:
        with VirtualGpu("a100", torch="2.9"):
            kept = torch.empty(3000, dtype=torch.uint8, pin_memory=True)
            del kept
            stats = torch.cuda.host_memory_stats()

        assert (stats["segment.current"], stats["reserved_bytes.current"]) == (1, 4 * KIB)
        assert (stats["allocation.current"], stats["allocated_bytes.peak"]) == (0, 4 * KIB)
