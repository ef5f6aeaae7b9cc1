"""`CausalBias` stands for a mask; nested tensors are refused with a way out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right

from graphmem import TrainingStep
from graphmem.errors import InputError
from graphmem.gpus import find_gpu
from graphmem.graph import StepGraph
from graphmem.trace import Options, trace


def traced(step: Any) -> StepGraph:
    return trace(lambda: TrainingStep(step=step), gpu=find_gpu("t4"), options=Options(steps=1))


def test_a_causal_bias_of_a_square_is_what_is_causal_says() -> None:
    """`CausalBias._dispatch` (torch/nn/attention/bias.py) passes `is_causal=True` and no mask."""

    def step(**how: Any) -> None:
        query = torch.ones(1, 2, 128, 8, device="cuda", requires_grad=True)
        attend = torch.nn.functional.scaled_dot_product_attention
        attend(query, query, query, **how).sum().backward()

    biased = traced(lambda: step(attn_mask=causal_lower_right(128, 128)))
    causal = traced(lambda: step(is_causal=True))

    assert [op.target for op in biased.ops] == [op.target for op in causal.ops]


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_are_refused_by_name(layout: torch.layout) -> None:
    rows = [torch.ones(3, 8), torch.ones(5, 8)]

    with pytest.raises(InputError, match="nested tensors cannot be followed") as refused:
        traced(lambda: torch.nested.nested_tensor(rows, layout=layout))
    assert "pad the sequences" in (refused.value.hint or "")


def test_an_encoder_that_nests_what_is_padded_is_refused_with_a_way_out() -> None:
    """`TransformerEncoder.forward` (torch/nn/modules/transformer.py), where it does not train."""

    def step(*, nested: bool) -> None:
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        encoder = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=nested).cuda().eval()
        mask = torch.tensor([[False, True], [False, False]], device="cuda")
        with torch.no_grad():
            encoder(torch.ones(2, 2, 16, device="cuda"), src_key_padding_mask=mask)

    with pytest.raises(InputError, match="nested tensors cannot be followed") as refused:
        traced(lambda: step(nested=True))
    assert "enable_nested_tensor=False" in (refused.value.hint or "")
    assert traced(lambda: step(nested=False)).ops
