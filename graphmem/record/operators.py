"""Operators by name: those of this process, and stand-ins for those that it does not have."""

from __future__ import annotations

from typing import Any

import torch


class UnknownOperator:
    """In place of an operator that the reader's process has not registered.

    Attributes:
        name: as `str(operator)` is.
    """

    def __init__(self, name: str, schema: str) -> None:
        """An operator of another process.

        Raises:
            ValueError: the schema cannot be read.
        """
        self.name = self.__name__ = name
        self._text = schema

    @property
    def _schema(self) -> Any:
        return torch._C.parse_schema(self._text)

    def __str__(self) -> str:
        return self.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises: it stands for an operator, it is none."""
        raise NotImplementedError(self.name)


def schema_of(operator: Any) -> str:
    """The schema that a record keeps: those of `aten` belong to the reader's torch."""
    if isinstance(operator, torch._ops.OpOverload) and operator.namespace != "aten":
        return str(operator._schema)
    return getattr(operator, "_text", "")


def operator_named(name: str, schema: str) -> Any:
    """The operator of this process, or a stand-in; nothing is imported or registered for it."""
    namespace, _, rest = name.partition(".")
    base, _, overload = rest.partition(".")
    try:
        torch._C._dispatch_find_schema_or_throw(
            f"{namespace}::{base}", "" if overload == "default" else overload
        )
    except RuntimeError:
        return UnknownOperator(name, schema)
    return getattr(getattr(getattr(torch.ops, namespace), base), overload)
