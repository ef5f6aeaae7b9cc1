"""causal_conv1d where it is not installed, and its extension `causal_conv1d_cuda`.

Read from causal-conv1d 1.7.0; the extension takes the same arguments as of 1.5.1.

(1) The extension fills tensors that Python gives it (csrc/causal_conv1d.cpp). Its backward pass
    copies the output's gradient if its layout is not the input's, and if deterministic, sums
    partial gradients of the weight and the bias in float32.
(2) Results and gradients are allocated in Python (causal_conv1d/cpp_functions.py), by operators
    that the package registers, so that a compiled graph contains them.
(3) The autograd function keeps input, weight, bias, sequence indices and initial states
    (causal_conv1d/causal_conv1d_interface.py).

Not covered: `causal_conv1d_varlen_states`, which is a Triton kernel in Python, for generation.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from graphmem.gpus import Gpu
from graphmem.virtual_device.stand_ins import StandIn, lacking

_INSTALL = (
    "CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE CAUSAL_CONV1D_FORCE_BUILD=TRUE "
    "pip install causal-conv1d --no-build-isolation"
)
_OPERATORS = {
    "fwd": """(Tensor x, Tensor weight, Tensor? bias, Tensor? seq_idx, Tensor? initial_states,
 Tensor(a5!) out, Tensor(a6!)? final_states_out, bool silu_activation) -> ()""",
    "bwd": """(Tensor x, Tensor weight, Tensor? bias, Tensor dout, Tensor? seq_idx,
 Tensor? initial_states, Tensor(a6!)? dfinal_states, Tensor(a7!) dx, Tensor(a8!) dweight,
 Tensor(a9!)? dbias, Tensor(a10!)? dinitial_states, bool silu_activation) -> ()""",
    "update": """(Tensor x, Tensor(a1!) conv_state, Tensor weight, Tensor? bias, Tensor(a4!) out,
 bool silu_activation, Tensor? cache_seqlens, Tensor? conv_state_indices) -> ()""",
}
_WRITTEN = {
    "fwd": ("out", "final_states_out"),
    "bwd": ("dfinal_states", "dx", "dweight", "dbias", "dinitial_states"),
    "update": ("conv_state", "out"),
}


def _fwd(*args: Any) -> None:
    """Clause (1): the kernels of `causal_conv1d_fwd` and `causal_conv1d_update`."""


def _bwd(
    x: Any,
    weight: Any,
    bias: Any,
    dout: Any,
    seq_idx: Any,
    initial_states: Any,
    dfinal_states: Any,
    dx: Any,
    dweight: Any,
    dbias: Any,
    *rest: Any,
) -> None:
    """Clause (1): `causal_conv1d_bwd`."""
    batch, _channels, length = x.shape
    channels_last = x.stride(1) == 1 and x.stride(2) > 1
    if channels_last and dout.stride(1) != 1:
        dout = dout.transpose(-1, -2).contiguous().transpose(-1, -2)
    elif not channels_last and dout.stride(2) != 1:
        dout = dout.contiguous()
    if not _is_deterministic():
        return
    chunks = (-(-length // (64 if length <= 128 else 128)),) if channels_last else ()
    gradients = [gradient for gradient in (dweight, dbias) if gradient is not None]
    partial = [
        torch.zeros((batch, *chunks, *gradient.shape), dtype=torch.float32, device=x.device)
        for gradient in gradients
    ]
    for gradient, parts in zip(gradients, partial, strict=True):
        gradient.add_(parts.sum([0, 1] if channels_last else [0]))


def _is_deterministic() -> bool:
    """`use_deterministic_mode`."""
    choice = os.environ.get("CAUSAL_CONV1D_DETERMINISTIC", "")[:1]
    return choice == "1" or (choice != "0" and torch.are_deterministic_algorithms_enabled())


_EXTENSION: dict[str, Callable[..., None]] = {
    "causal_conv1d_fwd": _fwd,
    "causal_conv1d_bwd": _bwd,
    "causal_conv1d_update": _fwd,
}


@functools.cache
def _register_operators() -> None:
    """Register those of clause (2); PyTorch keeps them for the life of the process."""
    for name, schema in _OPERATORS.items():
        torch.library.custom_op(
            f"DaoAILab::_causal_conv1d_{name}_cpp",
            _EXTENSION[f"causal_conv1d_{name}"],
            mutates_args=_WRITTEN[name],
            schema=" ".join(schema.split()),
        )


def causal_conv1d_fwd_function(
    x: Any,
    weight: Any,
    bias: Any,
    seq_idx: Any,
    initial_states: Any,
    final_states_out: Any,
    silu_activation: bool,
) -> Any:
    """The convolution's output."""
    out = torch.empty_like(x)
    given = (x, weight, bias, seq_idx, initial_states, out, final_states_out, silu_activation)
    torch.ops.DaoAILab._causal_conv1d_fwd_cpp(*given)
    return out


def causal_conv1d_bwd_function(
    x: Any,
    weight: Any,
    bias: Any,
    dout: Any,
    seq_idx: Any,
    initial_states: Any,
    dfinal_states: Any,
    dx: Any,
    return_dinitial_states: bool,
    silu_activation: bool,
) -> Any:
    """The gradients of input, weight, bias and initial states."""
    dx = torch.empty_like(x) if dx is None else dx
    dweight = torch.zeros_like(weight, dtype=torch.float32)
    dbias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
    dinitial = _states(x, weight) if return_dinitial_states else None
    given = (x, weight, bias, dout, seq_idx, initial_states, dfinal_states)
    torch.ops.DaoAILab._causal_conv1d_bwd_cpp(*given, dx, dweight, dbias, dinitial, silu_activation)
    dweight = dweight.type_as(weight)
    dbias = None if dbias is None else dbias.type_as(bias)
    return dx, dweight, dbias, dinitial


def causal_conv1d_update_function(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any,
    silu_activation: bool,
    cache_seqlens: Any,
    conv_state_indices: Any,
) -> Any:
    """The output of one step of generation."""
    out = torch.empty_like(x)
    given = (x, conv_state, weight, bias, out, silu_activation, cache_seqlens, conv_state_indices)
    torch.ops.DaoAILab._causal_conv1d_update_cpp(*given)
    return out


def _states(x: Any, weight: Any) -> Any:
    size = (x.shape[0], weight.shape[1] - 1, x.shape[1])
    return torch.empty(size, device=x.device, dtype=x.dtype).transpose(1, 2)


def _dense(tensor: Any) -> Any:
    """A copy, if neither channels nor positions are contiguous."""
    is_dense = tensor is None or tensor.stride(2) == 1 or tensor.stride(1) == 1
    return tensor if is_dense else tensor.contiguous()


class _CausalConv1dFn(torch.autograd.Function):
    """Clause (3)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Any,
        weight: Any,
        bias: Any,
        seq_idx: Any,
        initial_states: Any,
        returns_states: bool,
        states: Any,
        activation: str | None,
    ) -> Any:
        x, initial_states = _dense(x), _dense(initial_states)
        bias = None if bias is None else bias.contiguous()
        seq_idx = None if seq_idx is None else seq_idx.contiguous()
        if not returns_states:
            states = None
        elif states is None:
            states = _states(x, weight)
        ctx.is_activated = activation in ("silu", "swish")
        given = (x, weight, bias, seq_idx, initial_states)
        out = causal_conv1d_fwd_function(*given, states, ctx.is_activated)
        ctx.save_for_backward(*given)
        ctx.returns_states = returns_states
        ctx.needs_states = initial_states is not None and initial_states.requires_grad
        return (out, states) if returns_states else out

    @staticmethod
    def backward(ctx: Any, dout: Any, *others: Any) -> Any:
        x, weight, bias, seq_idx, initial_states = ctx.saved_tensors
        dstates = others[0] if ctx.returns_states else None
        given = (x, weight, bias, _dense(dout), seq_idx, initial_states, dstates, None)
        dx, dweight, dbias, dinitial = causal_conv1d_bwd_function(
            *given, ctx.needs_states, ctx.is_activated
        )
        return dx, dweight, dbias, None, dinitial, None, None, None


def causal_conv1d_fn(
    x: Any,
    weight: Any,
    bias: Any = None,
    seq_idx: Any = None,
    initial_states: Any = None,
    return_final_states: bool = False,
    final_states_out: Any = None,
    activation: str | None = None,
) -> Any:
    """A causal convolution of each channel, of shape (batch, channels, positions)."""
    given = (x, weight, bias, seq_idx, initial_states, return_final_states, final_states_out)
    return _CausalConv1dFn.apply(*given, activation)  # type: ignore[no-untyped-call]


def causal_conv1d_update(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
) -> Any:
    """One step of generation: `x` may lack the dimension of positions."""
    is_flat = x.dim() == 2
    x = x.unsqueeze(-1) if is_flat else x
    rest = (activation in ("silu", "swish"), cache_seqlens, conv_state_indices)
    out = causal_conv1d_update_function(x, conv_state, weight, bias, *rest)
    return out.squeeze(-1) if is_flat else out


def _modules(gpu: Gpu) -> Mapping[str, Mapping[str, Any]]:
    if importlib.util.find_spec("causal_conv1d") is None:  # else the package registers them
        _register_operators()
    interface = {each.__name__: each for each in (causal_conv1d_fn, causal_conv1d_update)}
    functions: tuple[Callable[..., Any], ...] = (
        causal_conv1d_fwd_function,
        causal_conv1d_bwd_function,
        causal_conv1d_update_function,
    )
    varlen = lacking("causal_conv1d", ["causal_conv1d_varlen_states"], _INSTALL)
    return {
        "causal_conv1d_cuda": _EXTENSION,
        "causal_conv1d": {**interface, "__version__": STAND_IN.version},
        "causal_conv1d.causal_conv1d_interface": interface,
        "causal_conv1d.cpp_functions": {each.__name__: each for each in functions},
        "causal_conv1d.causal_conv1d_varlen": varlen,
    }


STAND_IN = StandIn(
    distribution="causal_conv1d",
    version="1.7.0",
    source="causal-conv1d 1.7.0, csrc/causal_conv1d.cpp and causal_conv1d/cpp_functions.py",
    modules=_modules,
    oldest="1.5.1",
    install=_INSTALL,
)
