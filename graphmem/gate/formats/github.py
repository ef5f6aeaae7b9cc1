"""GitHub Actions format: workflow commands, which become annotations on lines.

Grammar: https://docs.github.com/actions/reference/workflow-commands-for-github-actions; escapes:
`escapeData` and `escapeProperty` of actions/toolkit, packages/core/src/command.ts.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphmem.gate.check import Check, Result
from graphmem.gate.formats import messages
from graphmem.gate.formats.places import place_of

_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})


def as_github(check: Check) -> str:
    """One annotation for each finding, at the line of its first cause, and for each error."""
    lines = [line for result in check.results for line in _annotations(result)]
    lines.append(_command("notice", "graphmem", messages.summary(check)))
    return "".join(f"{line}\n" for line in lines)


def _annotations(result: Result) -> Iterator[str]:
    place = place_of(result)
    if result.failure is not None:
        yield _command("error", "graphmem cannot analyse", messages.failure(result), place)
    if result.verdict is None:
        return
    causes = messages.causes(result)
    for finding in result.verdict.findings:
        text = "\n".join((messages.finding(result, finding), *causes))
        yield _command("error", f"graphmem {finding.rule}", text, place)
    if result.status == "larger":
        text = "\n".join((messages.headline(result), *causes))
        yield _command("warning", "graphmem", text, place)


def _command(kind: str, title: str, message: str, place: tuple[str, int] | None = None) -> str:
    properties = {"title": title}
    if place is not None:
        properties = {"file": place[0], "line": str(place[1]), **properties}
    written = ",".join(f"{key}={value.translate(_PROPERTY)}" for key, value in properties.items())
    return f"::{kind} {written}::{message.translate(_DATA)}"
