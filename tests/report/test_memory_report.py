"""The allocator's view at the peak, and the verdict: does the step run on the card?"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

import graphmem
from graphmem import Report, TrainingStep
from graphmem.allocator import BlockInfo, SegmentInfo
from graphmem.analysis import Analysis, Request, run_analysis
from graphmem.capacity import Verdict, judge, replay
from graphmem.events import Birth, Death, LifeEvent
from graphmem.gpus import Gpu
from graphmem.graph import Owner, OwnerKind, Storage
from graphmem.kernel_program import CONVOLUTION_WORKSPACE
from graphmem.render.page import page
from graphmem.report.answer import brief
from graphmem.report.memory import fragmentation_of, pools_of
from graphmem.report.schema import Fragmentation, PoolInfo
from graphmem.report.text import report_as_text
from graphmem.runtime import Runtime
from graphmem.units import format_bytes
from tests.support.sizes import GIB, MIB

CONTEXT = 198 * MIB  # compute capability 7.5
CAPACITY = 600 * MIB
TINY = Gpu("tiny", "Tiny", CONTEXT + CAPACITY, (7, 5), 40)


def segment(is_small: bool, *blocks: tuple[int, int | None]) -> SegmentInfo:
    """A segment of blocks (size, requested); a request of None is a free block."""
    infos, address = [], 0
    for size, requested in blocks:
        state = "inactive" if requested is None else "active_allocated"
        infos.append(BlockInfo(address, size, requested or 0, state))  # type: ignore[arg-type]
        address += size
    return SegmentInfo(0, address, 0, is_small, False, tuple(infos))


SEGMENTS = (
    segment(True, (512, 100), (1024, None), (2 * MIB - 1536, 2 * MIB - 1536)),
    segment(False, (8 * MIB, 8 * MIB - 10), (12 * MIB, None)),
    segment(False, (20 * MIB, None)),
)


def test_fragmentation_by_hand() -> None:
    """Inside: 412 of the first block and 10 of the large one; beside: 1 KiB and 12 MiB."""
    assert Fragmentation(
        inside_blocks=412 + 10,
        in_split_segments=1024 + 12 * MIB,
        in_free_segments=20 * MIB,
        largest_free_block=20 * MIB,
    ) == fragmentation_of(SEGMENTS)


def test_pools_by_hand() -> None:
    assert [
        PoolInfo("small", 1, 2 * MIB, 2 * MIB - 1024, 1024, 1024),
        PoolInfo("large", 2, 40 * MIB, 8 * MIB, 32 * MIB, 20 * MIB),
    ] == pools_of(SEGMENTS)


def events_of(*sizes: int) -> list[LifeEvent]:
    """Storages of these sizes, one after another; a negative size frees the previous one."""
    events: list[LifeEvent] = []
    for tick, size in enumerate(sizes, start=1):
        if size < 0:
            events.append(Death(tick, events[-1].storage))
        else:
            events.append(Birth(tick, Storage(tick, size, tick, None, (size,), "uint8", "cuda")))
    return events


def verdict_on(events: list[LifeEvent], gpu: Gpu = TINY, **env: str) -> Verdict:
    runtime = Runtime(gpu, "2.13.0", env)
    unbounded = replay(events, runtime.new_allocator(bounded=False))
    return judge(partial(replay, events), runtime, unbounded.timeline)


@pytest.mark.parametrize(
    ("mib", "fits", "is_certain"),
    [
        (600 - 128, True, True),
        (600 - 126, True, False),  # a context of 128 MiB more leaves 472
        (600, True, False),
        (602, False, False),  # one of 128 MiB less leaves 728
        (600 + 128, False, False),
        (600 + 130, False, True),
    ],
)
def test_a_verdict_within_the_uncertainty_of_the_context_says_so(
    mib: int, fits: bool, is_certain: bool
) -> None:
    verdict = verdict_on(events_of(mib * MIB))

    assert (fits, is_certain) == (verdict.fits, verdict.is_certain)
    assert (CAPACITY, (600 - mib) * MIB) == (verdict.capacity_bytes, verdict.margin_bytes)


def test_a_verdict_that_another_driver_would_change_says_so() -> None:
    """462 MiB fit into the 472 beside the largest context, but not if a driver leaves 20 less."""
    other_drivers = replace(TINY, other_memory_bytes=(TINY.memory_bytes - 20 * MIB,))

    assert verdict_on(events_of(462 * MIB)).is_certain
    assert not verdict_on(events_of(462 * MIB), other_drivers).is_certain


def test_a_verdict_that_a_driver_with_more_room_would_change_says_so() -> None:
    """740 MiB exceed the 728 beside the smallest context, unless a driver leaves 20 more."""
    other_drivers = replace(TINY, other_memory_bytes=(TINY.memory_bytes + 20 * MIB,))

    assert verdict_on(events_of(740 * MIB)).is_certain
    verdict = verdict_on(events_of(740 * MIB), other_drivers)
    assert not verdict.is_certain
    assert (verdict.fits, verdict.capacity_bytes) == (False, CAPACITY)


def test_a_convolution_continues_without_a_refused_workspace() -> None:
    """cuDNN tries its next plan, which takes an unknown amount, so the verdict is uncertain."""
    events = events_of(400 * MIB, 300 * MIB, -1, 20 * MIB)
    owner = Owner(OwnerKind.WORKSPACE, CONVOLUTION_WORKSPACE, 2)
    events[1].storage.owners.append(owner)
    verdict = verdict_on(events)

    assert verdict.fits
    assert not verdict.is_certain
    assert (verdict.replay.did_without, verdict.replay.reserved_bytes) == (1, 420 * MIB)


def test_a_step_that_fits_once_the_cache_is_emptied_fits() -> None:
    """400 MiB, freed, then 410: an unlimited card reserves 810, this one 410."""
    verdict = verdict_on(events_of(400 * MIB, -1, 410 * MIB))

    assert verdict.fits
    assert verdict.replay.cache_emptied == 1
    assert verdict.replay.reserved_bytes == 410 * MIB
    assert verdict.margin_bytes == (600 - 410) * MIB


def test_the_refused_request_is_reported_with_the_state_at_that_moment() -> None:
    verdict = verdict_on(events_of(300 * MIB, 11 * MIB, 450 * MIB, 4 * MIB))

    refused = verdict.replay.refused
    assert refused is not None
    assert (refused.tick, refused.storage.nbytes) == (3, 450 * MIB)
    assert refused.error.state.reserved_bytes == (300 + 12) * MIB
    assert refused.error.state.free_bytes == (600 - 312) * MIB
    assert verdict.margin_bytes == (600 - 300 - 12 - 450 - 20) * MIB


def test_a_memory_fraction_is_the_capacity() -> None:
    """Half of the 798 MiB of the card: 399."""
    conf = "per_process_memory_fraction:0.5"
    verdict = verdict_on(events_of(400 * MIB), PYTORCH_CUDA_ALLOC_CONF=conf)

    assert not verdict.fits
    assert verdict.capacity_bytes == 399 * MIB


def test_expandable_segments_need_no_emptied_cache() -> None:
    """The 410 MiB extend the range of the freed 400: 420 in pages of 20."""
    conf = "expandable_segments:True"
    verdict = verdict_on(events_of(400 * MIB, -1, 410 * MIB), PYTORCH_CUDA_ALLOC_CONF=conf)

    assert verdict.fits
    assert verdict.replay.cache_emptied == 0
    assert verdict.replay.reserved_bytes == 420 * MIB


ROWS = 32768


def six_gib(rows: int = ROWS) -> TrainingStep:
    """A weight of 49152 columns; 32768 rows of it are 6 GiB."""
    model = nn.Linear(49152, rows, bias=False)
    return TrainingStep(
        model=model,
        inputs=torch.empty(1, 49152),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, foreach=False),
    )


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return run_analysis(six_gib, Request(gpu="t4", steps=1))


@pytest.fixture
def refused(analysis: Analysis) -> Report:
    return analysis.report


def test_a_step_that_runs_out_names_the_operation_and_the_message(refused: Report) -> None:
    """Weight and gradient fit into 14.5 GiB; AdamW's first moment would be the third 6 GiB."""
    assert refused.memory is not None
    on_card = refused.memory.on_card
    assert not on_card.fits
    assert not on_card.within_estimate
    assert on_card.refused is not None
    assert (on_card.refused.step, on_card.refused.phase) == (0, "optimizer")
    assert on_card.refused.op == "aten.zeros_like.default"
    assert (on_card.refused.requested, on_card.refused.tried) == (6 * GIB, 6 * GIB)
    assert "Tried to allocate 6.00 GiB. GPU 0 has a total capacity of 14.56 GiB" in (
        on_card.refused.message
    )


def test_holders_at_the_refusal_sum_to_the_allocated_bytes(refused: Report) -> None:
    assert refused.memory is not None
    at = refused.memory.on_card.refused
    assert at is not None
    assert at.allocated == sum(at.held.by_category.values())
    assert (at.held.by_category["parameter"], at.held.by_category["gradient"]) == (6 * GIB, 6 * GIB)
    assert [holder.bytes for holder in at.held.holders[:2]] == [6 * GIB, 6 * GIB]


def test_the_peak_on_an_unlimited_card_is_reported_anyway(refused: Report) -> None:
    """Weight, gradient, two moments, the root of the second, and its bias correction."""
    assert refused.peak.allocated // GIB == 6 * 6
    assert refused.memory is not None
    assert refused.memory.reserved >= refused.peak.reserved > refused.memory.on_card.reserved


def test_the_section_agrees_with_the_peak(refused: Report) -> None:
    assert refused.memory is not None
    pools, parts = refused.memory.pools, refused.memory.fragmentation
    assert refused.peak.reserved == sum(pool.reserved for pool in pools)
    assert refused.peak.allocated == sum(pool.allocated for pool in pools)
    unused = parts.in_split_segments + parts.in_free_segments
    assert refused.peak.reserved - refused.peak.allocated == unused
    assert refused.peak.allocated - refused.peak.requested == parts.inside_blocks


def test_the_text_says_it_first(refused: Report) -> None:
    verdict = report_as_text(refused).split("\n\n")[0]

    assert verdict.startswith("does NOT fit on Tesla T4 (14.563 GiB): out of memory\n")
    assert "in the optimizer phase of step 0 at aten.zeros_like" in verdict
    assert "CUDA out of memory. Tried to allocate 6.00 GiB." in verdict


def test_the_page_says_it_too(analysis: Analysis) -> None:
    text = page(analysis)

    assert "does NOT fit on Tesla T4 (14.563 GiB): out of memory</h2>" in text
    assert "in the optimizer phase of step 0 at aten.zeros_like" in text
    assert "CUDA out of memory. Tried to allocate 6.00 GiB." in text


def test_a_step_that_fits_says_how_much_is_left() -> None:
    report = graphmem.analyze(lambda: six_gib(ROWS // 64), gpu="t4", steps=1)

    assert report.memory is not None
    card = report.memory.on_card
    assert (card.fits, card.refused, card.cache_emptied) == (True, None, 0)
    assert card.margin == card.capacity - card.reserved == card.capacity - report.memory.reserved
    verdict = report_as_text(report).split("\n\n")[0]
    assert verdict.startswith("fits on Tesla T4 (14.563 GiB)\n")
    assert f"({card.margin:,} bytes)" in verdict


def test_the_environment_reaches_the_allocator() -> None:
    """Weight, gradient, moments, temporaries, cuBLAS's workspace: a segment each, or one in all."""

    def large_segments(**env: str) -> int:
        report = graphmem.analyze(lambda: six_gib(ROWS // 64), steps=1, env=env)
        assert report.memory is not None
        return report.memory.pools[1].segments

    assert large_segments() == 4 + 2 + 1
    assert large_segments(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True") == 1


def test_a_report_of_an_older_version_reads(refused: Report) -> None:
    fields = json.loads(refused.to_json())
    del fields["memory"]

    older = Report.from_json(json.dumps(fields))

    assert older.memory is None
    assert "fits on" not in report_as_text(older)


def test_segments_released_by_an_emptied_cache_are_in_no_pool() -> None:
    """300 MiB are released before 400 and 100 MiB are taken, each a separate segment."""

    def step() -> None:
        first = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
        del first
        torch.cuda.empty_cache()
        kept = [torch.empty(size * MIB, dtype=torch.uint8, device="cuda") for size in (400, 100)]
        del kept

    report = graphmem.analyze(lambda: TrainingStep(step=step), steps=1)

    assert report.memory is not None
    assert report.peak.reserved == 500 * MIB
    assert [pool.reserved for pool in report.memory.pools] == [0, 500 * MIB]
    assert [pool.allocated for pool in report.memory.pools] == [0, 500 * MIB]


def test_a_memory_fraction_is_named_in_the_verdict() -> None:
    """Half of the card, of which 1 GiB is reserved: 7 GiB are refused while the card has 13."""
    gpu = graphmem.virtual_gpu("t4")

    def run_out() -> None:
        with gpu:
            torch.cuda.set_per_process_memory_fraction(0.5)
            kept = torch.empty(GIB, dtype=torch.uint8, device="cuda")
            kept.repeat(7)

    with pytest.raises(torch.OutOfMemoryError):
        run_out()
    card = gpu.report().on_card
    half = gpu.report().runtime.memory // 2

    assert card is not None
    assert (card.allowed, card.margin) == (half, half - 8 * GIB)
    assert not card.within_estimate
    left = f"{format_bytes(half - GIB)} left of the {format_bytes(half)} that a memory fraction"
    assert left in " ".join(report_as_text(gpu.report()).split())


def test_what_is_to_spare_of_a_memory_fraction_leaves_the_context_out() -> None:
    with graphmem.virtual_gpu("t4") as gpu:
        torch.cuda.set_per_process_memory_fraction(0.5)
        kept = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    del kept
    half = gpu.report().runtime.memory // 2

    said = (
        f"{format_bytes(half - GIB)} to spare ({half - GIB:,} bytes), after 1.000 GiB reserved of"
    )
    assert said in " ".join(report_as_text(gpu.report()).split())
    first, *_ = brief(gpu.report())
    of_all = f"of the {format_bytes(half)} that a memory fraction allows"
    assert first.plain.endswith(f"{format_bytes(half - GIB)} to spare {of_all}")
