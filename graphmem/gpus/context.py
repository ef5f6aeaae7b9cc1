"""A process's memory outside PyTorch's allocator: readings, by card.

It is the CUDA context, loaded kernels, and library handles. Three kinds of readings were found:

  (1) PyTorch's out-of-memory messages: "this process has A in use" minus "B is allocated by
      PyTorch" minus "C is reserved by PyTorch but unallocated". That is exactly this quantity; the
      messages round to 0.01 GiB, hence about 15 MiB either way;
  (2) the card's memory by NVML, idle and then with one process, minus what that process reserved
      (tools/record_contexts.py): also exactly this quantity, to 2 MiB;
  (3) nvidia-smi, for a process that has allocated next to nothing. That includes the driver's own
      memory, and a launcher's, so it is an upper bound.

The estimate for a compute capability is the largest reading of (1) or (2) without NCCL. The lower
bound is `_SLACK` below it, or the smallest reading less its rounding; the upper bound is `_SLACK`
above it, or the largest reading of all. Ranks of a process group also have NCCL's buffers: their
readings are listed here, but do not bound a single process (see graphmem/gpus/nccl.py).

This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

_MIB = 2**20

_ROUNDING = 15 * _MIB
_SLACK = 128 * _MIB  # the widest spread of (1) for one capability, 113 MiB (RTX 3090), and rounding

_MESSAGES = "out-of-memory messages of PyTorch 2.x"


@dataclass(frozen=True)
class Reading:
    """Readings from processes on a card.

    Attributes:
        card: the card.
        compute_capability: the card's compute capability.
        mib: the readings in MiB.
        source: who printed them, and under which driver or CUDA version if known.
        is_exact: kind (1) or (2), otherwise kind (3).
        has_nccl: whether the process was one of several ranks.
    """

    card: str
    compute_capability: tuple[int, int]
    mib: tuple[int, ...]
    source: str
    is_exact: bool = True
    has_nccl: bool = False


READINGS: tuple[Reading, ...] = (
    Reading("V100", (7, 0), (379, 384, 384), _MESSAGES),
    Reading("T4", (7, 5), (115, 164, 198), _MESSAGES),
    Reading("A100", (8, 0), (491, 504, 512, 543), _MESSAGES),
    Reading(
        "A100 80 GB",
        (8, 0),
        (863,),
        "nvidia-smi after one empty tensor, 2023: the article of docs/exactness.md, nanoGPT",
        is_exact=False,
    ),
    Reading("RTX 3090", (8, 6), (307, 353, 420), _MESSAGES),
    Reading("RTX 4090", (8, 9), (483,), _MESSAGES),
    Reading("RTX 6000 Ada", (8, 9), (426,), "unsloth-zoo #1053, idle, torch 2.10.0+cu130"),
    Reading("H100", (9, 0), (599, 601), _MESSAGES),
    Reading(
        "H100",
        (9, 0),
        (751,),
        "NVML around three steps of two linear layers, bf16 autocast and AdamW, torch "
        "2.11.0+cu130, driver 580.159: fixtures/cuda/contexts.json",
    ),
    Reading("H200", (9, 0), (680,), _MESSAGES),
    Reading(
        "H100, one rank",
        (9, 0),
        (1183, 1184, 1185),
        "NVML after NCCL made a communicator of one rank, torch 2.11.0+cu130: "
        "fixtures/cuda/contexts.json; nvidia-smi before the model exists, torch 2.9.1+cu128, world "
        "size 1 under torchrun: openai/parameter-golf @4908dc46, track_non_record_16mb",
        is_exact=False,  # a process that starts NCCL; no bound is known for one that does not
    ),
    Reading(
        "H100, eight ranks",
        (9, 0),
        (1505, 1519, 1520, 1521, 1525),
        "nvidia-smi before the model exists, each of eight, CUDA 12.6 and 12.8, torch 2.9, 2.10: "
        "openai/parameter-golf @4908dc46, KellerJordan/modded-nanogpt @f411b3d3",
        is_exact=False,
        has_nccl=True,
    ),
    Reading("B200", (10, 0), (712,), _MESSAGES),
    Reading("RTX 5090", (12, 0), (614,), _MESSAGES),
)


@dataclass(frozen=True)
class Context:
    """A process's memory outside the allocator, as an estimate with its bounds."""

    estimate_bytes: int
    least_bytes: int
    most_bytes: int

    def __add__(self, other: Context) -> Context:
        """Add estimates and bounds."""
        return Context(
            self.estimate_bytes + other.estimate_bytes,
            self.least_bytes + other.least_bytes,
            self.most_bytes + other.most_bytes,
        )


@cache
def context_of(compute_capability: tuple[int, int]) -> Context:
    """Combine the readings of single processes to one estimate with its bounds."""
    exact = list(_mib_of(compute_capability, is_exact=True))
    every = [*exact, *_mib_of(compute_capability, is_exact=False)]
    estimate = max(exact) * _MIB
    return Context(
        estimate_bytes=estimate,
        least_bytes=max(0, min(estimate - _SLACK, min(exact) * _MIB - _ROUNDING)),
        most_bytes=max(max(every) * _MIB, estimate + _SLACK),
    )


def _mib_of(compute_capability: tuple[int, int], *, is_exact: bool) -> Iterator[int]:
    for reading in READINGS:
        fits = reading.compute_capability == compute_capability and not reading.has_nccl
        if fits and reading.is_exact == is_exact:
            yield from reading.mib
