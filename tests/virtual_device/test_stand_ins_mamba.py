"""Stand-ins for causal_conv1d and mamba_ssm. Figures are derived by hand from the sources cited."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import graphmem
from graphmem.virtual_device.messages import NoStandInPartError

HALF, FLOAT = 2, 4
BATCH, CHANNELS, LENGTH, WIDTH = 2, 64, 4096, 4
ACTIVATION = BATCH * CHANNELS * LENGTH * HALF
WEIGHT = CHANNELS * WIDTH * FLOAT
BIAS = 512  # 64 numbers of 4 bytes, in a block


def peak_since(before: int) -> int:
    return torch.cuda.max_memory_allocated() - before


def backward_peak(out: torch.Tensor, gradient: torch.Tensor) -> int:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out.backward(gradient)
    return peak_since(before)


def convolution(*, channels_last: bool) -> torch.Tensor:
    size = (BATCH, LENGTH, CHANNELS) if channels_last else (BATCH, CHANNELS, LENGTH)
    data = torch.zeros(size, device="cuda", dtype=torch.bfloat16)
    data = (data.transpose(1, 2) if channels_last else data).requires_grad_()
    weight = torch.zeros(CHANNELS, WIDTH, device="cuda", requires_grad=True)
    bias = torch.zeros(CHANNELS, device="cuda", requires_grad=True)
    convolve = importlib.import_module("causal_conv1d").causal_conv1d_fn
    before = torch.cuda.memory_allocated()
    out: torch.Tensor = convolve(data, weight, bias, activation="silu")
    assert torch.cuda.memory_allocated() - before == ACTIVATION
    return out


def gradient() -> torch.Tensor:
    return torch.zeros(BATCH, CHANNELS, LENGTH, device="cuda", dtype=torch.bfloat16)


def test_causal_convolution_allocates_its_output_and_three_gradients() -> None:
    """`causal_conv1d_bwd_function`: the weight's and the bias's in float32."""
    with graphmem.virtual_gpu("a100", stand_in=["causal_conv1d"]):
        out = convolution(channels_last=False)
        assert backward_peak(out, gradient()) == ACTIVATION + WEIGHT + BIAS


def test_causal_convolution_copies_a_gradient_of_another_layout() -> None:
    """`causal_conv1d_bwd`: `dout.transpose(-1, -2).contiguous()`."""
    with graphmem.virtual_gpu("a100", stand_in=["causal_conv1d"]):
        out = convolution(channels_last=True)
        assert backward_peak(out, gradient()) == 2 * ACTIVATION + WEIGHT + BIAS


def test_deterministic_causal_convolution_sums_partial_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`causal_conv1d_bwd`: one of each per sample, and the weight's sum before it is added."""
    monkeypatch.setenv("CAUSAL_CONV1D_DETERMINISTIC", "1")
    with graphmem.virtual_gpu("a100", stand_in=["causal_conv1d"]):
        out = convolution(channels_last=False)
        partial = BATCH * WEIGHT + BATCH * CHANNELS * FLOAT + WEIGHT
        assert backward_peak(out, gradient()) == ACTIVATION + WEIGHT + BIAS + partial


def scan(*, gated: bool) -> tuple[torch.Tensor, int]:
    """A scan of 4,096 positions with 16 states: its output, and the bytes that it keeps."""

    def data(*size: int) -> torch.Tensor:
        return torch.zeros(size, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def weight(*size: int) -> torch.Tensor:
        return torch.zeros(size, device="cuda", requires_grad=True)

    interface = importlib.import_module("mamba_ssm.ops.selective_scan_interface")
    u, delta, gate = (data(BATCH, CHANNELS, LENGTH) for _ in range(3))
    inputs, outputs = (data(BATCH, 16, LENGTH) for _ in range(2))
    options: dict[str, Any] = {"delta_softplus": True, "z": gate if gated else None}
    before = torch.cuda.memory_allocated()
    out = interface.selective_scan_fn(
        u, delta, weight(CHANNELS, 16), inputs, outputs, weight(CHANNELS), **options
    )
    weights = CHANNELS * 16 * FLOAT + BIAS
    return out, torch.cuda.memory_allocated() - before - weights


@pytest.mark.parametrize("gated", [False, True])
def test_selective_scan_allocates_what_its_source_says(gated: bool) -> None:
    """`selective_scan_fwd` and `selective_scan_bwd`: two chunks of 2,048 positions."""
    with graphmem.virtual_gpu("a100", stand_in=["mamba_ssm"]):
        out, kept = scan(gated=gated)
        states = BATCH * CHANNELS * 2 * (2 * 16) * FLOAT
        assert kept == states + (2 if gated else 1) * ACTIVATION

        of_data = (3 if gated else 2) * ACTIVATION
        of_weights = CHANNELS * 16 * FLOAT + BIAS
        of_projections = 2 * BATCH * 16 * LENGTH * (FLOAT + HALF)  # float32, then in their dtype
        assert backward_peak(out, gradient()) == of_data + of_weights + of_projections


def test_what_these_stand_ins_lack_is_rejected_by_name() -> None:
    with graphmem.virtual_gpu("a100", stand_in=["causal_conv1d", "mamba_ssm"]):
        combined = importlib.import_module("mamba_ssm.ops.triton.ssd_combined")
        with pytest.raises(NoStandInPartError, match="mamba_chunk_scan_combined"):
            combined.mamba_chunk_scan_combined()
        with pytest.raises(NoStandInPartError, match="mamba_inner_fn"):
            importlib.import_module("mamba_ssm").mamba_inner_fn()
