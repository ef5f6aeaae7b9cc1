"""The command line of a request, ready to paste."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from graphmem.gpus import AssumedCard
from graphmem.targets import is_record

if TYPE_CHECKING:
    from graphmem.analysis import Request


def command_of(name: str, target: str, request: Request) -> str:
    """The command line of `graphmem NAME` for a target with these options."""
    return shlex.join(["graphmem", name, target, *_options(request)])


def options_of(request: Request) -> str:
    """The options of a request, except for the card."""
    return shlex.join(_options(replace(request, gpu=AssumedCard(request.gpu))))


def advice_command(target: str, request: Request) -> str:
    """The command that measures what would help; none for a saved step."""
    if is_record(target):
        return ""
    return f"{command_of('analyze', target, request)} --advice"


def _options(request: Request) -> Iterator[str]:
    from graphmem.analysis import Request

    untouched = Request()
    yield from _pairs("--set", request.settings)
    if not isinstance(request.gpu, AssumedCard):
        yield from ("--gpu", request.gpu)
    for option in ("torch", "autocast", "optimizer", "grads", "steps"):
        value = getattr(request, option)
        if value != getattr(untouched, option):
            yield from (f"--{option}", str(value))
    yield from _pairs("--env", request.env)
    for assumed in request.assume:
        yield from ("--assume", assumed)
    for option, is_set in (
        ("--strict", request.strict),
        ("--inference", request.inference),
        ("--compile", request.compile is True),
        ("--no-compile", request.compile is False),
        ("--offload", request.offload),
    ):
        if is_set:
            yield option
    yield from _changes(request)


def _changes(request: Request) -> Iterator[str]:
    changes = request.changes
    for option, patterns in (("--freeze", changes.freeze), ("--checkpoint", changes.checkpoint)):
        for pattern in patterns:
            yield from (option, pattern)
    yield from _pairs("--activation", changes.activations)
    for option, adaptation in (("--quantise", changes.quantise), ("--lora", changes.lora)):
        if adaptation is not None:
            yield from (option, str(adaptation))
    if changes.batch is not None:
        yield from ("--batch", f"{changes.batch:g}x")
    if changes.batch_size is not None:
        yield from ("--batch", str(changes.batch_size))


def _pairs(option: str, values: object) -> Iterator[str]:
    assert hasattr(values, "items")
    for key, value in values.items():
        yield from (option, f"{key}={value}")
