"""The line that makes a variable or an attribute retain a tensor.

Clauses, the first that applies, in the function of a local variable, else in the file that defines
the global or the class:
  (1) the last line that adds to it: `kept.append(x)`, `kept[key] = x`, `kept += [x]`;
  (2) the first line that assigns it: `kept = x`.

Not covered: additions in another file, or under another name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from graphmem.frames import short_path
from graphmem.graph import Source

Matches = Callable[[ast.AST, str], bool]

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ADDING = frozenset({"add", "append", "appendleft", "extend", "insert", "setdefault", "update"})


class Function(NamedTuple):
    """A function in a file: its name and first line, which may be a decorator's."""

    name: str
    line: int

    @classmethod
    def of(cls, frame: FrameType) -> Function | None:
        """The running function; None at the top of a module."""
        code = frame.f_code
        return None if code.co_name == "<module>" else cls(code.co_name, code.co_firstlineno)


@lru_cache(maxsize=256)
def retaining_line(
    file: str, name: str, *, of_class: str | None = None, of_function: Function | None = None
) -> Source | None:
    """The line that adds to or assigns a variable or an attribute; None if there is none.

    Args:
        file: the Python file.
        name: the variable, or the attribute.
        of_class: the class that has the attribute.
        of_function: the function that has the local variable.
    """
    body = _body(file, of_class, of_function)
    matches = _is_attribute if of_class else _is_variable
    adding = [line for node in body for line in _adding(node, name, matches)]
    assigning = [line for node in body for line in _assigning(node, name, matches)]
    if not adding and not assigning:
        return None
    where = of_class or (of_function.name if of_function is not None else "<module>")
    return Source(short_path(file), max(adding) if adding else min(assigning), where)


def _body(file: str, of_class: str | None, of_function: Function | None) -> list[ast.AST]:
    nodes = _nodes(file)
    if of_class is None and of_function is None:
        return list(nodes)
    found = (
        each
        for each in nodes
        if (isinstance(each, ast.ClassDef) and each.name == of_class)
        or (isinstance(each, _FUNCTIONS) and _function(each) == of_function)
    )
    return [node for each in found for node in ast.walk(each)]


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    return Function(node.name, min(each.lineno for each in (node, *node.decorator_list)))


@lru_cache(maxsize=64)
def _nodes(file: str) -> tuple[ast.AST, ...]:
    try:
        return tuple(ast.walk(ast.parse(Path(file).read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return ()


def _is_variable(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_attribute(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name


def _adding(node: ast.AST, name: str, matches: Matches) -> Iterator[int]:
    match node:
        case ast.Call(func=ast.Attribute(value=kept, attr=method)):
            if method in _ADDING and matches(kept, name):
                yield node.lineno
        case ast.Assign(targets=targets):
            for target in targets:
                if isinstance(target, ast.Subscript) and matches(target.value, name):
                    yield node.lineno
        case ast.AugAssign(target=target):
            if matches(target, name):
                yield node.lineno


def _assigning(node: ast.AST, name: str, matches: Matches) -> Iterator[int]:
    match node:
        case ast.Assign(targets=targets):
            if any(matches(target, name) for target in targets):
                yield node.lineno
        case ast.AnnAssign(target=target):
            if matches(target, name):
                yield node.lineno
