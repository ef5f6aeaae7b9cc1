"""Run the tutorials: `python -m tools.tutorials` runs each and updates the output it shows.

A tutorial is a page of docs/tutorials/ whose blocks are followed in order, in an empty folder:

  (1) a block with a title is a file of that name;
  (2) a block of Python without a title is executed, in one namespace for the page;
  (3) a block `console` has commands after `$ `, each followed by its output; a line `…` in that
      stands for any number of lines, and what was left out stays left out.

Commands run in bash, apart from graphmem's own, which run in this process: importing torch for each
would take most of the time.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphmem.cli import main as graphmem

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "tutorials"
ELIDED = "…"
_BLOCK = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(r"^\$ (?P<command>.+)\n(?P<output>(?:(?!\$ ).*\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Shown:
    """A command of a page, with the output that the page shows and the present one."""

    command: str
    shown: str
    output: str
    span: tuple[int, int]

    @property
    def is_current(self) -> bool:
        """Whether the page shows the present output, apart from what it leaves out."""
        parts = [re.escape(part) for part in self.shown.split(f"{ELIDED}\n")]
        return re.fullmatch("(?:.*\n)*".join(parts), self.output) is not None


def follow(page: str, output_of: Callable[[str], str] | None = None) -> Iterator[Shown]:
    """Follow a page in the working directory.

    Args:
        page: its text.
        output_of: runs a command; by default as the module's docstring says.
    """
    output_of = output_of or _output
    names: dict[str, Any] = {"__name__": "tutorial"}
    for block in _BLOCK.finditer(page):
        if block["title"]:
            path = Path(block["title"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block["text"])
        elif block["language"] == "python":
            exec(compile(block["text"], "tutorial", "exec"), names)
        elif block["language"] == "console":
            for each in _COMMAND.finditer(page, block.start("text"), block.end("text")):
                yield Shown(
                    each["command"], each["output"], output_of(each["command"]), each.span()
                )


def _output(command: str) -> str:
    name, *arguments = shlex.split(command)
    if name != "graphmem":
        return in_shell(command)
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        graphmem(arguments)
    return _lines(text.getvalue())


def in_shell(command: str, environment: Mapping[str, str] | None = None) -> str:
    """What a command prints in bash."""
    run = subprocess.run(
        ["bash", "-c", command],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return _lines(run.stdout)


def _lines(text: str) -> str:
    """Output without blanks at the ends of lines."""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def updated(page: str) -> str:
    """A page with its outputs made anew where they have changed."""
    for each in reversed(list(follow(page))):
        if not each.is_current:
            start, end = each.span
            page = f"{page[:start]}$ {each.command}\n{_elided(each)}{page[end:]}"
    return page


def _elided(each: Shown) -> str:
    """The present output, with as many lines before and behind an ellipsis as the page shows."""
    first, *others = each.shown.split(f"{ELIDED}\n")
    lines = each.output.splitlines(keepends=True)
    head, tail = first.count("\n"), others[-1].count("\n") if others else 0
    if not others or head + tail >= len(lines):
        return each.output
    return "".join([*lines[:head], f"{ELIDED}\n", *lines[len(lines) - tail :]])


def main(names: list[str]) -> None:
    """Update these tutorials, or all."""
    for path in sorted(FOLDER.glob("*.md")):
        if not names or path.stem in names:
            with tempfile.TemporaryDirectory() as folder, chdir(folder):
                path.write_text(updated(path.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
