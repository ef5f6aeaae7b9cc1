"""A cross-section of what `tools/breadth.py` tries: analysed, and equal to a real CPU run."""

from __future__ import annotations

from typing import Any

import pytest

from tools.breadth import all_cases
from tools.model_zoo.measuring import measure

CROSS_SECTION = (
    "constructs/labels that the loss closes over",
    "constructs/a constant that the loss closes over",
    "constructs/an averaged model",
    "constructs/a reference model",
    "constructs/two optimizers",
    "constructs/gradient penalty",
    "constructs/checkpointed layers",
    "constructs/tokens that are counted",
    "constructs/pieces of listed lengths",
    "constructs/repeated by lengths",
    "constructs/one hot without classes",
    "constructs/experts by a loop over hits",
    "constructs/orthogonal weights",
    "constructs/initialised by every function",
    "timm/mobilenetv3_small_050",
    "timm/vit_tiny_patch16_224",
    "timm/convnext_atto",
    "torch_geometric/GCN",
    "torch_geometric/GAT",
    "torch_geometric/GIN",
    "torch_geometric/GraphSAGE",
    "x-transformers/decoder",
    "x-transformers/encoder-decoder",
    "transformers/bert",
    "transformers/mixtral",
    "transformers/vit",
    "PEFT/LoraConfig",
    "PEFT/IA3Config",
    "PEFT/PromptTuningConfig",
    "PEFT/VeraConfig",
)


SLOW = {
    "constructs/a constant that the loss closes over",
    "constructs/an averaged model",
    "constructs/checkpointed layers",
    "constructs/pieces of listed lengths",
    "constructs/repeated by lengths",
    "constructs/one hot without classes",
    "constructs/orthogonal weights",
    "transformers/mixtral",
    "transformers/vit",
    "PEFT/IA3Config",
    "PEFT/PromptTuningConfig",
    "PEFT/VeraConfig",
}


@pytest.mark.parametrize(
    "wanted",
    [pytest.param(each, marks=pytest.mark.slow if each in SLOW else []) for each in CROSS_SECTION],
)
def test_a_model_is_analysed_and_agrees_with_a_real_step(wanted: str) -> None:
    family = wanted.partition("/")[0]
    pytest.importorskip({"constructs": "torch"}.get(family, family.replace("-", "_").lower()))
    (case,) = [case for case in all_cases() if f"{case.family}/{case.name}" == wanted]
    row: dict[str, Any] = {}
    for found in measure(case):
        row.update(found)
    assert row["cpu"] == "ok", row["cpu_message"]
    assert row["analysis"] == "ok", row["analysis_message"]
    assert row["agrees"] == "in every event", row["difference"]
    assert row["saved"] in (None, row["traced_saved"])
