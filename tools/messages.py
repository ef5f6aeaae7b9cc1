"""Every message to users: `python -m tools.messages` writes docs/messages.md.

Collected from the sources: each call that makes an `InputError` or a subclass, with the texts of
its message and hint. Inserted values stand in braces.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "messages.md"
_HEAD = """\
# Messages

graphmem's messages about unusable input (exit code 2), by source file. Hints are in italics;
inserted values stand in `{braces}`. A message with a name is an exception class, which callers of
`graphmem.analyze` can catch and tests can name. `python -m tools.messages` writes this page from
the sources.
"""


def page() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for path in sorted([*ROOT.glob("graphmem/**/*.py"), *ROOT.glob("passes/**/*.py")]):
        rows = list(dict.fromkeys(_rows(ast.parse(path.read_text()))))
        if rows:
            parts += [f"\n## `{path.relative_to(ROOT)}`\n\n", *rows]
    return "".join(parts)


def _rows(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        name = node.name if isinstance(node, ast.ClassDef) and _is_error(node) else ""
        for call in ast.walk(node):
            if not isinstance(call, ast.Call) or not call.args:
                continue
            if _makes_error(call) or (name and _is_super(call)):
                hints = [_text(each.value, node) for each in call.keywords if each.arg == "hint"]
                message = _text(call.args[0], node)
                if message:
                    yield _row(name, message, "".join(hints))


def _row(name: str, message: str, advice: str) -> str:
    what = f"**{name}**: " if name else ""
    return f"- {what}{message}{f' *({advice})*' if advice else ''}\n"


def _is_error(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).endswith("Error") for base in node.bases)


def _makes_error(call: ast.Call) -> bool:
    return ast.unparse(call.func) in ("InputError", "errors.InputError")


def _is_super(call: ast.Call) -> bool:
    return ast.unparse(call.func) == "super().__init__"


def _text(node: ast.expr, around: ast.AST) -> str:
    """A text as users read it; "" if it is made elsewhere."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(each, around) for each in values)
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)}}}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, around) + _text(right, around)
        case ast.IfExp(body=body, orelse=orelse):
            return " / ".join(filter(None, (_text(body, around), _text(orelse, around))))
        case ast.Name(id=name):
            return _text_of(name, around)
        case ast.Call(
            func=ast.Name(id="did_you_mean" | "did_you_mean_file"), args=[_, _, *otherwise]
        ):
            hints = ("did you mean {the nearest}?", *(_text(each, around) for each in otherwise))
            return " / ".join(filter(None, hints))
    return ""


def _text_of(name: str, around: ast.AST) -> str:
    """The text assigned to a name nearby."""
    for node in ast.walk(around):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return "" if isinstance(node.value, ast.Name) else _text(node.value, around)
    return ""


if __name__ == "__main__":
    PAGE.write_text(page())
