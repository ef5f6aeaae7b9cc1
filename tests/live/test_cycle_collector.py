"""Where Python's cycle collector decides the peak, the report states its bounds."""

from __future__ import annotations

import gc
import html
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import graphmem
from tests.conftest import Outcome
from tests.support.sizes import GIB, MIB

Run = Callable[..., "Ran"]

# The collector is on only in `automatically`, so a test knows what it frees, and when.
SCRIPT = """
import gc
import torch

def on_card(nbytes):
    return torch.zeros(nbytes, dtype=torch.uint8, device="cuda")

class Node:
    def __init__(self, nbytes):
        self.itself = self
        self.tensor = on_card(nbytes)

def automatically():
    gc.enable()
    objects = [[] for _ in range(3000)]
    gc.disable()

gc.disable()
{body}
gc.enable()
"""


class Ran:
    """A script that ran on a card: its report, as JSON and as text, and its saved step."""

    def __init__(self, folder: Path) -> None:
        self.report = json.loads((folder / "report.json").read_text())
        self.saved = folder / "step.graphmem"
        self.text = " ".join(graphmem.Report.from_json(json.dumps(self.report)).to_text().split())

    def peaks(self, kind: str = "allocated") -> tuple[int, int, int]:
        """The lowest peak, that of the run, and the highest."""
        found = self.report["collector"]
        highest = max(each[kind] for each in (self.report["peak"], self.report["ran"]))
        return found["lowest"][kind], highest, found["highest"][kind]


@pytest.fixture(autouse=True)
def collector_on() -> Iterator[None]:
    """A script runs in the process of the tests, which wants its collector back."""
    yield
    gc.enable()


@pytest.fixture
def run(run_graphmem: Callable[..., Outcome], tmp_path: Path) -> Run:
    """Run a script's body on a card."""

    def call(body: str, gpu: str = "a100-80gb") -> Ran:
        (tmp_path / "script.py").write_text(SCRIPT.format(body=body))
        outputs = [("--save", "step.graphmem"), ("--html", "page.html"), ("-o", "report.json")]
        kept = [word for option, name in outputs for word in (option, str(tmp_path / name))]
        script = str(tmp_path / "script.py")
        outcome = run_graphmem("run", "--gpu", gpu, "--format", "json", *kept, script)
        assert outcome.exit_code == 0, outcome.stderr
        return Ran(tmp_path)

    return call


class TestBounds:
    """Each size is one of the allocator's own: a multiple of 2 MiB, in a segment of its own."""

    def test_the_peak_is_between_cycles_freed_at_once_and_cycles_never_freed(
        self, run: Run
    ) -> None:
        ran = run(
            "Node(32 * 2**20); Node(32 * 2**20)\n"  # two cycles wait for the collector
            "automatically()\n"
            "kept = on_card(48 * 2**20)"
        )

        at_once, as_run, never = 48 * MIB, 2 * 32 * MIB, (2 * 32 + 48) * MIB
        assert ran.peaks() == (at_once, as_run, never)

    def test_the_reserved_bytes_have_bounds_too(self, run: Run) -> None:
        """The cache serves what is freed before it is asked for."""
        ran = run("Node(32 * 2**20); automatically(); Node(32 * 2**20); automatically()")

        assert ran.peaks("reserved") == (32 * MIB, 32 * MIB, 2 * 32 * MIB)

    def test_what_the_program_collects_itself_has_none(self, run: Run) -> None:
        ran = run("Node(32 * 2**20); gc.collect(); kept = on_card(48 * 2**20)")

        assert ran.report["peak"]["allocated"] == 48 * MIB
        assert "collector" not in ran.report
        assert "cycle collector" not in ran.text

    def test_what_is_freed_without_the_collector_has_none(self, run: Run) -> None:
        ran = run("tensor = on_card(32 * 2**20); del tensor; automatically()")

        assert "collector" not in ran.report

    def test_a_peak_that_no_cycle_can_change_has_none(self, run: Run) -> None:
        ran = run("large = on_card(256 * 2**20); del large\nNode(32 * 2**20); automatically()")

        assert ran.report["peak"]["allocated"] == 256 * MIB
        assert "collector" not in ran.report

    def test_which_young_objects_are_collected_is_the_collectors_choice(self, run: Run) -> None:
        """With the collector on, `gc.collect(0)` only frees what no collection saw before."""
        ran = run("Node(32 * 2**20); gc.enable(); gc.collect(0); kept = on_card(48 * 2**20)")

        assert ran.peaks() == (48 * MIB, 48 * MIB, (32 + 48) * MIB)

    def test_a_storage_is_not_freed_before_its_last_use(self, run: Run) -> None:
        ran = run(
            "node = Node(32 * 2**20)\n"
            "kept = on_card(48 * 2**20)\n"
            "node.tensor.add_(1)\n"
            "del node; automatically()\n"
            "more = on_card(16 * 2**20)"
        )

        assert ran.peaks() == ((32 + 48) * MIB, (32 + 48) * MIB, (32 + 48 + 16) * MIB)

    def test_a_storage_stays_at_most_until_the_program_collects(self, run: Run) -> None:
        ran = run(
            "Node(32 * 2**20); automatically()\n"
            "kept = on_card(16 * 2**20)\n"
            "gc.collect()\n"
            "more = on_card(64 * 2**20)"
        )

        assert ran.peaks() == ((16 + 64) * MIB,) * 3
        in_the_freed_block = (32 + 64) * MIB
        assert ran.peaks("reserved") == (in_the_freed_block,) * 2 + ((32 + 16 + 64) * MIB,)

    @pytest.mark.parametrize(
        ("collect", "at_once"),
        [
            ("gc.collect()", (32 + 16) * MIB),
            ("gc.enable(); gc.collect(); gc.disable()", 32 * MIB),
        ],
    )
    def test_what_the_program_collects_could_be_freed_sooner_unless_the_collector_is_off(
        self, run: Run, collect: str, at_once: int
    ) -> None:
        ran = run(
            "Node(8 * 2**20); automatically()\n"
            f"Node(32 * 2**20); other = on_card(16 * 2**20); {collect}"
        )

        assert ran.peaks() == (at_once, (32 + 16) * MIB, (8 + 32 + 16) * MIB)

    def test_cycles_that_wait_at_the_end_could_have_been_freed(self, run: Run) -> None:
        ran = run("Node(16 * 2**20); automatically(); Node(32 * 2**20); kept = on_card(32 * 2**20)")

        assert ran.peaks() == (32 * MIB, 2 * 32 * MIB, (16 + 2 * 32) * MIB)

    def test_an_exceptions_frames_hold_their_variables(self, run: Run) -> None:
        """The highest is the peak of the same script without a collection."""
        body = """
model = torch.nn.Linear(64, 4096, bias=False).cuda()
inputs = torch.randn(2048, 64, device="cuda")

def step():
    logits = model(inputs)
    logits.square().mean().backward()
    try:
        raise ValueError
    except ValueError as error:
        seen = error  # the frame holds the exception, whose traceback holds the frame

for _ in range(3):
    step()
    COLLECTION
"""
        never = run(body.replace("COLLECTION", ""))
        after_each = run(body.replace("COLLECTION", "gc.collect()"))
        ran = run(body.replace("COLLECTION", "automatically()"))

        logits = 2048 * 4096 * 4
        at_once, as_run, at_the_end = ran.peaks()
        assert as_run == after_each.report["peak"]["allocated"]
        assert at_the_end == never.report["peak"]["allocated"]
        assert at_once == as_run
        assert at_the_end - as_run >= 2 * logits  # of the first two steps
        assert ran.report["collector"]["name"] == "logits"


class TestWords:
    BODY = "Node(32 * 2**20); Node(16 * 2**20); automatically(); kept = on_card(64 * 2**20)"

    def test_the_bounds_stand_beside_the_peak(self, run: Run) -> None:
        ran = run(self.BODY)

        line = 1 + SCRIPT.splitlines().index(
            '    return torch.zeros(nbytes, dtype=torch.uint8, device="cuda")'
        )
        between = "between 64.0 MiB (67,108,864 bytes) and 112.0 MiB (117,440,512 bytes) allocated"
        assert 64 * MIB == 67_108_864
        assert (32 + 16 + 64) * MIB == 117_440_512
        assert between in ran.text
        largest = "(the largest of 32.0 MiB: uint8 [33554432], "
        assert f"frees 2 tensors in reference cycles {largest}" in ran.text
        assert f"script.py:{line}): between" in ran.text

    def test_the_page_has_them(self, run: Run, tmp_path: Path) -> None:
        run(self.BODY)

        page = html.unescape((tmp_path / "page.html").read_text())
        assert "The peak depends on when Python's cycle collector frees 2 tensors" in page

    def test_the_brief_report_and_the_notebook_have_them(self, run: Run) -> None:
        ran = run(self.BODY)
        report = graphmem.Report.from_json(json.dumps(ran.report))

        bounds = "64.0 MiB to 112.0 MiB, as Python's cycle collector runs"
        assert bounds in repr(report)
        assert "and 112.0 MiB (117,440,512 bytes) allocated" in report._repr_html_()

    def test_a_card_that_a_late_collector_fills_is_no_fit(self, run: Run) -> None:
        """A T4 has 14.563 GiB."""
        ran = run("Node(6 * 2**30); automatically(); kept = on_card(10 * 2**30)", gpu="t4")

        card = ran.report["ran"]
        missing = 16 * GIB - card["capacity"]
        assert card["fits"]
        assert ran.report["collector"]["margin"] == -missing
        assert "GiB), but not if Python's cycle collector comes late" in ran.text
        assert f"are missing ({missing:,} bytes) if Python's cycle collector comes late" in ran.text

    def test_what_a_late_collector_leaves_is_said(self, run: Run) -> None:
        """The run put the second tensor where the first had been."""
        ran = run("Node(2 * 2**30); automatically(); kept = on_card(2**30)", gpu="t4")

        left = ran.report["ran"]["capacity"] - 3 * GIB
        assert ran.report["collector"]["margin"] == left
        assert f"({left:,} bytes) if Python's cycle collector comes late" in ran.text
        assert "but not if" not in ran.text


def test_a_saved_step_has_the_bounds(run: Run, run_graphmem: Callable[..., Outcome]) -> None:
    ran = run(TestWords.BODY)

    read = run_graphmem("analyze", str(ran.saved), "--format", "json")

    assert json.loads(read.stdout) == ran.report
    assert ran.peaks() == (64 * MIB, 64 * MIB, (32 + 16 + 64) * MIB)


def test_a_target_has_them(run_graphmem: Callable[..., Outcome], tmp_path: Path) -> None:
    """`graphmem run model.py:build`."""
    model = """
def build():
    def step():
        gc.disable()
        Node(32 * 2**20)
        automatically()
        gc.enable()
    return graphmem.TrainingStep(step=step)
"""
    source = SCRIPT.partition("gc.disable()\n{body}")[0]
    (tmp_path / "model.py").write_text(f"import graphmem\n{source}{model}")
    report = tmp_path / "report.json"

    outcome = run_graphmem(
        "run", "--format", "json", "-o", str(report), f"{tmp_path / 'model.py'}:build"
    )

    assert outcome.exit_code == 0, outcome.stderr
    found = json.loads(report.read_text())["collector"]
    steps = 3
    assert found["lowest"]["allocated"] == found["largest"] == 32 * MIB
    assert found["highest"]["allocated"] == steps * 32 * MIB


def test_the_collector_is_given_back(run: Run) -> None:
    collect, callbacks = gc.collect, list(gc.callbacks)

    run(TestWords.BODY)

    assert gc.collect is collect
    assert gc.callbacks == callbacks


def test_compiled_code_breaks_where_it_would_without_the_watch(run: Run) -> None:
    """Dynamo breaks a graph at a builtin of Python, and would look into what stands in for it."""
    ran = run("""
@torch.compile(backend="eager")
def compiled(inputs):
    outputs = inputs * 2
    gc.collect()
    return outputs * 2

compiled(torch.ones(1024, device="cuda"))
""")

    (compilation,) = (
        each["lines"] for each in ran.report["findings"] if each["found_by"] == "compilation"
    )
    assert any(
        "script.py:" in line and "function marked as skipped" in line for line in compilation
    )
    assert not any("stands in" in each["what"] for each in ran.report["assumptions"])
