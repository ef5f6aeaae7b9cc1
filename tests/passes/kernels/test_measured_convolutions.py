"""Convolutions against the workspaces recorded on an H200 (fixtures/cuda/convolutions.txt.xz)."""

from __future__ import annotations

import gzip
import lzma
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from graphmem.passes.kernels.convolution_measured import MEASURED, measured_bytes
from graphmem.passes.kernels.convolution_plans import ConvolutionProduct
from tests.support.places import FIXTURES, ROOT
from tools.measured_convolutions import lines, plan_of, recorded
from tools.verify_convolutions import figures

RECORDED = FIXTURES / "cuda" / "convolutions.txt.xz"
COMMON = """\
9 64@56x56 64 k3 p1
2 512@32x32 256 k2 s2 o0
1 512@999 512 k2 s2
1 96@56x56 96 k3 p1 g96
9 144@1x1 12 k1
"""


def predicted(folder: Path, gpu: str, *options: str) -> dict[str, list[int | None]]:
    """The workspaces that `tools/record_convolutions.py` finds on a virtual card."""
    out = folder / f"{gpu}.txt"
    script = [f"{ROOT}/tools/record_convolutions.py", "-o", str(out), *options]
    command = [sys.executable, "-m", "graphmem", "run", "--gpu", gpu, *script]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return figures(out)


def read(folder: Path) -> dict[str, list[int | None]]:
    """The recorded workspaces."""
    plain = folder / "recorded.txt"
    plain.write_bytes(lzma.decompress(RECORDED.read_bytes()))
    return figures(plain)


def test_common_convolutions_take_what_was_measured(tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text(COMMON)
    rows = predicted(tmp_path, "h200", "--list", str(listed), "--part", "3/8")
    measured = read(tmp_path)
    common = rows.keys() & measured.keys()
    assert {call.split(" ", 3)[3] for call in common} == {
        line.partition(" ")[2] for line in COMMON.splitlines()
    }
    assert {call: rows[call] for call in common} == {call: measured[call] for call in common}


@pytest.mark.slow
def test_one_convolution_in_fifty_takes_what_was_measured(tmp_path: Path) -> None:
    measured = read(tmp_path)
    sample = sorted({call.split(" ", 3)[3] for call in measured})[::50]
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"1 {convolution}\n" for convolution in sample))
    rows = predicted(tmp_path, "h200", "--list", str(listed))
    common = rows.keys() & measured.keys()
    assert {call.split(" ", 3)[3] for call in common} == set(sample)
    assert {call: rows[call] for call in common} == {call: measured[call] for call in common}


def test_what_is_looked_up_is_what_was_recorded() -> None:
    """Else `python -m tools.measured_convolutions` is to be run."""
    text = "\n".join(lines(recorded())) + "\n"
    assert gzip.decompress(MEASURED.read_bytes()).decode() == text


def test_another_number_of_multiprocessors_is_not_looked_up() -> None:
    """Sums are cut into as many slices as keep all of them busy."""
    call, (result, *_) = recorded()[0]
    plan = plan_of(call)
    assert measured_bytes(plan, ConvolutionProduct.RESULT) == result
    fewer = replace(plan, multiprocessors=114)
    assert measured_bytes(fewer, ConvolutionProduct.RESULT) is None
