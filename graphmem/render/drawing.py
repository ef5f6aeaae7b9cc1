"""Draw the liveness graph with graphviz: forward next to backward, clustered by module.

Storages alive at the peak are filled; every owner is an edge. All names are escaped, so that they
stay text whatever they contain.
"""

from __future__ import annotations

import shutil

import graphviz

from graphmem.graph import PhaseName
from graphmem.render.liveness import Liveness, OpGroup, OpNode, StorageGroup, StorageNode
from graphmem.render.messages import NoGraphvizError
from graphmem.report.categories import CATEGORY_COLOURS, CATEGORY_NAMES
from graphmem.units import format_bytes

Names = dict[OpGroup | StorageGroup, str]

FORMATS = ("svg", "png", "pdf")
_LONGEST = 60
_FONT = "DejaVu Sans, Noto Sans, Helvetica, Arial"
_PHASE_COLOURS = {
    PhaseName.SETUP: "#f3f3f3",
    PhaseName.FORWARD: "#eef4fb",
    PhaseName.BACKWARD: "#fbf1ee",
    PhaseName.OPTIMIZER: "#f0f7ee",
}


def dot_source(liveness: Liveness, title: str) -> str:
    """The graph in graphviz's DOT language."""
    return str(_digraph(liveness, title).source)


def drawn(liveness: Liveness, title: str, file_format: str) -> bytes:
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


def _digraph(liveness: Liveness, title: str) -> graphviz.Digraph:
    picture = graphviz.Digraph("liveness")
    picture.attr(
        rankdir="LR", fontname=_FONT, fontsize="16", labelloc="t", nodesep="0.16", ranksep="0.9",
        label=_text(title, *_notes(liveness)),
    )  # fmt: skip
    picture.attr("node", fontname=_FONT, fontsize="11", shape="box", style="rounded,filled")
    picture.attr("edge", fontname=_FONT, fontsize="9", color="#8a8f98", fontcolor="#555b63")
    names = {group: f"n{i}" for i, group in enumerate(liveness.graph)}
    _add_phases(picture, liveness, names)
    for node in liveness.storages:
        _add_storage(picture, node, names[node.group])
    for source, target, label in liveness.graph.edges(data="label", default=""):
        storage = source if isinstance(source, StorageGroup) else target
        picture.edge(
            names[source], names[target], label=_text(label), edgetooltip=_text(label),
            color=f"{CATEGORY_COLOURS[storage.category]}",
        )  # fmt: skip
    return picture


def _notes(liveness: Liveness) -> list[str]:
    if not liveness.left_out:
        return []
    rest = sum(node.nbytes for node in liveness.left_out)
    count = len(liveness.left_out)
    return [f"{count} more groups of storages, {format_bytes(rest)}, are not drawn"]


def _add_phases(picture: graphviz.Digraph, liveness: Liveness, names: Names) -> None:
    """Add a cluster for each phase, with nested ones for modules that have several nodes."""
    for phase in PhaseName:
        nodes = [node for group, node in liveness.ops.items() if group.phase is phase]
        if not nodes:
            continue
        with picture.subgraph(name=f"cluster_{phase}") as cluster:
            cluster.attr(
                label=_text(phase), style="rounded,filled", color=_PHASE_COLOURS[phase],
                fontname=_FONT, fontsize="13",
            )  # fmt: skip
            _add_modules(cluster, nodes, names, f"cluster_{phase}")


def _add_modules(cluster: graphviz.Digraph, nodes: list[OpNode], names: Names, prefix: str) -> None:
    families: dict[str, list[OpNode]] = {}
    for node in sorted(nodes, key=lambda node: node.first):
        families.setdefault(_family(node), []).append(node)
    for i, (family, members) in enumerate(families.items()):
        if len(members) == 1 or not family:
            for node in members:
                _add_ops(cluster, node, names[node.group])
            continue
        with cluster.subgraph(name=f"{prefix}_{i}") as inner:
            inner.attr(label=_text(family), style="rounded", color="#b9c0c8", fontsize="11")
            for node in members:
                _add_ops(inner, node, names[node.group])


def _family(node: OpNode) -> str:
    """The module whose cluster a node is in: its own if drawn by operations, else its parent."""
    module = node.group.module
    return module if node.group.op is not None else module.rpartition(".")[0]


def _add_ops(picture: graphviz.Digraph, node: OpNode, name: str) -> None:
    if node.group.op is not None:
        [target] = node.targets
        lines = [target, f"operation {node.group.op:,}"]
    else:
        common = ", ".join(target for target, _ in node.targets.most_common(3))
        lines = [node.group.module, f"{node.count:,} operations: {common}".removesuffix(": ")]
    picture.node(name, _text(*lines), fillcolor="white", color="#8a8f98", tooltip=_text(*lines))


def _add_storage(picture: graphviz.Digraph, node: StorageNode, name: str) -> None:
    colour = CATEGORY_COLOURS[node.group.category]
    first = node.lives[0].storage
    shape = "x".join(map(str, first.shape)) or "scalar"
    same = len({(life.storage.shape, life.storage.dtype) for life in node.lives}) == 1
    what = f"{first.dtype} [{shape}]" if same else "several shapes"
    times = f" in {len(node.lives)}" if len(node.lives) > 1 else ""
    lines = [f"{format_bytes(node.nbytes)}{times}", what, CATEGORY_NAMES[node.group.category]]
    picture.node(
        name, _text(*lines), shape="box", style="filled", color=colour,
        fillcolor=f"{colour}aa" if node.group.is_at_peak else "white", tooltip=_text(*lines),
        penwidth="1.6",
    )  # fmt: skip


def _text(*lines: str) -> str:
    """Format lines as a label without markup: neither escapes nor HTML."""
    escaped = (graphviz.escape(_shortened(line)) for line in lines)
    return str(graphviz.nohtml("\\n".join(escaped)))


def _shortened(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 1]}…"
