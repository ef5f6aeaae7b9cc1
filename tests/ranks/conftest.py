"""No launcher has started these tests: a rank is what its command says."""

from __future__ import annotations

import pytest

LAUNCHED = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("CUDA_VISIBLE_DEVICES", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"),
)


@pytest.fixture(autouse=True)
def _without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
