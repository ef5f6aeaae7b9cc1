"""CUDA graphs and memory pools: a script on the virtual card compared with an H100.

`fixtures/cuda/memory/graphs_*` are snapshots of `fixtures/finetune/cuda_graphs.py`, recorded with
torch 2.11 (`tools/recordings_scripts.txt`): what was allocated, on which stream, in which pool.
"""

from __future__ import annotations

import gzip
import json
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import PRIVATE_POOLS_ARE_COUNTED
from tests.conftest import Outcome
from tests.support.places import ROOT

SCRIPT = "fixtures/finetune/cuda_graphs.py"
CASES = {
    "graphs_whole": "whole_step",
    "graphs_callables": "callables",
    "graphs_mempool": "mempool",
}
SLOW_CASES = {  # adds no rule to the others
    "graphs_fwdbwd": "forward_backward",
    "graphs_inference": "inference",
    "graphs_shared_pool": "shared_pool",
}


def snapshot(path: Path) -> dict[str, Any]:
    with gzip.open(path) as file:
        loaded: dict[str, Any] = pickle.load(file)
    return loaded


def events(of: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Action, bytes, and the stream, numbered by first appearance."""
    streams: dict[int, int] = {}
    return [
        (event["action"], event["size"], streams.setdefault(event["stream"], len(streams)))
        for event in of["device_traces"][0]
        if event["action"] != "snapshot"
    ]


def segments(of: dict[str, Any]) -> Counter[tuple[int, int, tuple[int, int]]]:
    """Reserved bytes, used bytes and the pool of each segment at the end."""
    return Counter(
        (each["total_size"], each["active_size"], tuple(each["segment_pool_id"]))
        for each in of["segments"]
    )


@pytest.mark.parametrize(
    ("name", "which"),
    [
        *CASES.items(),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES.items()),
    ],
)
def test_each_event_is_the_cards(
    name: str, which: str, tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    if which == "callables" and installed_release() >= (2, 14):
        pytest.skip("make_graphed_callables captures on its warm-up's stream from 2.14 on")
    recorder = [str(ROOT / "tools" / "record_cuda.py"), "-o", str(tmp_path / name)]
    script = [str(ROOT / SCRIPT), "--which", which]
    done = run_graphmem("run", "--gpu", "h100-80gb", "--torch", "2.11", *recorder, *script)

    predicted = snapshot(tmp_path / f"{name}.pickle.gz")
    recorded = snapshot(ROOT / f"fixtures/cuda/memory/{name}.pickle.gz")
    assert done.exit_code == 0, done.stderr
    assert events(predicted) == events(recorded)
    assert segments(predicted) == segments(recorded)


@pytest.fixture
def run_script(tmp_path: Path, run_graphmem: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Run a text as a script on a virtual card."""

    def run(text: str, *options: str) -> Outcome:
        script = tmp_path / "script.py"
        script.write_text(f"import torch\n{text}")
        return run_graphmem("run", *options, str(script))

    return run


def test_of_nested_pools_the_innermost_serves_a_request(
    run_script: Callable[..., Outcome],
) -> None:
    """64 MiB in the inner pool; what is outside of it comes from the graph's own.

    torch 2.14 asks which graph is being captured, and has it retain the pool; 2.9 used the
    outermost.
    """
    done = run_script(
        "pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(graph):\n"
        "    own = torch.empty(32 << 20, dtype=torch.uint8, device='cuda')\n"
        "    with torch.cuda.use_mem_pool(pool):\n"
        "        x = torch.empty(64 << 20, dtype=torch.uint8, device='cuda')\n"
        "graph.replay()\n"
        "for used in (pool.id, graph.pool()):\n"
        "    segments = torch.cuda.memory_snapshot(used)\n"
        "    print('reserved', sum(each['total_size'] for each in segments) >> 20)\n"
    )

    assert done.exit_code == 0, done.stderr
    of_pool, of_graph = (0, 96) if installed_release() < (2, 10) else (64, 32)
    assert f"reserved {of_pool}\nreserved {of_graph}\n" in done.stdout


def test_a_deleted_pool_releases_its_memory(
    run_script: Callable[..., Outcome],
) -> None:
    """64 MiB in one segment; others cannot use the pool's free memory."""
    done = run_script(
        "pool = torch.cuda.MemPool()\n"
        "with torch.cuda.use_mem_pool(pool):\n"
        "    x = torch.empty(64 << 20, dtype=torch.uint8, device='cuda')\n"
        "del x\n"
        "y = torch.empty(64 << 20, dtype=torch.uint8, device='cuda')\n"
        "print('both', torch.cuda.memory_reserved() >> 20)\n"
        "torch.cuda.empty_cache()\n"
        "print('kept', torch.cuda.memory_reserved() >> 20)\n"
        "del pool\n"
        "print('gone', torch.cuda.memory_reserved() >> 20)\n"
    )

    assert done.exit_code == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[:3]] == [
        ["both", "128"],
        ["kept", "128"],
        ["gone", "64"],
    ]


def test_a_pool_used_on_oom_serves_other_requests(run_script: Callable[..., Outcome]) -> None:
    """A T4 of 14.7 GiB: 9 GiB are free in the pool, and serve an ordinary request of 9 GiB."""
    text = (
        "pool = torch.cuda.MemPool(use_on_oom={})\n"
        "with torch.cuda.use_mem_pool(pool):\n"
        "    torch.empty(9 << 30, dtype=torch.uint8, device='cuda')\n"
        "x = torch.empty(9 << 30, dtype=torch.uint8, device='cuda')\n"
        "print('reserved', torch.cuda.memory_reserved() >> 30)\n"
    )
    card = ("--gpu", "t4")

    helped, refused = run_script(text.format(True), *card), run_script(text.format(False), *card)

    assert helped.stdout.startswith("reserved 9\n"), helped.stderr
    assert refused.exit_code == 1
    assert "with 9.00 GiB allocated in private pools (e.g., CUDA Graphs), and" in (
        refused.stdout + refused.stderr
    )


@pytest.mark.parametrize(
    ("capture", "words"),
    [
        ("torch.cuda.synchronize()", "operation not permitted when stream is capturing"),
        ("x.sum().item()", "operation not permitted when stream is capturing"),
        (
            "torch.optim.Adam([x.requires_grad_()]).step()",
            "Attempting CUDA graph capture of step() for an instance of Adam",
        ),
    ],
)
def test_an_operation_forbidden_in_a_capture_is_an_error_at_its_line(
    run_script: Callable[..., Outcome], capture: str, words: str
) -> None:
    done = run_script(
        "x = torch.ones(4, device='cuda')\n"
        "with torch.cuda.graph(torch.cuda.CUDAGraph()):\n"
        f"    {capture}\n"
    )

    assert done.exit_code != 0
    assert words in done.stderr
    assert "script.py" in done.stderr


@pytest.mark.skipif(
    not PRIVATE_POOLS_ARE_COUNTED.holds_in(installed_release()), reason="until 2.12 they did not"
)
def test_memory_stats_know_each_pool(run_script: Callable[..., Outcome]) -> None:
    """A request of 1 MiB in a small segment of 2 MiB, one of 2 MiB in a large one of 20."""
    done = run_script(
        "import json\n"
        "pool = torch.cuda.MemPool()\n"
        "with torch.cuda.use_mem_pool(pool):\n"
        "    x = torch.empty(1 << 20, dtype=torch.uint8, device='cuda')\n"
        "    y = torch.empty(2 << 20, dtype=torch.uint8, device='cuda')\n"
        "stats = torch.cuda.memory_stats_as_nested_dict()['reserved_bytes_by_private_pools']\n"
        "print(json.dumps({k: v['current'] for k, v in stats[pool.id].items()}))\n"
    )

    assert json.loads(done.stdout.splitlines()[0]) == {
        "all": 22 << 20,
        "small_pool": 2 << 20,
        "large_pool": 20 << 20,
    }


def test_plan_names_the_commands_that_follow_graphs(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "class Model(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        torch.cuda.CUDAGraph()\n"
        "        return super().forward(x)\n"
        "def build():\n"
        "    return Model(4, 4), torch.ones(4, 4)\n"
    )
    done = run_graphmem("plan", f"{tmp_path / 'model.py'}:build", "--gpus", "2")

    assert done.exit_code == 2
    assert "the step uses a CUDA graph, whose memory this command does not follow" in done.stderr
    assert "`graphmem analyze` and `graphmem run` do" in done.stderr


@pytest.mark.slow
def test_without_graphs_of_compiled_code_a_plan_says_so_and_a_closed_form_is_refused(
    run_graphmem: Callable[..., Outcome], tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "def build(batch=4):\n"
        "    model = torch.compile(torch.nn.Linear(8, 8), mode='reduce-overhead')\n"
        "    return model, torch.randn(batch, 8)\n"
    )
    target = f"{tmp_path / 'model.py'}:build"
    plan = run_graphmem("plan", target, "--gpus", "2")
    closed = run_graphmem("closed-form", target, "--symbols", "batch=B")

    assert "left out: the CUDA graphs of compiled code" in " ".join(plan.stdout.split())
    assert closed.exit_code == 2
    assert "runs in a CUDA graph, whose memory this command does not follow" in closed.stderr


def test_compiled_graphs_warm_up_record_and_replay(run_script: Callable[..., Outcome]) -> None:
    """PyTorch checks its own pool at each call; a replay allocates nothing.

    What stays allocated outside the pool: two weights of 64 x 64 floats, two biases of 64 in
    blocks of 512 bytes, the input of 32 x 64 floats, and the generator's seed and offset, 512 bytes
    each: up to torch 2.11 one pair, then one for each of three captures, none since 2.14.
    """
    pytest.importorskip("triton")
    done = run_script(
        "from torch import nn\n"
        "import torch._inductor.config as config\n"
        "config.triton.slow_path_cudagraph_asserts = True\n"
        "config.triton.fast_path_cudagraph_asserts = True\n"
        "layers = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda()\n"
        "model = torch.compile(layers, mode='reduce-overhead')\n"
        "x = torch.ones(32, 64, device='cuda')\n"
        "def allocations():\n"
        "    return torch.cuda.memory_stats()['allocation.all.allocated']\n"
        "counts, held = [], []\n"
        "for step in range(5):\n"
        "    before = allocations()\n"
        "    y = model(x)\n"
        "    counts.append(allocations() - before)\n"
        "    y.backward(x)\n"
        "    del y\n"
        "    layers.zero_grad()\n"
        "    held.append(torch.cuda.memory_allocated())\n"
        "print('counts', counts[:2] != [0, 0], counts[2:])\n"
        "print('held', held[2:])\n"
    )

    tensors = 2 * 16_384 + 2 * 512 + 8_192
    lines = done.stdout.splitlines()
    assert done.exit_code == 0, done.stderr
    assert lines[0] == "counts True [0, 0, 0]"
    steady = json.loads(lines[1].removeprefix("held "))
    assert steady[0] == steady[1] == steady[2]
    assert steady[0] - tensors in (0, 1024, 3 * 1024)


def test_captured_attention_leaves_seed_and_offset_on_the_card(
    run_script: Callable[..., Outcome],
) -> None:
    """`in_capture_stream` (aten/src/ATen/native/transformers/cuda/attention.cu)."""
    done = run_script(
        "q = torch.randn(1, 2, 8, 16, device='cuda')\n"
        "attend = torch.ops.aten._scaled_dot_product_efficient_attention\n"
        "print([each.device.type for each in attend(q, q, q, None, True)])\n"
        "with torch.cuda.graph(torch.cuda.CUDAGraph()):\n"
        "    print([each.device.type for each in attend(q, q, q, None, True)])\n"
    )

    assert done.stdout.splitlines()[:2] == [
        "['cuda', 'cuda', 'cpu', 'cpu']",
        "['cuda', 'cuda', 'cuda', 'cuda']",
    ]
