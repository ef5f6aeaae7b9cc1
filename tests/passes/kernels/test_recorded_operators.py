"""Single operators allocate what `tools/record_operators.py` recorded on an H100, event for event.

One tuple per family; calls recorded with both number types run with the named ones.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache

import pytest

from graphmem.torch_releases import installed_release
from tests.support.places import ROOT
from tools.verify_operators import Recorded, difference, predicted, read

RECORDING = ROOT / "fixtures" / "cuda" / "operators.jsonl.gz"

RECURRENT = (
    "lstm float32",
    "lstm bfloat16",
    "lstm_time_first float32",
    "lstm_time_first bfloat16",
    "lstm_bidirectional float32",
    "lstm_bidirectional bfloat16",
    "lstm_projected float32",
    "lstm_projected bfloat16",
    "lstm_small float32",
    "lstm_small bfloat16",
    "gru float32",
    "gru bfloat16",
)
CONVOLUTIONS = (
    "conv_mnist float32",
    "conv_cifar float32",
    "conv_depthwise float32",
    "conv_depthwise bfloat16",
    "conv_causal float32",
    "conv_strided bfloat16",
    "conv_deep bfloat16",
    "conv_unet bfloat16",
    "conv_dilated bfloat16",
    "conv_grouped bfloat16",
    "conv_pointwise bfloat16",
    "conv_transposed_2 float32",
    "conv_transposed bfloat16",
    "conv_deep_last bfloat16",
    "conv_unet_last bfloat16",
)
SORTS_AND_SCANS = (
    "cumsum_flat float32",
    "cumsum_flat bfloat16",
    "cumsum_integers float32",
    "sort_flat float32",
    "sort_flat bfloat16",
    "sort_bytes float32",
    "sort_integers float32",
    "sort_few_long_rows bfloat16",
    "sort_columns float32",
    "topk_rows_vocabulary float32",
    "topk_flat_many bfloat16",
    "topk_unsorted float32",
    "searchsorted float32",
)
CHOICES = (
    "masked_scatter float32",
    "unique_floats float32",
    "unique_floats bfloat16",
    "unique_inverse float32",
    "unique_consecutive float32",
    "repeat_interleave_tensor float32",
    "scatter_reduce_mean float32",
    "write_by_mask float32",
    "multinomial_one float32",
    "multinomial_many bfloat16",
    "multinomial_replaced float32",
    "randperm_small float32",
    "randperm_large float32",
    "bincount_wide float32",
    "histc float32",
    "median_all float32",
    "opinfo:nanmedian: float32",
)
TABLES = (
    "embedding_3072 float32",
    "embedding_many float32",
    "embedding_small_table float32",
    "embedding_small_table bfloat16",
    "embedding_wide bfloat16",
    "embedding_by_frequency float32",
    "embedding_bag_mean float32",
    "embedding_bag_max float32",
    "embedding_sparse float32",
    "index_rows float32",
    "index_put_accumulate float32",
    "index_two_dimensions float32",
)
NORMS_AND_LOSSES = (
    "group_norm float32",
    "group_norm_points float32",
    "group_norm_last bfloat16",
    "batch_norm_1d float32",
    "batch_norm_1d bfloat16",
    "batch_norm_last bfloat16",
    "cross_entropy_images float32",
    "soft_margin float32",
    "multi_margin float32",
    "opinfo:nn.functional.multilabel_margin_loss: float32",
    "ctc_loss float32",
    "ctc_loss_large float32",
)

ATTENTION = (
    "attention_flash_dropout bfloat16",
    "attention_flash_cross bfloat16",
    "attention_efficient_one_query float32",
    "attention_efficient_trained float32",
    "attention_efficient_256 bfloat16",
    "attention_cudnn_odd bfloat16",
    "attention_cudnn_one_query bfloat16",
    "attention_math_bool bfloat16",
    "attention_default_bool bfloat16",
    "attention_default_grouped bfloat16",
    "attention_default_grouped float32",
    "attention_default_trained bfloat16",
    "encoder_layer bfloat16",
    "multihead float32",
)
COMPOSITES = (
    "cdist float32",
    "bilinear bfloat16",
    "linear_strided float32",
    "allclose float32",
    "prod_all float32",
    "opinfo:dist: float32",
    "opinfo:isinf: bfloat16",
    "opinfo:mvlgamma:mvlgamma_p_3 float32",
    "opinfo:ldexp: float32",
    "opinfo:renorm: bfloat16",
    "opinfo:nn.functional.grid_sample: float32 #1",
    "opinfo:normal: float32",
    "bernoulli bfloat16",
    "opinfo:_chunk_cat: float32 #1",
    "opinfo:unfold: float32 #1",
    "opinfo:any: float32",
    "opinfo:scatter_reduce:mean float32",
    "opinfo:nn.functional.fractional_max_pool3d: float32",
)

DOES_AS_RECORDED = {
    "group_norm_last bfloat16": installed_release() < (2, 14),
    "opinfo:ldexp: float32": installed_release() >= (2, 11),
}
"""Whether the installed release does as the recording, made on 2.11; of all others, it does."""


@cache
def _recorded() -> dict[str, Recorded]:
    return {call.label: call for call in read(RECORDING)}


FAMILIES = (
    RECURRENT,
    CONVOLUTIONS,
    SORTS_AND_SCANS,
    CHOICES,
    TABLES,
    NORMS_AND_LOSSES,
    COMPOSITES,
    ATTENTION,
)


LABELS = [
    pytest.param(label, marks=pytest.mark.slow if i % 3 else [])
    for family in FAMILIES
    for i, label in enumerate(family)
]


@pytest.mark.parametrize("label", LABELS)
def test_an_operator_allocates_what_a_card_did(label: str) -> None:
    call = _recorded()[label]
    if not DOES_AS_RECORDED.get(label, True):
        pytest.skip("recorded on 2.11; this release does otherwise (docs/versions.md)")

    assert difference(call, predicted(call)) is None


@pytest.mark.parametrize(
    ("label", "events"), [("matrix_exp_one float32", 175), ("matrix_exp_few float32", 66)]
)
def test_matrix_exp_takes_what_a_card_took_until_it_has_squared_as_often(
    label: str, events: int
) -> None:
    """Of one matrix forwards and backwards; the recorded batch is not squared at all."""
    call = _recorded()[label]

    made = predicted(call)[:events]

    assert difference(replace(call, changes=call.changes[:events]), made) is None


@pytest.mark.parametrize("label", ["svd_full_one float32", "svd_full_batch float32"])
def test_singular_values_take_what_a_card_took_but_for_cusolvers_workspace(label: str) -> None:
    """It is the sixth block of each of two calls, and freed at once."""
    call = _recorded()[label]
    recorded = [(each.is_alloc, each.nbytes) for each in call.changes]
    half = len(recorded) // 2
    for start in (half, 0):
        del recorded[start + 5 : start + 7]

    assert [(each.is_alloc, each.nbytes) for each in predicted(call)] == recorded


@pytest.mark.slow
def test_raw_attention_allocates_what_a_card_did() -> None:
    """OpInfo's samples of it match the card's only if the list is imported with a card present."""
    command = ["-m", "tools.verify_operators", str(RECORDING), "--only", "torch.ops.aten._"]

    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (0, "10 equal, 0 different, 0 refused\n")


@pytest.mark.parametrize(
    ("label", "elements", "bytes_each"),
    [
        ("nonzero float32", 1 << 20, 8),
        ("where_positions float32", 1 << 20, 16),
        ("masked_select bfloat16", 1 << 20, 8),
    ],
)
def test_a_selection_agrees_given_how_much_is_selected(
    label: str, elements: int, bytes_each: int
) -> None:
    """The fourth allocation holds the positions: mask, count, storage of CUB, positions."""
    call = _recorded()[label]
    positions = [change.nbytes for change in call.changes if change.is_alloc][3]

    share = positions / bytes_each / elements
    assert difference(call, predicted(call, assume=[f"nonzero={share!r}"])) is None
