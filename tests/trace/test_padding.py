"""Padded products of a compiled step, against what an H200 timed and chose."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
import torch

from graphmem.trace.compiled.padding import Product, ProductOperand, is_faster_padded
from tests.support.places import ROOT
from tools.record_padding import Product as Timed

ROWS = [
    json.loads(line)
    for line in gzip.decompress((ROOT / "fixtures/cuda/padding.jsonl.gz").read_bytes()).splitlines()
]


def product_of(row: dict[str, Any]) -> Product:
    sizes = {name: row[name] for name in ("kind", "dtype", "rows", "width", "vocabulary")}
    left, right = (
        ProductOperand(tuple(meta.shape), meta.stride(), is_computed and meta.is_contiguous())
        for meta, is_computed in Timed(**sizes).operands()
    )
    return Product(left, right, getattr(torch, row["dtype"]))


def test_what_a_card_chose_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    found = [(is_faster_padded(product_of(row)), row["pads"]) for row in ROWS]

    said = [(answer, chosen) for answer, chosen in found if answer is not None]
    assert all(answer == chosen for answer, chosen in said)
    assert len(ROWS) == 135
    assert len(said) == 133  # of two, the card's times are 16 % apart, and 10 % decide


def test_nothing_is_said_of_other_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))

    assert {is_faster_padded(product_of(row)) for row in ROWS} == {None}
