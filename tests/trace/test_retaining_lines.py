"""Which line is named for what a global or an attribute keeps alive."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphmem.trace.retaining_lines import Function, retaining_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("kept = []\ndef f(x):\n    kept.append(x)\n", 3),
        ("kept = {}\ndef f(x):\n    kept['x'] = x\n", 3),
        ("kept = {}\ndef f(x):\n    kept['x'].append(x)\n", 3),
        ("kept = []\ndef f(x):\n    global kept\n    kept += [x]\n", 4),
        ("other = 1\nkept: list = make()\n", 2),
    ],
)
def test_a_global_is_named_where_it_grows_else_where_it_is_made(
    tmp_path: Path, text: str, line: int
) -> None:
    file = tmp_path / "model.py"
    file.write_text(text)

    source = retaining_line(str(file), "kept")

    assert source is not None
    assert source.line == line


def test_an_attribute_belongs_to_its_class_only(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "class A:\n    def f(self, x):\n        self.kept.append(x)\n"
        "class B:\n    def f(self, x):\n        self.kept = x\n"
    )

    lines = [retaining_line(str(file), "kept", of_class=name) for name in ("A", "B", "C")]

    assert [source and source.line for source in lines] == [3, 6, None]


def test_a_local_variable_belongs_to_its_function_only(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "def f(x):\n    kept = []\n    kept.append(x)\n"
        "@decorated\ndef g(x):\n    kept = [x]\n"
        "class A:\n    def f(self, x):\n        kept = {}\n"
    )

    functions = [Function("f", 1), Function("g", 4), Function("f", 8), Function("h", 1)]
    lines = [retaining_line(str(file), "kept", of_function=each) for each in functions]

    assert [source and (source.line, source.function) for source in lines] == [
        (3, "f"), (6, "g"), (9, "f"), None,
    ]  # fmt: skip


def test_an_unreadable_file_names_nothing(tmp_path: Path) -> None:
    assert retaining_line(str(tmp_path / "missing.py"), "kept") is None


def test_a_variable_of_an_outer_function_is_named_where_that_grows(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "def build():\n    kept = []\n    def log(x):\n        kept.append(x)\n"
        "    def step():\n        log(len(kept))\n    return step\n"
        "def other():\n    kept = []\n    kept.append(1)\n"
    )

    source = retaining_line(str(file), "kept", of_function=Function("step", 5))

    assert source is not None
    assert (source.line, source.function) == (4, "build")
