"""The report: schema `graphmem.report/1`. All sizes are bytes; nothing here computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from graphmem.json_text import json_text

if TYPE_CHECKING:
    from graphmem.advice import Comparison

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


class PoolInfo(msgspec.Struct, frozen=True):
    """One pool of the caching allocator, "small" (requests up to 1 MiB) or "large".

    Attributes:
        segments: how many pieces it has from the driver; of an expandable segment each stretch that
            has memory.
        free: bytes that nothing uses.
        largest_free_block: the largest request that it could meet without the driver, rounded.
    """

    pool: str
    segments: int
    reserved: int
    allocated: int
    free: int
    largest_free_block: int


class Fragmentation(msgspec.Struct, frozen=True):
    """Bytes reserved at the peak that hold no tensor.

    Attributes:
        inside_blocks: allocated less requested.
        in_split_segments: free blocks beside others that are in use; only requests that fit into
            one can have them.
        in_free_segments: whole segments that nothing uses; the allocator gives them back before
            it runs out of memory.
        largest_free_block: of both.
    """

    inside_blocks: int
    in_split_segments: int
    in_free_segments: int
    largest_free_block: int


class Refusal(msgspec.Struct, frozen=True):
    """The request that the card cannot meet, even after the cache was emptied.

    Attributes:
        requested: what the program asked for.
        tried: what the allocator asked the driver for.
        allocated, reserved, free: what the process had then, and what the driver could still give.
        message: what PyTorch would say.
        held: who held what was allocated, with the largest holders only.
    """

    step: int
    phase: str
    op: str | None
    module: str
    source: str | None
    requested: int
    tried: int
    allocated: int
    reserved: int
    free: int
    message: str
    held: AtPeak


class OnCard(msgspec.Struct, frozen=True):
    """Whether the step runs on the card, replayed within the card's memory.

    Attributes:
        fits: whether it does.
        within_estimate: whether the answer is another one where there is `context_spread +
            memory_surplus` more room, or `context_uncertainty + memory_spread` less, or whether
            a convolution had to do without its workspace.
        capacity: what the allocator can have: the card's memory less `context`, or what a memory
            fraction allows.
        context: what the process takes besides; an estimate.
        context_uncertainty, context_spread: how much more and less of it was seen.
        memory_spread, memory_surplus: how much less and more of the card other drivers leave.
        allocated, reserved: the highest on the card; up to the refusal where there is one.
        margin: what is left where the most is reserved; negative where the step does not fit: how
            much more than `capacity` it would reserve with unlimited memory.
        cache_emptied: how often the driver refused and the cache was given back.
        refused: what does not fit.
        did_without: how many workspaces cuDNN's convolutions could not have.
    """

    fits: bool
    within_estimate: bool
    capacity: int
    context: int
    context_uncertainty: int
    memory_spread: int
    allocated: int
    reserved: int
    margin: int
    cache_emptied: int
    refused: Refusal | None
    memory_surplus: int = 0
    context_spread: int = 0
    did_without: int = 0


class MemoryInfo(msgspec.Struct, frozen=True):
    """The caching allocator's own view.

    Attributes:
        reserved: the highest reserved bytes of the trace, with unlimited memory.
        pools: at the peak of allocated bytes.
        fragmentation: at the peak of allocated bytes.
        on_card: the verdict.
    """

    reserved: int
    pools: list[PoolInfo]
    fragmentation: Fragmentation
    on_card: OnCard


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
    """Requested bytes of the model and the optimizer after the last optimizer step."""

    parameters: int
    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int


class AssumptionInfo(msgspec.Struct, frozen=True):
    """Something that only a real run knows, and the value assumed for it."""

    what: str
    value: str
    why: str
    source: str | None
    times: int
    called_from: str | None = None


class Findings(msgspec.Struct, frozen=True):
    """A pass's findings, in lines of text."""

    found_by: str
    lines: list[str]


class BatchInfo(msgspec.Struct, frozen=True):
    """The largest batch that fits, as far as it was searched for.

    Attributes:
        traced: the batch of the report.
        fits: the largest that fits of those that were tried, 0 where none does.
        fails: the smallest that does not; None where each one fits.
        command: analyses the one that fits; None of a target without a name.
    """

    traced: int
    fits: int
    fails: int | None
    command: str | None


class ChangeInfo(msgspec.Struct, frozen=True):
    """A change that lowers the peak, measured by tracing the changed step.

    Attributes:
        what: in words.
        price: what it costs.
        saves: bytes of the peak.
        fits, margin: the verdict on the changed step, as in `OnCard`.
        command: analyses the changed step; None of a target without a name.
    """

    what: str
    price: str
    saves: int
    fits: bool
    margin: int
    command: str | None


class AdviceInfo(msgspec.Struct, frozen=True):
    """What would help.

    Attributes:
        batch: None where the inputs have no batch that can be changed, or it was not searched for.
        changes: those that save most, the largest saving first.
        unmeasured: what was left out, and the commands that measure it.
    """

    batch: BatchInfo | None
    changes: list[ChangeInfo]
    unmeasured: list[str] = []


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `graphmem analyze` found.

    Attributes:
        saved_for_backward: bytes that autograd holds when the last forward pass of the last step
            ends, parameters excluded, storages counted once, tensors on the host included.
        operations: operations in the step graph.
        memory: what the allocator and the card say; None in reports of older versions.
        findings: what passes tell, by the name of what each provides.
        worst_routing_peak: the peak where all tokens go to the same experts, but one for each of
            the others; None where no size hangs on routing, or where it was not asked.
        timeline: the highest allocated bytes in each of equal parts of the trace, in order.
        ran: of a program that ran by itself, how it fared on its card; `memory` is None then.
        advice: what would help, where it was asked for, or where the step does not fit.
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
    memory: MemoryInfo | None = None
    timeline: list[int] = []
    findings: list[Findings] = []
    worst_routing_peak: int | None = None
    ran: OnCard | None = None
    advice: AdviceInfo | None = None

    @property
    def on_card(self) -> OnCard | None:
        """The verdict, of a trace or of a program that ran; None in reports of older versions."""
        return self.memory.on_card if self.memory is not None else self.ran

    def to_json(self) -> str:
        """The report as indented JSON."""
        return json_text(self)

    def to_text(self, *, verbose: bool = False) -> str:
        """What `graphmem analyze` prints, in 100 columns."""
        from graphmem.report.text import report_as_text

        return report_as_text(self, verbose=verbose)

    def to_html(self) -> str:
        """A document with the answer, the timeline and the largest holders.

        The page with every storage needs the step itself: `graphmem analyze --html`.
        """
        from graphmem.report.html import report_as_document

        return report_as_document(self)

    def to_pandas(self) -> Any:
        """The holders at the peak as a `pandas.DataFrame`.

        Raises:
            InputError: pandas is not installed.
        """
        from graphmem.report.frames import holders_in

        return holders_in("pandas", self)

    def to_polars(self) -> Any:
        """The holders at the peak as a `polars.DataFrame`.

        Raises:
            InputError: polars is not installed.
        """
        from graphmem.report.frames import holders_in

        return holders_in("polars", self)

    def compare(self, other: Report) -> Comparison:
        """This report before, and `other` after a change."""
        from graphmem.advice import Comparison

        return Comparison(self, other)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        from graphmem.report import answer

        return f"<Report of {self.target}: {'; '.join(line.plain for line in answer.brief(self))}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from graphmem.report.html import report_as_html

        return report_as_html(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Report:
        """Read a report back.

        Raises:
            msgspec.ValidationError: the text is not a report of this schema.
        """
        return msgspec.json.decode(text, type=cls)
