"""Operators by name, with stand-ins for those that this process does not have."""

from __future__ import annotations

from typing import Any

import torch


class UnknownOperator:
    """Stands for an operator that the reader's process has not registered.

    Attributes:
        name: the operator's name, as `str(operator)`.
    """

    def __init__(self, name: str, schema: str) -> None:
        """Make a stand-in for an operator of another process.

        Raises:
            ValueError: the schema cannot be parsed.
        """
        self.name = self.__name__ = name
        self._text = schema

    @property
    def _schema(self) -> Any:
        """As of an operator of torch; None if the file does not have it."""
        return torch._C.parse_schema(self._text) if self._text else None

    def __str__(self) -> str:
        return self.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise: this is not an operator, but stands for one."""
        raise NotImplementedError(self.name)


def schema_of(operator: Any) -> str:
    """The schema to record; empty for `aten`, whose schemas come from the reader's torch."""
    if isinstance(operator, torch._ops.OpOverload) and operator.namespace != "aten":
        return str(operator._schema)
    return getattr(operator, "_text", "")


def operator_named(name: str, schema: str) -> Any:
    """This process's operator, or a stand-in; nothing is imported or registered for it."""
    namespace, _, rest = name.partition(".")
    base, _, overload = rest.partition(".")
    try:
        torch._C._dispatch_find_schema_or_throw(
            f"{namespace}::{base}", "" if overload == "default" else overload
        )
    except RuntimeError:
        return UnknownOperator(name, schema)
    return getattr(getattr(getattr(torch.ops, namespace), base), overload)
