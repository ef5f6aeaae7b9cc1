"""The line that makes a variable or an attribute retain a tensor.

Clauses, the first that applies, in the function of a local variable or, if it is of none of its
lines, in those around it; else in the file that defines the global or the class:
  (1) the last line that adds to it: `kept.append(x)`, `kept[key] = x`, `kept += [x]`, or to an item
      of it: `kept[key].append(x)`;
  (2) the first line that assigns it: `kept = x`.

Not covered: additions in another file, or under another name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType
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
    def of(cls, code: CodeType) -> Function | None:
        """The function of some code; None at the top of a module."""
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
    matches = _is_attribute if of_class else _is_variable
    for where, nodes in _scopes(file, of_class, of_function):
        adding = [line for node in nodes for line in _adding(node, name, matches)]
        assigning = [line for node in nodes for line in _assigning(node, name, matches)]
        if adding or assigning:
            return Source(short_path(file), max(adding) if adding else min(assigning), where)
    return None


def _scopes(
    file: str, of_class: str | None, of_function: Function | None
) -> Iterator[tuple[str, Sequence[ast.AST]]]:
    """The nodes to search, with the name of their class or function, the innermost first."""
    nodes = _nodes(file)
    if of_function is not None:
        for each in _around(nodes, of_function):
            yield each.name, list(ast.walk(each))
    elif of_class is not None:
        classes = (n for n in nodes if isinstance(n, ast.ClassDef) and n.name == of_class)
        yield of_class, [node for each in classes for node in ast.walk(each)]
    else:
        yield "<module>", nodes


def _around(
    nodes: Sequence[ast.AST], function: Function
) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """A function's definition, and those in which it is nested."""
    defined = [each for each in nodes if isinstance(each, _FUNCTIONS)]
    own = next((each for each in defined if _function(each) == function), None)
    if own is None:
        return []
    end = own.end_lineno or own.lineno
    around = [d for d in defined if d.lineno <= own.lineno and end <= (d.end_lineno or d.lineno)]
    return sorted(around, key=lambda each: -each.lineno)


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
            if method in _ADDING and matches(_whole(kept), name):
                yield node.lineno
        case ast.Assign(targets=targets):
            for target in targets:
                if isinstance(target, ast.Subscript) and matches(_whole(target), name):
                    yield node.lineno
        case ast.AugAssign(target=target):
            if matches(_whole(target), name):
                yield node.lineno


def _whole(node: ast.AST) -> ast.AST:
    """The container in `container[key]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def _assigning(node: ast.AST, name: str, matches: Matches) -> Iterator[int]:
    match node:
        case ast.Assign(targets=targets):
            if any(matches(target, name) for target in targets):
                yield node.lineno
        case ast.AnnAssign(target=target):
            if matches(target, name):
                yield node.lineno
