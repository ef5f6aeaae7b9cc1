"""The `torch.cuda` and `torch.accelerator` APIs on the virtual GPU.

Sizes follow from c10/cuda/CUDACachingAllocator.cpp: blocks of 512 bytes, segments of 2 MiB for
requests up to 1 MiB, of 20 MiB below 10 MiB, and of multiples of 2 MiB above.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.cuda.amp.common
import torch.jit._builtins
import torch.optim.optimizer as torch_optimizer
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.cuda import _memory_viz
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import graphmem
from graphmem.gpus import find_gpu
from graphmem.live.gpu import VirtualGpu
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import (
    HOST_STATISTICS_ARE_RENAMED,
    OOM_REJECTIONS_ARE_COUNTED,
)
from graphmem.trace import TraceOptions, trace
from graphmem.training_step import TrainingStep
from graphmem.virtual_device.messages import MemoryInTraceError
from tests.support.sizes import CUBLAS_WORKSPACE, GIB, KEPT_WORKSPACES, KIB, MIB

SMALL_SEGMENT, LARGE_SEGMENT = 2 * MIB, 20 * MIB
_ACCELERATOR: Any = torch.accelerator if installed_release() >= (2, 9) else torch.cuda
CARD = find_gpu("a100-80gb")


@pytest.fixture
def gpu() -> Iterator[VirtualGpu]:
    with VirtualGpu("a100-80gb") as gpu:
        yield gpu


def set_allocator_settings(text: str) -> None:
    torch._C._accelerator_setAllocatorSettings(text)


def on_card(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


class TestRestoring:
    TOUCHED: tuple[ModuleType | type, ...] = (
        torch,
        torch._C,
        torch._C._nn,
        torch.Tensor,
        torch.UntypedStorage,
        torch.autograd.profiler.profile,
        _ACCELERATOR,
        torch.cuda,
        torch.cuda.CUDAGraph,
        torch.cuda.MemPool,
        torch.cuda.amp.common,
        torch.cuda.graphs,
        torch.cuda.memory,
        torch.cuda.nvtx,
        torch.cuda.streams,
        torch.jit._builtins,
        torch.nn.Module,
        torch.nn.Parameter,
        torch.nn.parallel._functions,
        torch.nn.parallel._functions.Scatter,
        torch_optimizer,
        torch.version,
    )

    def looks(self) -> list[dict[str, Any]]:
        # a module's lazy imports happen at its first inspection
        return [dict(vars(each)) for each in self.TOUCHED]

    @pytest.fixture(autouse=True)
    def after_a_first_one(self) -> None:
        """The first virtual GPU of a process imports modules of PyTorch."""
        with VirtualGpu("a100"):
            torch.cuda.memory_allocated()

    def test_every_attribute_is_what_it_was(self) -> None:
        before = self.looks()

        with VirtualGpu("a100"):
            torch.cuda.synchronize()
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                on_card(512).record_stream(stream)
            torch.cuda.manual_seed(1)

        assert self.looks() == before

    def test_after_an_exception_too(self) -> None:
        before = self.looks()

        with pytest.raises(torch.OutOfMemoryError), VirtualGpu("a100"):
            on_card(CARD.memory_bytes)

        assert self.looks() == before


@pytest.mark.usefixtures("gpu")
class TestStatistics:
    def test_a_block_is_rounded_to_512_bytes_in_a_segment_of_2_mib(self) -> None:
        held = on_card(513)

        assert torch.cuda.memory_allocated() == 1024
        assert torch.cuda.memory_reserved() == SMALL_SEGMENT
        stats = torch.cuda.memory_stats()
        assert stats["requested_bytes.small_pool.current"] == 513
        assert stats["allocated_bytes.small_pool.current"] == 1024
        assert stats["inactive_split_bytes.small_pool.current"] == SMALL_SEGMENT - 1024
        assert stats["allocation.large_pool.allocated"] == 0
        assert held.numel() == 513

    def test_every_documented_key_is_there(self) -> None:
        """The docstring of `torch.cuda.memory_stats`."""
        core = {
            f"{name}.{pool}.{metric}"
            for name in (
                "allocation segment active inactive_split allocated_bytes reserved_bytes "
                "active_bytes inactive_split_bytes requested_bytes"
            ).split()
            for pool in ("all", "large_pool", "small_pool")
            for metric in ("current", "peak", "allocated", "freed")
        }
        oversize = {
            f"{name}.{metric}"
            for name in ("oversize_allocations", "oversize_segments")
            for metric in ("current", "peak", "allocated", "freed")
        }
        counters = {
            "max_split_size",
            "num_alloc_retries",
            "num_device_alloc",
            "num_device_free",
            *(
                ["num_oom_rejections"]
                if OOM_REJECTIONS_ARE_COUNTED.holds_in(installed_release())
                else []
            ),
            "num_ooms",
            "num_sync_all_streams",
        }

        assert set(torch.cuda.memory_stats()) == core | oversize | counters
        assert set(torch.accelerator.memory_stats()) == core | oversize | counters

    def test_peaks_and_counts_can_be_reset(self) -> None:
        kept = on_card(4 * KIB)
        on_card(8 * KIB)
        assert torch.cuda.max_memory_allocated() == 12 * KIB

        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        on_card(1 * KIB)

        assert torch.cuda.max_memory_allocated() == 5 * KIB
        stats = torch.accelerator.memory_stats()
        assert stats["allocated_bytes.all.allocated"] == 1 * KIB
        assert stats["allocated_bytes.all.freed"] == 1 * KIB
        assert stats["allocated_bytes.all.current"] == kept.numel()
        assert stats["num_device_alloc"] == 0

    def test_an_emptied_cache_goes_back_to_the_driver(self) -> None:
        kept = on_card(1 * MIB)
        del_me = on_card(12 * MIB)
        assert torch.cuda.memory_reserved() == SMALL_SEGMENT + 12 * MIB
        del del_me

        torch.cuda.empty_cache()

        assert torch.cuda.memory_reserved() == SMALL_SEGMENT
        stats = torch.cuda.memory_stats()
        assert (stats["num_device_alloc"], stats["num_device_free"]) == (2, 1)
        assert stats["num_sync_all_streams"] == 1
        assert kept.numel() == 1 * MIB

    def test_the_driver_reports_the_context_as_well(self) -> None:
        held = on_card(30 * MIB)
        free, total = torch.cuda.mem_get_info()

        assert total == CARD.memory_bytes
        assert free == CARD.memory_bytes - CARD.context_bytes - held.numel()
        if installed_release() >= (2, 10):
            assert torch.accelerator.get_memory_info() == (free, total)
        assert torch.cuda.cudart().cudaMemGetInfo(0) == (free, total)

    def test_sensors_of_an_idle_card(self, gpu: VirtualGpu) -> None:
        cuda = torch.cuda
        held = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
        sensors = cuda.utilization, cuda.memory_usage, cuda.temperature, cuda.clock_rate

        assert [read() for read in sensors] == [0] * 4
        assert (cuda.power_draw(0), cuda.power_draw("cuda")) == (0, 0)
        free, total = cuda.mem_get_info()
        assert cuda.device_memory_used() == total - free > held.nbytes
        with pytest.raises(AssertionError, match="Invalid device id"):
            cuda.power_draw(1)

    def test_the_summary_is_pytorchs(self) -> None:
        held = on_card(3 * KIB)
        summary = torch.cuda.memory_summary().splitlines()
        line = next(each for each in summary if each.startswith("| Allocated memory"))

        assert [each.strip() for each in line.split("|")[2:4]] == ["3072 B", "3072 B"]
        assert held.numel() == 3 * KIB

    def test_memory_without_a_tensor(self) -> None:
        address = torch.cuda.caching_allocator_alloc(700)
        assert torch.cuda.memory_allocated() == 1024
        assert torch.cuda.memory_snapshot()[0]["blocks"][0]["address"] == address

        torch.cuda.caching_allocator_delete(address)

        assert torch.cuda.memory_allocated() == 0
        with pytest.raises(RuntimeError, match="invalid device pointer"):
            torch.cuda.caching_allocator_delete(address)

    def test_another_device_is_an_error(self) -> None:
        with pytest.raises(RuntimeError, match="Invalid device argument 1"):
            torch.cuda.memory_allocated(1)


class TestOutOfMemory:
    def test_the_error_is_pytorchs(self, gpu: VirtualGpu) -> None:
        told: list[tuple[int, ...]] = []
        observe: Any = torch._C._cuda_attach_out_of_memory_observer  # type: ignore[attr-defined]
        observe(lambda *what: told.append(what))
        free, total = torch.cuda.mem_get_info()

        with pytest.raises(
            torch.cuda.OutOfMemoryError, match=r"Tried to allocate 80\.00 GiB\. GPU"
        ):
            on_card(80 * GIB)

        assert told == [(0, 80 * GIB, total, free)]
        stats = torch.cuda.memory_stats()
        assert (stats["num_ooms"], stats["num_alloc_retries"]) == (1, 1)
        assert gpu.allocated == 0

    @pytest.mark.usefixtures("gpu")
    def test_a_product_without_room_for_its_result_takes_no_workspace(self) -> None:
        """`mm` gets its cuBLAS handle after its output; 8.125 MiB on an A100."""
        tall, square = (torch.empty(rows, 2**15, device="cuda") for rows in (3 * 2**17, 2**15))
        held = 4 * (3 * 2**17 + 2**15) * 2**15
        for refused in (lambda: tall @ square, lambda: on_card(60 * GIB), lambda: tall @ square):
            with pytest.raises(torch.OutOfMemoryError):
                refused()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == held

        square[:1] @ square
        with pytest.raises(torch.OutOfMemoryError):
            on_card(60 * GIB)
        square[:1] @ square

        assert torch.cuda.memory_allocated() == held + CUBLAS_WORKSPACE

    @pytest.mark.usefixtures("gpu")
    def test_a_memory_fraction_is_of_the_whole_card(self) -> None:
        torch.cuda.set_per_process_memory_fraction(0.5)
        assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(0.5)
        half = int(0.5 * CARD.memory_bytes) // (2 * MIB) * (2 * MIB)

        held = on_card(half)
        with pytest.raises(torch.OutOfMemoryError, match=r"39\.63 GiB allowed"):
            on_card(2 * MIB)

        assert held.numel() == half

    @pytest.mark.usefixtures("gpu")
    def test_settings_apply_to_later_allocations(self) -> None:
        first = on_card(3 * MIB)
        set_allocator_settings("expandable_segments:True")
        second = on_card(18 * MIB)

        kinds = [each["is_expandable"] for each in torch.cuda.memory_snapshot()]
        assert sorted(kinds) == [False, True]
        assert (first.numel(), second.numel()) == (3 * MIB, 18 * MIB)

    @pytest.mark.usefixtures("gpu")
    @pytest.mark.parametrize(
        "text",
        ["foo:1", "max_split_size_mb:2", "release_lock_on_cudamalloc:none",
         "pinned_num_register_threads:1024", "pinned_num_register_threads:none"],
    )  # fmt: skip
    def test_settings_that_pytorch_rejects(self, text: str) -> None:
        """`test_allocator_settings` of PyTorch's test/test_cuda.py."""
        with pytest.raises(RuntimeError):
            set_allocator_settings(text)

    @pytest.mark.skipif(installed_release() < (2, 10), reason="has no per_process_memory_fraction")
    def test_the_environment_is_read_at_the_first_allocation(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")  # so that it is put back
        with VirtualGpu("a100"):
            os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "per_process_memory_fraction:0.25"
            assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(0.25)
            os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "per_process_memory_fraction:0.5"
            assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(0.25)

        with VirtualGpu("a100", env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}):
            held = on_card(512)
            assert torch.cuda.memory_snapshot()[0]["is_expandable"]
            assert held.numel() == 512

    def test_a_script_may_set_its_environment_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # so that it is put back
        with VirtualGpu("a100", env=KEPT_WORKSPACES):
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":128:8:64:16:32:32"
            torch.cuda.current_blas_handle()
            torch.cuda.current_blas_handle()

            assert torch.cuda.memory_allocated() == (128 * 8 + 64 * 16 + 32 * 32) * KIB


@pytest.mark.usefixtures("gpu")
class TestHistory:
    def entries(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = torch.cuda.memory._snapshot()["device_traces"][0]
        return entries

    def test_events_and_where_they_happened(self) -> None:
        def give() -> torch.Tensor:
            return on_card(3000)

        def take(held: list[torch.Tensor]) -> None:
            held.clear()

        torch.cuda.memory._record_memory_history(stacks="python")
        held = [give()]
        take(held)
        torch.cuda.empty_cache()
        entries = self.entries()
        torch.cuda.memory._record_memory_history(None)

        assert [each["action"] for each in entries] == [
            "segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"
        ]  # fmt: skip
        assert [each["size"] for each in entries] == [
            SMALL_SEGMENT, 3000, 3000, 3000, SMALL_SEGMENT
        ]  # fmt: skip
        names = [[frame["name"] for frame in each["frames"][:2]] for each in entries]
        assert names[1] == ["on_card", "give"]
        assert names[2][0] == "take"
        assert names[4][0] == "empty_cache"
        own = str(Path(graphmem.__file__).parent)
        assert not any(frame["filename"].startswith(own) for frame in entries[1]["frames"][:3])

    @pytest.mark.parametrize(
        ("context", "at_alloc", "at_block"),
        [(None, False, False), ("state", False, True), ("alloc", True, True), ("all", True, True)],
    )
    def test_which_events_and_blocks_have_stacks(
        self, context: str | None, at_alloc: bool, at_block: bool
    ) -> None:
        torch.cuda.memory._record_memory_history(context=context, stacks="python")
        held = on_card(3000)
        snapshot = torch.cuda.memory._snapshot()

        block = snapshot["segments"][0]["blocks"][0]
        assert bool(snapshot["device_traces"][0][-1].get("frames")) == at_alloc
        assert bool(block["frames"]) == at_block
        assert block["requested_size"] == held.numel()

    def test_only_the_last_events_are_kept(self) -> None:
        torch.cuda.memory._record_memory_history(max_entries=3)
        for size in (512, 1024, 2048):
            on_card(size)

        assert [each["size"] for each in self.entries()] == [2048, 2048, 2048]

    def test_out_of_memory_is_an_event(self) -> None:
        torch.cuda.memory._record_memory_history()
        with pytest.raises(torch.OutOfMemoryError):
            on_card(100 * GIB)

        entry = self.entries()[-1]
        assert (entry["action"], entry["size"]) == ("oom", 100 * GIB)
        assert entry["device_free"] == torch.cuda.mem_get_info()[0]

    def test_the_viewer_reads_a_dump(self, tmp_path: Any) -> None:
        """torch/cuda/_memory_viz.py, which draws snapshots, in text and as a page."""
        torch.cuda.memory._record_memory_history()
        held = on_card(5 * MIB)
        torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
        snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())

        assert "5.0MiB" in _memory_viz.trace(snapshot).replace(" ", "")
        free = LARGE_SEGMENT - held.numel()
        summary = f"20.0MiB allocated, {free / MIB}MiB"
        assert summary in _memory_viz.segsum(snapshot)
        assert "<html>" in _memory_viz.segment_plot(snapshot)


@pytest.mark.usefixtures("gpu")
class TestStreams:
    def test_each_stream_has_its_own_segments(self) -> None:
        side = torch.cuda.Stream()
        first = on_card(512)
        with torch.cuda.stream(side):
            assert torch.cuda.current_stream() == side
            second = on_card(512)

        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        streams = [each["stream"] for each in torch.cuda.memory_snapshot()]
        assert sorted(streams) == [0, side.cuda_stream]
        assert first.data_ptr() != second.data_ptr()

    def test_record_stream_delays_the_reuse_of_a_block(self) -> None:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
        block = on_card(512)
        address = block.data_ptr()
        block.record_stream(side)
        del block

        assert torch.cuda.memory_allocated() == 0
        assert torch.cuda.memory_stats()["active_bytes.all.current"] == 512
        states = [each["state"] for each in torch.cuda.memory_snapshot()[0]["blocks"]]
        assert states == ["active_pending_free", "inactive"]
        assert on_card(512).data_ptr() != address
        side.synchronize()
        assert on_card(512).data_ptr() == address

    def test_recording_its_own_stream_delays_nothing(self) -> None:
        block = on_card(512)
        address = block.data_ptr()
        torch.cuda._sleep(50_000_000)
        block.record_stream(torch.cuda.current_stream())
        del block

        assert on_card(512).data_ptr() == address

    def test_a_node_runs_on_the_stream_of_its_forward_operation(self) -> None:
        """`test_streaming_backwards_sync` of PyTorch's test/test_cuda.py."""
        side, other = torch.cuda.Stream(), torch.cuda.Stream()
        seen = []

        class Multiply(torch.autograd.Function):
            @staticmethod
            def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
                return x * 2

            @staticmethod
            def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
                seen.append(torch.cuda.current_stream())
                return gradient * 2

        x = torch.ones(2, device="cuda", requires_grad=True)
        with torch.cuda.stream(side):
            y = Multiply.apply(x)
        with torch.cuda.stream(other):
            y.sum().backward()
            assert torch.cuda.current_stream() == other

        assert seen == [side]

    def test_each_stream_has_a_cublas_workspace(self) -> None:
        """`getCurrentCUDABlasHandle`: by handle and stream; 8.125 MiB on an A100."""
        matrix = torch.empty(16, 16, device="cuda")
        matrix @ matrix
        with torch.cuda.stream(torch.cuda.Stream()):
            matrix @ matrix
            matrix @ matrix

        assert torch.cuda.memory_allocated() == 1024 + 2 * CUBLAS_WORKSPACE

    def test_numbers_and_priorities(self) -> None:
        """`makeStreamId` of c10/cuda/CUDAStream.cpp."""
        torch_stream: Any = torch.cuda.Stream
        ids = [torch_stream().stream_id for _ in range(33)]
        urgent = torch_stream(priority=-1)

        assert ids[:2] == [0 << 5 | 1 << 1 | 1, 1 << 5 | 1 << 1 | 1]
        assert ids[32] == ids[0]
        assert (urgent.stream_id, urgent.priority) == (0 << 5 | 2 << 1 | 1, -1)
        assert torch_stream.priority_range() == (0, -3)
        assert isinstance(urgent, torch.Stream)
        assert torch.cuda.ExternalStream(0x1230).cuda_stream == 0x1230

    def test_each_thread_has_its_own_current_stream(self) -> None:
        seen = []
        with torch.cuda.stream(torch.cuda.Stream()):
            thread = threading.Thread(
                target=lambda: seen.append(torch.cuda.current_stream().cuda_stream)
            )
            thread.start()
            thread.join()

        assert seen == [0]

    def test_events_wait_for_a_sleep(self) -> None:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        assert "uninitialized" in repr(begin)
        begin.record()
        torch.cuda._sleep(50_000_000)
        end.record()

        assert (begin.query(), end.query()) == (True, False)
        with pytest.raises(RuntimeError, match="device not ready"):
            begin.elapsed_time(end)
        end.synchronize()
        assert 50 <= begin.elapsed_time(end) < 1000
        with pytest.raises(ValueError, match="enable_timing=True"):
            torch.cuda.Event().elapsed_time(end)

    def test_data_parallel_copies_in_the_background(self) -> None:
        """torch/nn/parallel/_functions.py, `Scatter`: a segment on the background stream."""
        model = torch.nn.DataParallel(torch.nn.Linear(4, 4)).cuda()
        on_device = model(torch.ones(2, 4, device="cuda"))
        assert {each["stream"] for each in torch.cuda.memory_snapshot()} == {0}

        from_host = model(torch.ones(2, 4))

        assert from_host.shape == on_device.shape == (2, 4)
        assert sorted({each["stream"] for each in torch.cuda.memory_snapshot()}) == [0, 3]
        from_host.sum().backward()

    @pytest.mark.filterwarnings("ignore:Using -1 to represent CPU tensor")  # `Gather` does
    @pytest.mark.parametrize("device", ["cuda", "cpu"])
    def test_data_parallel_copies_the_gradient_of_its_inputs(self, device: str) -> None:
        """To where they are, as a discriminator's to a generator (`gather`, comm.cpp)."""
        made = torch.ones(2, 1 << 18, device=device, requires_grad=True)
        model = torch.nn.DataParallel(torch.nn.Identity()).cuda()
        output = model(made)
        gradient = torch.ones(2, 1 << 18, device="cuda")
        before = torch.cuda.memory_allocated()

        output.backward(gradient)

        assert made.grad is not None
        assert (made.grad.shape, made.grad.device.type) == (made.shape, device)
        assert torch.cuda.memory_allocated() - before == (2 << 20 if device == "cuda" else 0)

    def test_generic_streams_and_events(self) -> None:
        stream = torch.Stream(device="cuda")
        torch.accelerator.set_stream(stream)

        assert torch.accelerator.current_stream() == stream
        assert isinstance(torch.Event(device="cuda"), torch.cuda.Event)
        assert not isinstance(torch.Event(device="cpu"), torch.cuda.Event)


@pytest.mark.usefixtures("gpu")
class TestDevices:
    def test_there_is_one_device(self) -> None:
        assert torch.cuda.is_available()
        assert (torch.cuda.device_count(), torch.cuda.current_device()) == (1, 0)
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        assert torch.accelerator.is_available()
        assert torch.accelerator.device_count() == 1
        assert not torch.cuda.can_device_access_peer(0, 0)
        with torch.cuda.device(0), torch.accelerator.device_index(0):
            assert torch.cuda.current_device() == torch.accelerator.current_device_index()

    @pytest.mark.parametrize(
        "ask",
        [
            lambda: torch.cuda.set_device(1),
            lambda: torch.accelerator.set_device_index(1),
            lambda: torch.zeros(1, device="cuda:1"),
            lambda: torch.zeros(1).to(1),
            lambda: torch.zeros(1).cuda(1),
            lambda: torch.nn.Linear(1, 1).to("cuda:1"),
            lambda: torch.cuda.device(1).__enter__(),
        ],
    )
    def test_another_device_is_a_driver_error(self, ask: Any) -> None:
        with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
            ask()

    def test_properties(self) -> None:
        """NVIDIA's tables for capability 8.0, and a deviceQuery of an A100."""
        properties = torch.cuda.get_device_properties("cuda")

        assert (properties.major, properties.minor) == (8, 0)
        assert properties.total_memory == CARD.memory_bytes
        assert properties.multi_processor_count == 108
        assert properties.regs_per_multiprocessor == 65536
        assert properties.shared_memory_per_multiprocessor == 167_936
        assert properties.shared_memory_per_block_optin == 166_912
        assert properties.L2_cache_size == 41_943_040
        assert properties.uuid.bytes == bytes(16)
        assert "NVIDIA A100-SXM4-80GB" in repr(properties)
        with pytest.raises(AttributeError, match="does not know 'clock_rate' of a card"):
            properties.clock_rate  # noqa: B018
        with pytest.raises(AssertionError, match="Invalid device id"):
            torch.cuda.get_device_properties(1)

    def test_the_build_is_that_of_the_wheel(self) -> None:
        assert torch.backends.cuda.is_built()
        assert torch.version.cuda is not None
        assert "sm_80" in torch.cuda.get_arch_list()
        assert torch.cuda.get_device_capability() == (8, 0)
        assert torch.cuda.is_bf16_supported()

    def test_nccl_is_there_as_in_pytorchs_wheels(self) -> None:
        """torchtune's recipes ask for it before they train in bf16 (`verify_bf16_support`)."""
        assert torch.distributed.is_nccl_available()
        assert torch.cuda.nccl.version() >= (2, 10)

    def test_nvtx_profiler_and_debug_settings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert (torch.cuda.nvtx.range_push("a"), torch.cuda.nvtx.range_pop()) == (0, 0)
        with torch.cuda.profiler.profile():
            torch.cuda.check_error(0)
        with pytest.raises(torch.cuda.CudaError, match="out of memory"):
            torch.cuda.check_error(2)
        # torch.testing._internal, which other tests import, forbids setting flags like this.
        settings = torch.backends.flags_frozen.__globals__  # the module itself is replaced
        monkeypatch.setitem(settings, "__allow_nonbracketed_mutation_flag", True)
        torch.backends.cudnn.benchmark_limit = 3
        assert torch.backends.cudnn.benchmark_limit == 3
        torch.cuda.set_sync_debug_mode("warn")
        assert torch.cuda.get_sync_debug_mode() == 1

    def test_the_profiler_records_the_host(self, capfd: pytest.CaptureFixture[str]) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            torch.zeros(2, device="cuda")

        assert "aten::zeros" in profiler.key_averages().table(sort_by="self_cuda_time_total")
        assert "Failed to record CUDA event" not in capfd.readouterr().err

    def test_a_profiler_that_is_off_does_nothing(self) -> None:
        """DLRM's script has one around its loop (`--enable-profiling`)."""
        with torch.autograd.profiler.profile(False, use_device="cuda") as profiler:
            torch.zeros(2, device="cuda")

        assert profiler is None

    def test_legacy_tensor_types(self) -> None:
        made = torch.cuda.FloatTensor([[1, 2]])  # type: ignore[attr-defined]
        sized = torch.cuda.HalfTensor(3, 4)  # type: ignore[attr-defined]

        assert (made.shape, made.dtype, made.device.type) == ((1, 2), torch.float32, "cuda")
        assert (sized.shape, sized.dtype) == ((3, 4), torch.float16)
        assert isinstance(sized, torch.cuda.HalfTensor)  # type: ignore[attr-defined]
        assert not isinstance(made, torch.cuda.HalfTensor)  # type: ignore[attr-defined]

    def test_type_moves_to_a_legacy_type_as_in_scripts_of_2018(self) -> None:
        on_the_host = torch.zeros(3, 4, dtype=torch.uint8)
        moved = on_the_host.type(torch.cuda.FloatTensor)  # type: ignore[attr-defined]
        named = on_the_host.type("torch.cuda.HalfTensor")

        assert (moved.dtype, moved.device.type) == (torch.float32, "cuda")
        assert (named.dtype, named.device.type) == (torch.float16, "cuda")
        assert moved.type(torch.cuda.FloatTensor) is moved  # type: ignore[attr-defined]
        assert moved.type() == "torch.cuda.FloatTensor"

    def test_torchscript_makes_tensors_there(self) -> None:
        @torch.jit.script
        def make() -> torch.Tensor:
            return torch.zeros([128], device="cuda")

        assert make().device.type == "cuda"
        assert torch.cuda.max_memory_allocated() == 512


@pytest.mark.usefixtures("gpu")
class TestRandomNumbers:
    def test_a_state_is_a_seed_and_an_offset(self) -> None:
        """16 bytes: aten/src/ATen/cuda/CUDAGeneratorImpl.cpp."""
        torch.manual_seed(5)
        state = torch.cuda.get_rng_state()
        assert state.tolist() == [5, *[0] * 15]
        assert torch.cuda.initial_seed() == 5

        torch.cuda.manual_seed(6)
        torch.cuda.set_rng_state(state)
        assert torch.cuda.initial_seed() == 5
        with torch.random.fork_rng(devices=[0]):
            torch.cuda.manual_seed_all(9)
        assert torch.cuda.get_rng_state_all()[0].tolist() == state.tolist()
        with pytest.raises(RuntimeError, match="wrong size"):
            torch.cuda.set_rng_state(torch.zeros(5, dtype=torch.uint8))

    def test_a_generator_of_the_device_draws_on_it(self) -> None:
        generator = torch.Generator(device="cuda").manual_seed(7)

        assert generator.device == torch.device("cuda:0")
        assert torch.randn(3, device="cuda", generator=generator).device.type == "cuda"
        assert generator.clone_state().initial_seed() == 7
        assert torch.Generator().device.type == "cpu"
        assert isinstance(torch.default_generator, torch.Generator)
        assert not isinstance(3, torch.Generator)

    def test_the_cpu_generator_draws_as_usual(self) -> None:
        drawn = torch.rand(2, generator=torch.Generator().manual_seed(0))

        # PyTorch's documented example of manual_seed(0)
        assert drawn.tolist() == pytest.approx([0.4963, 0.7682], abs=1e-4)


@pytest.mark.usefixtures("gpu")
class TestPinnedMemory:
    def test_pinning_copies_once(self) -> None:
        tensor = torch.ones(3)
        pinned = tensor.pin_memory()

        assert (tensor.is_pinned(), pinned.is_pinned()) == (False, True)
        assert pinned.pin_memory() is pinned
        pinned.zero_()
        assert tensor.tolist() == [1, 1, 1]
        assert torch.ones(3, pin_memory=True).is_pinned()
        with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
            on_card(1).pin_memory()

    @pytest.mark.skipif(
        not HOST_STATISTICS_ARE_RENAMED.holds_in(installed_release()), reason="older names"
    )
    def test_host_memory_statistics(self) -> None:
        """`test_host_memory_stats` of PyTorch's test/test_cuda.py: powers of two, and a cache."""
        first = torch.ones(10 * 1024, pin_memory=True)
        second = torch.ones(20 * 1024, pin_memory=True)
        stats = torch.cuda.host_memory_stats()
        assert stats["allocated_bytes.current"] == (16 + 32) * 1024 * 4
        assert (stats["num_host_alloc"], stats["active_requests.current"]) == (2, 2)

        del first
        torch._C._host_emptyCache()  # type: ignore[attr-defined]
        stats = torch.cuda.host_memory_stats()
        assert stats["allocated_bytes.current"] == 32 * 1024 * 4
        assert stats["num_host_free"] == 1
        assert second.numel() == 20 * 1024

    def test_registered_memory(self) -> None:
        tensor = torch.ones(20)
        cudart = torch.cuda.cudart()

        assert cudart.cudaHostRegister(tensor.data_ptr(), 80, 0) == 0
        assert tensor.is_pinned()
        assert cudart.cudaHostUnregister(tensor.data_ptr()) == 0
        assert not tensor.is_pinned()

    def test_a_pinning_data_loader(self) -> None:
        data = torch.utils.data.TensorDataset(torch.arange(8.0))
        loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True)

        batches = [batch for (batch,) in loader]
        assert all(batch.is_pinned() for batch in batches)
        assert batches[1].to("cuda", non_blocking=True).device.type == "cuda"


class TestTraces:
    @pytest.mark.parametrize(
        "ask",
        [torch.cuda.memory_allocated, torch.cuda.memory_summary, torch.cuda.mem_get_info,
         _ACCELERATOR.memory_reserved, torch.cuda.memory_snapshot],
    )  # fmt: skip
    def test_a_trace_cannot_report_memory_and_names_the_command_that_can(self, ask: Any) -> None:
        with pytest.raises(MemoryInTraceError) as error:
            trace(lambda: TrainingStep(step=ask), gpu=CARD, options=TraceOptions(steps=1))

        assert "graphmem run" in (error.value.hint or "")

    def test_a_trace_allows_peaks_to_be_reset(self) -> None:
        def step() -> None:
            torch.cuda.reset_peak_memory_stats()
            torch.accelerator.reset_peak_memory_stats()

        trace(lambda: TrainingStep(step=step), gpu=CARD, options=TraceOptions(steps=1))


def test_a_compilers_number_is_printed_without_reading_it(gpu: VirtualGpu) -> None:
    """torchao prints the scale of its tensors; read, it has no value, or one that is pending."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    scale = mode.from_tensor(torch.ones(()))

    assert f"{scale}" == "FakeTensor(..., size=())"
    assert mode.shape_env is not None
    assert not mode.shape_env.pending_fresh_unbacked_symbols
    assert f"{torch.full((), 3.0, device='cuda')}" == "3.0"


def test_a_class_that_is_no_tensor_finds_the_function_that_was_called() -> None:
    """As `TensorDict`, whose table of functions a program fills while it runs."""
    with graphmem.virtual_gpu("t4") as gpu:
        table: dict[Any, Any] = {}

        class Pair:
            def __init__(self, *tensors: torch.Tensor) -> None:
                self.tensors = tensors

            @classmethod
            def __torch_function__(
                cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                return table[func](*args) if func in table else NotImplemented

        table[torch.empty_like] = lambda pair: Pair(*map(torch.empty_like, pair.tensors))
        made: Any = torch.empty_like(Pair(*torch.ones(2, 128, device="cuda")))  # type: ignore[call-overload]
        assert [each.shape for each in made.tensors] == [(128,), (128,)]
        assert gpu.allocated == 2 * 512
        with pytest.raises(TypeError, match="zeros_like"):
            torch.zeros_like(made)
