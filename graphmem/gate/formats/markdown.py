"""Markdown format for `$GITHUB_STEP_SUMMARY` and comments: a table, then the problems."""

from __future__ import annotations

import re
from collections.abc import Iterator

from graphmem.gate.check import Check, Result
from graphmem.gate.formats import messages
from graphmem.units import format_bytes

_SIGNS = {"failed": "❌", "error": "💥", "larger": "⚠️", "smaller": "✅", "new": "🆕"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def as_markdown(check: Check) -> str:
    """The outcome as GitHub's Markdown."""
    lines = ["### GPU memory", "", messages.summary(check), ""]
    has_budget = any(
        each.verdict and each.verdict.budget_left is not None for each in check.results
    )
    budget = (" budget left |", " ---: |") if has_budget else ("", "")
    lines.append(f"| target | baseline | now | change |{budget[0]} |")
    lines.append(f"| --- | ---: | ---: | ---: |{budget[1]} --- |")
    lines += [_row(each, has_budget) for each in check.results]
    for result in check.results:
        lines += _details(result, is_update=check.is_update)
    advice = messages.advice(check)
    if advice:
        lines += ["", f"{advice[0].upper()}{advice[1:]}."]
    return "".join(f"{line}\n" for line in lines)


def _row(result: Result, has_budget: bool) -> str:
    status = f"{_SIGNS.get(result.status, '')} {result.status}".strip()
    verdict = result.verdict
    cells = ["-", "-", "-", *["-"] * has_budget]
    if verdict is not None:
        before = verdict.before
        cells[0] = "-" if before is None else format_bytes(before.allocated)
        cells[1] = format_bytes(verdict.after.allocated)
        cells[2] = messages.change(before, verdict.after)
        if verdict.budget_left is not None:
            cells[3] = format_bytes(verdict.budget_left)
    return f"| {' | '.join((escaped(result.name), *map(escaped, cells), status))} |"


def _details(result: Result, *, is_update: bool) -> Iterator[str]:
    if result.failure is not None:
        yield from ("", f"**{escaped(messages.failure(result))}**")
    card_note = messages.card_note(result)
    if card_note:
        yield from ("", f"Note: {escaped(card_note)}")
    if result.verdict is None or not (result.verdict.findings or messages.causes(result)):
        return
    yield from ("", f"#### {escaped(result.name)}", "")
    for finding in result.verdict.findings:
        yield f"**{escaped(messages.finding(result, finding))}**  "
    if not result.verdict.findings:
        yield escaped(messages.headline(result, is_update=is_update))
    note = messages.baseline_note(result)
    if note:
        yield f"Note: {escaped(note)}"
    yield ""
    for line in messages.causes(result):
        yield f"- {escaped(line)}"


def escaped(text: str) -> str:
    """Escape text for Markdown; an empty HTML comment keeps GitHub from notifying @somebody."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("@", "@<!-- -->")
