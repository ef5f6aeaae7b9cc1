"""Convert what was observed while a program ran to tables, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from graphmem.allocator import SegmentInfo
from graphmem.allocator.pool import BLOCK_STATES, BlockInfo
from graphmem.events import Birth, CacheEmptied, Death, Event
from graphmem.graph import Storage
from graphmem.moments import Moments
from graphmem.record import rows
from graphmem.record.step import Observed
from graphmem.simulate import Timeline


def observed_table(
    observed: Observed, storage_row: Callable[[Storage], rows.StorageRow]
) -> rows.ObservedTable:
    """Write the table of observations; `storage_row` writes the storages of kernels."""
    timeline = observed.timeline
    touched = chain.from_iterable((each.born, each.died) for each in timeline.moments)
    scratch = {each.id: each for each in touched if each is not None and each.id < 0}
    return rows.ObservedTable(
        moments=[
            rows.MomentRow(
                moment.tick,
                moment.allocated,
                moment.requested,
                moment.reserved,
                None if moment.born is None else moment.born.id,
                None if moment.died is None else moment.died.id,
            )
            for moment in timeline.moments
        ],
        scratch=[rows.ScratchRow(number, storage_row(each)) for number, each in scratch.items()],
        blocks=[
            (number, size, timeline.addresses[number])
            for number, size in timeline.block_bytes.items()
        ],
        segments=[_segment_row(each) for each in timeline.segments],
        given_back=list(timeline.given_back.items()),
        sections={name: list(lines) for name, lines in observed.sections.items()},
        on_card=observed.on_card,
        memory=observed.memory,
    )


def _segment_row(segment: SegmentInfo) -> rows.SegmentRow:
    return rows.SegmentRow(
        segment.address,
        segment.size,
        segment.stream,
        segment.is_small,
        segment.is_expandable,
        [
            rows.BlockRow(each.address, each.size, each.requested, each.state)
            for each in segment.blocks
        ],
        segment.pool_id,
    )


def observed_of(
    table: rows.ObservedTable,
    storages: Sequence[Storage],
    read_storage: Callable[[int, rows.StorageRow], Storage],
) -> Observed:
    """Read the observations from a table.

    Args:
        table: as `observed_table` wrote it.
        storages: the graph's storages.
        read_storage: makes a storage from an id and a row.

    Raises:
        ValueError: the table refers to something that does not exist, or is not in order.
    """
    if not table.moments or table.moments[0] != _EMPTY:
        raise ValueError("a timeline that does not begin empty")
    scratch = {each.id: read_storage(each.id, each.storage) for each in table.scratch}

    def storage(number: int) -> Storage:
        return scratch[number] if number < 0 else storages[number]

    try:
        timeline = Timeline(
            moments=_moments(table.moments[1:], storage),
            block_bytes={number: size for number, size, _ in table.blocks},
            addresses={number: address for number, _, address in table.blocks},
            segments=tuple(map(_segment, table.segments)),
            given_back=dict(table.given_back),
        )
    except (LookupError, OverflowError):
        raise ValueError("a timeline of storages that do not exist") from None
    _check(timeline)
    return Observed(timeline, table.sections, table.on_card, table.memory)


_EMPTY = rows.MomentRow(0, 0, 0, 0, None, None)


def _moments(after: Sequence[rows.MomentRow], storage: Callable[[int], Storage]) -> Moments:
    moments = Moments()
    for row in after:
        event: Event
        if row.born is not None:
            event = Birth(row.tick, storage(row.born))
        elif row.died is not None:
            event = Death(row.tick, storage(row.died))
        else:
            event = CacheEmptied(row.tick)
        moments.add(event, row.allocated, row.requested, row.reserved)
    return moments


def _segment(row: rows.SegmentRow) -> SegmentInfo:
    return SegmentInfo(
        row.address, row.size, row.stream, row.is_small, row.is_expandable,
        tuple(_block(each) for each in row.blocks), row.pool_id,
    )  # fmt: skip


def _block(row: rows.BlockRow) -> BlockInfo:
    if row.state not in BLOCK_STATES:
        raise ValueError(f"a block in the unknown state {row.state!r}")
    return BlockInfo(row.address, row.size, row.requested_size, row.state)


def _check(timeline: Timeline) -> None:
    """Check that every storage is born once, has a block, and dies after its birth."""
    alive: set[int] = set()
    last = 0
    for moment in timeline.moments:
        born, died = moment.born, moment.died
        if moment.tick < last:
            raise ValueError("a timeline that runs backwards")
        last = moment.tick
        if born is not None:
            if born.id in alive or born.id not in timeline.block_bytes:
                raise ValueError("a storage that is born twice, or has no block")
            alive.add(born.id)
        elif died is not None:
            if died.id not in alive:
                raise ValueError("a storage that dies before it is born")
            alive.remove(died.id)
