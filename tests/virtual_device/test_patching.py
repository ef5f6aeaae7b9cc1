"""Which original a replacement stands for."""

from __future__ import annotations

import torch

from graphmem.virtual_device.patching import original_of, replaced


def test_an_original_that_is_put_back_for_a_while_stands_for_itself() -> None:
    """Looking for what it replaces would go from one to the other for ever."""
    own = torch.compile

    def stand_in() -> None:
        pass

    with replaced([(torch, "compile", stand_in)]), replaced([(torch, "compile", own)]):
        assert original_of(own) is own
        assert original_of(stand_in) is own
