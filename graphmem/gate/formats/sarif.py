"""SARIF 2.1.0 for code scanning: https://docs.oasis-open.org/sarif/sarif/v2.1.0/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from graphmem.gate.check import Check, Result
from graphmem.gate.formats import messages
from graphmem.gate.formats.places import place_of
from graphmem.version import __version__

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_RULES = {
    "max_allocated": "The peak of allocated memory is above its limit.",
    "max_reserved": "The memory that PyTorch reserves is above its limit.",
    "fits": "The training step does not fit on the card.",
    "max_increase": "The training step takes more memory than its baseline allows.",
    "analysis": "The target cannot be analysed.",
}


def as_sarif(check: Check) -> str:
    """The outcome as one SARIF run."""
    results = [each for result in check.results for each in _results(result)]
    rules = [{"id": rule, "shortDescription": {"text": text}} for rule, text in _RULES.items()]
    driver = {"name": "graphmem", "version": __version__, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": check.exit_code <= 1}],
        "results": results,
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2) + "\n"


def _results(result: Result) -> Iterator[dict[str, Any]]:
    if result.failure is not None:
        yield _result(result, "analysis", messages.failure(result))
    if result.verdict is None:
        return
    causes = messages.causes(result)
    for finding in result.verdict.findings:
        text = "\n".join((messages.finding(result, finding), *causes))
        yield _result(result, finding.rule, text)


def _result(result: Result, rule: str, text: str) -> dict[str, Any]:
    file, line = place_of(result)
    location = {"artifactLocation": {"uri": file}, "region": {"startLine": line}}
    return {
        "ruleId": rule.partition(".")[0],
        "ruleIndex": list(_RULES).index(rule.partition(".")[0]),
        "level": "error",
        "message": {"text": text},
        "locations": [{"physicalLocation": location}],
        # Code scanning uses this to track a result across commits, whatever its line.
        "partialFingerprints": {"graphmem/v1": f"{result.name}/{rule}"},
    }
