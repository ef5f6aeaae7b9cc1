"""Operands whose types or devices PyTorch refuses are refused on a virtual card, in its words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import graphmem

Make = Callable[..., torch.Tensor]


def told(call: Callable[[Make], Any], device: str) -> str:
    """The error of a call; "" if there is none."""

    def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.ones(shape, dtype=dtype, device=device)

    try:
        call(ones)
    except RuntimeError as error:
        return str(error).replace("torch.cuda.", "torch.")
    return ""


HALF, LONG, BOOL = torch.float16, torch.int64, torch.bool


@pytest.mark.parametrize(
    "call",
    [
        lambda ones: F.linear(ones(3, 4, dtype=HALF), ones(5, 4), ones(5)),
        lambda ones: F.linear(ones(3, 4, dtype=HALF), ones(5, 4, dtype=HALF), ones(5)),
        lambda ones: ones(3, 4, dtype=HALF) @ ones(4),
        lambda ones: ones(2, 3, 4, dtype=HALF) @ ones(2, 4, 3),
        lambda ones: F.scaled_dot_product_attention(
            *[ones(1, 2, 8, 8, dtype=HALF)] * 2, ones(1, 2, 8, 8)
        ),
        lambda ones: F.embedding(ones(3), ones(4, 4)),
        lambda ones: F.binary_cross_entropy(ones(4), ones(4, dtype=LONG)),
        lambda ones: F.nll_loss(ones(4, 4, dtype=HALF), ones(4, dtype=LONG), weight=ones(4)),
        lambda ones: ones(4, 4).index_put_((ones(2, dtype=LONG),), ones(2, 4, dtype=HALF)),
        lambda ones: ones(4, 4).masked_select(ones(4, 4, dtype=LONG)),
        lambda ones: ones(4, dtype=LONG).mul_(0.5),
        lambda ones: 1 - ones(4, dtype=BOOL),
        lambda ones: ones(4, dtype=LONG).std(),
        lambda ones: F.one_hot(ones(4), 4),
        lambda ones: ones(1, 4).expand(3, 4).add_(1),
        lambda ones: ones(4).expand(3, 4).copy_(ones(3, 4)),
    ],
)
def test_what_pytorch_refuses_on_the_host_is_refused_on_a_card(call: Callable[[Make], Any]) -> None:
    on_host = told(call, "cpu")
    with graphmem.virtual_gpu("a100"):
        on_card = told(call, "cuda")

    assert on_host
    assert on_card.partition("(")[0] == on_host.partition("(")[0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda ones: ones(3, 4, dtype=HALF) @ ones(4, 5),
            "expected mat1 and mat2 to have the same dtype, but got: c10::Half != float",
        ),
        (
            lambda ones: F.conv2d(ones(1, 3, 8, 8, dtype=HALF), ones(4, 3, 3, 3)),
            "Input type (torch.HalfTensor) and weight type (torch.FloatTensor) should be the same",
        ),
        (
            lambda ones: F.layer_norm(ones(3, 4, dtype=HALF), (4,), ones(4), ones(4)),
            "expected scalar type Half but found Float",
        ),
        (
            lambda ones: F.group_norm(ones(3, 4), 2, ones(4, dtype=HALF)),
            "expected scalar type Float but found Half",
        ),
    ],
)
def test_a_card_has_words_of_its_own(call: Callable[[Make], Any], words: str) -> None:
    """cuda/Blas.cpp, `addmm_out_cuda_impl`; Convolution.cpp; for norms pytorch#135969."""
    with graphmem.virtual_gpu("a100"):
        assert told(call, "cuda") == words


@pytest.mark.parametrize(
    "call",
    [
        lambda ones: ones(4, 4).index_put_((ones(2, dtype=LONG),), ones(4)),
        lambda ones: ones(4, 4).index_put_((ones(4, 4, dtype=BOOL),), ones()),
        lambda ones: F.embedding(ones(3, dtype=torch.int32), ones(4, 4, dtype=HALF)),
        lambda ones: F.cross_entropy(ones(4, 4, dtype=HALF), ones(4, dtype=LONG)),
        lambda ones: ones(4, dtype=HALF).add_(ones(4)).mul_(ones(4, dtype=LONG)),
        lambda ones: ones(4, dtype=LONG).mul_(2).sub_(ones(4, dtype=torch.int32)),
        lambda ones: 1 - ones(4, dtype=LONG),
        lambda ones: ones(1, 4).expand(3, 4).fill_(2),
        lambda ones: ones(4, 4).index_add_(0, ones(2, dtype=LONG), ones(4).expand(2, 4)),
        lambda ones: ones(3, 4).add_(ones(1, 4).expand(3, 4)).copy_(ones(4).expand(3, 4)),
        lambda ones: torch.where(ones(4, dtype=torch.uint8), ones(4), ones(4, dtype=HALF)),
        lambda ones: F.scaled_dot_product_attention(
            *[ones(1, 2, 8, 8, dtype=HALF)] * 3, attn_mask=ones(8, 8, dtype=BOOL)
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:where received a uint8 condition")
def test_what_pytorch_takes_is_taken(call: Callable[[Make], Any]) -> None:
    assert not told(call, "cpu")
    with graphmem.virtual_gpu("a100"):
        assert not told(call, "cuda")


def test_operands_on_two_devices_are_refused() -> None:
    """Convolution.cpp; TensorAdvancedIndexing.cpp, `make_info`; ATen/core/Generator.h."""
    with graphmem.virtual_gpu("a100"):
        image, layer = torch.ones(1, 3, 8, 8), torch.nn.Conv2d(3, 4, 3)
        with pytest.raises(RuntimeError, match=r"Input type \(torch.cuda.FloatTensor\) and weight"):
            layer(image.cuda())
        with pytest.raises(RuntimeError, match=r"same device as the indexed tensor \(cpu\)"):
            image[torch.zeros(2, dtype=LONG, device="cuda")]
        with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
            torch.randn(2, device="cuda", generator=torch.Generator())

        assert layer.cuda()(image.cuda()).is_cuda
        assert image.cuda()[torch.zeros(2, dtype=LONG)].is_cuda
        assert torch.randn(2, device="cuda", generator=torch.Generator("cuda")).is_cuda
        assert not torch.randn(2, generator=torch.Generator()).is_cuda
