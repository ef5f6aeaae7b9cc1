"""The report: schema `graphmem.report/1`. All sizes are bytes; no computation here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from graphmem.host_bytes import HostBytes
from graphmem.json_text import json_text
from graphmem.module_calls import ModuleCall
from graphmem.report.advice_info import AdviceInfo
from graphmem.report.collector_info import CollectorInfo

if TYPE_CHECKING:
    from graphmem.advice import ReportComparison

SCHEMA = "graphmem.report/1"
GROWTH = "memory that grows"
"""Who found that something leaks (`Findings.found_by`)."""
ROUNDING = "rounding"
"""In `by_category`, what blocks take beyond their storages."""


class RuntimeInfo(msgspec.Struct, frozen=True):
    """The machine on which the step would run."""

    gpu: str
    title: str
    memory: int
    compute_capability: str
    torch: str
    env: dict[str, str]


class OwnerInfo(msgspec.Struct, frozen=True):
    """A reason why a storage was alive at the peak, with operations by index.

    `first_op` is None if it held before the first operation, `last_op` if it outlives the trace.
    """

    kind: str
    name: str
    first_op: int | None
    last_op: int | None
    source: str | None


class Holder(msgspec.Struct, frozen=True):
    """A storage that was alive at the peak. `block` is the size of its block for `bytes`."""

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
    """Holders of the bytes at the peak; `by_category` and `by_module` sum to `peak.allocated`."""

    by_category: dict[str, int]
    by_module: dict[str, int]
    holders: list[Holder]


class Peak(msgspec.Struct, frozen=True):
    """The moment with the most allocated bytes. Steps are counted from 0."""

    allocated: int
    requested: int
    reserved: int
    step: int
    phase: str
    op: str | None
    module: str
    source: str | None


class PoolInfo(msgspec.Struct, frozen=True):
    """A pool of the caching allocator.

    Attributes:
        pool: "small" (requests up to 1 MiB), "large", or "private" with the id that PyTorch shows:
            the memory of CUDA graphs and of a `MemPool`.
        segments: how many pieces it got from the driver; in an expandable segment, each mapped
            range counts.
        free: unused bytes.
        largest_free_block: the largest (rounded) request it could serve without the driver.
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
        inside_blocks: allocated minus requested bytes.
        in_split_segments: free blocks in segments that are partly in use; only requests that fit
            into one can use them.
        in_free_segments: entirely unused segments; the allocator frees them before it runs out of
            memory.
        largest_free_block: the largest free block of both kinds.
    """

    inside_blocks: int
    in_split_segments: int
    in_free_segments: int
    largest_free_block: int


class Refusal(msgspec.Struct, frozen=True):
    """The request that fails on the card, even after the cache was emptied.

    Attributes:
        requested: bytes that the program requested.
        tried: bytes that the allocator requested from the driver.
        allocated, reserved, free: the process's bytes then, and the bytes the driver still had.
        message: PyTorch's error message.
        held: what held the allocated bytes, with only the largest holders.
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
        fits: whether the step runs.
        within_estimate: whether the verdict would change with `context_spread + memory_surplus`
            more memory, or `context_uncertainty + memory_spread` less, or whether a convolution had
            to do without its workspace.
        capacity: the most that the allocator can reserve: the card's memory minus `context`, or
            what a memory fraction allows.
        context: the process's memory outside the allocator; an estimate.
        context_uncertainty, context_spread: how much more and how much less was observed.
        memory_spread, memory_surplus: how much less and how much more of the card other drivers
            leave.
        allocated, reserved: the highest bytes on the card, up to the failed request if there is
            one.
        margin: capacity left at the highest reserved bytes; if the step does not fit, minus the
            bytes above `capacity` that it would reserve with unlimited memory.
        cache_emptied: how often the driver refused memory and the cache was emptied; of a program
            that fits, how often that helped.
        refused: the failed request, or None.
        did_without: how many workspaces of cuDNN's convolutions could not be allocated.
        late: the most bytes at a time that the program freed while another stream might still use
            them: a card that is slow to get there keeps them reserved.
        grows_by: the bytes that leaks add in each iteration, on average.
        allowed: what a memory fraction lets the process reserve, if that is less than the card has
            left; else None.
        caught: how many requests did not fit that the program caught, and went on.
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
    late: int = 0
    grows_by: int = 0
    allowed: int | None = None
    caught: int = 0


class MemoryInfo(msgspec.Struct, frozen=True):
    """The caching allocator's state, and the verdict on the card.

    Attributes:
        reserved: the highest reserved bytes of the trace, with unlimited memory.
        pools: the pools at the peak of allocated bytes.
        fragmentation: the fragmentation at the peak of allocated bytes.
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
    """Something that only a real run knows, and the value assumed for it.

    Attributes:
        at_peak: whether it is about memory of the operation at the peak; else absent from JSON,
            and false.
        highest: the peak in bytes if it does not hold; absent from JSON where that is not known.
    """

    what: str
    value: str
    why: str
    source: str | None
    times: int
    called_from: str | None = None
    at_peak: bool | msgspec.UnsetType = msgspec.UNSET
    highest: int | msgspec.UnsetType = msgspec.UNSET


class Findings(msgspec.Struct, frozen=True):
    """A pass's findings, in lines of text."""

    found_by: str
    lines: list[str]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `graphmem analyze`.

    Attributes:
        options: what the target was traced or run with, except for the card; empty in reports of
            older versions.
        saved_for_backward: bytes that autograd holds after the forward pass that leaves most, if
            possible one with a backward pass; without parameters, with host tensors, each storage
            once.
        operations: the number of operations in the step graph.
        memory: the allocator's state and the verdict; None in reports of older versions.
        findings: the passes' findings, by the name of each pass's annotation.
        worst_routing_peak, padded_peak: the peak if all tokens but one for each other expert go to
            the same ones, and if the compiler pads every product; None if no such choice.
        timeline: the highest allocated bytes in each of equal parts of the trace, in order.
        ran: for a program that `graphmem run` ran, the verdict; `memory` is None then.
        advice: present if requested, or if the step does not fit.
        host: the host's memory; None in reports of older versions.
        calls: how each module is called, equal layers folded; empty in reports of older versions.
        collector: the bounds of a program's peak, if Python's cycle collector decided it; else
            absent from JSON, and false.
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
    padded_peak: int | None = None
    ran: OnCard | None = None
    advice: AdviceInfo | None = None
    host: HostBytes | None = None
    calls: dict[str, ModuleCall] = {}
    options: str = ""
    collector: CollectorInfo | msgspec.UnsetType = msgspec.UNSET

    @property
    def on_card(self) -> OnCard | None:
        """The verdict on a trace or on a program; None in reports of older versions."""
        return self.memory.on_card if self.memory is not None else self.ran

    def to_json(self) -> str:
        """The report as indented JSON."""
        return json_text(self)

    def to_text(self, *, verbose: bool = False) -> str:
        """The text that `graphmem analyze` prints, in 100 columns."""
        from graphmem.report.text import report_as_text

        return report_as_text(self, verbose=verbose)

    def to_html(self) -> str:
        """An HTML document; the page with every storage is that of `graphmem analyze --html`."""
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

    def compare(self, other: Report) -> ReportComparison:
        """Compare this report (before a change) with `other` (after it)."""
        from graphmem.advice import ReportComparison

        return ReportComparison(self, other)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        from graphmem.report import answer

        return f"<Report of {self.target}: {'; '.join(line.plain for line in answer.brief(self))}>"

    def _repr_html_(self) -> str:
        """The HTML shown in a notebook."""
        from graphmem.report.html import report_as_html

        return report_as_html(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Report:
        """Read a report back.

        Raises:
            msgspec.ValidationError: the text is not a report of this schema.
        """
        return msgspec.json.decode(text, type=cls)
