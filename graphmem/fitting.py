"""Find the largest batch, or value of any argument of `build`, with which a step fits on a card.

Each probe is a whole analysis, so its verdict is exact; `graphmem/border.py` chooses the probes.
The answer fits and the next value does not; the one before and the second after are probed as well,
unless two traces predict their verdicts. Values are multiples of one number, so "next" is the next
multiple.

All smaller values are assumed to fit as well; `surprises` names probes that contradict this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from graphmem.analysis import (
    Analysis,
    Progress,
    Request,
    run_analysis,
    runtime_of,
    target_defaults,
)
from graphmem.border import Border, Tried, Values
from graphmem.errors import InputError
from graphmem.gpus import find_gpu, label_of
from graphmem.json_text import json_text
from graphmem.other_sizes import Sizes, sizes_of
from graphmem.pipeline import run_passes

if TYPE_CHECKING:
    from graphmem.record import TracedStep
    from graphmem.report import Report
    from graphmem.report.schema import MemoryInfo

SCHEMA = "graphmem.fit/1"
BATCH = "the first dimension of the inputs"
DEFAULT_LARGEST = 65_536
_STEPS = 2
_MULTIPLES = "--multiple-of tries only values that build() takes, --max ends the search before"

_Steps: TypeAlias = "deque[tuple[int, TracedStep]]"


class NothingToTryError(InputError):
    """The range of a search is empty."""

    def __init__(self, unit: str, smallest: int, largest: int) -> None:
        super().__init__(
            f"there is no{unit} from {smallest} to {largest} to try",
            hint="the smallest must be at least 1, and the largest no smaller",
        )


class VariedAndSetError(InputError):
    """`--vary` and `--set` name the same argument."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(
            f"{key} is varied, and set to {value} as well", hint=f"leave --set {key}=… out"
        )


class NotVariableError(InputError):
    """`--vary` names an argument that is not a number."""

    def __init__(self, key: str | None, default: object) -> None:
        super().__init__(
            f"{key} is not a number that can be varied: its default is {default!r}",
            hint="name an argument of build() that is a whole number, or leave --vary out",
        )


class Probe(msgspec.Struct, frozen=True):
    """One value: its highest bytes with unlimited memory, and the verdict on the card."""

    value: int
    allocated: int
    reserved: int
    fits: bool
    within_estimate: bool
    cache_emptied: int


class Refused(msgspec.Struct, frozen=True):
    """The request that fails at the smallest value above the answer, with PyTorch's message."""

    value: int
    step: int
    phase: str
    op: str | None
    module: str
    source: str | None
    requested: int
    message: str


class CardFit(msgspec.Struct, frozen=True):
    """The result for one card.

    Attributes:
        largest: the largest value that fits; None if not even the smallest does.
        is_bounded: whether the next value does not fit; otherwise the search reached its largest
            value.
        probes: every value that was tried, in ascending order.
        refused: the failed request of the next value.
        surprises: unexpected results of the probes, in words.
    """

    gpu: str
    title: str
    memory: int
    capacity: int
    context: int
    context_uncertainty: int
    context_spread: int
    memory_spread: int
    memory_surplus: int
    largest: int | None
    is_bounded: bool
    probes: list[Probe]
    refused: Refused | None
    surprises: list[str]


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `graphmem fit`; `vary` is an argument of `build`, or `BATCH`."""

    schema: str = SCHEMA
    target: str
    vary: str
    torch: str
    env: dict[str, str]
    cards: list[CardFit]

    def to_json(self) -> str:
        """The result as indented JSON."""
        return json_text(self)


@dataclass(frozen=True)
class Range:
    """The argument to vary, and its range.

    Attributes:
        key: an argument of `build`; None for the first dimension of the inputs.
        smallest, largest: the range of values, both included.
        multiple_of: try only its multiples.
    """

    key: str | None = None
    smallest: int = 1
    largest: int = DEFAULT_LARGEST
    multiple_of: int = 1

    @property
    def name(self) -> str:
        """The name of the varied quantity, in messages."""
        return self.key or "batch"

    @property
    def values(self) -> Values:
        """The multiples from the smallest to the largest."""
        unit = self.multiple_of
        return Values(-(-self.smallest // unit) * unit, self.largest // unit * unit, unit)


def fit(
    target: str | Callable[..., Any],
    *,
    gpus: Sequence[str],
    vary: str | None = None,
    smallest: int = 1,
    largest: int = DEFAULT_LARGEST,
    multiple_of: int = 1,
    progress: Progress = lambda message: None,
    **options: Any,
) -> Fit:
    """Find the largest value with which a training step fits on each card.

    Args:
        target: a target, as for `graphmem.analyze`.
        gpus: the cards, by name.
        vary: an integer argument of `build`; by default the first dimension of the inputs.
        smallest: the smallest value to try.
        largest: the largest value to try.
        multiple_of: try only its multiples.
        progress: called with a description of each stage.
        options: the fields of `graphmem.analysis.Request`, without `gpu`.

    Raises:
        InputError: the target, the argument or an option cannot be used; the message says why.

    Example:
        >>> graphmem.fit("model.py:build", gpus=["t4", "a100-40gb"]).cards[0].largest
    """
    from graphmem.targets.objects import check_names

    check_names("fit", options, Request, "gpus", "vary", "smallest", "largest", "multiple_of")
    over = Range(vary, smallest, largest, multiple_of)
    return find_fit(target, Request(**options), gpus, over, progress)


def find_fit(
    target: str | Callable[..., Any],
    request: Request,
    gpus: Sequence[str],
    over: Range,
    progress: Progress = lambda message: None,
) -> Fit:
    """Run `fit` with a request."""
    _check(request, over)
    names = list(dict.fromkeys(label_of(find_gpu(name)) for name in gpus))
    _check_target(target, request, over)
    steps: _Steps = deque(maxlen=_STEPS)
    searches = [
        _Search(target, replace(request, gpu=name), over, progress, steps) for name in names
    ]
    cards = [search.run() for search in searches]
    report, vary = searches[0].any_report, over.key or BATCH
    torch, env = report.runtime.torch, report.runtime.env
    return Fit(target=report.target, vary=vary, torch=torch, env=env, cards=cards)


def _check(request: Request, over: Range) -> None:
    if over.multiple_of < 1 or not 1 <= over.smallest <= over.values.first <= over.values.last:
        unit = f" multiple of {over.multiple_of}" if over.multiple_of != 1 else " whole number"
        raise NothingToTryError(unit, over.smallest, over.largest)
    if over.key is not None and over.key in request.settings:
        raise VariedAndSetError(over.key, request.settings[over.key])


def _check_target(target: str | Callable[..., Any], request: Request, over: Range) -> None:
    """Check before the search that the target can be imported, and takes a number."""
    default = target_defaults(target, request).get(over.key or "")
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    if not is_number and default is not None:
        raise NotVariableError(over.key, default)


@dataclass
class _Search:
    """The probes on one card.

    Attributes:
        steps: the last traced steps with their values, for any card; the next search starts from
            them.
    """

    target: str | Callable[..., Any]
    request: Request
    over: Range
    progress: Progress
    steps: _Steps
    reports: dict[int, Report] = field(default_factory=dict)
    sizes: dict[int, Sizes] = field(default_factory=dict)

    @property
    def any_report(self) -> Report:
        return next(iter(self.reports.values()))

    def run(self) -> CardFit:
        border = self._border()
        border.find()
        largest, refused = border.low, border.high
        if largest is not None:
            self._look_around(border, largest)
        report = self.any_report
        card = self._memory(next(iter(self.reports))).on_card
        return CardFit(
            gpu=report.runtime.gpu,
            title=report.runtime.title,
            memory=report.runtime.memory,
            capacity=card.capacity,
            context=card.context,
            context_uncertainty=card.context_uncertainty,
            context_spread=card.context_spread,
            memory_spread=card.memory_spread,
            memory_surplus=card.memory_surplus,
            largest=largest,
            is_bounded=refused is not None,
            probes=(probes := [self._probe(value) for value in sorted(self.reports)]),
            refused=None if refused is None else self._refused(refused),
            surprises=list(surprises(probes, largest, self.over.name)),
        )

    def _border(self) -> Border:
        runtime = runtime_of(self.request)
        others = {
            value: sizes_of(step.graph, run_passes(step.graph, runtime))
            for value, step in self.steps
        }
        return Border(self.over.values, self._tried, runtime, others)

    def _look_around(self, border: Border, largest: int) -> None:
        """Check that values near the answer behave as expected."""
        unit = self.over.multiple_of
        for neighbour in (largest - unit, largest + 2 * unit):
            is_expected = border.foretells(neighbour) is (neighbour < largest)
            if self.over.values.has(neighbour) and not is_expected:
                self._memory(neighbour)

    def _tried(self, value: int) -> Tried:
        self._memory(value)
        return Tried.of(self.reports[value], self.sizes.get(value))

    def _memory(self, value: int) -> MemoryInfo:
        if value not in self.reports:
            analysis = self._analyse(value)
            self.reports[value] = analysis.report
            self.sizes[value] = sizes_of(analysis.graph, analysis.annotations)
            self.steps.append((value, analysis.step))
        memory = self.reports[value].memory
        assert memory is not None
        return memory

    def _analyse(self, value: int) -> Analysis:
        what = f"{self.over.name}={value} on {self.request.gpu}"
        try:
            return run_analysis(
                self.target,
                self._request(value),
                lambda message: self.progress(f"{what}: {message}"),
            )
        except InputError as error:
            if not self.reports and self._fails_without(error):
                raise
            raise InputError(
                f"with {self.over.name}={value}: {error}",
                hint=error.hint or _MULTIPLES,
                user_traceback=error.user_traceback,
            ) from error

    def _fails_without(self, error: InputError) -> bool:
        """Whether the step fails in the same way when nothing is varied."""
        try:
            run_analysis(self.target, self.request)
        except InputError as other:
            return str(other) == str(error)
        return False

    def _request(self, value: int) -> Request:
        if self.over.key is None:
            changes = replace(self.request.changes, batch_size=value)
            return replace(self.request, changes=changes)
        settings = {**self.request.settings, self.over.key: str(value)}
        return replace(self.request, settings=settings)

    def _probe(self, value: int) -> Probe:
        memory = self._memory(value)
        return Probe(
            value=value,
            allocated=self.reports[value].peak.allocated,
            reserved=memory.reserved,
            fits=memory.on_card.fits,
            within_estimate=memory.on_card.within_estimate,
            cache_emptied=memory.on_card.cache_emptied,
        )

    def _refused(self, value: int) -> Refused | None:
        refusal = self._memory(value).on_card.refused
        if refusal is None:
            return None
        shared = {name: getattr(refusal, name) for name in Refused.__struct_fields__[1:]}
        return Refused(value, **shared)


def surprises(probes: Sequence[Probe], largest: int | None, name: str) -> Iterator[str]:
    """Describe larger values that take less memory, and verdicts that contradict the answer.

    Args:
        probes: in ascending order of value.
        largest: the answer.
        name: the name of the varied quantity.
    """
    if len(probes) > 1 and len({probe.reserved for probe in probes}) == 1:
        yield f"{name} does not change the reserved bytes, {probes[0].reserved:,} for each value"
    for smaller, larger in pairwise(probes):
        if larger.reserved < smaller.reserved:
            yield (
                f"{name}={larger.value} reserves less than {name}={smaller.value}: "
                f"{larger.reserved:,} and {smaller.reserved:,} bytes"
            )
    if largest is None:
        return
    for probe in probes:
        if probe.fits and probe.value > largest:
            yield f"{name}={probe.value} fits again, above one that does not"
        if not probe.fits and probe.value < largest:
            yield f"{name}={probe.value} does not fit, below one that does"
