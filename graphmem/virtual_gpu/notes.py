"""What graphmem notes on a tensor, which no copy of the tensor takes along.

A note leads to the operation that made the tensor, and from there to all that came before: copied
with the tensor's other attributes, as `copy.deepcopy` and `pickle` do, it would be the whole step.
"""

from __future__ import annotations

from typing import Any


class Note:
    """Holds a value on one tensor; its copy holds None.

    Attributes:
        value: what is noted.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __deepcopy__(self, memo: dict[int, Any]) -> Note:
        return Note()

    def __reduce__(self) -> tuple[type[Note], tuple[()]]:
        return Note, ()


NOTHING = Note()
"""What stands on a tensor without a note."""
