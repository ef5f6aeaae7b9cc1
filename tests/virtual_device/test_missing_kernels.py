"""Types for which a card has no kernel are refused on a virtual one, in PyTorch's words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import graphmem
from graphmem.virtual_device.missing_kernels import _KERNELS

HALF, BF16, LONG = torch.float16, torch.bfloat16, torch.int64
TYPES = (HALF, BF16, torch.float32, torch.float64, torch.uint8, torch.int32, LONG, torch.bool)

LISTED_AS = {
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "log_sigmoid_forward": "nn.functional.logsigmoid",
    "_adaptive_avg_pool2d": "nn.functional.adaptive_avg_pool2d",
    "max_pool2d_with_indices": "nn.functional.max_pool2d",
    "max_pool3d_with_indices": "nn.functional.max_pool3d",
    "upsample_bilinear2d": "nn.functional.upsample_bilinear",
    "_linalg_det": "linalg.det",
    "_linalg_slogdet": "linalg.slogdet",
    "_linalg_solve_ex": "linalg.solve_ex",
    "_linalg_svd": "linalg.svd",
    "_cdist_forward": "cdist",
    "_pdist_forward": "nn.functional.pdist",
    "_ctc_loss": "nn.functional.ctc_loss",
}
"""The names of operators in PyTorch's list of samples, where they are others."""
LENGTHS = torch.tensor([5]), torch.tensor([2])
NOT_LISTED = {"upsample_linear1d", "upsample_bicubic2d", "upsample_trilinear3d"}
BY_CAPABILITY = {("bmm", BF16)}
"""What PyTorch lists only where it finds a card."""


def test_the_types_are_those_that_pytorch_lists_for_a_card() -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    listed = {info.name: info for info in reversed(op_db)}
    checked = 0
    for packet, (types, _) in _KERNELS.items():
        name = packet.__name__.removesuffix("_")
        if name in NOT_LISTED:
            continue
        names = LISTED_AS.get(name, name), f"nn.functional.{name}", name.replace("_", ".", 1)
        info = next(listed[each] for each in names if each in listed)
        for dtype in TYPES:
            if (name, dtype) not in BY_CAPABILITY:
                assert (dtype in types) == (dtype in info.dtypesIfCUDA), (name, dtype)
        checked += 1
    assert checked == len(_KERNELS) - len(NOT_LISTED)


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device="cuda")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: ones(2, 2, dtype=LONG) @ ones(2, 2, dtype=LONG), "addmm_cuda.* 'Long'"),
        (lambda: torch.linalg.cholesky(ones(2, 2, dtype=HALF)), "cholesky_cusolver.* 'Half'"),
        (lambda: (ones(2) > 0) & ones(2), "bitwise_and_cuda.* 'Float'"),
        (lambda: F.softmax(ones(2, dtype=LONG), 0), "host_softmax.* 'Long'"),
        (
            lambda: F.ctc_loss(ones(5, 1, 4, dtype=HALF), ones(1, 2, dtype=LONG), *LENGTHS),
            "ctc_loss_cuda.* 'Half'",
        ),
        (lambda: torch.fft.rfft(ones(2, 192, dtype=HALF)), r"powers of two .* size of\[192\]"),
        (
            lambda: torch.stft(ones(400, dtype=BF16), 40, return_complex=True),
            "type: BFloat16",
        ),
    ],
)
def test_it_is_pytorchs_error(call: Callable[[], object], error: str) -> None:
    with graphmem.virtual_gpu("a100"), pytest.raises(RuntimeError, match=error):
        call()


def test_what_a_card_can_is_done() -> None:
    with graphmem.virtual_gpu("a100"):
        assert torch.fft.irfft(torch.fft.rfft(ones(2, 64, dtype=HALF))).shape == (2, 64)
        assert (ones(2, dtype=BF16) @ ones(2, 3, dtype=BF16)).dtype is BF16
        assert torch.linalg.cholesky(ones(0, 0, dtype=HALF)).numel() == 0
