"""Hypothetical changes to a training step: what if it were frozen, checkpointed, larger?

They are applied to the result of `build()`, before the first iteration, so that the changed step is
traced like any other and its figures are just as exact. The model's code is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from graphmem.changes.messages import ChangeNeedsModelError, NothingToFreezeError
from graphmem.training_step import TrainingStep

if TYPE_CHECKING:
    import torch

    from graphmem.changes.lora import Lora
    from graphmem.changes.quantise import Quantisation


@dataclass(frozen=True)
class Changes:
    """Changes to a training step.

    Patterns are file name patterns: `*` matches any text, including dots, and `[0-5]` one
    character.

    Attributes:
        freeze: patterns of parameters, or of modules with all their parameters, to freeze.
        checkpoint: patterns of modules to checkpoint; of nested ones, the outermost.
        activations: activation functions to replace, by name, each with its replacement.
        batch: a factor for the first dimension of the inputs.
        batch_size: a size for it, instead of a factor.
        dtype: "bf16" or "fp16": keep weights and inputs in it, without autocast.
        quantise: how to quantise linear layers.
        lora: the adapters to add; alone they train, unless a pattern freezes them.
    """

    freeze: tuple[str, ...] = ()
    checkpoint: tuple[str, ...] = ()
    activations: Mapping[str, str] = field(default_factory=dict)
    batch: float | None = None
    batch_size: int | None = None
    dtype: str | None = None
    quantise: Quantisation | None = None
    lora: Lora | None = None


def changed(step: TrainingStep, changes: Changes) -> TrainingStep:
    """Apply changes to a training step.

    Patterns match the names in the model that `build()` made, adapted or not.

    Raises:
        InputError: a pattern matches nothing, or the step lacks the part to change.
    """
    from graphmem.changes.activations import exchange_activations
    from graphmem.changes.batch import resize_batch, scale_batch
    from graphmem.changes.checkpoint import checkpoint_modules
    from graphmem.changes.precision import in_precision

    if changes.batch is not None:
        step = scale_batch(step, changes.batch)
    if changes.batch_size is not None:
        step = resize_batch(step, changes.batch_size)
    if changes.dtype is not None:
        step = in_precision(step, changes.dtype)
    made, step = step, _adapted(step, changes)
    for pattern in changes.freeze:
        freeze(_model_of(made, "--freeze"), pattern)
    for pattern in changes.checkpoint:
        checkpoint_modules(_model_of(made, "--checkpoint"), pattern)
    if changes.activations:
        step = exchange_activations(step, changes.activations)
    return step


def _adapted(step: TrainingStep, changes: Changes) -> TrainingStep:
    """The step with its model quantised and adapted, and an optimizer of what trains then."""
    if changes.quantise is None and changes.lora is None:
        return step
    from graphmem.changes.lora import adapted
    from graphmem.changes.optimizers import for_trained_parameters
    from graphmem.changes.quantise import prepared_for_training, quantise
    from graphmem.trace.loop import AUTOCAST_DTYPES

    model = _model_of(step, "--lora" if changes.quantise is None else "--quantise")
    if changes.quantise is not None:
        quantise(model, changes.quantise, AUTOCAST_DTYPES.get(step.autocast or ""))
    if changes.lora is not None:
        model = adapted(prepared_for_training(model), changes.lora)
    return replace(step, model=model, optimizer=for_trained_parameters(step.optimizer, model))


def freeze(model: torch.nn.Module, pattern: str) -> None:
    """Freeze every parameter that the pattern matches.

    Raises:
        InputError: there is none.
    """
    found = [
        parameter
        for name, parameter in model.named_parameters()
        if any(fnmatchcase(each, pattern) for each in _with_ancestors(name))
    ]
    if not found:
        first = next((name for name, _ in model.named_parameters()), "none at all")
        raise NothingToFreezeError(pattern, first)
    for parameter in found:
        parameter.requires_grad_(False)


def _with_ancestors(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]


def _model_of(step: TrainingStep, option: str) -> torch.nn.Module:
    if step.model is None:
        raise ChangeNeedsModelError(option)
    return step.model
