"""Graphmem's notes on a tensor, which copies of the tensor do not take along.

A note refers to the operation that made the tensor, and so to everything before it. If
`copy.deepcopy` or `pickle` copied it with the tensor's other attributes, they would copy the whole
step.
"""

from __future__ import annotations

from typing import Any


class Note:
    """A value attached to one tensor; copies of the note hold None.

    Attributes:
        value: the value.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __deepcopy__(self, memo: dict[int, Any]) -> Note:
        return Note()

    def __reduce__(self) -> tuple[type[Note], tuple[()]]:
        return Note, ()


NOTHING = Note()
"""The note of a tensor without one."""
