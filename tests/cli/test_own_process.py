"""A command leaves the process that calls it as it was (`graphmem/own_process.py`)."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import pytest

from graphmem.own_process import is_own_process


def test_a_command_leaves_collector_and_environment_alone(
    run_graphmem: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)

    run_graphmem("gpus")

    assert gc.isenabled()
    assert "OMP_WAIT_POLICY" not in os.environ
    assert not is_own_process()
