"""The report: schema `graphmem.report/1`. All sizes are bytes; nothing here computes."""

from __future__ import annotations

import msgspec

SCHEMA = "graphmem.report/1"


class RuntimeInfo(msgspec.Struct, frozen=True):
    """Where the step would run."""

    gpu: str
    title: str
    memory: int
    compute_capability: str
    torch: str
    env: dict[str, str]


class OwnerInfo(msgspec.Struct, frozen=True):
    """One reason that a storage was alive at the peak; operations by their index in the graph.

    `first_op` is None for what was there before the first operation, `last_op` for what outlives
    the trace.
    """

    kind: str
    name: str
    first_op: int | None
    last_op: int | None
    source: str | None


class Holder(msgspec.Struct, frozen=True):
    """One storage that was alive at the peak. `block` is what the allocator gave for `bytes`."""

    bytes: int
    block: int
    category: str
    op: str | None
    shape: list[int]
    dtype: str
    module: str
    source: str | None
    reason: str
    owners: list[OwnerInfo]


class AtPeak(msgspec.Struct, frozen=True):
    """Who holds the bytes at the peak. `by_category` and `by_module` sum to `peak.allocated`."""

    by_category: dict[str, int]
    by_module: dict[str, int]
    holders: list[Holder]


class Peak(msgspec.Struct, frozen=True):
    """The moment of the most allocated bytes. Steps are counted from 0."""

    allocated: int
    requested: int
    reserved: int
    step: int
    phase: str
    op: str | None
    module: str
    source: str | None


class PhaseInfo(msgspec.Struct, frozen=True):
    """Allocated bytes over one phase."""

    name: str
    start: int
    end: int
    peak: int


class MarkInfo(msgspec.Struct, frozen=True):
    """Allocated bytes at a named moment."""

    name: str
    allocated: int


class StepInfo(msgspec.Struct, frozen=True):
    """One iteration."""

    step: int
    phases: list[PhaseInfo]
    marks: list[MarkInfo]


class ModelInfo(msgspec.Struct, frozen=True):
    """What the model and the optimizer keep, requested bytes at the end of the trace."""

    parameters: int
    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int


class AssumptionInfo(msgspec.Struct, frozen=True):
    """Something that only a real run knows, and what was taken for it."""

    what: str
    value: str
    why: str
    source: str | None
    times: int


class Findings(msgspec.Struct, frozen=True):
    """What a pass has to tell, in lines of text."""

    found_by: str
    lines: list[str]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `graphmem analyze` found.

    Attributes:
        saved_for_backward: bytes that autograd holds when the last forward pass of the last step
            ends, parameters excluded, storages counted once, tensors on the host included.
        operations: operations in the step graph.
        findings: what passes tell, by the name of what each provides.
        timeline: the highest allocated bytes in each of equal parts of the trace, in order.
    """

    schema: str = SCHEMA
    graphmem: str
    target: str
    runtime: RuntimeInfo
    model: ModelInfo
    steps: list[StepInfo]
    peak: Peak
    at_peak: AtPeak
    saved_for_backward: int
    operations: int
    assumptions: list[AssumptionInfo]
    timeline: list[int] = []
    findings: list[Findings] = []

    def to_json(self) -> str:
        """The report as indented JSON."""
        encoded = msgspec.json.encode(self)
        return msgspec.json.format(encoded, indent=2).decode() + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Report:
        """Read a report back.

        Raises:
            msgspec.ValidationError: the text is no report of this schema.
        """
        return msgspec.json.decode(text, type=cls)
