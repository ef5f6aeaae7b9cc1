"""What a card allocates inside the single operators of attention's fast paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.traced_step import traced

BATCH, STEPS, WIDTH, HEADS, INNER = 4, 6, 16, 2, 32
COLUMN = BATCH * STEPS * 4
WHOLE = COLUMN * WIDTH
SCORES = COLUMN * HEADS * STEPS
NORM = [WHOLE, COLUMN, COLUMN, -COLUMN, -COLUMN]  # the result, mean and deviation

# Queries, keys and values in one matrix, the result of the heads, their projection.
FUSED = [3 * WHOLE, WHOLE, WHOLE, -WHOLE, -3 * WHOLE]
# The same matrix, its parts by heads, scores, the result of the heads in rows, their projection.
IN_PRODUCTS = [3 * WHOLE, 3 * WHOLE, -3 * WHOLE, SCORES, WHOLE, WHOLE, -WHOLE]
FED_FORWARD = [COLUMN * INNER, WHOLE, -COLUMN * INNER]


def changes(make: Callable[[], nn.Module], inputs: int = 1, **options: Any) -> list[int]:
    """What a module allocates and frees, as negative numbers, on rows that attend to themselves."""

    def step() -> None:
        model = make().eval().cuda()
        x = torch.randn(BATCH, STEPS, WIDTH, device="cuda")
        with torch.no_grad():
            model(*[x] * inputs, **options)

    graph = traced(step, gpu="h100")
    start = next(op.tick for op in graph.ops if op.target == "aten.randn.default")
    born = [(each.birth, each.nbytes) for each in graph.storages]
    died = [(each.death, -each.nbytes) for each in graph.storages if each.death is not None]
    made, *later = [nbytes for tick, nbytes in sorted(born + died) if tick > start]
    assert made == WHOLE
    return later


def attention(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)


def layer(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, batch_first=True, **options)


def test_attention_without_weights_is_fused() -> None:
    assert changes(attention(), 3, need_weights=False)[: len(FUSED)] == FUSED


def test_weights_are_averaged_over_heads() -> None:
    average = [SCORES // HEADS, -SCORES, -3 * WHOLE]
    expected = [*IN_PRODUCTS, *average]
    assert changes(attention(), 3)[: len(expected)] == expected


def test_weights_of_each_head_are_the_scores() -> None:
    expected = [*IN_PRODUCTS, -3 * WHOLE]
    found = changes(attention(), 3, average_attn_weights=False)
    assert found[: len(expected)] == expected


def test_a_layer_of_an_encoder() -> None:
    rest = [*NORM, -WHOLE, *FED_FORWARD, *NORM, -WHOLE, -WHOLE]
    expected = [*FUSED, *rest]
    assert changes(layer())[: len(expected)] == expected


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_layer_that_normalises_first(activation: str) -> None:
    attended = [*NORM, *FUSED, -WHOLE]
    expected = [*attended, *NORM, *FED_FORWARD, -WHOLE, -WHOLE]
    found = changes(layer(norm_first=True, activation=activation))
    assert found[: len(expected)] == expected


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = layer()()

    def forward(self, x: torch.Tensor) -> Any:
        is_padding = torch.zeros(BATCH, STEPS, dtype=torch.bool, device="cuda")
        return self.layer(x, src_key_padding_mask=is_padding)


def test_a_mask_of_keys_prevents_fusing() -> None:
    booleans, numbers = BATCH * STEPS, COLUMN
    softmax = [booleans, SCORES, -booleans, -SCORES]
    attended = [*IN_PRODUCTS[:4], *softmax, -SCORES, *IN_PRODUCTS[4:], -3 * WHOLE]
    expected = [booleans, numbers, *attended, *NORM]
    assert changes(Padded)[: len(expected)] == expected


LENGTHS = (6, 4, 3, 2)


@pytest.mark.parametrize("is_known", [True, False])
def test_an_encoder_leaves_padding_out(is_known: bool) -> None:
    """Its layers run on the rows of all sequences; unknown lengths are assumed the longest."""

    def step() -> None:
        encoder = nn.TransformerEncoder(layer()(), 1).eval().cuda()
        lengths = torch.tensor(LENGTHS).cuda()
        if not is_known:
            lengths = torch.randn(1 << 17, device="cuda")[:BATCH]  # too many to have values
        padding = torch.arange(STEPS).cuda() >= lengths[:, None]
        with torch.no_grad():
            made = encoder(torch.randn(BATCH, STEPS, WIDTH, device="cuda"), None, padding)
        assert made.shape == (BATCH, STEPS, WIDTH)

    graph = traced(step, gpu="h100")
    packed = (sum(LENGTHS) if is_known else BATCH * STEPS) * WIDTH * 4
    made = [each.nbytes for each in graph.storages]
    start = made.index(3 * packed)
    # The rows; of a layer, queries, keys and values, the result of the heads, its projection.
    assert made[start - 1 : start + 3] == [packed, 3 * packed, packed, packed]
    assert made[-1] == WHOLE
