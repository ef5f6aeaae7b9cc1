"""The line that makes a global or an attribute retain a tensor that no running frame names.

Clauses, the first that applies, in the file that defines the global or the class:
  (1) the last line that adds to it: `kept.append(x)`, `kept[key] = x`, `kept += [x]`;
  (2) the first line that assigns it: `kept = x`.

Not covered: additions in another file, or under another name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from graphmem.frames import short_path
from graphmem.graph import Source

Matches = Callable[[ast.AST, str], bool]

_ADDING = frozenset({"add", "append", "appendleft", "extend", "insert", "setdefault", "update"})


def retaining_line(file: str, name: str, *, of_class: str | None = None) -> Source | None:
    """The line that adds to or assigns a global or an attribute of a class; None if there is none.

    Args:
        file: the Python file.
        name: the global, or the attribute.
        of_class: the class that has the attribute.
    """
    body = _body(file, of_class)
    matches = _is_attribute if of_class else _is_global
    adding = [line for node in body for line in _adding(node, name, matches)]
    assigning = [line for node in body for line in _assigning(node, name, matches)]
    lines = adding[-1:] or assigning[:1]
    return Source(short_path(file), lines[0], of_class or "<module>") if lines else None


def _body(file: str, of_class: str | None) -> list[ast.AST]:
    nodes = _nodes(file)
    if of_class is None:
        return list(nodes)
    classes = (each for each in nodes if isinstance(each, ast.ClassDef) and each.name == of_class)
    return [node for each in classes for node in ast.walk(each)]


@lru_cache(maxsize=64)
def _nodes(file: str) -> tuple[ast.AST, ...]:
    try:
        return tuple(ast.walk(ast.parse(Path(file).read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return ()


def _is_global(node: ast.AST, name: str) -> bool:
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
