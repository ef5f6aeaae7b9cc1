"""What the figures leave out is listed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import graphmem


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    made = torch.library.Library("graphmem_jagged", "DEF")
    yield made
    made._destroy()


def test_compiled_operators_of_libraries_are_listed(library: torch.library.Library) -> None:
    """Of which a program knows only the shape functions, as of FBGEMM's."""
    for name in "abcd":
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, torch.empty_like, "Meta")

    with graphmem.virtual_gpu("h100") as gpu:
        for _ in range(2):
            x = torch.ones(8, device="cuda")
            for name in "abcd":
                x = getattr(torch.ops.graphmem_jagged, name)(x)

    (listed,) = gpu.report().assumptions
    few = ", ".join(f"graphmem_jagged.{name}" for name in "abc")
    assert (listed.what, listed.value) == (f"scratch memory of {few} and others", "0 bytes")
    assert listed.times == 8
