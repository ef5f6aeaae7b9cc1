"""Draw the liveness graph with graphviz: forward down the left, backward up the right.

Between them stand the storages that one phase leaves to another, each as high as its bytes. All
names are escaped, so that they stay text whatever they contain.
"""

from __future__ import annotations

import html
import shutil
from collections.abc import Iterable, Mapping, Sequence

import graphviz

from graphmem.graph import PhaseName
from graphmem.render.columns import Box, Group, goes_up, placed
from graphmem.render.liveness import Liveness, OpGroup, OpNode, StorageGroup, StorageNode
from graphmem.render.messages import NoGraphvizError
from graphmem.report.categories import CATEGORY_COLOURS, CATEGORY_NAMES
from graphmem.units import counted, format_bytes

FORMATS = ("svg", "png", "pdf")
_LONGEST = 44
_LONGEST_TITLE = 110
_FONT = "DejaVu Sans, Noto Sans, Helvetica, Arial"
_PHASE_COLOURS = {
    PhaseName.SETUP: "#f3f3f3",
    PhaseName.FORWARD: "#eef4fb",
    PhaseName.BACKWARD: "#fbf1ee",
    PhaseName.OPTIMIZER: "#f0f7ee",
}
_OTHER_PHASE = "#f3f3f3"
# In points; a letter of 11 points is about 6.6 wide.
_LETTER_WIDTH, _LINE_HEIGHT = 6.6, 14.0
_TALLEST = 250.0
_ARROW = 7.0
_HOW_TO_READ = """\
Rounded boxes are operations, executed in the direction of the arrow.
Square boxes are the storages they allocate: as high as their bytes (small ones as their text),
filled if alive at the peak.
Lines lead from what allocates a storage to it, and on to what releases it.
An asterisk in a name stands for the number of a layer."""


def dot_source(liveness: Liveness, title: Sequence[str]) -> str:
    """The graph in graphviz's DOT language."""
    return str(_digraph(liveness, title).source)


def drawn(liveness: Liveness, title: Sequence[str], file_format: str) -> bytes:
    """The graph as SVG, PNG or PDF; call `require_dot` first."""
    image: bytes = _digraph(liveness, title).pipe(format=file_format)
    return image


def require_dot() -> None:
    """Make sure that graphviz can draw.

    Raises:
        InputError: its program `dot` is not installed.
    """
    if shutil.which("dot") is None:
        raise NoGraphvizError()


def _digraph(liveness: Liveness, title: Sequence[str]) -> graphviz.Digraph:
    picture = graphviz.Digraph("liveness")
    picture.attr(
        layout="nop2", outputorder="nodesfirst", pad="0.3"
    )  # everything has its place already
    picture.attr("node", fontname=_FONT, fontsize="11", shape="box", fixedsize="true")
    picture.attr("edge", arrowsize="0.7")
    nbytes = {node.group: node.nbytes for node in liveness.storages}
    largest = max(nbytes.values(), default=1)
    lines: dict[Group, list[str]] = {group: _op_lines(node) for group, node in liveness.ops.items()}
    sizes = {group: _size(each) for group, each in lines.items()}
    for node in liveness.storages:
        lines[node.group] = _storage_lines(node)
        width, height = _size(lines[node.group])
        sizes[node.group] = (width, max(height, _TALLEST * node.nbytes / largest))
    boxes = placed(liveness, sizes)
    names = {group: f"n{i}" for i, group in enumerate(boxes)}
    _add_phases(picture, liveness, boxes)
    for group, box in boxes.items():
        _add_box(picture, names[group], box, lines[group], _look(group))
    for source, target, label in liveness.graph.edges(data="label", default=""):
        storage = source if isinstance(source, StorageGroup) else target
        width = 1 + 4 * nbytes[storage] / largest
        picture.edge(
            names[source], names[target], pos=_curve(boxes[source], boxes[target]),
            color=CATEGORY_COLOURS[storage.category], penwidth=f"{width:.1f}",
            edgetooltip=_text(label or "allocates"),
        )  # fmt: skip
    _add_title(picture, boxes, [*title, _note(liveness)])
    _add_legend(picture, boxes, liveness)
    return picture


def _op_lines(node: OpNode) -> list[str]:
    if node.group.op is not None:
        [target] = node.targets
        return [node.group.module, f"{target}, operation {node.group.op:,}"]
    common = ", ".join(target for target, _ in node.targets.most_common(3))
    return [node.group.module, f"{counted(node.count, 'operation')}: {common}".removesuffix(": ")]


def _storage_lines(node: StorageNode) -> list[str]:
    first = node.lives[0].storage
    shape = "x".join(map(str, first.shape)) or "scalar"
    same = len({(life.storage.shape, life.storage.dtype) for life in node.lives}) == 1
    times = f" in {len(node.lives)} storages" if len(node.lives) > 1 else ""
    owners = sorted({label for label, _ in node.group.ends} - {""})
    return [
        f"{format_bytes(node.nbytes)}{times}",
        f"{first.dtype} [{shape}]" if same else "several shapes",
        *([f"kept as {', '.join(owners)}"] if owners else []),
    ]


def _size(lines: Sequence[str]) -> tuple[float, float]:
    """The points that lines of text need."""
    longest = max(len(_shortened(line)) for line in lines)
    return longest * _LETTER_WIDTH + 18, len(lines) * _LINE_HEIGHT + 10


def _look(group: Group) -> dict[str, str]:
    if isinstance(group, OpGroup):
        return {"style": "rounded,filled", "fillcolor": "white", "color": "#8a8f98"}
    colour = CATEGORY_COLOURS[group.category]
    filling = f"{colour}aa" if group.is_at_peak else "white"
    return {"style": "filled", "fillcolor": filling, "color": colour, "penwidth": "1.6"}


def _add_box(
    picture: graphviz.Digraph, name: str, box: Box, lines: Sequence[str], look: dict[str, str]
) -> None:
    picture.node(
        name, _text(*lines), pos=_point(box.x, box.y), width=_inches(box.width),
        height=_inches(box.height), tooltip=_text(*lines), **look,
    )  # fmt: skip


def _add_phases(picture: graphviz.Digraph, liveness: Liveness, boxes: Mapping[Group, Box]) -> None:
    """Lay a ground beneath each phase's operations, with its name and the direction of time."""
    for phase in PhaseName:
        column = [boxes[group] for group in liveness.ops if group.phase is phase]
        if not column:
            continue
        top, bottom = _extent(column)
        ground = Box(column[0].x, (top + bottom) / 2, column[0].width + 24, bottom - top + 64)
        arrow = "\N{UPWARDS ARROW}" if goes_up(liveness, phase) else "\N{DOWNWARDS ARROW}"
        look = {"style": "rounded,filled", "fillcolor": _PHASE_COLOURS.get(phase, _OTHER_PHASE)}
        look |= {"color": look["fillcolor"], "labelloc": "t", "fontsize": "14"}
        _add_box(picture, f"phase_{phase}", ground, [f"{phase} {arrow}"], look)


def _add_title(picture: graphviz.Digraph, boxes: Mapping[Group, Box], lines: Sequence[str]) -> None:
    top, _ = _extent(boxes.values())
    for number, line in enumerate(reversed(lines)):
        is_first = number == len(lines) - 1
        picture.node(
            f"title_{number}", _text(line, longest=_LONGEST_TITLE), shape="plain",
            fixedsize="false", fontsize="20" if is_first else "15",
            pos=_point(_middle(boxes), top - 62 - 24 * number),
        )  # fmt: skip


def _add_legend(picture: graphviz.Digraph, boxes: Mapping[Group, Box], liveness: Liveness) -> None:
    """An HTML table, which has no name of the program in it."""
    swatches = "".join(
        f'<TD BGCOLOR="{CATEGORY_COLOURS[each]}" WIDTH="18"> </TD>'
        f'<TD ALIGN="LEFT">{html.escape(CATEGORY_NAMES[each])}   </TD>'
        for each in dict.fromkeys(node.group.category for node in liveness.storages)
    )
    colours = f'<TABLE BORDER="0" CELLSPACING="4"><TR>{swatches}</TR></TABLE>' if swatches else ""
    rows = "".join(
        f'<TR><TD ALIGN="LEFT">{row}</TD></TR>'
        for row in (colours, *_HOW_TO_READ.splitlines())
        if row
    )
    _, bottom = _extent(boxes.values())
    picture.node(
        "legend", f'<<TABLE BORDER="0" CELLSPACING="2">{rows}</TABLE>>', shape="plain",
        fixedsize="false", fontsize="13", pos=_point(_middle(boxes), bottom + 130),
    )  # fmt: skip


def _note(liveness: Liveness) -> str:
    drawn = sum(node.nbytes for node in liveness.storages if node.group.is_at_peak)
    note = f"{format_bytes(drawn)} of the peak are drawn"
    groups = len(liveness.left_out)
    return f"{note}; {groups} smaller groups of storages are not" if groups else note


def _curve(tail: Box, head: Box) -> str:
    """A Bezier curve between the sides that face each other, with the tip of its arrow."""
    towards = 1 if head.x > tail.x else -1
    start, tip = tail.x + towards * tail.width / 2, head.x - towards * head.width / 2
    end = tip - towards * _ARROW
    bend = (start + end) / 2
    points = ((start, tail.y), (bend, tail.y), (bend, head.y), (end, head.y))
    return f"e,{_point(tip, head.y)} {' '.join(_point(x, y) for x, y in points)}"


def _extent(boxes: Iterable[Box]) -> tuple[float, float]:
    """The upper and the lower end."""
    every = list(boxes)
    return (
        min(each.y - each.height / 2 for each in every),
        max(each.y + each.height / 2 for each in every),
    )


def _middle(boxes: Mapping[Group, Box]) -> float:
    return (
        min(each.x - each.width / 2 for each in boxes.values())
        + max(each.x + each.width / 2 for each in boxes.values())
    ) / 2


def _point(x: float, y: float) -> str:
    """A point for graphviz, where y grows upwards."""
    return f"{x:.1f},{-y:.1f}"


def _inches(points: float) -> str:
    return f"{points / 72:.3f}"


def _text(*lines: str, longest: int = _LONGEST) -> str:
    """Format lines as a label without markup: neither escapes nor HTML."""
    escaped = (graphviz.escape(_shortened(line, longest)) for line in lines)
    return str(graphviz.nohtml("\\n".join(escaped)))


def _shortened(text: str, longest: int = _LONGEST) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= longest else f"{plain[: longest - 1]}…"
