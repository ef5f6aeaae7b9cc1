"""Which of several free blocks of one size is taken: what `std::set` compares after the size.

Until torch 2.11 the address decides (`BlockComparatorSize`). In 2.12 every `Block` of C++ has a
number, and the one made first is taken (`BlockComparatorRegistrationCounter`, PR #178362). From
2.13 on blocks have the number of their segment (`BlockComparatorSizeCounterAddress`, PR #183591):
that of the segment opened first is taken, and within a segment that at the lowest address.
"""

from __future__ import annotations

from itertools import count

from graphmem.torch_releases.differences import (
    OLDEST_BLOCK_IS_TAKEN,
    OLDEST_SEGMENT_IS_TAKEN,
    Release,
)


class Numbering:
    """Numbers segments and blocks (`registration_counter_global`) as a release does."""

    def __init__(self, release: Release) -> None:
        """Start at 1; where the address decides, every number is 0."""
        self._counts = OLDEST_BLOCK_IS_TAKEN.holds_in(release)
        self._is_inherited = OLDEST_SEGMENT_IS_TAKEN.holds_in(release)
        self._numbers = count(1)

    def of_segment(self) -> int:
        """The number of a new segment's only block (`alloc_block`)."""
        return next(self._numbers) if self._counts else 0

    def of_part(self, whole: int) -> int:
        """The number of a new block made of a part of another.

        Args:
            whole: the other's number.
        """
        if self._counts and not self._is_inherited:
            return next(self._numbers)
        return whole
