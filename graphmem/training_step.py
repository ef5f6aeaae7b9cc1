"""What the user's `build()` describes: one iteration of training.

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
    """One iteration of a training loop, told by its parts or as a whole.

    Args:
        model: the module to train. Modules left on the CPU are moved to the device before the
            first iteration; their parameters keep their identity.
        inputs: what the model is called with: a tensor, a tuple, a dict of keyword arguments, or
            a callable without arguments that makes new ones for each iteration. Inputs
            on the CPU are moved to the device in every iteration, as a training loop does.
        loss: `loss(output) -> scalar`. Default: the output's own `.loss`, else the sum of it.
            Tensors of the CPU that it closes over, such as labels, are moved with the inputs.
        optimizer: an optimizer, or a callable `parameters -> optimizer`. Default: AdamW.
        autocast: `"fp16"`, `"bf16"`, or None.
        accumulate: forward and backward passes for each optimizer step.
        clip_grad_norm: the maximal norm given to `torch.nn.utils.clip_grad_norm_`, or None.
        scaler: a `torch.amp.GradScaler`, True for a default one, or None.
        step: a callable without arguments that runs one whole iteration as the user's own loop
            body would; it closes over model, optimizer and data, and the other fields are then
            used for names only.
        keep_output: hold the model's output until the next forward pass has made another one, as
            the usual `output = model(x); loss = loss_fn(output); loss.backward()` does. False is
            `loss = loss_fn(model(x))`, which also `transformers.Trainer` comes to.
        assume: what graphmem may take for granted of values that only a real run knows, such as
            `{"nonzero": 0.25}`: a data-dependent selection keeps a quarter of its elements. Each
            assumption that was used is listed in the report.
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
