"""docs/architecture.md matches the code: imports point one way, and every room is listed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

from tests.support.places import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()


def modules() -> dict[str, Path]:
    """Every module of the package by its name; `passes/` is `graphmem.passes`."""
    found = {}
    for folder, package in (("graphmem", "graphmem"), ("passes", "graphmem.passes")):
        for path in (ROOT / folder).rglob("*.py"):
            parts = [package, *path.relative_to(ROOT / folder).with_suffix("").parts]
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = modules()


def imports_of(name: str) -> Iterator[str]:
    """A module's imports when it loads: not those for types only or inside functions."""
    todo: list[ast.AST] = [ast.parse(MODULES[name].read_text())]
    while todo:
        for node in ast.iter_child_nodes(todo.pop()):
            if isinstance(node, ast.Import):
                yield from (each.name for each in node.names)
            elif isinstance(node, ast.ImportFrom):
                origin = absolute(node, name)
                yield from (
                    f"{origin}.{each.name}" if f"{origin}.{each.name}" in MODULES else origin
                    for each in node.names
                )
            elif not isinstance(node, ast.FunctionDef) and not is_for_types(node):
                todo.append(node)


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def absolute(node: ast.ImportFrom, name: str) -> str:
    is_package = MODULES[name].name == "__init__.py"
    parts = name.split(".")
    outer = parts[: len(parts) - node.level + is_package] if node.level else []
    return ".".join([*outer, *([node.module] if node.module else [])])


def room_of(name: str) -> str:
    return ".".join(name.split(".")[:2])


IMPORTS = nx.DiGraph(
    (name, other) for name in MODULES for other in imports_of(name) if other in MODULES
)


def test_no_modules_import_each_other_in_a_circle() -> None:
    circles = [sorted(each) for each in nx.strongly_connected_components(IMPORTS) if len(each) > 1]

    assert circles == []


def test_no_rooms_import_each_other_in_a_circle() -> None:
    """A room is a folder, or a file that lies beside the folders."""
    rooms = nx.DiGraph((room_of(a), room_of(b)) for a, b in IMPORTS.edges)
    circles = [sorted(each) for each in nx.strongly_connected_components(rooms) if len(each) > 1]

    assert circles == []


def test_a_public_class_has_a_name_of_its_own() -> None:
    """So that a word has one meaning throughout the code."""
    places: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)

    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_each_folder_of_tests_belongs_to_a_room() -> None:
    """Tests of a module outside the rooms lie outside the folders."""
    rooms = {path.parent for path in MODULES.values()} | {ROOT / "graphmem" / "passes"}
    names = {path.name for path in rooms} | {"docs", "house"}
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")} - {ROOT / "tests"}

    assert sorted(path.name for path in folders if path.name not in names) == []


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def own_lines(function: ast.FunctionDef) -> int:
    """The lines of a body, without docstrings and nested functions."""
    inner = [each for statement in function.body for each in functions(statement)]
    apart = {line for each in inner for line in range(each.lineno, end_of(each) + 1)}
    code = function.body[ast.get_docstring(function) is not None :]
    return len(set(range(code[0].lineno, end_of(code[-1]) + 1)) - apart) if code else 0


def end_of(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


@pytest.mark.parametrize("name", sorted(MODULES))
def test_files_and_functions_are_short(name: str) -> None:
    text = MODULES[name].read_text()
    long = [each.name for each in functions(ast.parse(text)) if own_lines(each) > 40]

    assert long == []
    assert len(text.splitlines()) <= 400


FLOORS = [
    {f"graphmem.{room}" for room in re.findall(r"[a-z_]+", line.partition("|")[0])}
    for line in re.findall(r"^    (.+)$", PAGE.partition("## The floors")[2], re.MULTILINE)
]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_from_its_own_floor_or_below(name: str) -> None:
    floor_of = {room: number for number, floor in enumerate(FLOORS) for room in floor}
    room = room_of(name)
    if room == "graphmem":
        return
    higher = {
        other
        for other in map(room_of, IMPORTS.successors(name) if name in IMPORTS else ())
        if other not in ("graphmem", room) and floor_of[other] < floor_of[room]
    }

    assert higher == set()


def test_every_room_is_named_with_its_purpose() -> None:
    named = set(re.findall(r"^\| `([a-z_/.]+)` \|", PAGE, re.MULTILINE))
    there = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in (ROOT / "graphmem").iterdir()
        if path.name not in ("__pycache__", "py.typed", "__init__.py")
    }

    assert there | {"passes/"} == named


def test_the_walk_names_existing_files() -> None:
    walk = PAGE.partition("## A newcomer's walk")[2].partition("\n## ")[0]
    files = re.findall(r"`((?:graphmem|passes)/[a-z_/]+\.py)`", walk)

    assert 0 < len(dict.fromkeys(files)) <= 10
    assert [file for file in files if not (ROOT / file).is_file()] == []
