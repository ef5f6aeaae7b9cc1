"""The page of all messages matches the sources."""

from __future__ import annotations

import pickle

from graphmem.targets import messages
from tools.messages import PAGE, page


def named(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("- **")]


def test_the_page_lists_the_messages_that_have_names() -> None:
    """If it fails, run `python -m tools.messages`, which updates the page."""
    assert named(PAGE.read_text()) == named(page())


def test_an_error_survives_the_trip_from_another_process() -> None:
    """As errors from Dask workers do."""
    error = messages.UnknownParameterError("build", "layer", ["layers"])

    again = pickle.loads(pickle.dumps(error))

    assert type(again) is messages.UnknownParameterError
    assert str(again) == "build() has no parameter 'layer'"
    assert again.hint == "did you mean layers?"
