"""NCCL's memory on a card, outside PyTorch's allocator: readings on H100s.

A communicator has buffers for each channel and peer, and the first one loads NCCL's kernels. How
much that is depends on how the ranks are connected:

  (1) sockets: two and four ranks that share a card, each with its own host name; NVML before and
      after the first all-reduce, and that of a second group, divided by the ranks: 378 and 16 MiB
      each, 62 more for all_to_all (fixtures/cuda/contexts.json, "ranks 2" and "ranks 4");
  (2) one rank alone: 564 MiB, and 388 for a second group (there, "nccl LAZY");
  (3) NVLink: 1,505 to 1,525 MiB on each of eight ranks before the model exists
      (graphmem/gpus/context.py), minus the 619 of a context with a kernel (contexts.json): 886 to
      906.

The estimate is for ranks on NVLink. The bounds for the first communicator are the readings of (1)
and (3), for each further one those of (1) and (2). There are no readings for other cards, which are
assumed to be the same.

This module does not import torch.
"""

from __future__ import annotations

from graphmem.gpus.context import Context

_MIB = 2**20
FIRST = Context(902 * _MIB, 378 * _MIB, 906 * _MIB)
FURTHER = Context(388 * _MIB, 16 * _MIB, 388 * _MIB)


def nccl_of(communicators: int) -> Context:
    """The memory of some communicators, each of several ranks."""
    further = max(0, communicators - 1)
    first = min(communicators, 1)
    return Context(
        estimate_bytes=first * FIRST.estimate_bytes + further * FURTHER.estimate_bytes,
        least_bytes=first * FIRST.least_bytes + further * FURTHER.least_bytes,
        most_bytes=first * FIRST.most_bytes + further * FURTHER.most_bytes,
    )
