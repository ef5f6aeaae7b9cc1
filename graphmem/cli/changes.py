"""The options that change a training step before it is traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from graphmem.cli import options
from graphmem.cli.messages import EmptyBatchError, WrongFactorError

if TYPE_CHECKING:
    from graphmem.changes import Changes

Checkpoint = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoint", metavar="PATTERN", help="Modules to checkpoint, such as 'h.*'; repeatable."
    ),
]
Activation = Annotated[
    list[str] | None,
    typer.Option("--activation", metavar="OLD=NEW", help="Replace an activation: gelu=relu."),
]
Batch = Annotated[
    str | None,
    typer.Option(
        "--batch", metavar="FACTORx|SIZE", help="Scale the batch by a factor, or set its size."
    ),
]
Quantise = Annotated[
    str | None,
    typer.Option(
        "--quantise",
        "--quantize",
        metavar="KIND",
        help="Quantise linear layers as bitsandbytes does: nf4, fp4 or int8; nf4,double quantises "
        "their statistics as well.",
    ),
]
Lora = Annotated[
    str | None,
    typer.Option(
        "--lora",
        metavar="r=N,…",
        help="Train only adapters, as PEFT's LoRA does: r=16, with alpha=, dropout= and "
        "targets=q_proj+v_proj or all-linear.",
    ),
]
Offload = Annotated[
    bool,
    typer.Option(
        "--offload", help="Keep tensors saved for the backward pass on the host (save_on_cpu)."
    ),
]


def changes_of(
    freeze: Sequence[str] | None,
    checkpoint: Sequence[str] | None,
    activation: Sequence[str] | None,
    batch: str | None,
    dtype: str | None = None,
    quantise: str | None = None,
    lora: str | None = None,
) -> Changes:
    """The changes that the options ask for.

    Raises:
        InputError: one of them is malformed.
    """
    from graphmem.changes import Changes
    from graphmem.changes.lora import Lora
    from graphmem.changes.quantise import Quantisation

    return Changes(
        freeze=tuple(freeze or ()),
        checkpoint=tuple(checkpoint or ()),
        activations=options.pairs(activation, "--activation"),
        batch=None if batch is None or batch.isdigit() else factor_of(batch),
        batch_size=size_of(batch) if batch is not None and batch.isdigit() else None,
        dtype=dtype,
        quantise=None if quantise is None else Quantisation.parse(quantise),
        lora=None if lora is None else Lora.parse(lora),
    )


def size_of(text: str) -> int:
    """The size of a batch.

    Raises:
        InputError: the size is 0.
    """
    if not int(text):
        raise EmptyBatchError()
    return int(text)


def factor_of(text: str) -> float:
    """The factor that `2x`, `0.5x` or `x2` means.

    Raises:
        InputError: the text is not a factor.
    """
    try:
        factor = float(text.strip("xX"))
    except ValueError:
        factor = 0
    if not 0 < factor < float("inf"):
        raise WrongFactorError(text)
    return factor
