"""Wider random programs: transforms, hooks, functions written in Python, 170 operators, layers.

`wide_statements.txt` has their statements. Left out are those that the two oracles see differently:
what a kernel allocates for itself on the CPU, forward-mode derivatives, and sparse tensors.
"""

from __future__ import annotations

import copy
import functools
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint_sequential, create_selective_checkpoint_contexts

from fixtures.random_program import modules_of
from tests.fuzz.generator import AFTERWARDS, KINDS, OPTIMIZERS, Statements, program_of

SHARE = 2
"""How many statements are wide for one that is not, roughly."""


class Dirty(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x.mul_(2))
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * 2


class NotMaterialized(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        result, positive = x * 2, x > 0
        ctx.mark_non_differentiable(positive)
        return result, positive

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        return None if grads[0] is None else grads[0] * 2


class Once(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        for_x, for_y = ctx.needs_input_grad
        return grads[0] * y if for_x else None, grads[0] * x if for_y else None


class SavesMany(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        one, other = x.tanh(), y.sin()
        result = one * other
        ctx.save_for_backward(x, one, other, result, None)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        _, one, other, _, _ = ctx.saved_tensors
        return grads[0] * other * (1 - one * one), grads[0] * one


class Recomputes(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return (x.exp() + 1).log()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            result = (again.exp() + 1).log()
        return torch.autograd.grad(result, again, grads[0])[0]


class KeepsOnCtx(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.factor, ctx.more = x.sin(), [x * 2]
        return x * 3

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * ctx.factor + ctx.more[0]


class SavesOutput(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * ctx.saved_tensors[0]


class Holder:
    """A cycle that holds a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.own = tensor, self


def fails(x: torch.Tensor) -> torch.Tensor:
    """Return a result through an exception whose traceback holds it."""
    try:
        result = x * 3
        raise ValueError
    except ValueError as error:
        caught = error
        return result if caught else x


def slope(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A derivative that can be differentiated again."""
    return torch.autograd.grad(y.sum(), [x], create_graph=True)[0]


def doubled(grads: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
    return tuple(None if grad is None else grad * 2 for grad in grads)


SCOPE: dict[str, Any] = {
    each.__name__: each
    for each in (
        *(Dirty, NotMaterialized, Once, SavesMany, Recomputes, KeepsOnCtx, SavesOutput, Holder),
        *(fails, slope, doubled, copy, gc, weakref, checkpoint_sequential),
        torch.autograd.graph.saved_tensors_hooks,
    )
} | {
    "nn": nn,
    "func": torch.func,
    "autograd": torch.autograd,
    "linalg": torch.linalg,
    "special": torch.special,
    "saves_products": functools.partial(
        create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default]
    ),
}


def wide_modules_of(size: int) -> nn.ModuleDict:
    """The modules that a wide program may call."""
    modules = modules_of(size)
    modules.update(
        {
            "lstm": nn.LSTM(size, size, batch_first=True),
            "rnn": nn.RNN(size, size, batch_first=True),
            "grucell": nn.GRUCell(size, size),
            "lstmcell": nn.LSTMCell(size, size),
            "mha": nn.MultiheadAttention(size, 2, batch_first=True),
            "encoder": nn.TransformerEncoderLayer(size, 2, 2 * size, batch_first=True),
            "decoder": nn.TransformerDecoderLayer(size, 2, 2 * size, batch_first=True),
            "bn": nn.BatchNorm1d(size),
            "bn2": nn.BatchNorm2d(size),
            "conv": nn.Conv2d(1, 1, 3, padding=1),
            "emb": nn.Embedding(size, size),
            "wn": parametrizations.weight_norm(nn.Linear(size, size)),
            "sn": parametrizations.spectral_norm(nn.Linear(size, size)),
            "seq": nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size)),
            "bil": nn.Bilinear(size, size, size),
            "upsample": nn.Upsample(scale_factor=2, mode="nearest"),
        }
    )
    return modules


def _sections() -> Iterator[tuple[str, list[str]]]:
    text = Path(__file__).with_name("wide_statements.txt").read_text()
    for section in text.split("\n## ")[1:]:
        heading, *statements = section.strip().splitlines()
        yield heading, statements


def _wide_statements() -> Statements:
    sections = dict(_sections())
    kinds = [(sections[each], int(each[0])) for each in sections if each[0].isdigit()]
    return Statements(
        kinds=(*kinds, *((lines, weight / SHARE) for lines, weight in KINDS)),
        optimizers=[*OPTIMIZERS, *sections["optimizers"]],
        afterwards=[*AFTERWARDS, *sections["afterwards"]],
        most=9,
    )


_WIDE = _wide_statements()


def wide_program_of(seed: int, attempt: int = 0) -> list[str]:
    """The lines of a wide program."""
    return program_of(seed, attempt, _WIDE)
