"""mamba_ssm's selective scan: the extension's two functions, and the one that calls them.

Read from mamba_ssm 2.3.2, csrc/selective_scan/selective_scan.cpp (`selective_scan_fwd`,
`selective_scan_bwd`) and mamba_ssm/ops/selective_scan_interface.py (`SelectiveScanFn`).
"""

from __future__ import annotations

from typing import Any

import torch

_CHUNK = 2048


def fwd(
    u: Any,
    delta: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any,
    z: Any,
    delta_bias: Any,
    delta_softplus: bool,
) -> list[Any]:
    """The output, the states between chunks and, if there is a gate, the gated output."""
    gated = [] if z is None else [torch.empty_like(z)]
    out = torch.empty_like(delta)
    batch, channels, length = u.shape
    chunks = -(-length // _CHUNK)
    states = u.new_empty((batch, channels, chunks, 2 * A.shape[1]), dtype=A.dtype)
    return [out, states, *gated]


def bwd(
    u: Any,
    delta: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any,
    z: Any,
    delta_bias: Any,
    dout: Any,
    states: Any,
    out: Any,
    dz: Any,
    delta_softplus: bool,
    recompute_out_z: bool,
) -> list[Any]:
    """The gradients of u, delta, A, B, C, D, the bias and the gate, and the gated output."""
    gate: list[Any] = []
    if z is not None:
        gate.append(torch.empty_like(z) if dz is None else dz)
        if recompute_out_z:
            gate.append(torch.empty_like(out))
    du, ddelta = torch.empty_like(u), torch.empty_like(delta)
    dA = torch.zeros_like(A)
    dB, dC = _of_projection(B), _of_projection(C)
    dD = None if D is None else torch.zeros_like(D)
    dbias = None if delta_bias is None else torch.zeros_like(delta_bias)
    return [du, ddelta, dA, dB.to(B.dtype), dC.to(C.dtype), dD, dbias, *gate]


def _of_projection(tensor: Any) -> Any:
    """The gradient of B or C: in float32 where it depends on the input."""
    varies = tensor.dim() >= 3
    return torch.zeros_like(tensor, dtype=torch.float32 if varies else tensor.dtype)


def _in_rows(tensor: Any) -> Any:
    """A copy, unless positions are contiguous."""
    return tensor if tensor is None or tensor.stride(-1) == 1 else tensor.contiguous()


class _SelectiveScanFn(torch.autograd.Function):
    """It keeps its operands, the states between chunks and the output before the gate."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Any,
        delta: Any,
        A: Any,
        B: Any,
        C: Any,
        D: Any,
        z: Any,
        delta_bias: Any,
        delta_softplus: bool,
        returns_state: bool,
    ) -> Any:
        u, delta = _in_rows(u), _in_rows(delta)
        D = None if D is None else D.contiguous()
        B, C, z = _in_rows(B), _in_rows(C), _in_rows(z)
        ctx.ungrouped = [each.dim() == 3 for each in (B, C)]
        B, C = (each.unsqueeze(1) if each.dim() == 3 else each for each in (B, C))
        out, states, *gated = fwd(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
        ctx.delta_softplus = delta_softplus
        last_state = states[:, :, -1, 1::2]
        kept = None if z is None else out
        ctx.save_for_backward(u, delta, A, B, C, D, z, delta_bias, states, kept)
        result = gated[0] if gated else out
        return (result, last_state) if returns_state else result

    @staticmethod
    def backward(ctx: Any, dout: Any, *others: Any) -> Any:
        *operands, states, out = ctx.saved_tensors
        rest: list[Any] = [_in_rows(dout), states, out, None, ctx.delta_softplus, False]
        du, ddelta, dA, dB, dC, dD, dbias, *gate = bwd(*operands, *rest)
        dB, dC = (
            each.squeeze(1) if ungrouped else each
            for each, ungrouped in zip((dB, dC), ctx.ungrouped, strict=True)
        )
        return du, ddelta, dA, dB, dC, dD, gate[0] if gate else None, dbias, None, None


def selective_scan_fn(
    u: Any,
    delta: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    delta_bias: Any = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Any:
    """Scan u, of shape (batch, channels, positions); B and C may vary with the position."""
    options = (D, z, delta_bias, delta_softplus, return_last_state)
    return _SelectiveScanFn.apply(u, delta, A, B, C, *options)  # type: ignore[no-untyped-call]
