"""The reference of commands: `python -m tools.commands` writes docs/commands.md and the man page.

Both are made from what `graphmem COMMAND --help` shows. An option that several commands share is
described once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
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
_SHARED = """\
## Shared options

Several commands accept these; each lists the names of those that it accepts.

"""
_OPTION = re.compile(r"^\* `-.+$", re.MULTILINE)
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
    whole, *commands = re.split(r"^(?=## )", text.partition("\n")[2], flags=re.MULTILINE)
    options = {each: _OPTION.findall(each) for each in commands}
    shared = _shared(options.values())
    described = _SHARED + "".join(f"{line}\n" for line in shared) + "\n"
    sections = (_with_link(each, [o for o in options[each] if o in shared]) for each in commands)
    return _HEAD + whole.lstrip() + described + "".join(sections).strip() + "\n"


def _shared(commands: Iterable[Sequence[Any]]) -> list[Any]:
    """The options that several commands have with the same description, by their first command."""
    counts = Counter(option for options in commands for option in options)
    return [option for option, count in counts.items() if count > 1]


def _with_link(section: str, shared: Sequence[str]) -> str:
    """A command's section in which shared options are names that link to their description."""
    for line in shared:
        section = section.replace(f"{line}\n", "")
    names = ", ".join(line.removeprefix("* ").partition("`: ")[0] + "`" for line in shared)
    own = section.rstrip().removesuffix("**Options**:").rstrip()
    return f"{own}\n\n[Shared options](#shared-options): {names}\n\n"


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
    options = {name: _parameters(command, context) for name, command in made.commands.items()}
    shared = _shared(options.values())
    for name, command in made.commands.items():
        usage = _roff(" ".join(command.collect_usage_pieces(context)))
        parts.append(f".SS {name}\n.B graphmem {name}\n{usage}\n.PP\n{_roff(command.help)}\n")
        parts += [each for each in options[name] if each not in shared]
        names = ", ".join(each.splitlines()[1] for each in options[name] if each in shared)
        parts.append(f".PP\nShared options: {names.replace('.B ', '')}\n")
    parts += [".SH SHARED OPTIONS\n", *shared]
    return "".join(parts) + _MAN_TAIL.lstrip("\n")


def _plain(text: str) -> str:
    """Text without marks that typer needs, and without types that names tell."""
    text = re.sub(r" <(str|list\[\w+\])>", "", text.replace("\\[", "["))
    text = text.replace("<int range>", "N")
    text = re.sub(r"\{(\w+)\}", r"\1", text)
    return re.sub(r"\[(\[\w+\])(\.\.\.|…)?\](\.\.\.)?", r"\1\2", text)


def _parameters(command: Any, context: Any) -> list[str]:
    records = (parameter.get_help_record(context) for parameter in command.get_params(context))
    return [f".TP\n.B {_roff(name)}\n{_roff(text)}\n" for name, text in records]


def _roff(text: str) -> str:
    """Text for man: ASCII, hyphens that can be copied, no line that begins like a request."""
    text = _plain(text).replace("\\", "\\e").replace("-", "\\-")
    lines = re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", text).splitlines()
    safe = (f"\\&{line}" if line[:1] in (".", "'") else line for line in lines)
    return "\n".join(line or ".PP" for line in safe)


if __name__ == "__main__":
    PAGE.write_text(page())
    MAN.write_text(man_page())
