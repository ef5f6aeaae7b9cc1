"""A saved step: every reader gets from it what it gets from the code; no other file opens."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import graphmem
from tests.support.places import ROOT

LLAMA = f"{ROOT / 'fixtures' / 'llama.py'}:build"
_HINT = re.compile(
    r"  <p>Measure the largest batch and the biggest savings:</p>\n.*?</pre>\n", re.DOTALL
)
SMALL = ("--set", "layers=1", "--set", "seq=16", "--set", "batch=2")

SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
model.cuda()
optimizer = torch.optim.AdamW(model.parameters())
side = torch.cuda.Stream()
for step in range(2):
    loss = model(torch.randn(32, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.cuda.stream(side):
        kept = torch.empty(3 << 20, device="cuda")
    torch.cuda.empty_cache()
    print(loss.item())
"""

ATTENTION = """
import torch
from flash_attn_interface import flash_attn_func
q, k, v = (torch.randn(2, 256, 8, 64, device="cuda").half().requires_grad_() for _ in range(3))
flash_attn_func(q, k, v, causal=True).sum().backward()
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from graphmem.cli import main

    path = tmp_path_factory.mktemp("record") / "llama.graphmem"
    assert main(["analyze", LLAMA, *SMALL, "--save", str(path), "-o", str(path.parent / "x")]) == 0
    return path


@pytest.fixture
def ran(run_graphmem: Callable[..., Any], tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    path = tmp_path / "train.graphmem"
    report = tmp_path / "report.json"
    arguments = ("--save", str(path), "--html", str(tmp_path / "page.html"))
    outcome = run_graphmem(
        "run", *arguments, "--format", "json", "-o", str(report), str(tmp_path / "train.py")
    )
    assert outcome.exit_code == 0, outcome.stderr
    return path


class TestReaders:
    def test_analyze_reports_what_the_trace_reported(
        self, run_graphmem: Callable[..., Any], saved: Path
    ) -> None:
        traced = run_graphmem("analyze", LLAMA, *SMALL, "--format", "json")
        read = run_graphmem("analyze", str(saved), "--format", "json")

        assert json.loads(read.stdout) == json.loads(traced.stdout)

    def test_the_graph_is_the_same(self, run_graphmem: Callable[..., Any], saved: Path) -> None:
        traced = run_graphmem("graph", LLAMA, *SMALL, "--steps", "3")

        assert run_graphmem("graph", str(saved)).stdout == traced.stdout

    @pytest.mark.parametrize("ending", ["html", "pickle", "json.gz", "dot", "csv"])
    def test_what_is_drawn_is_the_same(
        self, run_graphmem: Callable[..., Any], saved: Path, tmp_path: Path, ending: str
    ) -> None:
        traced, read = tmp_path / f"traced.{ending}", tmp_path / f"read.{ending}"
        assert run_graphmem("render", LLAMA, *SMALL, "-o", str(traced)).exit_code == 0
        assert run_graphmem("render", str(saved), "-o", str(read)).exit_code == 0

        if ending == "pickle":  # the objects are equal, but equal strings are shared differently
            assert pickle.loads(read.read_bytes()) == pickle.loads(traced.read_bytes())
        elif ending == "html":  # on a saved step no change can be tried
            assert read.read_text() == _HINT.sub("", traced.read_text())
        else:
            assert read.read_bytes() == traced.read_bytes()

    def test_a_search_of_layouts(self, run_graphmem: Callable[..., Any], saved: Path) -> None:
        found = run_graphmem("plan", str(saved), "--gpus", "2", "--search")

        assert found.exit_code == 0, found.stderr

    def test_plan(self, run_graphmem: Callable[..., Any], saved: Path) -> None:
        layout = ("--gpus", "8", "--fsdp", "--tp", "2")
        traced = run_graphmem("plan", LLAMA, *SMALL, *layout)
        read = run_graphmem("plan", str(saved), *layout)

        assert (read.exit_code, read.stdout) == (0, traced.stdout)

    def test_explain(self, run_graphmem: Callable[..., Any], saved: Path) -> None:
        name = "layers.0.mlp"
        traced = run_graphmem("explain", LLAMA, name, *SMALL, "--steps", "3")
        read = run_graphmem("explain", str(saved), name)
        advice = run_graphmem("explain", str(saved))

        assert (read.exit_code, read.stdout) == (0, traced.stdout)
        assert "checkpoint layers.*" in advice.stdout
        assert "not known before it is traced" in advice.stdout

    def test_diff(self, run_graphmem: Callable[..., Any], saved: Path, tmp_path: Path) -> None:
        longer = tmp_path / "longer.graphmem"
        arguments = ("--set", "layers=2", *SMALL[2:], "--save", str(longer))
        assert run_graphmem("analyze", LLAMA, *arguments).exit_code == 0
        outcome = run_graphmem("diff", str(saved), str(longer), "--format", "json")

        peaks = [graphmem.analyze(str(path)).peak.allocated for path in (saved, longer)]
        assert outcome.exit_code == 0
        assert peaks[1] > peaks[0]
        assert all(str(peak) in outcome.stdout for peak in peaks)

    def test_a_damaged_reference_among_sound_tables(self, saved: Path, tmp_path: Path) -> None:
        tables = msgspec.msgpack.decode(gzip.decompress(saved.read_bytes()))
        tables["ops"][3][8] = [10**9]
        damaged = written(tmp_path, tables)

        with pytest.raises(graphmem.InputError, match="damaged"):
            graphmem.analyze(str(damaged))

    def test_collections_that_run_backwards(self, saved: Path, tmp_path: Path) -> None:
        tables = msgspec.msgpack.decode(gzip.decompress(saved.read_bytes()))
        tables["collections"] = [[7, 9, True], [8, 9, False]]
        damaged = written(tmp_path, tables)

        with pytest.raises(graphmem.InputError, match="collections that run backwards"):
            graphmem.analyze(str(damaged))


class TestScripts:
    """A script run on a virtual GPU, with a stream and an emptied cache."""

    def test_the_report_is_that_of_the_run(
        self, run_graphmem: Callable[..., Any], ran: Path
    ) -> None:
        read = run_graphmem("analyze", str(ran), "--format", "json")

        assert json.loads(read.stdout) == json.loads((ran.parent / "report.json").read_text())

    def test_the_page_is_that_of_the_run(self, run_graphmem: Callable[..., Any], ran: Path) -> None:
        page = ran.parent / "again.html"
        assert run_graphmem("render", str(ran), "-o", str(page)).exit_code == 0

        assert page.read_bytes() == (ran.parent / "page.html").read_bytes()

    def test_it_has_a_plan_and_explanations(
        self, run_graphmem: Callable[..., Any], ran: Path
    ) -> None:
        assert run_graphmem("plan", str(ran), "--gpus", "8", "--fsdp").exit_code == 0
        assert run_graphmem("explain", str(ran), "0").exit_code == 0
        assert run_graphmem("explain", str(ran)).exit_code == 0

    def test_operators_of_libraries_need_not_be_registered_where_it_is_read(
        self, run_graphmem: Callable[..., Any], tmp_path: Path
    ) -> None:
        (tmp_path / "train.py").write_text(ATTENTION)
        path, report = tmp_path / "train.graphmem", tmp_path / "report.json"
        options = ("--gpu", "h100", "--stand-in", "flash_attn_3", "--save", str(path))
        output = ("--format", "json", "-o", str(report))
        ran = run_graphmem("run", *options, *output, str(tmp_path / "train.py"))
        assert ran.exit_code == 0, ran.stderr
        command = [sys.executable, "-m", "graphmem", "analyze", str(path), "--format", "json"]
        read = subprocess.run(command, capture_output=True, text=True, check=False)

        assert read.returncode == 0, read.stderr
        assert json.loads(read.stdout) == json.loads(report.read_text())


class TestInvalidFiles:
    @pytest.mark.parametrize(
        "arguments",
        [
            ("analyze", "--steps", "2"),
            ("analyze", "--gpu", "a100-80gb"),
            ("render", "-o", "x.html", "--optimizer", "sgd"),
            ("plan", "--gpus", "2", "--precision", "bf16-master"),
            ("whatif", "--batch", "2x"),
            ("fit",),
            ("closed-form", "--symbols", "batch"),
        ],
        ids=" ".join,
    )
    def test_it_cannot_be_another_step(
        self, run_graphmem: Callable[..., Any], saved: Path, arguments: tuple[str, ...]
    ) -> None:
        command, *options = arguments
        outcome = run_graphmem(command, str(saved), *options)

        assert outcome.exit_code == 2
        assert "is a saved step" in outcome.stderr

    def test_a_file_name_that_commands_would_not_recognise(
        self, run_graphmem: Callable[..., Any], tmp_path: Path
    ) -> None:
        outcome = run_graphmem("analyze", LLAMA, "--save", str(tmp_path / "step.json"))

        assert outcome.exit_code == 2
        assert "step.graphmem" in outcome.stderr


def written(folder: Path, tables: Any) -> Path:
    path = folder / "made.graphmem"
    path.write_bytes(gzip.compress(msgspec.msgpack.encode(tables)))
    return path


HOSTILE = {
    "empty": b"",
    "text": b"not a step at all",
    "gzip of text": gzip.compress(b"not a step at all"),
    "another format": gzip.compress(msgspec.msgpack.encode({"format": "other", "version": [1, 0]})),
    "a pickle": gzip.compress(b"\x80\x04cos\nsystem\n(S'true'\ntR."),
    "a deep nest": gzip.compress(b"\x91" * 3_000_000),
    "a bomb": gzip.compress(b"\x90" * 600_000_000, 1),
    "a heap of empty arrays": gzip.compress(
        b"\x84\xa6format\xadgraphmem.step\xa7version\x92\x01\x00\xaawritten_by\xa1x\xa1z\xdd"
        + (4_000_000).to_bytes(4, "big")
        + b"\x90" * 4_000_000
    ),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_other_files_are_a_one_line_error(
    run_graphmem: Callable[..., Any], tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "hostile.graphmem"
    path.write_bytes(content)
    outcome = run_graphmem("analyze", str(path))

    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("error: ")
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize("share", [0.1, 0.5, 0.999])
def test_a_truncated_file(
    run_graphmem: Callable[..., Any], saved: Path, tmp_path: Path, share: float
) -> None:
    content = saved.read_bytes()
    path = tmp_path / "cut.graphmem"
    path.write_bytes(content[: int(share * len(content))])

    assert run_graphmem("analyze", str(path)).exit_code == 2


def test_an_earlier_minor_version_opens() -> None:
    """Commit 84d0eca saved it: three steps of `Linear(64, 64)` on a batch of 8, by SGD."""
    workspaces = 2 * 8_519_680  # cuBLAS's, one for each thread
    weights = 64 * 64 * 4 + 512  # the bias takes a block of 512
    gradient = 64 * 64 * 4
    inputs = 8 * 64 * 4
    copied = 8 * 64 * 4  # what `sum` expands, for the product
    scalars = 2 * 512  # the loss and its gradient

    report = graphmem.analyze(str(Path(__file__).parent / "format_1_0.graphmem"))
    assert report.peak.allocated == (workspaces + weights + gradient + inputs + copied + scalars)
    assert [step.step for step in report.steps] == [0, 1, 2]


def test_a_later_minor_version_opens(saved: Path, tmp_path: Path) -> None:
    """New keys, and new fields at the end of rows, are ignored."""
    tables = msgspec.msgpack.decode(gzip.decompress(saved.read_bytes()))
    tables |= {"version": [1, 7], "something_new": [1, 2]}
    for row in tables["storages"]:
        row.append("new")

    newer = graphmem.analyze(str(written(tmp_path, tables)))
    assert newer == graphmem.analyze(str(saved))


def test_a_later_major_version_says_what_to_do(
    run_graphmem: Callable[..., Any], saved: Path, tmp_path: Path
) -> None:
    tables = msgspec.msgpack.decode(gzip.decompress(saved.read_bytes()))
    path = written(tmp_path, tables | {"version": [2, 0], "written_by": "graphmem 9.9"})
    outcome = run_graphmem("analyze", str(path))

    assert outcome.exit_code == 2
    assert "format 2.0, written by graphmem 9.9" in outcome.stderr
    assert "upgrade graphmem" in outcome.stderr


def test_a_missing_file(run_graphmem: Callable[..., Any]) -> None:
    outcome = run_graphmem("analyze", "nowhere.graphmem")

    assert outcome.exit_code == 2
    assert "nowhere.graphmem" in outcome.stderr


def test_an_operator_this_process_lacks(saved: Path, tmp_path: Path) -> None:
    """It is a name with a schema: the storages are there anyway, and nothing is imported."""
    tables = msgspec.msgpack.decode(gzip.decompress(saved.read_bytes()))
    for row in tables["operators"]:
        if row[0] == "aten.silu.default":
            row[:] = ["mylib.gate.default", "mylib::gate(Tensor self) -> Tensor"]
    report = graphmem.analyze(str(written(tmp_path, tables)))

    assert report.model == graphmem.analyze(str(saved)).model


def test_names_are_looked_up_in_torch_only(saved: Path, tmp_path: Path) -> None:
    """`torch.ops.load_library` is a function, not an operator."""
    tables = msgspec.msgpack.decode(gzip.decompress(saved.read_bytes()))
    schema = "mylib::gate(Tensor self) -> Tensor"
    tables["operators"][0] = ["load_library.evil.so", schema]
    step = graphmem.analyze(str(written(tmp_path, tables)))

    assert step.operations == graphmem.analyze(str(saved)).operations
