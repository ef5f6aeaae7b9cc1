"""The page of all messages is what the sources say."""

from __future__ import annotations

import pickle

from graphmem.targets import messages
from tools.messages import PAGE, page


def named(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("- **")]


def test_the_page_lists_the_messages_that_have_names() -> None:
    """Where it fails: `python -m tools.messages`, which brings the others up to date as well."""
    assert named(PAGE.read_text()) == named(page())


def test_an_error_comes_whole_from_another_process() -> None:
    """As those of targets do that workers of Dask trace."""
    error = messages.UnknownParameterError("build", "layer", ["layers"])

    again = pickle.loads(pickle.dumps(error))

    assert type(again) is messages.UnknownParameterError
    assert str(again) == "build() has no parameter 'layer'"
    assert again.hint == "did you mean layers?"
