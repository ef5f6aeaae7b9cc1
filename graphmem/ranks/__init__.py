"""One rank of many: the process group of a program that graphmem runs as a single rank.

Nothing goes over the network. Every other rank is assumed to do what this one does, at the same
time and with the same values; the report lists this assumption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
from torch.utils._python_dispatch import _disable_current_modes

from graphmem.ranks.group import LoneGroup
from graphmem.ranks.journal import Journal
from graphmem.ranks.messages import Messages
from graphmem.ranks.unwaited import Unwaited
from graphmem.trace.recorder import Recorder
from graphmem.values.known import KnownValues
from graphmem.virtual_device.devices import Devices
from graphmem.virtual_device.patching import Replacement

__all__ = ["groups_taken_down", "replacements"]


def replacements(
    recorder: Recorder, known: KnownValues, devices: Devices, journal: Journal
) -> list[Replacement]:
    """List the attributes of `torch.distributed` to replace while a program runs."""
    # a build without distributed lacks what they import
    from graphmem.ranks import (
        batches,
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
    )

    mail, unwaited = _Mail(known), Unwaited(recorder)
    _open.append((mail.messages, unwaited, journal))
    return [
        *init.replacements(recorder, mail, unwaited, devices, journal),
        *batches.replacements(),
        *ddp.replacements(recorder),
        *dtensor.replacements(),
        *fsdp1.replacements(),
        *fsdp1_states.replacements(),
        *fsdp2.replacements(recorder),
        *noted.replacements(journal),
        *objects.replacements(mail, journal),
        *pipelines.replacements(),
        *remote_calls.replacements(),
        *spawned.replacements(devices),
    ]


class _Mail:
    """Sends and receives the known values of tensors on the card."""

    def __init__(self, known: KnownValues) -> None:
        self.messages = Messages()
        self._known = known

    def send(self, group: Any, destination: int, tensor: torch.Tensor) -> None:
        """Send a tensor from this rank."""
        known = self._known.of(tensor)
        values = None if known is None else known.tensor.flatten().tolist()
        source, other = _ranks_of(group, group.rank(), destination)
        self.messages.send(source, other, values)

    def expect(self, group: Any, source: int, tensor: torch.Tensor) -> Callable[[], bool]:
        """Announce a tensor to receive; the function returned waits for its values."""
        other, this = _ranks_of(group, source, group.rank())
        message = self.messages.next(other, this)

        def arrive() -> bool:
            values = self.messages.receive(message, other, this)
            if values is None or len(values) != tensor.numel():
                return False
            with _disable_current_modes():  # what is here in place of a network is not counted
                received = torch.tensor(values, dtype=tensor.dtype).view(tensor.shape)
            with torch.no_grad():
                tensor.copy_(received)
            return True

        return arrive


def _ranks_of(group: Any, *ranks: int) -> tuple[int, ...]:
    return tuple(torch.distributed.get_global_rank(group, rank) for rank in ranks)


_open: list[tuple[Messages, Unwaited, Journal]] = []


@contextmanager
def groups_taken_down() -> Iterator[None]:
    """Destroy the groups that a program left open when the context closes."""
    try:
        yield
    finally:
        while _open:
            messages, unwaited, journal = _open.pop()
            LoneGroup.byte_of_barrier = None
            messages.close()
            journal.write()
            unwaited.tell()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
