"""The reference of commands: `python -m tools.commands` writes docs/commands.md and the man page.

Both are made from what `graphmem COMMAND --help` shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.cli import get_docs_for_click

from graphmem.cli import build_program
from graphmem.version import __version__

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "commands.md"
MAN = ROOT / "docs" / "graphmem.1"

_HEAD = """\
# Commands

What `graphmem COMMAND --help` says, which `python -m tools.commands` writes to this page and to
`man graphmem`. `graphmem --install-completion` teaches the commands, options, cards and targets to
your shell.

"""
_MAN_TAIL = r"""
.SH EXIT STATUS
.TP
0
success
.TP
1
a limit of the gate is exceeded, or a verification failed
.TP
2
the input cannot be used; the message says why
.TP
3
an error in graphmem itself
.PP
.B graphmem run
exits as the script does.
.SH FILES
.TP
.I graphmem.toml
the project's targets and limits; or [tool.graphmem] in pyproject.toml
.TP
.I graphmem.lock
the baseline of
.B graphmem check
.TP
.I .graphmem_cache
reports of earlier checks
.TP
.I ~/.cache/graphmem
what PyTorch's compiler made in earlier analyses
.SH ENVIRONMENT
.TP
.B GRAPHMEM_CACHE
another folder than ~/.cache/graphmem; empty, nothing is kept
"""


def program() -> tuple[Any, Any]:
    """The program, with whole sentences in its list of commands."""
    made = build_program()
    made.commands = {name: each for name, each in made.commands.items() if not each.hidden}
    for command in made.commands.values():
        command.short_help = " ".join(str(command.help).partition("\n\n")[0].split())
    return made, made.make_context("graphmem", ["gpus"], resilient_parsing=True)


def page() -> str:
    """The reference as Markdown."""
    made, context = program()
    text = _plain(get_docs_for_click(obj=made, ctx=context, name="graphmem"))
    text = re.sub(r"^(Example): (.+)$", r"\1: `\2`", text, flags=re.MULTILINE)
    return _HEAD + text.partition("\n")[2].strip() + "\n"


def man_page() -> str:
    """The reference as a man page, for the macros of man(7)."""
    made, context = program()
    parts = [
        f'.TH GRAPHMEM 1 "" "graphmem {__version__}" "User Commands"\n',
        ".SH NAME\ngraphmem \\- predict the GPU memory of a PyTorch training step\n",
        ".SH SYNOPSIS\n.B graphmem\n.RI [ options ]\n.I command\n.RI [ arguments ]\n",
        f".SH DESCRIPTION\n{_roff(made.help)}\n.SH OPTIONS\n",
        *_parameters(made, context),
        ".SH COMMANDS\n",
    ]
    for name, command in made.commands.items():
        usage = _roff(" ".join(command.collect_usage_pieces(context)))
        parts.append(f".SS {name}\n.B graphmem {name}\n{usage}\n.PP\n{_roff(command.help)}\n")
        parts += _parameters(command, context)
    return "".join(parts) + _MAN_TAIL.lstrip("\n")


def _plain(text: str) -> str:
    """Text without marks that typer needs, and without types that names tell."""
    text = re.sub(r" <(str|list\[\w+\])>", "", text.replace("\\[", "["))
    text = text.replace("<int range>", "N")
    text = re.sub(r"\{(\w+)\}", r"\1", text)
    return re.sub(r"\[(\[\w+\])(\.\.\.|…)?\](\.\.\.)?", r"\1\2", text)


def _parameters(command: Any, context: Any) -> Iterator[str]:
    for parameter in command.get_params(context):
        name, text = parameter.get_help_record(context)
        yield f".TP\n.B {_roff(name)}\n{_roff(text)}\n"


def _roff(text: str) -> str:
    """Text for man: ASCII, hyphens that can be copied, no line that begins like a request."""
    text = _plain(text).replace("\\", "\\e").replace("-", "\\-")
    lines = re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", text).splitlines()
    safe = (f"\\&{line}" if line[:1] in (".", "'") else line for line in lines)
    return "\n".join(line or ".PP" for line in safe)


if __name__ == "__main__":
    PAGE.write_text(page())
    MAN.write_text(man_page())
