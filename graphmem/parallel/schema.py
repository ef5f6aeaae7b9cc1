"""The report of `graphmem plan`: schema `graphmem.plan/1`. Sizes are bytes; no computation here."""

from __future__ import annotations

import msgspec

from graphmem.json_text import json_text

SCHEMA = "graphmem.plan/1"


class LayoutInfo(msgspec.Struct, frozen=True):
    """How the step is split."""

    data: int
    tensor: int
    pipeline: int
    context: int
    expert: int
    sharding: str
    sequence_parallel: bool
    micro_batches: int
    schedule: str
    interleave: int
    precision: str
    offload: list[str]
    checkpoint: list[str]


class HostInfo(msgspec.Struct, frozen=True):
    """Bytes of one rank on the host, including pinned ones."""

    optimizer_state: int
    parameters: int
    gradients: int
    pinned: int


class Traffic(msgspec.Struct, frozen=True):
    """The data that one rank sends in one step for one purpose.

    `bytes` is what the rank sends; `formula` shows how it is computed.
    """

    what: str
    collective: str
    ranks: int
    bytes: int
    formula: str


class StageInfo(msgspec.Struct, frozen=True):
    """One pipeline stage, by its fullest rank.

    Attributes:
        blocks: how many of the model's blocks it has.
        in_flight: the most micro-batches that wait for their backward pass.
        most: the most bytes of each category.
        peak, reserved: the most allocated and reserved bytes.
        at_peak: bytes by category at the peak; they sum to `peak`.
        phase: the phase of the step in which the peak occurs.
        headroom: the card's memory minus its context and the reserved bytes.
        traffic: the data it sends in one step.
    """

    stage: int
    blocks: int
    in_flight: int
    most: dict[str, int]
    peak: int
    reserved: int
    at_peak: dict[str, int]
    phase: str
    step: int
    headroom: int
    host: HostInfo
    traffic: list[Traffic]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that each rank of a layout holds.

    Attributes:
        fits: whether every stage's reserved bytes leave room for the context.
        memory: the card's memory.
        context: the process's memory outside PyTorch's allocator: the CUDA context and NCCL.
        padding: unused bytes on all ranks of the first stage together.
        notes: what is exact, what is modelled, and what is left out.
    """

    schema: str = SCHEMA
    graphmem: str
    target: str
    gpu: str
    memory: int
    context: int
    gpus: int
    layout: LayoutInfo
    fits: bool
    stages: list[StageInfo]
    padding: int
    divided: list[str]
    notes: list[str]

    def to_json(self) -> str:
        """The plan as indented JSON."""
        return json_text(self)


class CandidateLayout(msgspec.Struct, frozen=True):
    """A layout that the search found, with the figures of its fullest stage."""

    layout: LayoutInfo
    title: str
    peak: int
    headroom: int
    traffic: int


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The layouts that fit.

    Attributes:
        context: the CUDA context; the headroom of each layout leaves out NCCL's memory as well.
        tried: how many layouts were computed; `impossible` more were rejected.
        seconds: how long that took, excluding the traces.
        fitting: in the requested order.
    """

    schema: str = "graphmem.search/1"
    graphmem: str
    target: str
    gpu: str
    memory: int
    context: int
    gpus: int
    tried: int
    impossible: int
    seconds: float
    fitting: list[CandidateLayout]
    notes: list[str]

    def to_json(self) -> str:
        """The search as indented JSON."""
        return json_text(self)
