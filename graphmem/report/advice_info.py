"""The part of a report that advises: the largest batch, and what saves most."""

from __future__ import annotations

import msgspec


class BatchInfo(msgspec.Struct, frozen=True):
    """The largest batch that fits, as far as the search went.

    Attributes:
        traced: the batch of the report.
        fits: the largest tried batch that fits; 0 if none does.
        fails: the smallest tried batch that does not fit; None if all fit.
        command: the command that analyses the largest one; None for a target without a name.
    """

    traced: int
    fits: int
    fails: int | None
    command: str | None


class ChangeInfo(msgspec.Struct, frozen=True):
    """A change that lowers the peak, measured by tracing the changed step.

    Attributes:
        what: the change in words.
        price: its cost, in words.
        saves: the bytes by which it lowers the peak.
        fits, margin: the verdict on the changed step, as in `OnCard`.
        command: the command that analyses the changed step; None for a target without a name.
    """

    what: str
    price: str
    saves: int
    fits: bool
    margin: int
    command: str | None


class AdviceInfo(msgspec.Struct, frozen=True):
    """Advice on how to make the step fit.

    Attributes:
        batch: None if the inputs have no batch that can be changed, or it was not searched for.
        changes: the changes that save most, largest saving first.
        unmeasured: what was left out, and the commands that measure it.
    """

    batch: BatchInfo | None
    changes: list[ChangeInfo]
    unmeasured: list[str] = []
