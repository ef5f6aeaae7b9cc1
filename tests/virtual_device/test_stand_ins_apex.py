"""The stand-in for Apex's extensions. Figures are derived by hand from the sources cited."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator

import pytest
import torch

import graphmem
from graphmem.virtual_device.messages import NoStandInPartError
from tests.support.card_bytes import kept_and_peak

ROWS, WIDTH = 4096, 1024
BLOCK = 512  # what a few numbers take
HALF, FLOAT = 2, 4


@pytest.fixture(autouse=True)
def card() -> Iterator[None]:
    with graphmem.virtual_gpu("a100", stand_in=["apex"]):
        yield


@pytest.mark.parametrize(("prefix", "statistics", "weights"), [("", 2, 2), ("rms_", 1, 1)])
def test_norms_sum_gradients_of_their_weights_from_16_parts(
    prefix: str, statistics: int, weights: int
) -> None:
    """`layer_norm_affine`, `HostLayerNormGradient`; the RMS norm has no mean and no bias."""
    norm = importlib.import_module("fused_layer_norm_cuda")
    data = torch.zeros(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    parameters = [torch.zeros(WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(weights)]
    forward = getattr(norm, f"{prefix}forward_affine")
    made, kept, _ = kept_and_peak(lambda: forward(data, (WIDTH,), *parameters, 1e-5))
    assert kept == ROWS * WIDTH * HALF + statistics * ROWS * FLOAT

    backward = getattr(norm, f"{prefix}backward_affine")
    args = (data, *made[1:], data, (WIDTH,), *parameters, 1e-5, False)
    _, kept, peak = kept_and_peak(lambda: backward(*args))
    assert kept == ROWS * WIDTH * HALF + weights * WIDTH * HALF
    assert peak == kept + weights * 16 * WIDTH * FLOAT


def test_mixed_norms_answer_in_the_dtype_of_their_weights() -> None:
    """`layer_norm_affine_mixed_dtypes`, as Megatron calls it."""
    norm = importlib.import_module("fused_layer_norm_cuda")
    data = torch.zeros(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    weight = torch.zeros(WIDTH, device="cuda")
    out, _ = norm.rms_forward_affine_mixed_dtypes(data, (WIDTH,), weight, 1e-5)
    assert out.dtype == torch.float32


@pytest.mark.parametrize(("prefix", "weights"), [("", 2), ("rms_", 1)])
def test_other_norms_refuse_weights_of_another_dtype(prefix: str, weights: int) -> None:
    """`layer_norm_affine` makes the output like the input, and reads weights in its type."""
    forward = getattr(importlib.import_module("fused_layer_norm_cuda"), f"{prefix}forward_affine")
    data = torch.zeros(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    parameters = [torch.zeros(WIDTH, device="cuda") for _ in range(weights)]
    with pytest.raises(RuntimeError, match="expected scalar type BFloat16 but found Float"):
        forward(data, (WIDTH,), *parameters, 1e-5)
    assert forward(data, (WIDTH,), *(each.bfloat16() for each in parameters), 1e-5)[0].dtype == (
        torch.bfloat16
    )


def test_adam_allocates_nothing_and_lamb_two_norms() -> None:
    """`multi_tensor_lamb_cuda`: in chunks of 65,536 elements the larger tensor has 160.

    Of the parameters' norms both results stay; those of the updates come with their buffers.
    """
    amp = importlib.import_module("amp_C")
    flag = torch.zeros(1, device="cuda", dtype=torch.int)
    sizes = (160 * 65_536, 1000)
    lists = [[torch.zeros(size, device="cuda") for size in sizes] for _ in range(4)]
    adam = (0.1, 0.9, 0.99, 1e-8, 1, 1, 1, 0.0)
    _, kept, peak = kept_and_peak(lambda: amp.multi_tensor_adam(65_536, flag, lists, *adam))
    assert (kept, peak) == (0, 0)
    assert amp.update_scale_hysteresis(flag, flag, flag, flag, 2.0, 0.5, 1, 1) is flag

    norm = torch.zeros(1, device="cuda")
    lamb = (0.1, 0.9, 0.99, 1e-8, 1, 1, 0.0, 1, 1, norm, 1.0, False)
    _, kept, peak = kept_and_peak(lambda: amp.multi_tensor_lamb(65_536, flag, lists, *lamb))
    sums, of_chunks = 3 * BLOCK, 2 * 160 * FLOAT  # 320 floats; 160 for each of both tensors
    assert of_chunks == 2.5 * BLOCK
    assert (kept, peak) == (0, 2 * BLOCK + sums + 3 * BLOCK + 2 * BLOCK)


@pytest.mark.skipif(importlib.util.find_spec("apex") is not None, reason="apex is installed")
def test_without_apex_its_python_part_is_asked_for_by_name() -> None:
    optimizers = importlib.import_module("apex.optimizers")
    with pytest.raises(NoStandInPartError, match="FusedAdam"):
        optimizers.FusedAdam([])
