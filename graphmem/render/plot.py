"""The timeline as a matplotlib plot, for documents and pull requests."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from graphmem.analysis import Analysis
from graphmem.render.lifetimes import categories_of, category_of, lifetimes
from graphmem.render.messages import NoMatplotlibError
from graphmem.report.categories import CATEGORY_COLOURS, CATEGORY_NAMES
from graphmem.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GIB, _MIB = 2**30, 2**20
_MOST_POINTS = 4000
_FONTS = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC")


def timeline_plot(analysis: Analysis, file_format: str) -> bytes:
    """Plot allocated bytes by category, and reserved bytes, over the step with the peak.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib import font_manager
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoMatplotlibError() from error
    installed = set(font_manager.get_font_names())
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "graphmem",
        "font.family": [font for font in _FONTS if font in installed],
        "text.parse_math": False,  # a name with two dollar signs is not a formula
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(10, 4.6), layout="constrained")
        _draw(figure.add_subplot(), analysis)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=file_format, dpi=160, metadata=_undated(file_format))
    return buffer.getvalue()


def _undated(file_format: str) -> dict[str, Any]:
    """Metadata without dates, so that the same step gives the same file."""
    return {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(file_format, {})


def _draw(axes: Axes, analysis: Analysis) -> None:
    first, last = _extent(analysis)
    picked = _picked(analysis, first, last)
    sums = _sums_by_category(analysis)
    unit = _GIB if analysis.report.peak.allocated >= _GIB else _MIB
    names = [name for name in CATEGORY_COLOURS if name in sums and sums[name][picked].any()]
    axes.stackplot(
        picked,
        [sums[name][picked] / unit for name in names],
        labels=[CATEGORY_NAMES[name] for name in names],
        colors=[CATEGORY_COLOURS[name] for name in names],
        step="post",
        linewidth=0,
    )
    moments = analysis.timeline.moments
    reserved = [moments.reserved[i] / unit for i in picked]
    axes.step(picked, reserved, "--", where="post", color="#444", linewidth=1, label="reserved")
    _mark_peak(axes, analysis, unit)
    _mark_phases(axes, analysis, first, last)
    axes.set(
        xlim=(first, last), ylabel="GiB" if unit == _GIB else "MiB", title=analysis.report.target
    )
    axes.set_ylim(0, max(reserved) * 1.16)
    axes.set_xlabel("allocations and frees, in order")
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _extent(analysis: Analysis) -> tuple[int, int]:
    """The first and the last moment of the step with the peak."""
    graph = analysis.graph
    ticks = analysis.timeline.moments.ticks
    phases = graph.phases_of(analysis.report.peak.step)
    if not phases:
        return 0, len(ticks) - 1
    first, last = np.searchsorted(ticks, [phases[0].start, phases[-1].end + 1])
    return int(first), max(int(first) + 1, int(last) - 1)


def _picked(analysis: Analysis, first: int, last: int) -> npt.NDArray[np.int64]:
    """Moments to draw: all, or an even selection that always includes the peak."""
    even = np.linspace(first, last, min(last - first + 1, _MOST_POINTS)).astype(np.int64)
    return np.union1d(even, [analysis.timeline.peak()[0].index])


def _sums_by_category(analysis: Analysis) -> dict[str, npt.NDArray[np.int64]]:
    """For each category, the bytes of its blocks after each moment."""
    moments = analysis.timeline.moments
    peak, _ = analysis.timeline.peak()
    changes: dict[str, npt.NDArray[np.int64]] = {}
    categories = categories_of(analysis)
    for life in lifetimes(analysis):
        category = category_of(life, peak, categories)
        change = changes.setdefault(category, np.zeros(len(moments) + 1, dtype=np.int64))
        change[life.first] += life.block
        change[life.last] -= life.block
    return {category: change[:-1].cumsum() for category, change in changes.items()}


def _mark_peak(axes: Axes, analysis: Analysis, unit: int) -> None:
    peak, _ = analysis.timeline.peak()
    height = peak.allocated / unit
    axes.plot([peak.index], [height], "o", color="#c2185b", markersize=5)
    axes.annotate(
        f"peak {format_bytes(peak.allocated)}",
        (peak.index, height),
        xytext=(8, 5),
        textcoords="offset points",
        color="#c2185b",
        fontweight="bold",
    )


def _mark_phases(axes: Axes, analysis: Analysis, first: int, last: int) -> None:
    ticks = analysis.timeline.moments.ticks
    for phase in analysis.graph.phases:
        start, end = (int(i) for i in np.searchsorted(ticks, [phase.start, phase.end + 1]))
        start, end = max(first, start), min(last, end)
        if end <= start:
            continue
        axes.axvline(start, color="#999", linewidth=0.6)
        if end - start > (last - first) / 12:
            middle = (start + end) / 2
            axes.text(
                middle, 0.97, phase.name, transform=axes.get_xaxis_transform(),
                ha="center", va="top", color="#666",
            )  # fmt: skip
