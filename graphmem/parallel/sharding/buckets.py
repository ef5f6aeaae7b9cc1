"""The buckets in which DistributedDataParallel reduces gradients.

Clauses (torch/csrc/distributed/c10d/reducer.cpp, torch/nn/parallel/distributed.py of 2.13):
  (1) a bucket takes parameters in order until it holds its limit or more; it is one flat tensor of
      the gradients' dtype (`compute_bucket_assignment_by_size`, `initialize_buckets`);
  (2) at first there is a single bucket for each dtype, whatever its size: without
      `find_unused_parameters` the limit is `sys.maxsize` (`compute_bucket_size_limits`);
  (3) the second forward pass rebuilds the buckets in the order in which gradients became ready, the
      first with a limit of 1 MiB, the others of 25 MiB (`rebuild_buckets`); the old ones are freed
      first (`initialize_buckets` clears them);
  (4) buckets stay until training ends; with `gradient_as_bucket_view` the gradients live in them,
      otherwise they are copied in and out, and both stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

FIRST_BUCKET_BYTES = 1024 * 1024
"""`dist._DEFAULT_FIRST_BUCKET_BYTES`."""
BUCKET_BYTES = 25 * 1024 * 1024
"""`bucket_cap_mb=25`."""


def assign(sizes: Iterable[tuple[str, int]], limits: Sequence[int]) -> list[int]:
    """The bytes of each bucket.

    Args:
        sizes: dtype and bytes of each gradient, in order.
        limits: those of the first bucket, the second, and so on; the last one applies to all later
            buckets. Each dtype goes through them separately.
    """
    filled: dict[str, int] = {}
    closed: dict[str, int] = {}
    buckets = []
    for dtype, nbytes in sizes:
        filled[dtype] = filled.get(dtype, 0) + nbytes
        limit = limits[min(closed.get(dtype, 0), len(limits) - 1)]
        if filled[dtype] >= limit:
            buckets.append(filled.pop(dtype))
            closed[dtype] = closed.get(dtype, 0) + 1
    return [*buckets, *(left for left in filled.values() if left)]


def first_buckets(sizes: Iterable[tuple[str, int]]) -> list[int]:
    """The buckets of the first iteration (clause 2)."""
    by_dtype: dict[str, int] = {}
    for dtype, nbytes in sizes:
        by_dtype[dtype] = by_dtype.get(dtype, 0) + nbytes
    return list(by_dtype.values())


def rebuilt_buckets(sizes: Iterable[tuple[str, int]]) -> list[int]:
    """The buckets of all later iterations (clause 3)."""
    return assign(sizes, [FIRST_BUCKET_BYTES, BUCKET_BYTES])
