"""The training loop that graphmem runs for a `TrainingStep` given as parts.

One iteration is: move the inputs, forward, loss, backward (`accumulate` times), clip, optimizer
step, zero the gradients. The outputs and the loss are ordinary variables of this loop, so they live
into the next iteration, as they do in a user's loop:

    output = model(inputs)
    loss = loss_fn(output)
    loss.backward()

With `keep_output=False` it is `loss = loss_fn(model(inputs))`. Host tensors that the loss closes
over move with the inputs (`closed_over`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from graphmem.forward_passes import MODEL
from graphmem.frames import acts_for_the_program
from graphmem.graph import Source
from graphmem.trace.closed_over import ClosedOver
from graphmem.trace.messages import (
    ClosureNeededError,
    InputsElsewhereError,
    NoLossError,
    NothingToRunError,
    NothingTrainsError,
    UnknownAutocastError,
    UnknownOptimizerError,
)
from graphmem.training_step import TrainingStep

AUTOCAST_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=1e-3),
    "sgd-momentum": partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=1e-3),
}
VARIANTS = {
    "": {},
    "-foreach": {"foreach": True},
    "-fused": {"fused": True},
    "-single": {"foreach": False},
}


def optimizer_named(name: str) -> Callable[..., torch.optim.Optimizer] | None:
    """The optimizer for `--optimizer NAME`; None for `none`.

    Raises:
        InputError: the name is unknown.
    """
    if name == "none":
        return None
    for suffix, options in VARIANTS.items():
        base = name.removesuffix(suffix) if suffix else name
        if base in OPTIMIZERS and base + suffix == name:
            return partial(OPTIMIZERS[base], **options)
    raise UnknownOptimizerError(name, list(OPTIMIZERS))


class TrainingLoop:
    """Runs iterations of a training step on a device."""

    def __init__(
        self,
        step: TrainingStep,
        device: torch.device,
        mark: Callable[[str], None] = lambda name: None,
        on_input: Callable[[torch.Tensor], None] = lambda tensor: None,
        *,
        keep_grads: bool = False,
        inference: bool = False,
        offload: bool = False,
        notice: Callable[[str, str, str, Source | None], object] = lambda *told: None,
    ) -> None:
        if step.model is None:
            raise NothingToRunError()
        self._step = step
        self._model = step.model
        self._device = device
        self._mark = mark
        self._on_input = on_input
        self._keep_grads = keep_grads
        self._inference = inference
        self._offload = offload
        self._notice = notice
        self._moves_inputs = False
        self._closed_over = ClosedOver(None)
        self.optimizer: torch.optim.Optimizer | None = None
        self.scaler: Any = None
        self.output: Any = None
        self.loss: torch.Tensor | None = None

    def prepare(self) -> None:
        """Move the model, and make the optimizer and scaler that the step leaves to graphmem."""
        self._moves_inputs = move_to_device(self._model, self._step.inputs, self._device)
        if self._inference:
            self._model.eval()
            return
        if self._moves_inputs and self._device.type != "cpu":
            self._move_what_the_loss_closes_over()
        self.optimizer = self._make_optimizer()
        if self.optimizer is not None:
            follow_parameters(self.optimizer)
        if self._step.scaler is True:
            self.scaler = torch.amp.GradScaler(self._device.type)
        else:
            self.scaler = self._step.scaler or None

    def _move_what_the_loss_closes_over(self) -> None:
        self._closed_over = ClosedOver(self._step.loss)
        self._closed_over.move_modules(self._device)
        if self._closed_over.names:
            self._notice(
                f"host tensors that the loss closes over ({', '.join(self._closed_over.names)})",
                "moved to the card with the inputs",
                "a loop of your own (TrainingStep's step) moves them itself",
                self._closed_over.source,
            )

    @acts_for_the_program
    def _make_optimizer(self) -> torch.optim.Optimizer | None:
        made = self._step.optimizer
        if made is not None and not isinstance(made, torch.optim.Optimizer):
            trained = [p for p in self._model.parameters() if p.requires_grad]
            made = made(trained) if trained else None
        if isinstance(made, torch.optim.LBFGS):
            raise ClosureNeededError()
        return made

    def iterate(self) -> None:
        """Run one iteration."""
        if self._inference:
            with torch.inference_mode():
                self._forward()
            return
        for _ in range(self._step.accumulate):
            self._forward_with_loss()
            self._mark("forward")
            self._backward()
            self._mark("backward")
        self._optimize()

    @acts_for_the_program
    def _next_inputs(self) -> Any:
        inputs = self._step.inputs() if callable(self._step.inputs) else self._step.inputs
        return self._to_device(inputs) if self._moves_inputs else inputs

    def _to_device(self, value: Any) -> Any:
        return to_device(value, self._device, self._on_input)

    def _forward(self) -> None:
        with self._autocast():
            self.output = call(self._model, self._next_inputs())

    @acts_for_the_program
    def _forward_with_loss(self) -> None:
        loss_of = self._step.loss or default_loss
        inputs = [self._next_inputs()]  # popped, so that no variable of this loop keeps them
        with self._closed_over.replaced(self._to_device), self._offloading(), self._autocast():
            if self._step.keep_output:
                self.output = self._output(inputs)
                loss = loss_of(self.output)
            else:
                loss = loss_of(self._output(inputs))
        self.loss = loss if self._step.accumulate == 1 else loss / self._step.accumulate

    @acts_for_the_program
    def _output(self, inputs: list[Any]) -> Any:
        output = call(self._model, inputs.pop())
        self._mark(MODEL)
        return output

    def _backward(self) -> None:
        assert self.loss is not None
        if not self.loss.requires_grad:
            raise NothingTrainsError()
        loss = self.loss if self.scaler is None else self.scaler.scale(self.loss)
        loss.backward()

    def _optimize(self) -> None:
        if self._step.clip_grad_norm is not None:
            if self.scaler is not None and self.optimizer is not None:
                self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._step.clip_grad_norm)
        if self.optimizer is None:
            self._model.zero_grad(set_to_none=not self._keep_grads)
            return
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self._mark("optimizer.step")
        self.optimizer.zero_grad(set_to_none=not self._keep_grads)
        self._mark("optimizer.zero_grad")

    def _offloading(self) -> Any:
        """`save_on_cpu` of forward and loss, as PyTorch recommends for copies of pinned memory."""
        if not self._offload:
            return nullcontext()
        return torch.autograd.graph.save_on_cpu(pin_memory=True)

    def _autocast(self) -> Any:
        if self._step.autocast is None:
            return nullcontext()
        dtype = AUTOCAST_DTYPES.get(self._step.autocast)
        if dtype is None:
            raise UnknownAutocastError(self._step.autocast)
        return torch.autocast(self._device.type, dtype=dtype)


def follow_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Move the state of an optimizer that has already stepped to its parameters' device.

    As in `load_state_dict`, `step` stays on the CPU (torch/optim/optimizer.py,
    `_process_value_according_to_param_policy`).
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            is_apart = isinstance(value, torch.Tensor) and value.device != parameter.device
            if is_apart and name != "step":
                state[name] = value.to(parameter.device)


@acts_for_the_program
def call(model: torch.nn.Module, inputs: Any) -> Any:
    """Call a model with a tensor, a tuple of arguments, or a dict of keyword arguments."""
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)


def default_loss(output: Any) -> torch.Tensor:
    """The output's `.loss`, else the output if it is a scalar, else the sum of its first tensor."""
    loss = getattr(output, "loss", None)
    if isinstance(output, dict):
        loss = output.get("loss")
    if isinstance(loss, torch.Tensor):
        return loss
    tensors = list(tensors_in(output))
    if not tensors:
        raise NoLossError()
    first = tensors[0]
    return first if not first.dim() else first.sum()


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested tuples, lists, dicts and dataclass-like outputs."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)


def to_device(
    value: Any, device: torch.device, moved: Callable[[torch.Tensor], None] = lambda tensor: None
) -> Any:
    """Move every tensor in a nest of tuples, lists and dicts; a leaf stays a leaf.

    Args:
        value: the nest.
        device: the target device.
        moved: called with each tensor after it has moved.
    """
    if isinstance(value, torch.Tensor):
        tensor = value.detach().to(device).requires_grad_(value.requires_grad)
        moved(tensor)
        return tensor
    if isinstance(value, dict):
        return {key: to_device(item, device, moved) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(item, device, moved) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(to_device(item, device, moved) for item in value)
    return value


def move_to_device(model: torch.nn.Module, inputs: Any, device: torch.device) -> bool:
    """Move a model that was left on the CPU; return whether its inputs must move as well.

    Raises:
        InputError: the inputs are on the device and the model is not.
    """
    held = [*model.parameters(), *model.buffers()]
    on_device = any(tensor.device == device for tensor in held)
    given = [] if callable(inputs) else list(tensors_in(inputs))
    inputs_on_device = any(tensor.device == device for tensor in given)
    if device.type != "cpu" and held and inputs_on_device and not on_device:
        raise InputsElsewhereError(device)
    model.to(device)
    return not inputs_on_device
