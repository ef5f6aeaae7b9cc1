"""Options shared by the commands that trace a target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from graphmem.cli.messages import NotKeyValueError, WrongRecordNameError
from graphmem.errors import InputError
from graphmem.files import check_place
from graphmem.gpus import DEFAULT_GPU, GPUS, AssumedCard
from graphmem.targets import RECORD

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="`model.py:build`, `package.module:build`, an exported program `model.pt2`, or a "
        "saved step `step.graphmem`.",
        show_default=False,
    ),
]
Code = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="`model.py:build`, `package.module:build`, or an exported program `model.pt2`.",
        show_default=False,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A keyword argument of build(); repeatable."),
]


def card_names() -> list[str]:
    """The names that a shell offers for `--gpu`."""
    return [gpu.name for gpu in GPUS]


def card(context: typer.Context, option: typer.CallbackParam, name: str) -> str:
    """The given card, else the project's, else the default as an `AssumedCard`.

    A saved step has its own card.
    """
    source = context.get_parameter_source(option.name or "")
    is_chosen = source is None or source.name != "DEFAULT"
    if is_chosen or str(context.params.get("target", "")).endswith(RECORD):
        return name
    return card_of_the_project() or AssumedCard(name)


def card_of_the_project() -> str | None:
    """The default card of `graphmem.toml`, if it has one.

    Raises:
        InputError: the file is invalid.
    """
    folders = (Path.cwd(), *Path.cwd().parents)
    if not any((folder / file).is_file() for folder in folders for file in _PROJECT_FILES):
        return None
    from graphmem.gate.config import find_config, load_config

    try:
        found = find_config(Path.cwd())
    except InputError:  # a pyproject.toml without [tool.graphmem]
        return None
    return load_config(found).gpu


_PROJECT_FILES = ("graphmem.toml", "pyproject.toml")

GpuName = Annotated[
    str,
    typer.Option(
        "--gpu",
        metavar="NAME",
        help="The card; `graphmem gpus` lists them, and says how to describe another.  "
        f"[default: that of graphmem.toml, else {DEFAULT_GPU}]",
        show_default=False,
        callback=card,
        autocompletion=card_names,
    ),
]
TorchVersion = Annotated[
    str | None,
    typer.Option(
        "--torch",
        metavar="X.Y",
        help="The PyTorch version whose CUDA rules apply.  [default: the one installed]",
        show_default=False,
    ),
]
Environment = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="KEY=VALUE",
        help="An environment variable of the run, such as CUBLAS_WORKSPACE_CONFIG; repeatable.",
    ),
]
Autocast = Annotated[
    Literal["fp16", "bf16", "none"] | None,
    typer.Option(
        "--autocast",
        help="Autocast dtype of forward and loss; `none` turns it off.  "
        "[default: what build() says]",
        show_default=False,
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        metavar="NAME",
        help="sgd, sgd-momentum, adam or adamw, each also with -foreach, -fused or -single; or "
        "none.  [default: what build() says, else adamw]",
        show_default=False,
    ),
]
Grads = Annotated[
    Literal["keep", "none"],
    typer.Option(
        "--grads", help="After a step, keep gradients as zeros or drop them (set to none)."
    ),
]
Steps = Annotated[
    int,
    typer.Option(
        "--steps",
        metavar="N",
        min=1,
        help="Iterations to trace. Three cover the first, one with optimizer state, and a steady "
        "one.",
    ),
]
Freeze = Annotated[
    list[str] | None,
    typer.Option(
        "--freeze",
        metavar="PATTERN",
        help="Parameters or modules to freeze, such as 'h.[0-5].*'; repeatable.",
    ),
]
Inference = Annotated[
    bool, typer.Option("--inference", help="Forward passes only, under inference_mode.")
]
Assume = Annotated[
    list[str] | None,
    typer.Option(
        "--assume",
        metavar="WHERE=NUMBER",
        help="A value that the program reads from the device and only a real run knows. WHERE is a "
        "variable's name (loss=2.5), a line (train.py:120=0), nonzero (the share that masks "
        "select) or routing (the largest expert's share of all tokens); true, false, nan and inf "
        "are numbers too. Repeatable.",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Make every assumption an error.")]
NoCompile = Annotated[
    bool,
    typer.Option("--no-compile", help="Run code under torch.compile eagerly."),
]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Compile the model, or run code under torch.compile eagerly.  [default: what build() "
        "says]",
        show_default=False,
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        help="Stop code that takes longer, name its line, and exit with 2.  [default: none]",
        show_default=False,
    ),
]


def recorded_at(path: Path | None) -> Path | None:
    """The path of a saved step, checked before the work starts.

    Raises:
        InputError: the path cannot be written, or has another extension.
    """
    if path is not None and path.suffix != RECORD:
        raise WrongRecordNameError(path, RECORD, path.with_suffix(RECORD))
    return writable(path)


def writable(path: Path | None) -> Path | None:
    """The path of a result, checked before work that may take minutes.

    Raises:
        InputError: the path cannot be written.
    """
    if path is not None:
        check_place(path)
    return path


Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write the output to FILE instead of the terminal.",
        callback=writable,
    ),
]
Save = Annotated[
    Path | None,
    typer.Option(
        "--save",
        metavar="FILE.graphmem",
        help="Also save the step: analyze, render, explain, diff, plan, graph and verify take "
        "the file in place of a target.",
        callback=recorded_at,
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Also write a page with pictures.",
        callback=writable,
    ),
]
NoSource = Annotated[
    bool, typer.Option("--no-source", help="Leave your source files out of the page.")
]
Format = Annotated[
    Literal["text", "json"],
    typer.Option("--format", help="Output format."),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "-v",
        "--verbose",
        help="Show the derivative formulas that keep tensors alive, and PyTorch's full message.",
    ),
]
Brief = Annotated[bool, typer.Option("--brief", help="Three lines: verdict, peak, place or leak.")]

DEFAULT_STEPS = 3
DEFAULT_GPU_NAME = DEFAULT_GPU


def pairs(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """`KEY=VALUE` texts as a dict.

    Raises:
        InputError: a text without `=` or without a key.
    """
    found = {}
    for text in texts or ():
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise NotKeyValueError(option, text)
        found[key] = value
    return found
