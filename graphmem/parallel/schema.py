"""What `graphmem plan` says: schema `graphmem.plan/1`. Sizes are bytes; nothing here computes."""

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
    """Bytes of one rank on the host; pinned bytes are among them."""

    optimizer_state: int
    parameters: int
    gradients: int
    pinned: int


class Traffic(msgspec.Struct, frozen=True):
    """What one rank sends in one step for one purpose.

    `bytes` is what the rank sends; `formula` says how it comes about.
    """

    what: str
    collective: str
    ranks: int
    bytes: int
    formula: str


class StageInfo(msgspec.Struct, frozen=True):
    """One rank of the pipeline, the largest among the ranks of its stage.

    Attributes:
        blocks: of the model.
        in_flight: micro-batches whose backward pass is waited for, at most.
        most: by category, the most bytes at once.
        peak, reserved: the most allocated and reserved bytes.
        at_peak: by category; they sum to `peak`.
        phase: of the step, in which the peak is.
        headroom: what is left of the card, its context and what is reserved set aside.
        traffic: what it sends in one step.
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
    """What each rank of a layout holds.

    Attributes:
        fits: whether every stage's reserved bytes leave room for the context.
        memory: of the card.
        context: what the process takes besides PyTorch's allocator.
        padding: bytes on all ranks of the first stage together that hold nothing.
        notes: what is exact, what is a model, and what is left out.
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


class Candidate(msgspec.Struct, frozen=True):
    """A layout that the search found. Figures are those of its fullest stage."""

    layout: LayoutInfo
    title: str
    peak: int
    headroom: int
    traffic: int


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The layouts that fit.

    Attributes:
        tried: how many layouts were computed; `impossible` were refused.
        seconds: how long that took, without the traces.
        fitting: in the order that was asked for.
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
    fitting: list[Candidate]
    notes: list[str]

    def to_json(self) -> str:
        """The search as indented JSON."""
        return json_text(self)
