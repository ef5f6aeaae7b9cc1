"""The assumptions of a trace, each listed once."""

from __future__ import annotations

from graphmem.graph import Assumption, Source
from graphmem.trace.messages import StrictError


class Assumptions:
    """Adds assumptions to a step graph.

    Attributes:
        is_strict: raise an error instead of assuming anything.
    """

    def __init__(self, noted: list[Assumption]) -> None:
        self.is_strict = False
        self._noted = noted

    def note(
        self,
        what: str,
        value: str,
        why: str,
        source: Source | None,
        highest: int | None = None,
    ) -> None:
        """Note an assumption; a repeat at the same line only raises its count.

        Args: those of `Assumption`.

        Raises:
            InputError: nothing may be assumed.
        """
        if self.is_strict:
            where = "" if source is None else f" at {source.in_words}"
            raise StrictError(what, where, value, why)
        self._add(Assumption(what, value, why, source, highest=highest))

    def leave_out(self, what: str, value: str, why: str, source: Source | None) -> None:
        """Note what differs from a run on a card, but not in its memory."""
        self._add(Assumption(what, value, why, source))

    def _add(self, new: Assumption) -> None:
        for known in self._noted:
            if (known.what, known.value, known.source) == (new.what, new.value, new.source):
                known.times += 1
                return
        self._noted.append(new)
