"""pytest plugin: fixtures `graphmem` and `virtual_gpu`, and the mark `max_gpu_memory`.

    @pytest.mark.max_gpu_memory("20 GiB", target="model.py:build", gpu="a100-40gb")
    def test_the_training_step_stays_small() -> None: ...

    @pytest.mark.max_gpu_memory("20 GiB")
    def test_both_variants(graphmem) -> None:
        assert graphmem("model.py:build", settings={"batch": "8"}).peak.step == 1
        graphmem(build_other)

    @pytest.mark.max_gpu_memory("20 GiB")
    def test_training(virtual_gpu) -> None:
        gpu = virtual_gpu("h100")
        train()
        assert gpu.allocated == 0

If the mark has a `target`, it is analysed before the test; in any case no report that the test gets
from the fixture may exceed the limit. Options are those of `graphmem.analyze`; paths are relative
to pytest's root folder. A virtual GPU is on until its test ends. A marked test that measures
nothing fails, because its limit would check nothing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from graphmem.errors import InputError
from graphmem.units import format_bytes, format_exact, parse_bytes

if TYPE_CHECKING:
    from graphmem.live.gpu import VirtualGpu
    from graphmem.report import Report

_MARK = "max_gpu_memory"
_LISTED = 3
_reports = pytest.StashKey[list["Report"]]()
_devices = pytest.StashKey[list["VirtualGpu"]]()


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark."""
    config.addinivalue_line(
        "markers",
        f"{_MARK}(limit, target=None, **options): fail where a training step allocates more GPU "
        "memory than that; target and options as in graphmem.analyze",
    )


@pytest.fixture
def graphmem(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """`graphmem(target, **options)`: the report of `graphmem.analyze`."""
    item = request.node

    def analyze(target: str | Callable[[], Any], **options: Any) -> Report:
        return _analyze(item, target, options)

    return analyze


@pytest.fixture
def virtual_gpu(request: pytest.FixtureRequest) -> Iterator[Callable[..., VirtualGpu]]:
    """`virtual_gpu(name, **options)`: a device that is on until the test ends."""
    from graphmem.live.gpu import VirtualGpu

    with contextlib.ExitStack() as stack:

        def switch_on(*args: Any, **options: Any) -> VirtualGpu:
            device = VirtualGpu(*args, **options).enter(sys._getframe(1).f_back)
            stack.push(device)
            request.node.stash.setdefault(_devices, []).append(device)
            return device

        yield switch_on


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Check a marked test's target, and every report that it requested, against its limits."""
    marks = list(item.iter_markers(_MARK))
    limits = [_limit(mark) for mark in marks]
    for mark, limit in zip(marks, limits, strict=True):
        options = dict(mark.kwargs)
        target = options.pop("target", None)
        if target is not None:
            _hold(_analyze(item, target, options), limit)
    result = yield
    reports = [*item.stash.get(_reports, []), *_reports_of_devices(item, limits)]
    if marks and not reports:
        pytest.fail(
            f"{_MARK} measured nothing: give the marker a target, or use the fixture graphmem or "
            "virtual_gpu in the test",
            pytrace=False,
        )
    for report in reports:
        _hold(report, min(limits, default=report.peak.allocated))
    return result


def _reports_of_devices(item: pytest.Item, limits: list[int]) -> list[Report]:
    return [device.report() for device in item.stash.get(_devices, [])] if limits else []


def _limit(mark: pytest.Mark) -> int:
    try:
        [quantity] = mark.args
        return parse_bytes(quantity)
    except (ValueError, InputError) as error:
        wrong = str(error)
    pytest.fail(f'{_MARK} takes one size, such as "20 GiB": {wrong}', pytrace=False)


def _analyze(item: pytest.Item, target: Any, options: dict[str, Any]) -> Report:
    from graphmem.analysis import analyze

    with contextlib.chdir(item.config.rootpath):
        report, wrong = None, ""
        try:
            report = analyze(target, **options)
        except InputError as error:
            wrong = f"{error}\n{error.user_traceback or error.hint or ''}"
    if report is None:  # outside the handler, to avoid a chained traceback
        pytest.fail(wrong, pytrace=False)
    item.stash.setdefault(_reports, []).append(report)
    return report


def _hold(report: Report, limit: int) -> None:
    """Fail, naming the largest holders, if a report exceeds a limit."""
    from graphmem.report.categories import CATEGORY_NAMES
    from graphmem.report.holders import groups_of

    peak = report.peak.allocated
    if peak <= limit:
        return
    excess = f"{format_bytes(peak - limit)} above {format_bytes(limit)}"
    lines = [f"{report.target} allocates {format_exact(peak)}, {excess}; the largest at the peak:"]
    for group in groups_of(report.at_peak.holders)[:_LISTED]:
        first, count = group.first, len(group.holders)
        where = " ".join(filter(None, (group.modules, first.source and f"({first.source})")))
        each = f" ({count} x {format_bytes(first.bytes)})" if count > 1 else ""
        category = CATEGORY_NAMES.get(first.category, first.category)
        lines.append(f"  {format_bytes(group.bytes)}{each} {category}, {where}: {group.reason}")
    pytest.fail("\n".join(lines), pytrace=False)
