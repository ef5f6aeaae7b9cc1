"""Drawings, snapshots, traces and tables: other programs read them, and names stay text."""

from __future__ import annotations

import csv
import gzip
import io
import os
import pickle
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest
import torch
import torch.cuda._memory_viz as memory_viz

from graphmem.analysis import Analysis, Request, run_analysis
from graphmem.graph import PhaseName
from graphmem.render import drawing
from graphmem.render.files import PictureOptions, renderer_for
from graphmem.render.liveness import StorageGroup, View, liveness
from graphmem.render.messages import DotHasNoTimelineError, NoPyarrowError, UnknownAroundError
from graphmem.render.snapshot import snapshot, snapshot_bytes
from graphmem.render.trace_events import trace
from graphmem.report.categories import CATEGORY_COLOURS, CATEGORY_NAMES
from graphmem.training_step import TrainingStep
from tests.conftest import Outcome
from tests.support.places import ROOT
from tests.support.rendered import HOSTILE_NAMES, SCRIPT, hostile_analysis, small_analysis

FIRST_BYTES = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
needs_dot = pytest.mark.skipif(
    shutil.which("dot") is None and "CI" not in os.environ,
    reason="no graphviz: apt-get install graphviz",
)
STACK = f"{ROOT}/fixtures/linear_stack.py:build"
RunGraphmem = Callable[..., Outcome]


@pytest.fixture(scope="module")
def snapshot_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("snapshot") / "step.pickle"
    file.write_bytes(snapshot_bytes(small_analysis()))
    return file


def rendered(analysis: Analysis, name: str, **choices: Any) -> bytes:
    return renderer_for(name, PictureOptions(**choices))(analysis)


# PyTorch's snapshot


@pytest.mark.parametrize("command", ["stats", "trace", "trace_plot", "segment_plot"])
def test_the_viewer_of_pytorch_reads_the_snapshot(snapshot_file: Path, command: str) -> None:
    plots = command.endswith("_plot")
    output = snapshot_file.with_name("output.html")
    arguments = [memory_viz.__file__, command, str(snapshot_file)]
    arguments += ["-o", str(output)] if plots else []
    finished = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True
    )

    told = output.read_text() if plots else finished.stdout
    assert {"stats": "total_allocated", "trace": "cudaMalloc"}.get(command, "MemoryViz") in told


def test_flame_graphs_of_the_snapshot_cover_every_segment(snapshot_file: Path) -> None:
    content = pickle.loads(snapshot_file.read_bytes())
    lines = memory_viz.memory(content, format_flamegraph=lambda text: text).splitlines()

    weights = [int(line.rpartition(" ")[2]) for line in lines]
    assert sum(weights) == sum(segment["total_size"] for segment in content["segments"])
    assert any("why:0" in line for line in lines)
    assert "segments:" in memory_viz.segsum(content)


def test_the_events_of_the_snapshot_lead_to_its_segments() -> None:
    content = snapshot(small_analysis())
    alive: dict[int, int] = {}
    opened = 0
    highest = 0
    for entry in content["device_traces"][0]:
        if entry["action"] == "alloc":
            assert entry["addr"] not in alive
            alive[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed":
            assert alive.pop(entry["addr"]) == entry["size"]
        elif entry["action"] == "segment_alloc":
            opened += entry["size"]
        highest = max(highest, sum(alive.values()))

    blocks = [block for segment in content["segments"] for block in segment["blocks"]]
    active = {b["address"]: b["requested_size"] for b in blocks if b["state"].startswith("active")}
    assert alive == active
    assert opened == sum(segment["total_size"] for segment in content["segments"])
    assert highest == small_analysis().report.peak.requested


def test_an_emptied_cache_is_in_the_snapshot() -> None:
    """A block of 64 MiB is gone; later allocations open a segment of 32 MiB."""

    def step() -> None:
        torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()
        torch.empty(32 << 20, dtype=torch.uint8, device="cuda")

    content = snapshot(run_analysis(lambda: TrainingStep(step=step), Request(steps=1)))
    segments = [
        (entry["action"], entry["size"] >> 20)
        for entry in content["device_traces"][0]
        if entry["action"].startswith("segment")
    ]

    assert segments == [("segment_alloc", 64), ("segment_free", 64), ("segment_alloc", 32)]
    assert [segment["total_size"] >> 20 for segment in content["segments"]] == [32]


# Perfetto


def test_the_trace_has_the_documented_form() -> None:
    """`ph`, `pid`, `name`; a time except for metadata; a duration for spans; numbers to count."""
    packed = rendered(small_analysis(), "step.json.gz")
    content = msgspec.json.decode(gzip.decompress(packed))

    assert content == msgspec.to_builtins(trace(small_analysis()))
    for event in content["traceEvents"]:
        assert {"ph", "pid", "name"} <= set(event)
        assert event["ph"] in "MXC"
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event["ph"] != "X" or event["dur"] > 0
        assert event["ph"] != "C" or isinstance(event["args"]["bytes"], int)


def test_the_counter_of_the_trace_reaches_the_peak() -> None:
    counted = {
        event["args"]["bytes"]
        for event in trace(small_analysis())["traceEvents"]
        if event["ph"] == "C" and event["name"] == "allocated"
    }

    assert max(counted) == small_analysis().report.peak.allocated


# tables


def test_the_timeline_as_csv_and_parquet_is_the_same() -> None:
    analysis = small_analysis()
    text = rendered(analysis, "step.csv").decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    table = pyarrow.parquet.read_table(io.BytesIO(rendered(analysis, "step.parquet")))

    assert [int(row["allocated"]) for row in rows] == table["allocated"].to_pylist()
    assert max(table["allocated"].to_pylist()) == analysis.report.peak.allocated


def test_the_table_of_holders_sums_to_the_peak() -> None:
    text = rendered(hostile_analysis(), "step.csv", table="holders").decode()
    rows = list(csv.DictReader(io.StringIO(text)))

    assert sum(int(row["block"]) for row in rows) == hostile_analysis().report.peak.allocated
    modules = " ".join(row["module"] for row in rows)
    assert [name for name in HOSTILE_NAMES if name not in modules] == []


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(NoPyarrowError) as raised:
        rendered(small_analysis(), "step.parquet")
    assert "graphmem[parquet]" in str(raised.value.hint)


# drawings


@needs_dot
@pytest.mark.parametrize("plot", ["liveness", "timeline"])
@pytest.mark.parametrize("ending", list(FIRST_BYTES))
def test_a_drawing_has_the_format_of_its_extension(ending: str, plot: str) -> None:
    image = rendered(small_analysis(), f"step.{ending}", plot=plot)

    assert image.startswith(FIRST_BYTES[ending])


def test_the_drawing_as_text_is_a_graph_of_graphviz() -> None:
    assert rendered(small_analysis(), "step.dot").startswith(b"digraph liveness {")


def test_graphviz_draws_no_timeline() -> None:
    with pytest.raises(DotHasNoTimelineError):
        rendered(small_analysis(), "step.dot", plot="timeline")


@needs_dot
@pytest.mark.parametrize("plot", ["liveness", "timeline"])
def test_names_stay_text_in_a_drawing(plot: str) -> None:
    image = rendered(hostile_analysis(), "step.svg", plot=plot)
    tree = ElementTree.fromstring(image)

    assert [each.tag for each in tree.iter() if each.tag.endswith(("script", "}b", "}img"))] == []
    if plot == "liveness":
        assert SCRIPT in " ".join(tree.itertext())


def test_every_storage_at_the_peak_is_filled_and_every_owner_is_an_edge() -> None:
    found = liveness(small_analysis(), View())

    for node in found.storages:
        group = node.group
        assert found.graph.out_degree(group) == len(group.ends)
        assert group.is_at_peak or group.ends
    source = drawing.dot_source(found, ["small"])
    assert source.count(" -> ") == found.graph.number_of_edges()


def test_equal_layers_are_drawn_as_one_until_they_are_expanded() -> None:
    analysis = small_analysis()
    modules = {group.module for group in liveness(analysis, View()).ops}
    expanded = liveness(analysis, View(expand=("1.*",))).ops

    assert {"*.*"} <= modules
    assert {group.module for group in expanded if group.op is not None} == {"1.0", "1.1"}


def test_one_phase_alone_can_be_drawn() -> None:
    found = liveness(small_analysis(), View(phase=PhaseName.FORWARD))

    assert {group.phase for group in found.ops} == {PhaseName.FORWARD}


def an_operation_of_the_peak_step() -> str:
    """Its name in `graphmem graph`."""
    graph = small_analysis().graph
    step = small_analysis().report.peak.step
    first = next(op for op in graph.ops if graph.phases[op.phase].step == step)
    return graph.nodes.names()[first]


@pytest.mark.parametrize("around", ["peak", "an operation", "1.0"])
def test_a_neighbourhood_can_be_drawn(around: str) -> None:
    around = an_operation_of_the_peak_step() if around == "an operation" else around

    found = liveness(small_analysis(), View(around=around))

    assert found.ops
    assert all(isinstance(node, StorageGroup) or node in found.ops for node in found.graph)


def test_a_neighbourhood_of_nothing_is_an_error() -> None:
    with pytest.raises(UnknownAroundError):
        liveness(small_analysis(), View(around="nowhere"))


# the command


def test_an_unknown_extension_is_an_error_that_lists_the_known_ones(
    run_graphmem: RunGraphmem, tmp_path: Path
) -> None:
    outcome = run_graphmem("render", STACK, "-o", str(tmp_path / "step.gif"))

    assert outcome.exit_code == 2
    assert ".html, .dot, .pickle, .json.gz, .csv, .parquet, .svg, .png, .pdf" in outcome.stderr


def test_without_dot_a_drawing_says_how_to_install_it_and_a_page_is_made(
    run_graphmem: RunGraphmem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    drawn = run_graphmem("render", STACK, "-o", str(tmp_path / "step.svg"))
    page = run_graphmem("render", STACK, "-o", str(tmp_path / "step.html"))

    assert drawn.exit_code == 2
    assert "apt-get install graphviz" in drawn.stderr
    assert page.exit_code == 0
    assert [file.name for file in tmp_path.iterdir()] == ["step.html"]


def test_a_comparison_needs_a_report(run_graphmem: RunGraphmem, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text("{}")

    outcome = run_graphmem(
        "render", STACK, "-o", str(tmp_path / "a.html"), "--compare", str(report)
    )

    assert outcome.exit_code == 2
    assert "is not a report" in outcome.stderr


def test_every_category_has_a_name_and_a_colour() -> None:
    categories = small_analysis().report.at_peak.by_category

    assert set(CATEGORY_NAMES) == set(CATEGORY_COLOURS) == set(categories)
