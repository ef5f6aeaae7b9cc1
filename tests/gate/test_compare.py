"""Findings, causes and differences of handmade reports; every format for every status."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import msgspec
import pytest
from markdown_it import MarkdownIt

from graphmem.gate.check import Check, Result
from graphmem.gate.compare import compare
from graphmem.gate.config import TargetConfig, read_table
from graphmem.gate.diff import diff_reports
from graphmem.gate.formats import FORMATS
from graphmem.gate.formats.differences import DIFF_FORMATS
from graphmem.gate.jobs import Failure
from graphmem.gate.lock import entry_of
from graphmem.report import Report
from graphmem.report.schema import AtPeak, Holder, OnCard, OwnerInfo
from tests.support.gate_schemas import ANNOTATION, JUNIT, SARIF, assert_junit
from tests.support.sizes import MIB


def holder(
    module: str, mebibytes: int, category: str = "activation", op: str = "aten.relu", **owner: str
) -> Holder:
    owners = [OwnerInfo("variable", owner["variable"], 0, None, "a.py:9")] if owner else []
    return Holder(
        bytes=mebibytes * MIB,
        block=mebibytes * MIB,
        category=category,
        op=f"{op}.default",
        shape=[1],
        dtype="float32",
        module=module,
        source="a.py:3",
        reason="saved for the backward pass",
        owners=owners,
    )


@pytest.fixture
def report() -> Callable[..., Report]:
    """Make a report whose peak is the sum of its holders."""
    base = {
        "graphmem": "0",
        "target": "a.py",
        "runtime": {"gpu": "h100-80gb", "title": "H100", "memory": 80 * 2**30, "env": {}}
        | {"compute_capability": "9.0", "torch": "2.13.0"},
        "steps": [],
        "saved_for_backward": 0,
        "operations": 1,
        "assumptions": [],
        "model": dict.fromkeys(
            ("parameters", "parameter_bytes", "buffer_bytes", "gradient_bytes"), 0
        )
        | {"optimizer_state_bytes": 0},
    }

    def make(*holders: Holder) -> Report:
        total = sum(each.bytes for each in holders)
        categories: dict[str, int] = {}
        for each in holders:
            categories[each.category] = categories.get(each.category, 0) + each.bytes
        peak = {"allocated": total, "requested": total, "reserved": total, "step": 0}
        place = {"phase": "forward", "op": None, "module": "", "source": None}
        table = {**base, "peak": peak | place, "at_peak": {}}
        table["at_peak"] = {"by_category": categories, "by_module": {}, "holders": []}
        made = Report.from_json(json.dumps(table))
        at_peak = AtPeak(by_category=categories, by_module={}, holders=list(holders))
        return msgspec.structs.replace(made, at_peak=at_peak)

    return make


Make = Callable[..., Report]


@pytest.mark.parametrize(
    ("limits", "rules"),
    [
        ({"max_allocated": "24 MiB"}, []),
        ({"max_allocated": "23 MiB"}, ["max_allocated"]),
        ({"max_reserved": "23 MiB"}, ["max_reserved"]),
        ({"max_allocated": {"activations": "15 MiB"}}, ["max_allocated.activations"]),
        ({"max_allocated": {"modules": {"h.*": "15 MiB"}}}, ["max_allocated.modules.h.*"]),
    ],
)
def test_limits_of_what_is_measured(
    report: Make, limits: dict[str, object], rules: list[str]
) -> None:
    config = read_table({"target": "a.py", **limits}, TargetConfig)
    made = report(holder("h.0", 8), holder("h.1", 8), holder("head", 8, "temporary"))

    assert [each.rule for each in compare(config, None, made).findings] == rules


def verdict_on_card(**changes: object) -> OnCard:
    """A card that offers PyTorch 20 MiB, of which it reserves at most 16."""
    table = dict.fromkeys(OnCard.__struct_fields__, 0) | {"fits": True, "within_estimate": False}
    sizes = {"capacity": 20 * MIB, "reserved": 16 * MIB, "margin": 4 * MIB, "refused": None}
    return msgspec.convert({**table, **sizes, **changes}, OnCard)


REFUSED = {
    **dict.fromkeys(("tried", "allocated", "reserved", "free"), 0),
    "requested": 6 * MIB,
    "step": 1,
    "phase": "backward",
    "op": "aten.mm.default",
    "module": "head",
    "source": "a.py:7",
    "message": "CUDA out of memory. Tried to allocate 6.00 MiB.",
    "held": {"by_category": {}, "by_module": {}, "holders": []},
}


def test_a_step_that_peaks_above_the_card_fits_once_the_cache_is_emptied(
    report: Make,
) -> None:
    """24 MiB at the peak exceed the 20 MiB of the card: only the replay decides."""
    config = read_table({"target": "a.py", "fits": "h100"}, TargetConfig)
    on_card = verdict_on_card(cache_emptied=1)

    verdict = compare(config, None, report(holder("head", 24)), on_card)

    assert verdict.findings == []
    check = Check(results=[Result(name="one", target="a.py", status="new", verdict=verdict)])
    note = "one fits only because PyTorch flushed its cache, with 4,194,304 bytes left"
    assert all(note in FORMATS[name](check) for name in ("text", "markdown"))


def test_a_step_that_does_not_fit_names_the_failed_request(report: Make) -> None:
    config = read_table({"target": "a.py", "fits": "h100"}, TargetConfig)
    on_card = verdict_on_card(fits=False, margin=-4 * MIB, refused=REFUSED, within_estimate=True)

    verdict = compare(config, None, report(holder("head", 24)), on_card)

    [finding] = verdict.findings
    assert (finding.rule, finding.after, finding.limit) == ("fits", 24 * MIB, 20 * MIB)
    check = Check(results=[Result(name="one", target="a.py", status="failed", verdict=verdict)])
    assert (
        "one: fits: 6,291,456 bytes requested in the backward phase of step 1 at aten.mm in head "
        "(a.py:7), refused: 4.0 MiB above the 20.0 MiB that PyTorch can use on "
        "NVIDIA H100 80GB HBM3, within the uncertainty of the available memory. "
        "CUDA out of memory. Tried to allocate 6.00 MiB."
    ) in FORMATS["text"](check)


@pytest.mark.parametrize(
    ("increase", "rules"),
    [
        (None, ["max_increase"]),
        ({"max_increase": "50%"}, []),
        ({"max_increase": "49%"}, ["max_increase"]),
        ({"max_increase": "4 MiB"}, []),
        ({"max_increase": {"activations": "3 MiB"}}, ["max_increase.activations"]),
        ({"max_increase": {"modules": {"h": "3 MiB"}}}, ["max_increase.modules.h"]),
        ({"max_increase": {"temporaries": "0 B"}}, []),
    ],
)
def test_limits_of_what_is_added(
    report: Make, increase: dict[str, object] | None, rules: list[str]
) -> None:
    config = read_table({"target": "a.py", **(increase or {})}, TargetConfig)
    before = entry_of(report(holder("h.0", 4), holder("h.1", 4)))

    verdict = compare(config, before, report(holder("h.0", 6), holder("h.1", 6)))

    assert [each.rule for each in verdict.findings] == rules
    assert [(each.module, each.layers, each.growth) for each in verdict.causes] == [
        ("h.[0-1]", 2, 4 * MIB)
    ]


def test_the_cause_is_the_line_of_the_variable_holding_most(report: Make) -> None:
    config = TargetConfig(target="a.py")
    before = entry_of(report(holder("head", 4)))

    verdict = compare(
        config, before, report(holder("head", 8), holder("head", 4, variable="kept[0]"))
    )

    [cause] = verdict.causes
    assert (cause.source, cause.before, cause.after) == ("a.py:9", 4 * MIB, 12 * MIB)
    assert "kept[0]" in cause.owner


def test_a_difference_is_matched_by_module_and_operation(report: Make) -> None:
    before = report(holder("a", 4), holder("b", 4, op="aten.gelu"), holder("c", 2), holder("d", 7))
    after = report(holder("d", 7), holder("c", 4), holder("a", 1), holder("x", 4, op="aten.gelu"))

    differences = diff_reports("it", before, after).differences

    assert [(each.kind, each.module, each.growth // MIB) for each in differences] == [
        ("shrank", "a", -3),
        ("moved", "x", 0),
        ("grew", "c", 2),
    ]
    assert differences[1].moved_from == "activation in b"


def test_layers_that_moved_likewise_are_one_difference(report: Make) -> None:
    """As those of a list of layers that is renamed; layer 10 is not taken for layer 2."""
    before, after = (
        report(*(holder(f"0.{layers}.{i}.fc", 4, "optimizer_state") for i in range(12)))
        for layers in ("h", "blocks")
    )

    diff = diff_reports("it", before, after)

    (moved,) = diff.differences
    assert (moved.module, moved.layers) == ("0.blocks.[0-11].fc", 12)
    assert moved.moved_from == "optimizer_state in 0.h.[0-11].fc"
    assert " moved from optimizer state in 0.h.[0-11].fc: " in DIFF_FORMATS["text"]([diff])


@pytest.fixture
def check(report: Make) -> Check:
    """One target of every status, with names that need escaping."""
    config = TargetConfig(target="a.py")
    small, large = report(holder("h.0", 4)), report(holder("h.0", 6))
    failed = compare(config, entry_of(small), large)
    failure = Failure(2, "build() raised: a | b\n100% <wrong>", "mend it", "Traceback\n")
    return Check(
        results=[
            Result(name="a|b, c:d", target="a.py:f", status="failed", verdict=failed),
            Result(name="new", target="a.py", status="new", verdict=compare(config, None, small)),
            Result(name="error", target="a.py", status="error", failure=failure),
            Result(name="unreached", target="package.module", status="unreached"),
        ]
    )


def test_the_highest_exit_code_wins(check: Check) -> None:
    assert check.exit_code == 2


def test_every_annotation_is_one_line_of_the_grammar(check: Check) -> None:
    lines = FORMATS["github"](check).splitlines()

    assert [line.partition(" ")[0] for line in lines] == ["::error", "::error", "::notice"]
    assert all(ANNOTATION.fullmatch(line) for line in lines)


@pytest.mark.parametrize(("is_of_project", "line"), [(True, 3), (False, 1)])
def test_an_annotation_is_at_a_line_of_the_project(
    report: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_of_project: bool, line: int
) -> None:
    """A package's file has a relative name too, and is not in the repository."""
    monkeypatch.chdir(tmp_path)
    if is_of_project:
        (tmp_path / "a.py").touch()
    config = read_table({"target": "a.py", "max_allocated": "1 MiB"}, TargetConfig)
    verdict = compare(config, None, report(holder("h.0", 8)))
    result = Result(name="one", target="a.py", status="failed", verdict=verdict)

    annotated = FORMATS["github"](Check(results=[result]))

    assert annotated.startswith(f"::error file=a.py,line={line},")


def test_sarif_and_junit_fit_their_schemas(check: Check) -> None:
    jsonschema.validate(json.loads(FORMATS["sarif"](check)), SARIF)
    root = ET.fromstring(FORMATS["junit"](check).encode())
    assert_junit(root, JUNIT)
    assert [root.get(key) for key in ("tests", "failures", "errors")] == ["4", "1", "1"]


def test_markdown_keeps_names_whole(check: Check) -> None:
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(FORMATS["markdown"](check))
    cells = [
        "".join(child.content for child in following.children or ())
        for token, following in itertools.pairwise(tokens)
        if token.type == "td_open"
    ]

    assert cells[0] == "a|b, c:d"
    assert len(cells) == 4 * 5


def test_text_and_json_name_every_target(check: Check) -> None:
    for name in ("text", "json"):
        assert all(result.name in FORMATS[name](check) for result in check.results)


def test_differences_appear_in_every_format(report: Make) -> None:
    diff = diff_reports("it", report(holder("h.0", 4)), report(holder("h.0", 6)))

    assert "+2.0 MiB grew: activation in h.0 (a.py:3)" in DIFF_FORMATS["text"]([diff])
    assert "2.0 MiB" in DIFF_FORMATS["markdown"]([diff])
    assert json.loads(DIFF_FORMATS["json"]([diff]))[0]["schema"] == "graphmem.diff/1"


BUFFER = """
import torch

class Model(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("held", torch.empty(size, dtype=torch.uint8))
        self.weight = torch.nn.Parameter(torch.ones(128))

    def forward(self, x):
        return self.weight * x

def build(size={size}):
    return Model(size), torch.ones(128)
"""


def test_what_the_allocators_blocks_add_is_a_difference_as_well(
    run_graphmem: Callable[..., Any], tmp_path: Path
) -> None:
    """A buffer of 600 bytes in place of 400 takes two blocks of 512 bytes, not one."""
    for name, size in (("old", 400), ("new", 600)):
        (tmp_path / f"{name}.py").write_text(BUFFER.replace("{size}", str(size)))
    sides = [str(tmp_path / f"{name}.py") for name in ("old", "new")]

    headline, grown, rounding = run_graphmem("diff", *sides).stdout.splitlines()
    assert headline.partition(", ")[0].endswith(": +512 B")
    assert grown.startswith("  +200 B grew: buffer ")
    assert rounding.startswith("  +312 B grew: rounding by the allocator; ")
