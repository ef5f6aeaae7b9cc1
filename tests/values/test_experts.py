"""Mixtures of experts: every expert trains, and balanced routing equals such a real run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import graphmem
from graphmem import TrainingStep
from graphmem.gpus import find_gpu
from graphmem.graph import OwnerKind
from graphmem.report.text import report_as_text
from graphmem.trace import TraceOptions, trace
from tests.support import oracle

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 64,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 2,
}
LATENT: dict[str, Any] = {
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Mixtral": ("Mixtral", {"num_local_experts": 4, "output_router_logits": True}),
    "Qwen3-MoE": ("Qwen3Moe", {"head_dim": 8, "num_experts": 4, "moe_intermediate_size": 24}),
    "DeepSeek-V3": (
        "DeepseekV3",
        {
            **LATENT,
            "n_routed_experts": 8,
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": 24,
            "first_k_dense_replace": 1,
        },
    ),
    "GPT-OSS": (
        "GptOss",
        {"head_dim": 8, "num_local_experts": 4, "rope_scaling": None, "sliding_window": 4},
    ),
}
TWO_STEPS = TraceOptions(steps=2, keep_grads=True, subclass_like=True)


def model_of(name: str) -> torch.nn.Module:
    prefix, sizes = MODELS[name]
    config = getattr(transformers, f"{prefix}Config")(**{**SMALL, **sizes})
    model: torch.nn.Module = getattr(transformers, f"{prefix}ForCausalLM")(config)
    return model


def build_of(name: str) -> Callable[[], TrainingStep]:
    def build() -> TrainingStep:
        torch.manual_seed(0)
        model = model_of(name)
        ids = torch.randint(10, 60, (2, 16))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
        return TrainingStep(model=model, inputs=inputs, optimizer=torch.optim.AdamW)

    return build


class Balanced(TorchDispatchMode):
    """A real run whose routers send every expert equally many tokens: experts take turns."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.topk.default:
            turns = torch.arange(result[1].numel()) % args[0].shape[-1]
            result[1].copy_(turns.view(result[1].shape))
        return result


def models(*quick: str) -> list[Any]:
    """The quick ones of one test are slow in the other."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=[] if name in quick else slow) for name in MODELS]


@pytest.mark.parametrize("name", models("Mixtral", "DeepSeek-V3"))
def test_a_real_run_with_balanced_routing_agrees_in_every_storage(name: str) -> None:
    with Balanced():
        real = oracle.run(build_of(name), TWO_STEPS)
    oracle.assert_agree(real, oracle.traced_events(build_of(name), TWO_STEPS))


@pytest.mark.parametrize("name", models("Qwen3-MoE", "GPT-OSS"))
def test_every_expert_has_gradients_and_optimizer_state(name: str) -> None:
    weights = {key: value.nbytes for key, value in model_of(name).named_parameters()}
    graph = trace(build_of(name), gpu=find_gpu("a100-80gb"), options=TraceOptions(steps=1))
    gradients: dict[str, int] = {}
    for storage in graph.storages:
        owned = storage.owned_as(OwnerKind.GRADIENT)
        if owned is not None:
            gradients[owned.name.removesuffix(".grad")] = storage.nbytes
    assert gradients == weights
    report = graphmem.analyze(build_of(name), gpu="a100-80gb", steps=1, bounds=False)
    assert report.model.optimizer_state_bytes == 2 * sum(weights.values())


class TestRouting:
    """8 experts, 2 for each of 4096 tokens, each expert's hidden rows 14336 wide, in bf16."""

    @staticmethod
    def build() -> TrainingStep:
        config = transformers.MixtralConfig(num_hidden_layers=1, torch_dtype="bfloat16")
        with torch.device("cuda"):
            model = transformers.MixtralForCausalLM(config).bfloat16()
            if hasattr(model, "set_experts_implementation"):  # from 5.0 on, grouped products
                model.set_experts_implementation("eager")
            ids = torch.randint(0, 32000, (2, 2048))
        return TrainingStep(model=model, inputs={"input_ids": ids, "labels": ids})

    def test_the_report_states_the_peak_of_balanced_and_worst_routing(self) -> None:
        report = graphmem.analyze(self.build, gpu="b200", steps=1)
        assert report.worst_routing_peak is not None
        assert report.worst_routing_peak >= report.peak.allocated
        assert "if all go to the same experts" in " ".join(report_as_text(report).split())
