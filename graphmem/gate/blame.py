"""Attribute bytes to a line of the user's code, and to the reason why they are alive."""

from __future__ import annotations

import re
from collections.abc import Sequence

from graphmem.report.holders import reason_of
from graphmem.report.schema import Holder, OwnerInfo

_LAYER = re.compile(r"((?:^|.*\.))\d+(?=\.|$)")


def blame(holders: Sequence[Holder]) -> tuple[str | None, str]:
    """The line and the owner: of a named variable's storage, else of the largest holder."""
    named = [(holder, each) for holder in holders if (each := _named_variable(holder)) is not None]
    if not named:
        return holders[0].source, _without_layer(holders[0])
    holder, variable = named[0]
    others = f" and {len(named) - 1} more" if len(named) > 1 else ""
    made = f", made at {holder.source}" if holder.source else ""
    return variable.source or holder.source, f"held by {variable.name}{others}{made}"


def _named_variable(holder: Holder) -> OwnerInfo | None:
    named = (owner for owner in holder.owners if owner.kind == "variable" and owner.name)
    return next(named, None)


def _without_layer(holder: Holder) -> str:
    """The reason, normalised so that equal layers have equal reasons.

    The module's own name becomes `…`, and the number of its layer `*`: `blocks.0.act` saves for
    `blocks.0.down.weight` what `blocks.1.act` saves for `blocks.1.down.weight`.
    """
    reason = reason_of(holder)
    if not holder.module:
        return reason
    reason = _replaced(reason, holder.module, "…")
    for layer in _LAYER.finditer(holder.module):
        reason = _replaced(reason, holder.module[: layer.end()], f"{layer[1]}*")
    return reason


def _replaced(reason: str, module: str, name: str) -> str:
    return re.sub(rf"(?<![\w.]){re.escape(module)}\.", lambda _: f"{name}.", reason)
