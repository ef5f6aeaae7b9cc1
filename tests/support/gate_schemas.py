"""The grammars that the gate's formats must satisfy.

SARIF: the objects of the 2.1.0 schema that graphmem writes, with the schema's rules for them
(required, closed, enumerations). JUnit: the elements and attributes that graphmem writes, with
order and types from the XML schema of Jenkins' xUnit plugin (junit-10.xsd). GitHub: the grammar
of workflow commands.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET


def _closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required,
        "additionalProperties": False,
        "properties": properties,
    }


_TEXT = {"type": "string"}
_MESSAGE = _closed(["text"], text=_TEXT)
_LOCATION = _closed(
    [],
    physicalLocation=_closed(
        ["artifactLocation"],
        artifactLocation=_closed([], uri={**_TEXT, "pattern": r"^[^\s\\]+$"}),
        region=_closed([], startLine={"type": "integer", "minimum": 1}),
    ),
)
_RESULT = _closed(
    ["message"],
    ruleId=_TEXT,
    ruleIndex={"type": "integer", "minimum": -1},
    level={"enum": ["none", "note", "warning", "error"]},
    message=_MESSAGE,
    locations={"type": "array", "items": _LOCATION},
    partialFingerprints={"type": "object", "additionalProperties": _TEXT},
)
_RULE = _closed(["id"], id=_TEXT, shortDescription=_MESSAGE)
_DRIVER = _closed(
    ["name"],
    name=_TEXT,
    version=_TEXT,
    rules={"type": "array", "uniqueItems": True, "items": _RULE},
)
_RUN = _closed(
    ["tool"],
    tool=_closed(["driver"], driver=_DRIVER),
    invocations={
        "type": "array",
        "items": _closed(["executionSuccessful"], executionSuccessful={"type": "boolean"}),
    },
    results={"type": "array", "items": _RESULT},
)
SARIF = {
    **_closed(
        ["version", "runs"],
        **{"$schema": {**_TEXT, "format": "uri"}},
        version={"enum": ["2.1.0"]},
        runs={"type": "array", "items": _RUN},
    ),
    "$schema": "http://json-schema.org/draft-07/schema#",
}

_PROPERTY = r"[a-z]+=(?:[^%\r\n:,]|%25|%0D|%0A|%3A|%2C)*"
ANNOTATION = re.compile(
    rf"::(?:error|warning|notice)(?: {_PROPERTY}(?:,{_PROPERTY})*)?::(?:[^%\r\n]|%25|%0D|%0A)*"
)


class Element(NamedTuple):
    """The children and attributes that an XML element may have, with the values' patterns."""

    required: dict[str, str]
    optional: dict[str, str]
    children: tuple[str, ...]


_COUNT, _ANY, _SECONDS = r"\d+", r"(?s).*", r"\d+(\.\d+)?"
_COUNTS = dict.fromkeys(("tests", "failures", "errors"), _COUNT)
_PROBLEM = Element({}, {"message": _ANY, "type": _ANY}, ())
JUNIT = {
    "testsuites": Element({}, {"name": _ANY, **_COUNTS}, ("testsuite",)),
    "testsuite": Element(
        {"name": _ANY, **_COUNTS}, {"skipped": _COUNT, "time": _SECONDS}, ("testcase",)
    ),
    "testcase": Element(
        {"name": _ANY},
        {"classname": _ANY, "time": _SECONDS},
        ("skipped", "error", "failure", "system-out"),
    ),
    "skipped": Element({}, {"message": _ANY}, ()),
    "error": _PROBLEM,
    "failure": _PROBLEM,
    "system-out": Element({}, {}, ()),
}


def assert_junit(element: ET.Element, schema: dict[str, Element]) -> None:
    """Check an element and its descendants against the schema."""
    rule = schema[element.tag]
    allowed = rule.required | rule.optional
    assert rule.required.keys() <= element.attrib.keys() <= allowed.keys()
    for name, value in element.attrib.items():
        assert re.fullmatch(allowed[name], value), (name, value)
    for child in element:
        assert child.tag in rule.children
        assert_junit(child, schema)
