"""The derivative formulas of PyTorch's operators, as the installed torch wheel ships them.

The file is `torchgen/packaged/autograd/derivatives.yaml`, from which PyTorch generates its autograd
nodes. Clauses, those of torchgen/packaged/autograd/load_derivatives.py (torch 2.13):
  (1) the node of the n-th entry for a name is `CamelCaseBackwardN` [`_create_op_prefix`]; a variant
      for one dispatch key has that key before the number;
  (2) a key that names arguments holds their gradients' formula; other keys are forward derivatives;
  (3) a formula needs a tensor that it names, unless it uses only the shape, dtype or layout
      [`saved_variables`, `REPLACEMENTS`];
  (4) where there is no entry, an in-place operator uses that of its out-of-place form, `_foreach_x`
      that of `x`, and the copying variant of a view, whose node ends in `_copy`, that of the view.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torchgen
import yaml

_FILE = Path(torchgen.__file__).parent / "packaged" / "autograd" / "derivatives.yaml"
_NO_GRADIENT = "non_differentiable"
_METADATA = (
    r"{0}(\.|->)(sym_sizes|sym_blocksize|options|numel|sym_numel|scalar_type|dim|sym_strides"
    r"|layout|is_conj)\(\)"
    r"|{0}\.sym_size\(-?\w+\)"
    r"|(zeros_like|to_args_sizes|to_args_sizes_symint|to_args_scalartypes|TensorGeometry)\({0}\)"
)


@dataclass(frozen=True, slots=True)
class GradientFormula:
    """How the gradients of some arguments are computed."""

    gradients_of: tuple[str, ...]
    text: str

    def needs(self, name: str) -> bool:
        """Whether computing it takes the tensor of that name (clause 3)."""
        return _needs(self.text, name)

    def __str__(self) -> str:
        return f"{', '.join(self.gradients_of)}: {self.text}"


@dataclass(frozen=True, slots=True)
class Derivative:
    """One entry: the derivative of one overload of an operator.

    Attributes:
        operator: its name with the overload, such as `add.Tensor`.
        node: the autograd node that PyTorch generates for it.
        arguments: the names of all arguments, in order.
        lists: the arguments that are lists of tensors.
        formulas: one for each gradient, or for several that are computed at once.
    """

    operator: str
    node: str
    arguments: tuple[str, ...]
    lists: frozenset[str]
    formulas: tuple[GradientFormula, ...]

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The arguments that have a gradient, in the order of the node's edges."""
        having = {name for formula in self.formulas for name in formula.gradients_of}
        return tuple(name for name in self.arguments if name in having)

    def needing(self, field: str) -> tuple[GradientFormula, ...]:
        """The formulas that need a tensor."""
        return tuple(formula for formula in self.formulas if formula.needs(field))


def of_node(name: str) -> Derivative | None:
    """The entry from which an autograd node such as `AddmmBackward0` was generated."""
    return _tables()[0].get(name.removesuffix("_copy"))


def of_operator(target: str) -> Derivative | None:
    """The entry for an operation such as `aten.addmm.default` (clause 4)."""
    name = target.removeprefix("aten.").removesuffix(".default").removeprefix("_foreach_")
    by_operator = _tables()[1]
    base, dot, overload = name.partition(".")
    return by_operator.get(name) or by_operator.get(f"{base.removesuffix('_')}{dot}{overload}")


@cache
def _needs(formula: str, name: str) -> bool:
    text = re.sub(_METADATA.format(rf"\b{name}"), "", formula)
    return re.search(rf"\b{name}\b", text) is not None


@cache
def _tables() -> tuple[dict[str, Derivative], dict[str, Derivative]]:
    by_node: dict[str, Derivative] = {}
    by_operator: dict[str, Derivative] = {}
    for entry in _entries():
        by_node[entry.node] = entry
        by_operator.setdefault(entry.operator, entry)
    return by_node, by_operator


def _entries() -> Iterator[Derivative]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    numbers: Counter[str] = Counter()
    for entry in yaml.load(_FILE.read_text(encoding="utf-8"), loader):
        schema = torch._C.parse_schema(f"aten::{entry.pop('name')}")
        for key, keys in entry.pop("dispatch", {"Default": entry}).items():
            formulas = tuple(_formulas(keys, {argument.name for argument in schema.arguments}))
            if not formulas:
                continue
            prefix = _node_prefix(schema.name) + ("" if key == "Default" else key)
            yield _derivative(schema, f"{prefix}{numbers[prefix]}", formulas)
            numbers[prefix] += 1


def _formulas(entry: dict[str, Any], arguments: set[str]) -> Iterator[GradientFormula]:
    for key, text in entry.items():
        names = tuple(name.strip() for name in key.split(","))
        if arguments.issuperset(names) and text != _NO_GRADIENT:
            yield GradientFormula(names, " ".join(str(text).split()))


def _derivative(schema: Any, node: str, formulas: tuple[GradientFormula, ...]) -> Derivative:
    name = schema.name.removeprefix("aten::")
    return Derivative(
        operator=f"{name}.{schema.overload_name}" if schema.overload_name else name,
        node=node,
        arguments=tuple(argument.name for argument in schema.arguments),
        lists=frozenset(a.name for a in schema.arguments if "List[" in str(a.type)),
        formulas=formulas,
    )


def _node_prefix(name: str) -> str:
    words = name.removeprefix("aten::").split("_")
    return f"{''.join(word.title() for word in words)}Backward".replace(
        "ForwardBackward", "Backward"
    )
