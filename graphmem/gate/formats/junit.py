"""JUnit XML format for CI systems: a test case for each target."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from graphmem.gate.check import Check, Result
from graphmem.gate.formats import messages


def as_junit(check: Check) -> str:
    """The outcome as one test suite, without times: a report may be an earlier one's."""
    statuses = [result.status for result in check.results]
    attributes = {
        "name": "graphmem check",
        "tests": str(len(statuses)),
        "failures": str(statuses.count("failed")),
        "errors": str(statuses.count("error")),
    }
    suites = ET.Element("testsuites", attributes)
    skipped = str(statuses.count("unreached"))
    suite = ET.SubElement(suites, "testsuite", {**attributes, "skipped": skipped})
    for result in check.results:
        _add_case(suite, result)
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _add_case(suite: ET.Element, result: Result) -> None:
    case = ET.SubElement(suite, "testcase", name=result.name, classname=result.target)
    if result.failure is not None:
        error = ET.SubElement(case, "error", message=messages.failure(result), type="error")
        error.text = result.failure.user_traceback
    if result.status == "unreached":
        ET.SubElement(case, "skipped", message="the change cannot reach it")
    verdict = result.verdict
    if verdict is None:
        return
    if verdict.findings:
        lines = [messages.finding(result, finding) for finding in verdict.findings]
        rule = verdict.findings[0].rule
        failure = ET.SubElement(case, "failure", message=lines[0], type=rule)
        failure.text = "\n".join((*lines, *messages.causes(result)))
        return
    output = ET.SubElement(case, "system-out")
    output.text = (
        f"{verdict.after.allocated} bytes, {messages.change(verdict.before, verdict.after)}"
    )
