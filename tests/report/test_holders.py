"""Equal holders as one line."""

from __future__ import annotations

import pytest

from graphmem.report.holders import groups_of
from graphmem.report.schema import Holder


def holder(name: str, reason: str = "the parameter {}.weight") -> Holder:
    return Holder(
        bytes=1024,
        block=1024,
        category="parameter",
        op=None,
        shape=[256],
        dtype="float32",
        module=name,
        source=None,
        reason=reason.format(name),
        owners=[],
    )


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["h.0.up", "h.1.up"], "h.[0-1].up"),
        (["h.3.0.body.2", "h.3.1.body.0", "h.3.1.body.2"], "h.3.*.body.*"),
        (["head"], "head"),
        (["0", "1", "2"], "[0-2]"),
        (["0.2.up", "1.2.up"], "[0-1].2.up"),
    ],
)
def test_equal_layers_are_one_group(names: list[str], folded: str) -> None:
    [group] = groups_of(map(holder, names))

    assert len(group.holders) == len(names)
    assert group.modules == folded
    assert group.reason == f"the parameter {folded}.weight"


def test_a_number_that_ends_a_reason_folds() -> None:
    [group] = groups_of([holder("", f"gradient bucket {number}") for number in range(3)])

    assert group.reason == "gradient bucket [0-2]"
