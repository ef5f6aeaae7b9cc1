"""The drawing's layout: order of execution, sizes by bytes, and what its title says."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmem.graph import PhaseName
from graphmem.render import drawing
from graphmem.render.columns import Box, Group, placed, spread
from graphmem.render.files import PictureOptions, renderer_for
from graphmem.render.liveness import Liveness, View, liveness
from graphmem.report.categories import CATEGORY_NAMES
from graphmem.units import format_bytes
from tests.support.rendered import hostile_analysis, small_analysis

VIEWS = [
    View(),
    View(expand=("1.*",)),
    View(around="peak"),
    View(phase=PhaseName.BACKWARD),
    View(phase=PhaseName.FORWARD),
]


def boxes_of(found: Liveness) -> dict[Group, Box]:
    return placed(found, dict.fromkeys([*found.ops, *storages_of(found)], (100.0, 30.0)))


def storages_of(found: Liveness) -> list[Group]:
    return [node.group for node in found.storages]


def test_forward_goes_down_and_backward_goes_up_in_order_of_execution() -> None:
    found = liveness(small_analysis(), View(expand=("*",)))
    boxes = boxes_of(found)

    for phase, goes_up in ((PhaseName.FORWARD, False), (PhaseName.BACKWARD, True)):
        nodes = [node for group, node in found.ops.items() if group.phase is phase]
        nodes.sort(key=lambda node: node.first, reverse=goes_up)
        heights = [boxes[node.group].y for node in nodes]
        assert len(heights) > 2
        assert heights == sorted(heights)


def test_what_forward_leaves_to_backward_stands_between_them() -> None:
    found = liveness(small_analysis(), View())
    boxes = boxes_of(found)
    (forward,) = {boxes[g].x for g in found.ops if g.phase is PhaseName.FORWARD}
    (backward,) = {boxes[g].x for g in found.ops if g.phase is PhaseName.BACKWARD}

    kept = [
        boxes[node.group].x
        for node in found.storages
        if node.group.maker is not None
        and node.group.maker.phase is PhaseName.FORWARD
        and any(end.phase is PhaseName.BACKWARD for _, end in node.group.ends)
    ]

    assert kept
    assert all(forward < x < backward for x in kept)


@pytest.mark.parametrize("view", VIEWS)
def test_every_node_has_a_box_and_no_two_overlap(view: View) -> None:
    found = liveness(small_analysis(), view)
    boxes = boxes_of(found)

    assert set(boxes) == set(found.graph)
    for column in {box.x for box in boxes.values()}:
        inside = sorted(box.y for box in boxes.values() if box.x == column)
        assert all(lower - upper >= 30 for upper, lower in pairwise(inside))


def test_storages_are_as_high_as_their_bytes() -> None:
    """The largest has the full height; those that need less than their text have the text's."""
    found = liveness(small_analysis(), View())
    source = drawing.dot_source(found, ["small"])

    largest = max(node.nbytes for node in found.storages)
    heights = {
        round(72 * float(line.split("height=")[1].split()[0]))
        for line in source.splitlines()
        if "height=" in line
    }
    tall = {round(250 * node.nbytes / largest) for node in found.storages}
    assert 250 in heights
    assert {height for height in tall if height > 60} <= heights


def test_the_drawing_names_the_peak_the_card_and_its_colours() -> None:
    report = small_analysis().report
    source = renderer_for("step.dot", PictureOptions())(small_analysis()).decode()

    assert f"peak {format_bytes(report.peak.allocated)}" in source
    assert f"fits on {report.runtime.title}" in source
    found = liveness(small_analysis(), View())
    for node in found.storages:
        assert CATEGORY_NAMES[node.group.category] in source
    assert "filled if alive at the peak" in source


def test_names_are_not_in_the_legend() -> None:
    """It is the one label that is HTML."""
    source = renderer_for("step.dot", PictureOptions())(hostile_analysis()).decode()

    [legend] = [line for line in source.splitlines() if "<TABLE" in line]
    assert "<script>" not in legend


@given(st.lists(st.tuples(st.floats(-1e4, 1e4), st.floats(1, 300)), min_size=1, max_size=30))
def test_boxes_keep_their_order_and_their_distance(items: list[tuple[float, float]]) -> None:
    wanted, heights = [list(each) for each in zip(*items, strict=True)]

    found = spread(wanted, heights)

    for (upper, lower), (above, below) in zip(pairwise(found), pairwise(heights), strict=True):
        assert lower - upper >= (above + below) / 2
    if all(b - a > 400 for a, b in pairwise(wanted)):
        assert found == pytest.approx(wanted)
