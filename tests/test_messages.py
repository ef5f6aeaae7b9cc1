"""The page of all messages is what the sources say."""

from __future__ import annotations

import pickle

from graphmem.targets import messages
from tools.messages import PAGE, page


def test_the_page_lists_the_messages_of_the_sources() -> None:
    """Where it fails: `python -m tools.messages`."""
    assert PAGE.read_text() == page()


def test_an_error_comes_whole_from_another_process() -> None:
    """As those of targets do that workers of Dask trace."""
    error = messages.UnknownParameterError("build", "layer", ["layers"])

    again = pickle.loads(pickle.dumps(error))

    assert type(again) is messages.UnknownParameterError
    assert str(again) == "build() has no parameter 'layer'"
    assert again.hint == "did you mean layers?"
