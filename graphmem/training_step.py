"""`TrainingStep`: the iteration of training that a user's `build()` returns.

This module does not import torch, so that `import graphmem` stays instant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Inputs = Any
"""A tensor, a tuple of them, a dict of keyword arguments, or a callable that makes one of these."""


@dataclass
class TrainingStep:
    """One iteration of a training loop, given as parts or as a function.

    Args:
        model: the module to train. Modules left on the CPU are moved to the device before the
            first iteration; their parameters keep their identity.
        inputs: the model's arguments: a tensor, a tuple, a dict of keyword arguments, or a callable
            without arguments that makes new ones for each iteration. Inputs on the CPU are moved to
            the device in every iteration, as in a usual training loop.
        loss: `loss(output) -> scalar`. Default: the output's `.loss`, else its sum. CPU tensors
            that it closes over, such as labels, are moved with the inputs.
        optimizer: an optimizer, or a callable `parameters -> optimizer`. Default: AdamW.
        autocast: `"fp16"`, `"bf16"`, or None.
        accumulate: forward and backward passes for each optimizer step.
        clip_grad_norm: the maximum norm for `torch.nn.utils.clip_grad_norm_`, or None.
        scaler: a `torch.amp.GradScaler`, True for a default one, or None.
        step: a callable without arguments that runs one whole iteration, like the body of your
            loop; it closes over model, optimizer and data, and the other fields then only provide
            names.
        keep_output: keep the model's output until the next forward pass has made a new one, as the
            usual `output = model(x); loss = loss_fn(output); loss.backward()` does. False means
            `loss = loss_fn(model(x))`, which is also what `transformers.Trainer` amounts to.
        assume: values to assume where only a real run knows them, such as `{"nonzero": 0.25}`: a
            data-dependent selection keeps a quarter of its elements. The report lists each
            assumption that was used.
    """

    model: torch.nn.Module | None = None
    inputs: Inputs = None
    loss: Callable[..., torch.Tensor] | None = None
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None = None
    autocast: str | None = None
    accumulate: int = 1
    clip_grad_norm: float | None = None
    scaler: Any = None
    step: Callable[[], Any] | None = None
    keep_output: bool = True
    assume: Mapping[str, float] = field(default_factory=dict)
