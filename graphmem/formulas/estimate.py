"""Published formulas, as sums of parts.

A formula estimates what a device holds at one moment. It is a sum of parts, and each part covers
certain roles of storages (roles.py), so that it can be compared with the exact result part by part.
The roles of the parts of one formula do not overlap.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from graphmem.formulas.roles import Role
from graphmem.graph import Category
from graphmem.parallel import Sharding


class FormulaMoment(enum.StrEnum):
    """The part of the allocated memory that a formula estimates."""

    STEADY = "steady"
    """Everything, when the last iteration begins."""
    FORWARD = "forward"
    """What the last forward pass allocates and leaves alive."""
    STATES = "states"
    """Parameters, gradients and optimizer state when the last backward pass ends."""
    PEAK = "peak"
    """Everything, at the peak of the trace."""


MOMENTS: Mapping[FormulaMoment, str] = MappingProxyType(
    {
        FormulaMoment.STEADY: "all that is allocated when the last iteration begins",
        FormulaMoment.FORWARD: "what the last forward pass allocates and leaves alive",
        FormulaMoment.STATES: "parameters, gradients and optimizer state after the last "
        "backward pass",
        FormulaMoment.PEAK: "all that is allocated at the peak",
    }
)


@dataclass(frozen=True)
class FormulaPart:
    """One summand of a formula.

    Attributes:
        name: its purpose, in the formula's own view.
        expression: as the source writes it, in the letters of terms.py.
        bytes: its value.
        roles: the roles of the storages that it covers; empty for memory that a traced step on one
            device does not have. The category ACTIVATION covers every activation.
    """

    name: str
    expression: str
    bytes: int
    roles: frozenset[Role] = frozenset()

    def stands_for(self, role: Role) -> bool:
        """Whether it covers the storages with this role."""
        return role in self.roles or (
            role.is_activation and Role(Category.ACTIVATION) in self.roles
        )


@dataclass(frozen=True)
class Formula:
    """One published formula for one device.

    Attributes:
        name: its name for `--only`.
        title: one line.
        expression: the whole formula.
        source: who published it, and where.
        moment: what it estimates.
        parts: its summands; the names of its keyword arguments are terms of terms.py.
        sharding: how several GPUs share this memory, in the terms of `graphmem plan`; None for
            formulas for one device.
    """

    name: str
    title: str
    expression: str
    source: str
    moment: FormulaMoment
    parts: Callable[..., Sequence[FormulaPart]]
    sharding: Sharding | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """The terms that it requires."""
        return tuple(name for name, each in self._parameters.items() if each.default is each.empty)

    def estimate(self, terms: Mapping[str, int]) -> tuple[FormulaPart, ...]:
        """Its parts for these terms; terms that it does not use are ignored.

        Raises:
            KeyError: a required term is missing.
        """
        taken = {name: terms[name] for name in self.needs}
        taken |= {name: terms[name] for name in self._parameters if name in terms}
        return tuple(self.parts(**taken))

    @property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.parts).parameters


def total(parts: Sequence[FormulaPart]) -> int:
    """The bytes of all parts."""
    return sum(part.bytes for part in parts)
