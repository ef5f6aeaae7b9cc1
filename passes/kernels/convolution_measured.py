"""The workspaces that cuDNN took for the convolutions of common networks on a Hopper card.

23,867 calls of convolutions, those of 239 networks of torchvision, timm and others in the usual
batches, dtypes and layouts, ran on an NVIDIA H200 (compute capability 9.0, 132 multiprocessors,
torch 2.11.0+cu130, cuDNN 9.19.0, TF32 allowed, no benchmark) under `tools/record_convolutions.py`:
fixtures/cuda/convolutions.txt.xz. `tools/measured_convolutions.py` writes the same figures into
`convolutions.txt.gz` beside this file, which is read when the first convolution on such a card is
looked up. A line is a convolution as cuDNN sees it, then its calls, separated by tabs:

    CHANNELSxSPACE WEIGHT STRIDE PADDING DILATION GROUPS    DTYPE LAYOUT BATCH RESULT INPUT WEIGHT

with the bytes for the result, the gradient of the input and that of the weight. To cuDNN a
transposed convolution is the gradient of another one (aten/src/ATen/native/cudnn/ConvShared.cpp,
`cudnn_convolution_transpose_forward`), and one of rows is one of images that are one high
(aten/src/ATen/native/Convolution.cpp, `view4d`).

Only a card with as many multiprocessors is looked up, because sums are cut into as many slices as
keep them busy. An H100 of the same number was recorded in fixtures/cuda/steps: see
docs/kernel_memory.md for how far both agree.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from .convolution_plans import ConvolutionPlan, ConvolutionProduct

MEASURED = Path(__file__).with_name("convolutions.txt.gz")
MULTIPROCESSORS = 132
_IMAGE = 4  # dimensions
_PRODUCTS = tuple(ConvolutionProduct)


def measured_bytes(plan: ConvolutionPlan, product: ConvolutionProduct) -> int | None:
    """The workspace that was measured; None if this convolution was not."""
    if plan.multiprocessors != MULTIPROCESSORS:
        return None
    found = _calls(described(plan)).get(call_of(plan))
    return None if found is None else found[_PRODUCTS.index(product)]


def described(plan: ConvolutionPlan) -> str:
    """The convolution of a batch of any size, as the file has it."""
    steps = (plan.stride, plan.padding, plan.dilation)
    space, kernel = plan.source[2:], plan.weight[2:]
    if len(plan.source) < _IMAGE:
        space, kernel = (1, *space), (1, *kernel)
        steps = ((1, *plan.stride), (0, *plan.padding), (1, *plan.dilation))
    shapes = ((plan.source[1], *space), (*plan.weight[:2], *kernel), *steps)
    return " ".join([*map(_by, shapes), str(plan.groups)])


def call_of(plan: ConvolutionPlan) -> str:
    """The dtype, the layout and the batch."""
    layout = "last" if plan.is_channels_last else "planes"
    return f"{plan.dtype} {layout} {plan.source[0]}"


def _by(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


@cache
def _calls(convolution: str) -> Mapping[str, tuple[int, ...]]:
    """The three workspaces of each measured call of a convolution."""
    found = {}
    for text in filter(None, _lines().get(convolution, "").split("\t")):
        call, *figures = text.rsplit(" ", len(_PRODUCTS))
        found[call] = tuple(map(int, figures))
    return found


@cache
def _lines() -> Mapping[str, str]:
    """The calls of each convolution, as text."""
    text = gzip.decompress(MEASURED.read_bytes()).decode()
    pairs = (line.partition("\t") for line in text.splitlines())
    return {convolution: calls for convolution, _, calls in pairs}
