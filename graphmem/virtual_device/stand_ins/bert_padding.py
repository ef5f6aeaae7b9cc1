"""flash-attn's padding functions (flash_attn/bert_padding.py of 2.8)."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812


class _Take(torch.autograd.Function):
    """`IndexFirstAxis`: gathers rows, and scatters them into zeros in the backward pass."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(indices)
        ctx.rows, other = tensor.shape[0], tensor.shape[1:]
        wide = indices[:, None].expand(-1, other.numel())
        return torch.gather(tensor.reshape(ctx.rows, -1), 0, wide).reshape(-1, *other)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (indices,) = ctx.saved_tensors
        flat = gradient.reshape(gradient.shape[0], -1)
        found = flat.new_zeros((ctx.rows, flat.shape[1]))
        found.scatter_(0, indices[:, None].expand(-1, flat.shape[1]), flat)
        return found.reshape(ctx.rows, *gradient.shape[1:]), None


class _Put(torch.autograd.Function):
    """`IndexPutFirstAxis`."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, indices: torch.Tensor, rows: int) -> torch.Tensor:
        ctx.save_for_backward(indices)
        made = values.new_zeros((rows, *values.shape[1:]))
        made[indices] = values
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (indices,) = ctx.saved_tensors
        return gradient[indices], None, None


def index_first_axis(tensor: torch.Tensor, indices: torch.Tensor) -> Any:
    """Take the rows named by `indices`."""
    return _Take.apply(tensor, indices)  # type: ignore[no-untyped-call]


def unpad_input(hidden_states: Any, attention_mask: Any, unused_mask: Any = None) -> Any:
    """Drop padding: returns rows, their indices, sequence starts, longest length, lengths."""
    mask = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = mask.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(mask.flatten(), as_tuple=False).flatten()
    longest = lengths.max().item()
    starts = F.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    rows = hidden_states.reshape(-1, *hidden_states.shape[2:])
    return index_first_axis(rows, indices), indices, starts, longest, used


def pad_input(hidden_states: Any, indices: Any, batch: int, seqlen: int) -> Any:
    """Put rows back into a padded batch."""
    put = _Put.apply(hidden_states, indices, batch * seqlen)  # type: ignore[no-untyped-call]
    return put.reshape(batch, seqlen, *hidden_states.shape[1:])


def names() -> dict[str, Any]:
    """The module's contents by name."""
    return {
        "index_first_axis": index_first_axis,
        "index_put_first_axis": _Put.apply,
        "unpad_input": unpad_input,
        "pad_input": pad_input,
        **_of_einops(),
    }


def _of_einops() -> dict[str, Any]:
    """What the module imports, which programs import from it in turn (OpenRLHF, verl)."""
    if importlib.util.find_spec("einops") is None:
        return {}
    einops = importlib.import_module("einops")
    return {"rearrange": einops.rearrange, "repeat": einops.repeat}
