"""tools/record_cuda.py, as far as it can be tested without a GPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from graphmem.verify.recording_files import read_recorded
from tests.support.places import ROOT
from tests.support.sizes import MIB

TOOL = ROOT / "tools" / "record_cuda.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record_cuda", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run_tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *arguments], capture_output=True, text=True, check=False
    )


def entry(action: str, address: int, size: int, *frames: tuple[str, str, int]) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "frames": [
            {"filename": filename, "name": name, "line": line} for filename, name, line in frames
        ],
    }


USER = ("/home/me/train.py", "main", 16)
LINEAR = ("/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", "forward", 125)
MADE_UP = {
    "segments": [],
    "device_traces": [
        [
            entry("segment_alloc", 0x7F00, 2 * MIB),
            entry("alloc", 0x7F00, 1000, LINEAR, USER),
            entry("snapshot", 0, 0),
            entry("free_requested", 0x7F00, 1000),
            entry("free_completed", 0x7F00, 1000),
            entry("alloc", 0x7F00, 512),
            entry("alloc", 0x8100, 512, USER),
        ]
    ],
}


def test_help_needs_no_gpu() -> None:
    finished = run_tool("--help")

    assert finished.returncode == 0
    assert "--set KEY=VALUE" in finished.stdout


def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")

    finished = run_tool("fixtures/mlp.py:build", "-o", str(tmp_path / "mlp"))

    assert finished.returncode == 2
    assert finished.stderr == "error: torch sees no CUDA device here\n"
    assert not list(tmp_path.iterdir())


def test_a_snapshot_becomes_the_compact_form(tool: ModuleType) -> None:
    """Free requests are dropped; a block and a segment at one address stay distinct."""
    made = tool.compact(MADE_UP, {"gpu": "x"})

    assert made["gpu"] == "x"
    assert made["sites"] == ["train.py:main:16<linear.py:forward:125", "engine", "train.py:main:16"]
    assert made["events"] == [
        ["S", 2 * MIB, 0],
        ["a", 1000, 1, 0],
        ["f", 1000, 1],
        ["a", 512, 1, 1],
        ["a", 512, 2, 2],
    ]


def test_what_it_writes_can_be_replayed(tool: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "made.events.json"
    path.write_text(json.dumps(tool.compact(MADE_UP, {})))

    recorded = read_recorded(path)

    assert recorded.replay is not None
    assert recorded.replay.misses == 0
    assert recorded.replay.end_allocated == 2 * 512
    assert [change.where for change in recorded.changes] == [
        *["train.py:16 main < linear.py:125 forward"] * 2,
        "autograd's thread",
        "train.py:16 main",
    ]


@pytest.mark.parametrize(
    ("text", "value"), [("batch=4", 4), ("dtype=fp32", "fp32"), ("dropout=0.5", 0.5)]
)
def test_settings_have_the_type_of_their_default(
    tool: ModuleType, text: str, value: object
) -> None:
    def build(batch: int = 2, dtype: str = "bf16", dropout: float = 0.0) -> None: ...

    assert tool.setting_reader(build)(text) == (text.partition("=")[0], value)


@pytest.mark.parametrize("missing", ["graphmem", "msgspec"])
def test_a_fixture_runs_without_graphmem(missing: str) -> None:
    """On the CPU, in a separate process that cannot import graphmem, or what graphmem needs."""
    script = f"""
import sys
sys.path.insert(0, {str(TOOL.parent)!r})
import record_cuda
sys.modules[{missing!r}] = None
options = record_cuda.parse(
    [{str(ROOT / "fixtures" / "mlp.py")!r} + ":build", "--steps", "2", "-o", "x"]
)
build, settings = record_cuda.load(options.target, ["d_model=8", "seq=4", "dtype=fp32"])
step = build(**settings)
print(type(step).__name__, list(record_cuda.iterate(step, options, "cpu")))
"""
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    phases = [(phase, step) for step in (0, 1) for phase in ("forward", "backward", "optimizer")]
    assert finished.stdout == f"StandIn {phases}\n", finished.stderr
