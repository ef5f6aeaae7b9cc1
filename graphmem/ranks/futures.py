"""The future of a collective on the card.

Its callbacks, and those of the futures that they make, each run in the next stream of the pool
(`invokeCallback`, aten/src/ATen/core/ivalue_inl.h): what a callback allocates belongs to that
stream, where a product takes a workspace of its own. PowerSGD's hook multiplies in two callbacks
for each bucket, so workspaces add up over the iterations (`ddp_powersgd`, fixtures/cuda/ranks).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.futures import Future


class CardFuture(Future):  # type: ignore[type-arg]
    """A future that is done, with tensors on the card."""

    def then(self, callback: Callable[[Any], Any]) -> Any:
        """The future of what a callback returns; it runs at once."""
        made: Any = CardFuture()
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                made.set_result(callback(self))
        except Exception as error:  # noqa: BLE001 - `wait` raises it
            made.set_exception(error)
        return made

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """Run a callback at once."""
        with torch.cuda.stream(torch.cuda.Stream()):
            callback(self)
