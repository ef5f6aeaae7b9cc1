"""Write a project's first `graphmem.toml`, with its targets and every key explained."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from graphmem.gate.git import tracked_files
from graphmem.gpus import DEFAULT_GPU

_FUNCTION = "build"
_SKIPPED = {"tests", "test", "docs", "node_modules", "site-packages", "build", "dist"}

_HEAD = """\
# Limits for `graphmem check`. Sizes: "22 GiB" (2^30), "1.5 GB" (10^9) or bytes; increases over
# graphmem.lock may also be percentages: "1%".

[defaults]                    # for every target; a target's own keys override these
gpu = "{gpu}"             # `graphmem gpus` lists the names
max_increase = "1%"           # of the peak; without it, any growth fails
# steps = 3
# autocast = "bf16"
# optimizer = "adamw-fused"
# env = {{ CUBLAS_WORKSPACE_CONFIG = ":4096:8" }}
"""

_KEYS = """\
# set = { batch = 8 }                       # arguments of build()
# fits = "a100-40gb"                        # the step must run on that card
# max_allocated = "22 GiB"
# max_reserved = "24 GiB"
# max_increase.activations = "10 MiB"       # instead of the line in [defaults]
# max_increase.modules."h.*.attn" = "1%"    # a module, and what is below it
"""

_NONE_FOUND = """
# No function `build` was found. Write one that returns a model with its inputs, then:
#
# [targets.model]
# target = "model.py:build"
"""


def scaffold(root: Path) -> tuple[str, list[str]]:
    """The text of a configuration for a folder, and the targets in it."""
    targets = list(find_targets(root))
    parts = [_HEAD.format(gpu=DEFAULT_GPU)]
    names: set[str] = set()
    for index, (file, needed) in enumerate(targets):
        keys = _KEYS if not index else ""
        if needed:
            arguments = ", ".join(f'{each} = "…"' for each in needed)
            keys = f"set = {{ {arguments} }}  # build() needs these\n{keys}"
        name = _name(file, names)
        parts.append(f'\n[targets.{name}]\ntarget = "{file}:{_FUNCTION}"\n{keys}')
    if not targets:
        parts.append(_NONE_FOUND)
    return "".join(parts), [file for file, _ in targets]


def find_targets(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Python files with a function `build`, each with its required parameters."""
    files = tracked_files(root)
    if files is None:
        files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    for file in files:
        path = Path(file)
        if path.suffix == ".py" and not _is_skipped(path):
            needed = _parameters_of_build(root / path)
            if needed is not None:
                yield file, needed


def _is_skipped(path: Path) -> bool:
    folders = path.parts[:-1]
    return any(part in _SKIPPED or part.startswith((".", "venv")) for part in folders)


def _parameters_of_build(path: Path) -> list[str] | None:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == _FUNCTION:
            return _without_default(node.args)
    return None


def _without_default(arguments: ast.arguments) -> list[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    needed = positional[: len(positional) - len(arguments.defaults)]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [each.arg for each in (*needed, *(one for one, default in named if default is None))]


def _name(file: str, taken: set[str]) -> str:
    """A short unique name: the file's, with folders only if necessary."""
    parts = Path(file).with_suffix("").parts
    candidates = ("_".join(parts[start:]) for start in range(len(parts) - 1, -1, -1))
    cleaned = (
        "".join(c if c.isascii() and c.isalnum() else "_" for c in each) for each in candidates
    )
    name = next((each for each in cleaned if each not in taken), f"target_{len(taken)}")
    taken.add(name)
    return name
