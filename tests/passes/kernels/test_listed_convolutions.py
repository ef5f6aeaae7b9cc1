"""The convolutions that `tools/record_convolutions.py` records, and their order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.support.places import FIXTURES
from tools import verify_convolutions
from tools.record_convolutions import LARGEST, Convolution, main, ordered

LIST = (FIXTURES / "convolutions.txt").read_text().splitlines()


def rows_of(tmp_path: Path, listed: str, *options: str) -> list[str]:
    """What a dry run writes for a list."""
    (tmp_path / "list.txt").write_text(listed)
    out = tmp_path / "rows.txt"
    assert main(["--list", f"{tmp_path}/list.txt", "-o", str(out), "--dry-run", *options]) == 0
    return out.read_text().splitlines()[1:]


@pytest.mark.parametrize(
    ("text", "layer", "source"),
    [
        ("3@224x224 64 k7 s2 p3", torch.nn.Conv2d(3, 64, 7, 2, 3), (3, 224, 224)),
        ("8@9x5 6 k3x1 s2x1 p1x0", torch.nn.Conv2d(8, 6, (3, 1), (2, 1), (1, 0)), (8, 9, 5)),
        ("4@20 4 k3 p2 d2 g4", torch.nn.Conv1d(4, 4, 3, 1, 2, 2, 4), (4, 20)),
        ("6@7x7 4 k3 s2 p1 o1", torch.nn.ConvTranspose2d(6, 4, 3, 2, 1, 1), (6, 7, 7)),
        ("2@4x4x4 3 k2 s2 o0", torch.nn.ConvTranspose3d(2, 3, 2, 2), (2, 4, 4, 4)),
    ],
)
def test_a_text_has_the_shapes_of_its_layer(
    text: str, layer: torch.nn.Module, source: tuple[int, ...]
) -> None:
    convolution = Convolution.read(text)
    assert str(convolution) == text
    assert convolution.weight == tuple(layer.weight.shape)  # type: ignore[union-attr,arg-type]
    assert (5, *convolution.result) == layer(torch.zeros(5, *source)).shape


def test_a_dry_run_has_a_row_for_each_batch_dtype_and_layout(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "3 8@4x4 8 k3 p1\n1 8@16 8 k3\n")
    assert len(rows) == len(set(rows)) == 9 * 6 + 9 * 3  # 1-d convolutions have one layout
    assert rows[0] == "float32 planes 32 8@4x4 8 k3 p1: - - -"


def test_parts_share_the_rows(tmp_path: Path) -> None:
    listed = "1 8@4x4 8 k3 p1\n"
    rows = rows_of(tmp_path, listed)
    (tmp_path / "rows.txt").unlink()
    assert rows_of(tmp_path, listed, "--part", "1/3") == rows[1::3]


def test_another_start_continues(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "1 8@4x4 8 k3 p1\n")
    out = tmp_path / "rows.txt"
    out.write_text("\n".join(["{}", *rows[:7]]) + "\n")
    assert rows_of(tmp_path, "1 8@4x4 8 k3 p1\n") == rows


def test_no_listed_tensor_has_two_gib() -> None:
    calls = ordered(["1 64@512x512 64 k3 p1"])
    of_floats = {call.batch for call in calls if call.dtype == "float32"}
    assert of_floats == {1, 2, 4, 8, 16}  # 32 * 64 * 512 * 512 * 4 bytes are LARGEST
    assert LARGEST == 32 * 64 * 512 * 512 * 4


def test_the_list_begins_with_the_most_common() -> None:
    networks = [int(line.split()[0]) for line in LIST]
    assert networks == sorted(networks, reverse=True)
    texts = [line.partition(" ")[2] for line in LIST]
    assert [str(Convolution.read(text)) for text in texts] == texts
    assert len(set(texts)) == len(texts)


def test_recorded_and_predicted_rows_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, predicted = tmp_path / "recorded.txt", tmp_path / "predicted.txt"
    call = "float32 planes 32 8@4x4 8 k3 p1"
    recorded.write_text(f"{{}}\n{call}: 100 oom -\n{call} g2: 300 50*3 7\n")
    predicted.write_text(f"{{}}\n{call}: 100 5 5\n{call} g2: 200 50 0\n")
    options = [str(recorded), str(predicted), "--differences", "1"]
    monkeypatch.setattr(sys, "argv", ["verify_convolutions", *options])
    verify_convolutions.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 of 2 recorded convolutions are predicted"
    assert lines[3] == "| float32 planes | 1 of 2 (25%) | 1 of 1 (0%) | 0 of 1 (100%) |"
    assert lines[4] == f"{call} g2, result: recorded 300, predicted 200"
