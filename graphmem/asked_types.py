"""Give code that asks `type(x) is torch.Tensor` the answer of a card.

A tensor on the virtual card is a fake one, and Python's `type` says so. `isinstance` needs no help.

(1) A comparison of `type(x)` with `Tensor` or `Parameter`, or with several classes that contain
    one of them, calls `plain_type` in place of `type`. Nothing else in the code changes.
(2) That holds for scripts, targets and modules, of libraries too, that are imported while the
    virtual card is open. PyTorch's own code knows fake tensors, and stays as it is.

This module does not import torch: what needs none reads targets too.

Not covered: types that are looked up, as in `table[type(x)]`, and modules imported before.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

_NAME = "__graphmem_plain_type__"
"""What the changed code calls; a builtin, since any module may contain it, and outlive the card."""
_ASKED_FOR = {"Tensor", "Parameter"}
_KEPT = {"torch", "graphmem"}


def plain_type(value: Any) -> Any:
    """Return the type that a value would have on a real card."""
    kind = type(value)
    fake_tensors = sys.modules.get("torch._subclasses.fake_tensor")
    if fake_tensors is None or not issubclass(kind, fake_tensors.FakeTensor):
        return kind
    if kind is not fake_tensors.FakeTensor:
        return kind.__mro__[1]  # a library's class of parameters, made fake
    torch = sys.modules["torch"]
    return torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else torch.Tensor


def compiled(source: bytes | str, file: Any) -> CodeType:
    """Compile a module, with its comparisons of types as on a card."""
    code = compile(source, file, "exec", dont_inherit=True)
    return _changed(source, file) if _may_ask(code) else code


def replacements() -> list[tuple[Any, str, Any]]:
    """List the attributes to replace so that imported modules are changed as well."""
    own = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
        code = own(loader, fullname)
        if code is None or fullname.partition(".")[0] in _KEPT or not _may_ask(code):
            return code
        path = loader.get_filename(fullname)
        return _changed(loader.get_data(path), path)

    # Python leaves frames of importlib out of a traceback (`remove_importlib_frames`, import.c).
    get_code.__code__ = get_code.__code__.replace(co_filename=own.__code__.co_filename)
    return [(SourceFileLoader, "get_code", get_code)]


def _changed(source: bytes | str, file: Any) -> CodeType:
    setattr(builtins, _NAME, plain_type)
    tree = _Comparisons().visit(ast.parse(source, file))
    code: CodeType = compile(tree, file, "exec", dont_inherit=True)
    return code


def _may_ask(code: CodeType) -> bool:
    """Whether a function of a module calls `type` and names one of the classes."""
    return any("type" in each.co_names and _ASKED_FOR & {*each.co_names} for each in _codes(code))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


class _Comparisons(ast.NodeTransformer):
    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        """Let the comparison ask `plain_type` if it is one of (1)."""
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        if any(_is_asked_for(each) for each in sides):
            for call in filter(_asks_type, sides):
                call.func.id = _NAME  # type: ignore[attr-defined]
        return node


def _asks_type(side: ast.expr) -> bool:
    """Whether an expression is `type(x)`."""
    return (
        isinstance(side, ast.Call)
        and isinstance(side.func, ast.Name)
        and side.func.id == "type"
        and len(side.args) == 1
        and not side.keywords
    )


def _is_asked_for(side: ast.expr) -> bool:
    """Whether an expression is `torch.Tensor`, `Parameter` or the like, or contains it."""
    if isinstance(side, ast.Tuple | ast.List | ast.Set):
        return any(_is_asked_for(each) for each in side.elts)
    name = side.attr if isinstance(side, ast.Attribute) else getattr(side, "id", None)
    return name in _ASKED_FOR
