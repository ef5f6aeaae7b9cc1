"""The options for what to trace and how, declared once; each command names those it takes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_type_hints

from graphmem.cli import changes, options

if TYPE_CHECKING:
    from graphmem.analysis import Request

_OPTIONS: Mapping[str, tuple[Any, Any]] = {
    "settings": (options.Settings, None),
    "gpu": (options.GpuName, options.DEFAULT_GPU_NAME),
    "torch": (options.TorchVersion, None),
    "env": (options.Environment, None),
    "assume": (options.Assume, None),
    "strict": (options.Strict, False),
    "compile": (options.Compile, None),
    "autocast": (options.Autocast, None),
    "optimizer": (options.Optimizer, None),
    "grads": (options.Grads, "none"),
    "steps": (options.Steps, options.DEFAULT_STEPS),
    "inference": (options.Inference, False),
    "freeze": (options.Freeze, None),
    "checkpoint": (changes.Checkpoint, None),
    "activation": (changes.Activation, None),
    "batch": (changes.Batch, None),
    "quantise": (changes.Quantise, None),
    "lora": (changes.Lora, None),
    "offload": (changes.Offload, False),
}
"""Type and default of each option."""

Command = Callable[..., None]


def takes_request(names: str, **defaults: Any) -> Callable[[Command], Command]:
    """Replace a command's parameter `request` by options, and build the request from them.

    Args:
        names: the options' names, in the order of the help.
        defaults: defaults that differ in this command.
    """

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, localns={"Request": Any}, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for name, own in inspect.signature(command).parameters.items():
            if name == "request":
                parameters += [_parameter(each, defaults) for each in names.split()]
            else:
                kind = inspect.Parameter.KEYWORD_ONLY
                parameters.append(own.replace(kind=kind, annotation=hints[name]))

        @functools.wraps(command)
        def run(**given: Any) -> None:
            chosen = {name: given.pop(name) for name in names.split()}
            command(request=request_of(**chosen), **given)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _parameter(name: str, defaults: Mapping[str, Any]) -> inspect.Parameter:
    annotation, default = _OPTIONS[name]
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=defaults.get(name, default),
        annotation=annotation,
    )


def request_of(
    settings: list[str] | None = None,
    env: list[str] | None = None,
    assume: list[str] | None = None,
    freeze: list[str] | None = None,
    checkpoint: list[str] | None = None,
    activation: list[str] | None = None,
    batch: str | None = None,
    quantise: str | None = None,
    lora: str | None = None,
    **others: Any,
) -> Request:
    """The request that the options describe.

    Raises:
        InputError: one of them is malformed.
    """
    from graphmem.analysis import Request

    return Request(
        settings=options.pairs(settings, "--set"),
        env=options.pairs(env, "--env"),
        assume=tuple(assume or ()),
        changes=changes.changes_of(
            freeze, checkpoint, activation, batch, quantise=quantise, lora=lora
        ),
        **others,
    )
