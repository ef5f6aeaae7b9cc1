"""Programs as they ran on an H200 (fixtures/cuda/real); docs/accuracy_programs.md has all."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from graphmem.torch_releases import installed_release
from tests.conftest import Outcome
from tests.support.places import ROOT
from tools.accuracy_programs import moments

_PACKED = pytest.mark.skipif(
    installed_release() >= (2, 15), reason="varlen_attn calls cuDNN's kernel on Hopper"
)


@pytest.mark.parametrize(
    "name",
    [
        "halve_batch",  # catches an out-of-memory error, and goes on with half the batch
        pytest.param("packed", marks=_PACKED),  # sequences of several lengths in one row
        pytest.param("clear_cache", marks=pytest.mark.slow),
        pytest.param("averaged", marks=pytest.mark.slow),
        pytest.param("preference", marks=pytest.mark.slow),
    ],
)
def test_a_program_takes_and_frees_what_it_did_on_the_card(
    run_graphmem: Callable[..., Outcome], tmp_path: Path, name: str
) -> None:
    path = ROOT / "fixtures" / "cuda" / "real" / f"{name}.events.json.gz"
    recorded = json.loads(gzip.decompress(path.read_bytes()))
    record = [ROOT / "tools" / "record_cuda.py", "--no-snapshot", "-o", tmp_path / name]
    script = [ROOT / recorded["target"], *recorded["arguments"]]

    done = run_graphmem("run", "--gpu", "h200", "--torch", "2.11", *map(str, [*record, *script]))

    assert done.exit_code == 0, done.stderr
    predicted = json.loads((tmp_path / f"{name}.events.json").read_text())
    there, here = moments(recorded), moments(predicted)
    assert [each.nbytes for each in here] == [each.nbytes for each in there]
    assert [each.freed for each in here] == [each.freed for each in there]
    last, ended = recorded["marks"][-1], predicted["marks"][-1]
    for figure in ("max_allocated", "max_reserved"):
        assert ended[figure] == last[figure]
