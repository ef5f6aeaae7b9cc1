"""Many GPUs: what one rank holds of a training step, under every way of splitting it.

The step is traced once, as one data-parallel rank runs it unsplit. `axes` relates the dimensions of
its tensors to each other; `rank` decides which stage has a storage when, and replays a rank's
allocations through the caching allocator; `sharding` computes the size of each allocation, and what
data, tensor, context and expert parallelism add. `planner` combines the three for one layout, and
`search` finds the layouts that fit.
"""

from graphmem.parallel.layout import Layout, Precision, Schedule, Sharding

__all__ = ["Layout", "Precision", "Schedule", "Sharding"]
