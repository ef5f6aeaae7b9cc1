"""One rank of many: the process group of a program that graphmem runs as a single rank.

Nothing goes over the network. Every other rank is assumed to do what this one does, at the same
time and with the same values; the report lists this assumption.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed

from graphmem.ranks.group import LoneGroup
from graphmem.ranks.journal import Journal
from graphmem.ranks.mail import Mail
from graphmem.ranks.messages import Messages
from graphmem.ranks.unwaited import Unwaited
from graphmem.ranks.works import UNWAITED
from graphmem.trace.location import Location
from graphmem.trace.recorder import Recorder
from graphmem.values.known import KnownValues
from graphmem.virtual_device.devices import Devices
from graphmem.virtual_device.patching import Replacement

__all__ = ["groups_taken_down", "replacements"]


def replacements(
    recorder: Recorder, location: Location, known: KnownValues, devices: Devices, journal: Journal
) -> list[Replacement]:
    """List the attributes of `torch.distributed` to replace while a program runs."""
    # a build without distributed lacks what they import
    from graphmem.ranks import (
        batches,
        checkpoints,
        ddp,
        dtensor,
        fsdp1,
        fsdp1_states,
        fsdp2,
        init,
        noted,
        objects,
        pipelines,
        remote_calls,
        spawned,
        staging,
    )

    mail, unwaited = Mail(known), Unwaited(recorder)
    _open.append((mail.messages, unwaited, journal))
    return [
        *init.replacements(recorder, mail, unwaited, devices, journal),
        *batches.replacements(),
        *checkpoints.replacements(mail),
        *ddp.replacements(recorder),
        *dtensor.replacements(),
        *fsdp1.replacements(recorder, location),
        *fsdp1_states.replacements(),
        *fsdp2.replacements(recorder),
        *noted.replacements(journal),
        *objects.replacements(mail, journal),
        *pipelines.replacements(),
        *remote_calls.replacements(),
        *spawned.replacements(devices),
        *staging.replacements(),
    ]


_open: list[tuple[Messages, Unwaited, Journal]] = []


@contextmanager
def groups_taken_down() -> Iterator[None]:
    """Destroy the groups that a program left open when the context closes."""
    try:
        yield
    finally:
        UNWAITED.clear()
        while _open:
            messages, unwaited, journal = _open.pop()
            LoneGroup.byte_of_barrier = None
            messages.close()
            journal.write()
            unwaited.tell()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
