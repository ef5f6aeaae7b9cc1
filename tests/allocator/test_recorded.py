"""The modelled allocator replays what PyTorch's did on an H100, address by address.

`fixtures/memory/random_blocks.py` allocates and frees at random under several allocator settings;
`tools/recordings_memory.txt` says how each recording was made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome
from tests.support.places import FIXTURES

RECORDINGS = sorted((FIXTURES / "cuda" / "memory").glob("blocks*.gz"))


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: str(path.name).split(".")[0])
def test_every_block_lies_where_it_lay_on_the_card(
    recording: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    outcome = run_graphmem("verify", "--allocator", str(recording))

    assert (outcome.exit_code, outcome.stderr) == (0, "")
