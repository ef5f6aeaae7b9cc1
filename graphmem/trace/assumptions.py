"""What a trace assumes, each assumption once."""

from __future__ import annotations

from graphmem.errors import InputError
from graphmem.graph import Assumption, Source


class Assumptions:
    """Adds to the assumptions of a step graph.

    Attributes:
        is_strict: whatever would be assumed is an error.
    """

    def __init__(self, noted: list[Assumption]) -> None:
        self.is_strict = False
        self._noted = noted

    def note(self, what: str, value: str, why: str, source: Source | None) -> None:
        """Note an assumption; the same one at the same line is noted once and counted.

        Raises:
            InputError: nothing may be assumed.
        """
        if self.is_strict:
            where = "" if source is None else f" at {source.in_words}"
            raise InputError(
                f"{what} would be assumed{where} ({value}): {why}",
                hint="leave out --strict, or decide it from what is known",
            )
        for known in self._noted:
            if (known.what, known.value, known.source) == (what, value, source):
                known.times += 1
                return
        self._noted.append(Assumption(what, value, why, source))
