"""The baseline's text, and the names of equal layers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmem.errors import InputError
from graphmem.gate.lock import Entry, Lock, read_lock
from graphmem.layer_ranges import fold, unfold

_PARTS = st.one_of(st.sampled_from(["h", "attn", "", "007"]), st.integers(0, 12).map(str))
_NAMES = st.lists(_PARTS, min_size=1, max_size=4).map(".".join)


def entry(allocated: int = 1024, torch: str = "2.13.0") -> Entry:
    modules = {"activation": {f"h.{layer}.mlp": 512 for layer in range(12)}}
    return Entry(
        gpu="h100-80gb",
        torch=torch,
        allocated=allocated,
        reserved=2048,
        phases={"forward": 512, "backward": 1024},
        categories={"activation": 1024},
        modules=modules,
    )


def test_equal_layers_are_one_line() -> None:
    layers = {f"h.{layer}.mlp": 1 for layer in (0, 1, 2, 5, 10)} | {"h.3.mlp": 2}

    assert fold(layers) == {"h.[0-2,5,10].mlp": 1, "h.3.mlp": 2}


def test_layers_are_in_the_order_of_their_numbers() -> None:
    assert list(fold({"h.10": 3, "h.9": 2, "h.1": 1})) == ["h.1", "h.9", "h.10"]


@given(st.dictionaries(_NAMES, st.integers(1, 3)))
def test_folded_names_unfold(values: dict[str, int]) -> None:
    assert unfold(fold(values)) == values


def test_a_baseline_is_read_as_it_was_written_and_sorted(tmp_path: Path) -> None:
    path = tmp_path / "graphmem.lock"
    lock = Lock(targets={"b": entry(), "a": entry()})
    path.write_text(lock.to_toml())

    assert read_lock(path) == lock
    assert path.read_text().index("[targets.a]") < path.read_text().index("[targets.b]")
    assert '"h.[0-11].mlp" = 512' in path.read_text()


def test_an_entry_stays_if_only_torch_differs() -> None:
    before = Lock(targets={"a": entry(), "gone": entry()})

    after = before.updated({"a": entry(torch="2.14.0")}, frozenset({"a"}))

    assert after.targets == {"a": entry()}


def test_an_unmeasured_entry_stays() -> None:
    before = Lock(targets={"a": entry(), "b": entry()})

    after = before.updated({"a": entry(allocated=9)}, frozenset({"a", "b"}))

    assert after.targets == {"a": entry(allocated=9), "b": entry()}


@pytest.mark.parametrize("text", ["x = ", "schema = 1", 'schema = "graphmem.lock/9"\n[targets]\n'])
def test_another_file_is_not_a_baseline(tmp_path: Path, text: str) -> None:
    path = tmp_path / "graphmem.lock"
    path.write_text(text)

    with pytest.raises(InputError, match=r"graphmem\.lock"):
        read_lock(path)
