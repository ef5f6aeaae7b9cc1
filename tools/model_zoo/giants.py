"""Large models from their published configurations, analysed without a card.

    python -m tools.model_zoo.giants [NAME …]     each in a separate process

Rows go into `giants.json` beside this file, from which `tools.breadth table` reads them.

One step of AdamW on one sequence, in bf16. Nothing is downloaded: the tables below hold the values
of each published `config.json` that differ from the library's defaults.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from graphmem import TrainingStep, analyze

SEQUENCE = 2048
GPU = "b200"
ROWS = Path(__file__).with_name("giants.json")

Row = dict[str, Any]

LANGUAGE: dict[str, tuple[str, dict[str, Any]]] = {
    # meta-llama/Llama-3.1-405B
    "Llama-3-405B": (
        "Llama",
        {
            "vocab_size": 128256,
            "hidden_size": 16384,
            "intermediate_size": 53248,
            "num_hidden_layers": 126,
            "num_attention_heads": 128,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rope_theta": 500000.0,
        },
    ),
    # mistralai/Mixtral-8x7B-v0.1: the library's defaults
    "Mixtral-8x7B": ("Mixtral", {"rope_theta": 1e6}),
    # mistralai/Mixtral-8x22B-v0.1
    "Mixtral-8x22B": (
        "Mixtral",
        {
            "hidden_size": 6144,
            "intermediate_size": 16384,
            "num_hidden_layers": 56,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "vocab_size": 32000,
            "max_position_embeddings": 65536,
            "rope_theta": 1e6,
        },
    ),
    # deepseek-ai/DeepSeek-V3: the library's defaults
    "DeepSeek-V3": ("DeepseekV3", {}),
    # openai/gpt-oss-120b: the library's defaults
    "GPT-OSS-120B": ("GptOss", {"num_hidden_layers": 36, "num_local_experts": 128}),
    # google/gemma-3-27b, its language model
    "Gemma 3 27B": (
        "Gemma3",
        {
            "vocab_size": 262208,
            "hidden_size": 5376,
            "intermediate_size": 21504,
            "num_hidden_layers": 62,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "query_pre_attn_scalar": 168,
            "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
    ),
}
TEXT_CONFIGS = {"Gemma3": "Gemma3TextConfig"}

WHISPER = {  # openai/whisper-large-v3
    "vocab_size": 51866,
    "num_mel_bins": 128,
    "d_model": 1280,
    "encoder_layers": 32,
    "decoder_layers": 32,
    "encoder_attention_heads": 20,
    "decoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "decoder_ffn_dim": 5120,
}
VIT = {  # Dehghani et al., Scaling Vision Transformers to 22 Billion Parameters, table 1
    "hidden_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 48,
    "intermediate_size": 24576,
    "patch_size": 14,
    "image_size": 224,
    "num_labels": 1000,
}
UNET: Row = {  # stabilityai/stable-diffusion-xl-base-1.0, unet/config.json
    "sample_size": 128,
    "in_channels": 4,
    "out_channels": 4,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "block_out_channels": (320, 640, 1280),
    "layers_per_block": 2,
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "transformer_layers_per_block": (1, 2, 10),
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
    "use_linear_projection": True,
}


def language_model(name: str, sequence: int = SEQUENCE) -> TrainingStep:
    """A causal language model with its mask and labels."""
    import transformers

    prefix, values = LANGUAGE[name]
    config = getattr(transformers, TEXT_CONFIGS.get(prefix, f"{prefix}Config"))(**values)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config)
    ids = torch.randint(0, config.vocab_size, (1, sequence))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    return TrainingStep(model=model, inputs=inputs)


def whisper() -> TrainingStep:
    """Whisper-large on thirty seconds of sound and 448 tokens."""
    import transformers

    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**WHISPER))
    sound, labels = torch.randn(1, 128, 3000), torch.randint(0, 50000, (1, 448))
    return TrainingStep(model=model, inputs={"input_features": sound, "labels": labels})


def vision_transformer() -> TrainingStep:
    """ViT-22B on an image of 224 pixels."""
    import transformers

    model = transformers.ViTForImageClassification(transformers.ViTConfig(**VIT))
    inputs = {"pixel_values": torch.randn(1, 3, 224, 224), "labels": torch.tensor([1])}
    return TrainingStep(model=model, inputs=inputs)


def unet() -> TrainingStep:
    """SDXL's UNet on the latents of an image of 1024 pixels."""
    import diffusers

    make: Any = diffusers.UNet2DConditionModel
    model = make(**UNET)
    more = {"text_embeds": torch.randn(1, 1280), "time_ids": torch.randn(1, 6)}
    inputs = {
        "sample": torch.randn(1, 4, 128, 128),
        "timestep": torch.tensor([10]),
        "encoder_hidden_states": torch.randn(1, 77, 2048),
        "added_cond_kwargs": more,
    }
    return TrainingStep(
        model=model, inputs=inputs, loss=lambda output: output.sample.float().pow(2).mean()
    )


GIANTS: dict[str, Callable[[], TrainingStep]] = {
    **{name: (lambda name=name: language_model(name)) for name in LANGUAGE},  # type: ignore[misc]
    "Whisper-large": whisper,
    "ViT-22B": vision_transformer,
    "SDXL's UNet": unet,
}


def in_bf16(make: Callable[[], TrainingStep]) -> Callable[[], TrainingStep]:
    """A step created on the card, with weights and inputs in bf16."""

    def build() -> TrainingStep:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("cuda"):
                step = make()
        finally:
            torch.set_default_dtype(before)
        step.optimizer = torch.optim.AdamW
        return step

    return build


def measure(name: str) -> Row:
    """The analysis's figures, its duration, and the process's peak resident memory."""
    begun, cpu = time.monotonic(), time.process_time()
    report = analyze(in_bf16(GIANTS[name]), gpu=GPU, steps=1, bounds=False)
    model = report.model
    return {
        "model": name,
        "parameters": model.parameters,
        "states": model.parameter_bytes + model.gradient_bytes + model.optimizer_state_bytes,
        "peak": report.peak.allocated,
        "operations": report.operations,
        "seconds": time.monotonic() - begun,
        "cpu_seconds": time.process_time() - cpu,
        "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "assumptions": [f"{each.what}: {each.value}" for each in report.assumptions],
    }


def table(rows: list[Row]) -> Iterator[str]:
    """The section of docs/models.md."""
    yield _HEAD
    yield "| model | parameters | states | peak | operations | CPU seconds | resident |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for row in rows:
        sizes = (f"{row[what] / (1 << 30):,.1f} GiB" for what in ("states", "peak"))
        yield (
            f"| {row['model']} | {row['parameters']:,} | {' | '.join(sizes)} | "
            f"{row['operations']:,} | {row['cpu_seconds']:.0f} | "
            f"{row['resident'] / (1 << 30):.1f} GiB |"
        )


_HEAD = f"""## Giants

Real configurations, one step in bf16 with AdamW on a {GPU.upper()}; language models at batch 1,
{SEQUENCE:,} tokens. Made by `python -m tools.model_zoo.giants [NAME …]`.
"""


def known() -> list[Row]:
    """The existing rows, in the order of `GIANTS`."""
    rows: dict[str, Row] = json.loads(ROWS.read_text()) if ROWS.exists() else {}
    return [rows[name] for name in GIANTS if name in rows]


def _keep(row: Row) -> None:
    rows = {each["model"]: each for each in [*known(), row]}
    ROWS.write_text(json.dumps(rows, indent=1) + "\n")


def main() -> None:
    """Measure the named models, or all."""
    for name in sys.argv[1:] or GIANTS:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            row = pool.apply(measure, (name,))
        _keep(row)
        print(row, flush=True)


if __name__ == "__main__":
    main()
