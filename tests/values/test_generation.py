"""`generate` of transformers: as many forward passes as in a real run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import graphmem
from graphmem import TrainingStep
from graphmem.errors import InputError

transformers = pytest.importorskip("transformers")

PROMPT, NEW = 7, 5
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "top_k": 10, "top_p": 0.9},
    "beams": {"num_beams": 3},
    "static cache": {"do_sample": False, "cache_implementation": "static"},
    "beams and a static cache": {"num_beams": 2, "cache_implementation": "static"},
    "no cache": {"do_sample": False, "use_cache": False},
}


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("way", WAYS)
def test_the_requested_number_of_tokens_is_generated(way: str, batch: int) -> None:
    passes: list[int] = []

    def build() -> TrainingStep:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).cuda().eval()
        model.model.register_forward_hook(lambda *call: passes.append(1))

        def step() -> None:
            ids = torch.randint(5, 60, (batch, PROMPT), device="cuda")
            mask = torch.ones_like(ids)
            model.generate(ids, attention_mask=mask, max_new_tokens=NEW, **WAYS[way])

        return TrainingStep(model=model, step=step)

    graphmem.analyze(build, gpu="a100-80gb", steps=1, bounds=False)
    assert len(passes) == NEW


def test_a_strict_error_in_a_library_names_the_calling_line() -> None:
    """Sampling chooses by `multinomial`, in a file of transformers'."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))

    def step() -> None:
        ids = torch.ones(1, PROMPT, dtype=torch.int64, device="cuda")
        model.cuda().generate(ids, max_new_tokens=2, do_sample=True)

    with pytest.raises(
        InputError, match=r"would be assumed at \S+, called from \S+test_generation"
    ):
        graphmem.analyze(lambda: TrainingStep(model=model, step=step), steps=1, strict=True)
