"""What timing the configurations of a kernel takes on the card, by release.

(1) A buffer that flushes the card's cache between the timed calls.
(2) Copies of what the kernel changes, so that its last call finds what its first one did.

A release is taken to have the Triton that its wheels name: 3.0 for torch 2.4, 3.1 for 2.5, 3.2 for
2.6. Which kernels there are, and what they change, is the installed Inductor's matter.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphmem.torch_releases import Difference, Release
from graphmem.torch_releases.installed_build import COPIES_GO_TO_THE_HOST

TRITON_TAKES_MEBIBYTES = Difference(
    (2, 6),
    "Triton flushes the card's cache with 256 MiB; before, with 256,000,000 bytes",
    "`do_bench` in triton/testing.py of 3.0.0 and 3.1.0, `get_empty_cache_for_benchmark` in "
    "triton/backends/nvidia/driver.py of 3.2.0",
)
INDUCTOR_HAS_A_BUFFER = Difference(
    (2, 7),
    "Inductor flushes the card's cache with a buffer as large as that; before, Triton's does",
    "`InductorBenchmarker` in torch/_inductor/runtime/benchmarking.py of the wheels of 2.6.0 "
    "(none) and 2.7.1",
)


@dataclass(frozen=True, slots=True)
class Timing:
    """How a release times kernels.

    Attributes:
        flushed_bytes: of the buffer by which Triton flushes the cache.
        has_own_buffer: whether Inductor takes a buffer of its own instead.
        copies_to_host: whether Inductor copies to the host what would raise the peak.
    """

    flushed_bytes: int = 256 << 20
    has_own_buffer: bool = True
    copies_to_host: bool = True


def timing_of(release: Release) -> Timing:
    """How a release times kernels."""
    in_mebibytes = TRITON_TAKES_MEBIBYTES.holds_in(release)
    return Timing(
        256 << 20 if in_mebibytes else 256_000_000,
        INDUCTOR_HAS_A_BUFFER.holds_in(release),
        COPIES_GO_TO_THE_HOST.holds_in(release),
    )
