"""Convolutions in whole steps recorded on an H100 (fixtures/cuda/steps)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphmem.passes.kernels.convolution_measured import measured_bytes
from graphmem.passes.kernels.convolution_plans import ConvolutionPlan, ConvolutionProduct
from graphmem.verify import compare, predict
from graphmem.verify.own_cases import own_case
from graphmem.verify.recording_files import read_recorded
from tests.support.places import FIXTURES

STEPS = FIXTURES / "cuda" / "steps"
RESULT, INPUT, WEIGHT = (
    ConvolutionProduct.RESULT,
    ConvolutionProduct.INPUT_GRADIENT,
    ConvolutionProduct.WEIGHT_GRADIENT,
)


def workspace(product: ConvolutionProduct, sizes: tuple[int, ...], dtype: str) -> int:
    """For (batch, channels, results, kernel, stride, padding, input image, output image)."""
    batch, channels, results, kernel, stride, padding, before, after = sizes
    plan = ConvolutionPlan(
        (batch, channels, before, before),
        (results, channels, kernel, kernel),
        (batch, results, after, after),
        stride=(stride, stride),
        padding=(padding, padding),
        dilation=(1, 1),
        groups=1,
        is_channels_last=False,
        dtype=dtype,
        multiprocessors=132,
    )
    measured = measured_bytes(plan, product)
    return plan.workspace_bytes(product) if measured is None else measured


@pytest.mark.parametrize(
    ("product", "sizes", "dtype", "recorded"),
    [
        (RESULT, (32, 2048, 512, 1, 1, 0, 7, 7), "bfloat16", 8_028_176),
        (INPUT, (32, 512, 2048, 1, 1, 0, 7, 7), "bfloat16", 8_028_176),
        (WEIGHT, (32, 1024, 256, 1, 1, 0, 14, 14), "bfloat16", 16_056_336),
        (WEIGHT, (32, 512, 128, 1, 1, 0, 28, 28), "bfloat16", 8_388_608),
        (WEIGHT, (32, 64, 64, 3, 1, 1, 56, 56), "bfloat16", 27_681_447),
        (WEIGHT, (32, 64, 128, 3, 2, 1, 56, 28), "bfloat16", 23_249_575),
        (RESULT, (32, 64, 64, 3, 1, 1, 56, 56), "float32", 25_837_584),
        (RESULT, (32, 64, 128, 3, 2, 1, 56, 28), "float32", 25_985_040),
        (RESULT, (32, 64, 128, 1, 2, 0, 56, 28), "float32", 0),
        (RESULT, (32, 3, 768, 16, 16, 0, 224, 14), "float32", 0),
        (WEIGHT, (32, 3, 768, 16, 16, 0, 224, 14), "float32", 48_103_568),
        (WEIGHT, (32, 64, 64, 3, 1, 1, 56, 56), "float32", 53_592_743),
        (WEIGHT, (32, 128, 128, 3, 1, 1, 28, 28), "float32", 34_538_151),
        (WEIGHT, (32, 256, 256, 3, 1, 1, 14, 14), "float32", 22_282_847),
    ],
)
def test_a_workspace_is_as_recorded(
    product: ConvolutionProduct, sizes: tuple[int, ...], dtype: str, recorded: int
) -> None:
    assert workspace(product, sizes, dtype) == recorded


def test_a_resnet_50_in_16_bits_has_the_recorded_peaks() -> None:
    path = STEPS / "resnet50_bf16.events.json.gz"
    case, recorded = own_case(path), read_recorded(path)
    prediction = predict(case.target, case.request, recorded.settings, driver=case.driver)
    comparison = compare(recorded, prediction, case.start)
    assert comparison.recorded_figures is not None
    assert comparison.predicted_figures == comparison.recorded_figures


def test_the_gradient_of_transposed_patches_is_copied() -> None:
    path = STEPS / "vit.events.json.gz"
    case, recorded = own_case(path), read_recorded(path)
    prediction = predict(case.target, case.request, recorded.settings, driver=case.driver)
    assert compare(recorded, prediction, case.start).is_equal


def test_a_channels_last_module_moves_and_casts_its_parameters_directly() -> None:
    path = STEPS / "resnet18_last_bf16.events.json.gz"
    case, recorded = own_case(path), read_recorded(path)
    request = replace(case.request, steps=1)
    prediction = predict(case.target, request, recorded.settings, driver=case.driver)
    difference = compare(recorded, prediction, case.start).first_difference
    assert difference is not None
    assert difference > 137  # cuDNN's 131 bytes in the first block, a known gap
