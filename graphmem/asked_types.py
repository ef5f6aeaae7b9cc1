"""Give code that asks `type(x) is torch.Tensor` the answer of a card.

A tensor on the virtual card is a fake one, and Python's `type` says so. `isinstance` needs no help.

(1) A comparison of `type(x)` or `x.__class__` with `Tensor` or `Parameter`, by the class or by its
    name, or with several that contain one of them, calls `plain_type` instead. So do
    `name = type(x)` in a module that compares such a name with one of them, and a look-up:
    `table[type(x)]`, `table[type(x), type(y)]`, `table.get(type(x))` and `type(x) in table`.
    Nothing else in the code changes.
(2) That holds for scripts, targets and modules, of libraries too, that are imported while the
    virtual card is open. PyTorch's own code knows fake tensors, and stays as it is.

(3) Assignments to `x.__class__`, as where compressed-tensors moves a parameter, call `assign`, and
    so do those to `x.__dict__` in the same module. A type that is assigned is that of (1).

This module does not import torch: what needs none reads targets too.

Not covered: a type that is given a name before it is looked up, and modules imported before.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

_NAME = "__graphmem_plain_type__"
"""What the changed code calls; a builtin, since any module may contain it, and outlive the card."""
_ASSIGN = "__graphmem_assign__"
"""What assignments call, a builtin as well."""
_ASSIGNED = {"__class__", "__dict__"}
_ASSIGNMENT = re.compile(r"\.__class__\s*=[^=]")
_ASKED_FOR = {"Tensor", "Parameter"}
_WRITTEN = re.compile(r"(<class ')?([\w.]+\.)?(Tensor|Parameter)('>)?")
"""The names of those, as of `type(x).__name__` or `str(type(x))`."""
_KEPT = {"torch", "graphmem"}
_LOOK_UP = re.compile(r"\[\s*type\(|\.(get|pop)\(\s*type\(|\btype\([^()]*\)\s+(not\s+)?in\b")
_READING = {"get", "pop"}


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


assign: Callable[[Any, str, Any], None] = setattr
"""What (3) calls; the virtual card replaces it (`virtual_device/assigned_types.py`)."""


def compiled(source: bytes | str, file: Any) -> CodeType:
    """Compile a module, with its comparisons of types as on a card."""
    code = compile(source, file, "exec", dont_inherit=True)
    return _changed(source, file) if _names_types(code) and _may_ask(code, source) else code


def replacements() -> list[tuple[Any, str, Any]]:
    """List the attributes to replace so that imported modules are changed as well."""
    own = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
        code = own(loader, fullname)
        if code is None or fullname.partition(".")[0] in _KEPT or not _names_types(code):
            return code
        path = loader.get_filename(fullname)
        source = loader.get_data(path)
        return _changed(source, path) if _may_ask(code, source) else code

    # Python leaves frames of importlib out of a traceback (`remove_importlib_frames`, import.c).
    get_code.__code__ = get_code.__code__.replace(co_filename=own.__code__.co_filename)
    return [(SourceFileLoader, "get_code", get_code)]


def _changed(source: bytes | str, file: Any) -> CodeType:
    setattr(builtins, _NAME, plain_type)
    setattr(builtins, _ASSIGN, _assign)
    tree = _Comparisons().visit(ast.parse(source, file))
    code: CodeType = compile(tree, file, "exec", dont_inherit=True)
    return code


def _assign(value: Any, name: str, new: Any) -> None:
    """Call what `assign` is at that time: the code outlives the card."""
    assign(value, name, new)


def _names_types(code: CodeType) -> bool:
    return any("type" in each.co_names or "__class__" in each.co_names for each in _codes(code))


def _may_ask(code: CodeType, source: bytes | str) -> bool:
    """Whether a module that calls `type` seems to do (1), which is cheaper than to parse it."""
    if any(map(_names_both, _codes(code))):
        return True
    text = source if isinstance(source, str) else source.decode(errors="replace")
    return any(each.search(text) is not None for each in (_LOOK_UP, _ASSIGNMENT))


def _names_both(code: CodeType) -> bool:
    names = {*code.co_names}
    if names.isdisjoint(("type", "__class__")):
        return False
    return not names.isdisjoint(_ASKED_FOR) or any(map(_is_written, code.co_consts))


def _is_written(constant: object) -> bool:
    if isinstance(constant, tuple | frozenset):
        return any(map(_is_written, constant))
    return isinstance(constant, str) and _WRITTEN.fullmatch(constant) is not None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


class _Comparisons(ast.NodeTransformer):
    def visit_Module(self, node: ast.Module) -> ast.Module:
        """Name types as on a card where the module compares such names."""
        asked = {each.id for each in _sides_asked(node) if isinstance(each, ast.Name)}
        for each in ast.walk(node) if asked else ():
            if isinstance(each, ast.Assign | ast.AnnAssign) and _names_given(each) <= asked:
                each.value = each.value and _Plainly().visit(each.value)
        self.generic_visit(node)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        """Let the comparison ask `plain_type` if it is one of (1)."""
        self.generic_visit(node)
        if _compares_types(node):
            node.left, *node.comparators = map(_Plainly().visit, _sides(node))
        elif any(isinstance(each, ast.In | ast.NotIn) for each in node.ops):
            _ask_plainly(_sides(node))
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        """Call `assign` if it is one of (3)."""
        self.generic_visit(node)
        (target,) = node.targets if len(node.targets) == 1 else [None]
        if not isinstance(target, ast.Attribute) or target.attr not in _ASSIGNED:
            return node
        new = node.value
        if isinstance(new, ast.Attribute) and new.attr == "__class__":
            new = ast.Call(ast.Name("type", ast.Load()), [new.value], [])
        _ask_plainly([new])
        call = ast.Call(
            ast.Name(_ASSIGN, ast.Load()), [target.value, ast.Constant(target.attr), new], []
        )
        return ast.fix_missing_locations(ast.copy_location(ast.Expr(call), node))

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        """Look up the type on a card, or several of them."""
        self.generic_visit(node)
        key = node.slice
        _ask_plainly(key.elts if isinstance(key, ast.Tuple) else [key])
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Look up the type on a card by a method of a dictionary."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _READING:
            _ask_plainly(node.args[:1])
        return node


class _Plainly(ast.NodeTransformer):
    """Asks `plain_type` wherever an expression asks for a type."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        _ask_plainly([node])
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr != "__class__":
            return node
        call = ast.Call(ast.Name(_NAME, ast.Load()), [node.value], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))


def _sides(node: ast.Compare) -> list[ast.expr]:
    return [node.left, *node.comparators]


def _compares_types(node: ast.Compare) -> bool:
    return any(map(_is_asked_for, _sides(node)))


def _sides_asked(module: ast.Module) -> Iterator[ast.expr]:
    for each in ast.walk(module):
        if isinstance(each, ast.Compare) and _compares_types(each):
            yield from _sides(each)


def _names_given(statement: ast.Assign | ast.AnnAssign) -> set[str | None]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return {each.id if isinstance(each, ast.Name) else None for each in targets}


def _ask_plainly(expressions: list[ast.expr]) -> None:
    for call in filter(_asks_type, expressions):
        call.func.id = _NAME  # type: ignore[attr-defined]


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
    """Whether an expression is `torch.Tensor`, `Parameter`, a name of them, or contains it."""
    if isinstance(side, ast.Tuple | ast.List | ast.Set):
        return any(_is_asked_for(each) for each in side.elts)
    if isinstance(side, ast.Constant):
        return _is_written(side.value)
    name = side.attr if isinstance(side, ast.Attribute) else getattr(side, "id", None)
    return name in _ASKED_FOR
