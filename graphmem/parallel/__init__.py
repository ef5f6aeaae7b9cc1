"""Many GPUs: what is left of a training step on one rank, under every way of splitting it.

The step is traced once, as one data-parallel rank runs it unsplit. Its tensors' dimensions are
related to each other (`axes`, `operators`, `dimensions`, `columns`), so that a layout says for each
storage what one rank has of it (`shares`); which stage has it when (`traced`, `stages`, `schedule`,
`rank`, `lifetimes`, `pieces`); and what data-parallel sharding makes of that (`data_parallel`,
`fsdp`). The pieces of a rank are replayed through the caching allocator (`timeline`, `planner`).
"""

from graphmem.parallel.layout import Layout, Precision, Schedule, Sharding

__all__ = ["Layout", "Precision", "Schedule", "Sharding"]
