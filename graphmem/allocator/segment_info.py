"""Convert segments from the allocator to a snapshot's form, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphmem.allocator.pool import Block, BlockInfo, Segment, SegmentInfo

_NO_END = 1 << 64


def segment_infos(segments: Iterable[Segment]) -> tuple[SegmentInfo, ...]:
    """The segments and their blocks, by address, without unmapped stretches."""
    infos = [
        _info(stretch)
        for segment in sorted(segments, key=lambda segment: segment.address)
        for stretch in _mapped_stretches(segment)
    ]
    return tuple(infos)


def range_ends(infos: Sequence[SegmentInfo]) -> list[int]:
    """The upper limit of each segment's address range: where one of another kind begins."""
    ends: list[int] = []
    end = _NO_END
    following = None
    for info in reversed(infos):
        kind = (info.is_expandable, info.is_small, info.stream, info.pool_id)
        if following is not None and kind != following[0]:
            end = following[1]
        ends.append(end)
        following = (kind, info.address)
    return ends[::-1]


def lay_out(head: Block, info: SegmentInfo) -> list[Block]:
    """Split the only block of a segment into the recorded ones."""
    blocks = []
    block = head
    for recorded in info.blocks:
        rest = block.cut(recorded.size) if block.size > recorded.size else None
        block.allocated = recorded.state == "active_allocated"
        block.pending = recorded.is_active and not block.allocated
        block.requested = recorded.requested
        blocks.append(block)
        if rest is None:
            break
        block = rest
    return blocks


def torch_snapshot(infos: Iterable[SegmentInfo]) -> list[dict[str, object]]:
    """The dictionaries of `torch.cuda.memory_snapshot`."""
    return [
        {
            "device": 0,
            "address": info.address,
            "total_size": info.size,
            "allocated_size": sum(
                block.size for block in info.blocks if block.state == "active_allocated"
            ),
            "active_size": sum(block.size for block in info.blocks if block.is_active),
            "requested_size": sum(block.requested for block in info.blocks if block.is_active),
            "stream": info.stream,
            "segment_type": "small" if info.is_small else "large",
            "segment_pool_id": info.pool_id,
            "is_expandable": info.is_expandable,
            "frames": [],
            "blocks": [
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested,
                    "state": block.state,
                    "frames": [],
                }
                for block in info.blocks
            ],
        }
        for info in infos
    ]


def _mapped_stretches(segment: Segment) -> list[list[Block]]:
    """The mapped blocks, grouped into contiguous stretches."""
    stretches: list[list[Block]] = [[]]
    for block in segment.blocks():
        if block.mapped:
            stretches[-1].append(block)
        elif stretches[-1]:
            stretches.append([])
    return [stretch for stretch in stretches if stretch]


def _info(blocks: list[Block]) -> SegmentInfo:
    segment = blocks[0].segment
    return SegmentInfo(
        address=blocks[0].address,
        size=sum(block.size for block in blocks),
        stream=segment.stream,
        is_small=segment.pool.is_small,
        is_expandable=segment.page_size > 0,
        blocks=tuple(_block_info(block) for block in blocks),
        pool_id=segment.pool.id,
    )


def _block_info(block: Block) -> BlockInfo:
    if block.allocated:
        return BlockInfo(block.address, block.size, block.requested, "active_allocated")
    if block.pending:
        return BlockInfo(block.address, block.size, block.requested, "active_pending_free")
    return BlockInfo(block.address, block.size, 0, "inactive")
