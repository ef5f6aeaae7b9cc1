"""First aid for a step on its card: the largest batch, and the changes that save most.

Each is measured by a whole analysis of the changed step, so only the most promising are tried, and
at most `AFFORDABLE` operations are traced in all: a model of a hundred layers would otherwise keep
its user waiting for minutes. Anything left out is named with the command that measures it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphmem.advice.candidates import Candidate, candidates
from graphmem.advice.commands import command_of
from graphmem.border import Border, Tried, Values
from graphmem.errors import InputError
from graphmem.graph import Category
from graphmem.other_sizes import sizes_of
from graphmem.report.advice_info import AdviceInfo, BatchInfo, ChangeInfo

if TYPE_CHECKING:
    from graphmem.analysis import Analysis, Request

AFFORDABLE = 60_000
"""Operations: about ten traces of GPT-2, half a minute."""
SHOWN = 3
_TRIED = 4
_MOST_TRIED = 8
"""If some of the first turn out not to help."""
_BATCHES = 5
_LARGEST = 2**32


def first_aid(
    target: str | Callable[..., Any],
    request: Request,
    analysis: Analysis,
    progress: Callable[[str], None] = lambda message: None,
    affordable: int | None = AFFORDABLE,
) -> AdviceInfo:
    """Find the largest batch that fits, and the changes that save most.

    Args:
        target: the analysed target.
        request: the request of its analysis.
        analysis: the result of its analysis.
        progress: called with a description of each stage.
        affordable: the most operations to trace; None for no limit.
    """
    return _FirstAid(target, request, analysis, progress, affordable).find()


class _FirstAid:
    def __init__(
        self,
        target: str | Callable[..., Any],
        request: Request,
        analysis: Analysis,
        progress: Callable[[str], None],
        affordable: int | None,
    ) -> None:
        self._target = target
        self._request = replace(request, bounds=False)
        self._analysis = analysis
        self._progress = progress
        operations = max(1, analysis.report.operations)
        self._traces = 10**6 if affordable is None else affordable // operations
        self._left_out: list[str] = []

    def find(self) -> AdviceInfo:
        batch = self._batch()
        changes = self._changes()
        return AdviceInfo(batch, changes, self._left_out)

    def _run(self, request: Request) -> Analysis:
        from graphmem.analysis import run_analysis

        self._traces -= 1
        return run_analysis(self._target, request)

    def _command(self, name: str, request: Request) -> str | None:
        return command_of(name, self._target, request) if isinstance(self._target, str) else None

    def _leave_out(self, what: str, name: str) -> None:
        command = self._command(name, self._request)
        long = f"{what} (not measured, because the step is long)"
        self._left_out.append(f"{long}: {command}" if command else long)

    def _batch(self) -> BatchInfo | None:
        size = self._analysis.step.batch
        if not size:
            return None
        tries = min(_BATCHES, self._traces // 2)
        if not tries:
            self._leave_out("the largest batch", "fit")
            return None
        try:
            border = self._border(size, tries)
        except InputError:  # this model does not accept other batch sizes
            return None
        fits = border.low or 0
        command = self._command("analyze", self._batch_request(fits)) if fits else None
        return BatchInfo(size, fits, border.high, command)

    def _border(self, size: int, tries: int) -> Border:
        """Find the largest batch that fits, starting from the analysed one."""
        runtime = self._analysis.step.runtime
        border = Border(Values(1, _LARGEST), self._with_batch, runtime, tries=tries)
        border.know(size, _tried(self._analysis))
        border.find()
        return border

    def _with_batch(self, size: int) -> Tried:
        self._progress(f"trying a batch of {size:,}")
        return _tried(self._run(self._batch_request(size)))

    def _batch_request(self, size: int) -> Request:
        changes = replace(self._request.changes, batch=None, batch_size=size)
        return replace(self._request, changes=changes)

    def _changes(self) -> list[ChangeInfo]:
        if not self._traces:
            self._leave_out("the changes that save most", "explain")
            return []
        helpful: list[ChangeInfo] = []
        for rank, (_, candidate) in enumerate(sorted(self._hopes(), key=lambda hope: -hope[0])):
            if not self._traces or rank >= (_TRIED if len(helpful) >= SHOWN else _MOST_TRIED):
                break
            found = self._measured(candidate)
            if found is not None and found.saves > 0:
                helpful.append(found)
        return sorted(helpful, key=lambda each: -each.saves)[:SHOWN]

    def _hopes(self) -> list[tuple[int, Candidate]]:
        """Candidates, except for the batch, with the bytes that they might save."""
        found = [
            (self._hope(each), each)
            for each in candidates(self._request, self._analysis)
            if each.request.changes.batch == self._request.changes.batch
        ]
        return [hope for hope in found if hope[0] > 0]

    def _hope(self, candidate: Candidate) -> int:
        at_peak = self._analysis.report.at_peak.by_category
        if candidate.frees_bytes is not None:
            return candidate.frees_bytes
        if candidate.request.autocast != self._request.autocast:
            return at_peak[Category.ACTIVATION] // 3
        state = at_peak[Category.OPTIMIZER_STATE]
        if candidate.request.changes.freeze != self._request.changes.freeze:
            return (state + at_peak[Category.GRADIENT]) // 2
        shares = {"sgd": 1.0, "sgd-momentum": 0.5}
        return int(state * shares.get(candidate.request.optimizer or "", 0.0))

    def _measured(self, candidate: Candidate) -> ChangeInfo | None:
        self._progress(f"measuring {candidate.option}")
        try:
            report = self._run(candidate.request).report
        except InputError:
            return None
        card = report.on_card
        assert card is not None
        return ChangeInfo(
            candidate.what,
            candidate.price,
            self._analysis.report.peak.allocated - report.peak.allocated,
            card.fits,
            card.margin,
            self._command("analyze", candidate.request),
        )


def _tried(analysis: Analysis) -> Tried:
    return Tried.of(analysis.report, sizes_of(analysis.graph, analysis.annotations))
