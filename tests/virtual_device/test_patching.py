"""Which original a replacement stands for."""

from __future__ import annotations

from types import FunctionType

import torch

import graphmem
from graphmem.virtual_device.patching import original_of, replaced


def test_an_original_that_is_put_back_for_a_while_stands_for_itself() -> None:
    """Looking for what it replaces would go from one to the other for ever."""
    own = torch.compile

    def stand_in() -> None:
        pass

    with replaced([(torch, "compile", stand_in)]), replaced([(torch, "compile", own)]):
        assert original_of(own) is own
        assert original_of(stand_in) is own


def test_replacements_have_the_names_of_the_originals() -> None:
    """lightning-thunder looks PyTorch's functions up by their names."""
    owners = (torch, torch.Tensor, torch.cuda, torch.nn.functional, torch.nn.init)
    before = [{**vars(each)} for each in owners]
    with graphmem.virtual_gpu("t4"):
        now = [
            (value, getattr(originals.get(name), "__name__", name))
            for each, originals in zip(owners, before, strict=True)
            for name, value in vars(each).items()
            if isinstance(value, FunctionType)
        ]
        assert {value for value, name in now if value.__name__ != name} == set()
        assert any("graphmem" in value.__module__ for value, _ in now)
