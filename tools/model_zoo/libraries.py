"""Models of timm, torchvision, diffusers, PEFT, torch_geometric and x-transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from graphmem import TrainingStep
from tools.model_zoo.case import Case, seeded

TIMM = (
    "resnet50 densenet121 swin_tiny_patch4_window7_224 convnext_atto maxvit_nano_rw_256 "
    "beit_base_patch16_224 eva02_tiny_patch14_224 cait_xxs24_224 crossvit_tiny_240 mixer_s32_224 "
    "poolformer_s12 twins_pcpvt_small levit_128s mobilevit_xxs fastvit_t8 xcit_nano_12_p16_224 "
    "davit_tiny focalnet_tiny_srf botnet26t_256 sam2_hiera_tiny naflexvit_base_patch16_gap "
    "tnt_s_patch16_224 repvgg_a0 tiny_vit_5m_224 samvit_base_patch16_224 volo_d1_224 "
    "hiera_tiny_224 vit_tiny_patch16_224 deit_tiny_patch16_224 efficientnet_b0 "
    "mobilenetv3_small_050 regnetx_002 ghostnet_050 edgenext_xx_small efficientformer_l1 "
    "coatnet_pico_rw_224 pit_ti_224 visformer_tiny res2net50_26w_4s"
).split()
TORCHVISION = (
    "alexnet squeezenet1_1 shufflenet_v2_x0_5 googlenet swin_v2_t vit_b_16 maxvit_t convnext_tiny "
    "efficientnet_b0"
).split()
DETECTORS = (
    "fasterrcnn_resnet50_fpn fasterrcnn_mobilenet_v3_large_320_fpn retinanet_resnet50_fpn "
    "maskrcnn_resnet50_fpn ssdlite320_mobilenet_v3_large"
).split()
SEGMENTATION = "deeplabv3_resnet50 fcn_resnet50 lraspp_mobilenet_v3_large".split()
VIDEO = "r3d_18 mvit_v1_b swin3d_t s3d".split()


def cases() -> Iterator[Case]:
    """Every model named here."""
    for name in TIMM:
        yield Case("timm", name, seeded(partial(_timm, name)))
    for name in TORCHVISION:
        yield Case("torchvision", name, seeded(partial(_classifier, name)))
    for name in DETECTORS:
        yield Case("torchvision", f"detection.{name}", seeded(partial(_detector, name)))
    for name in SEGMENTATION:
        yield Case("torchvision", f"segmentation.{name}", seeded(partial(_segmenter, name)))
    for name in VIDEO:
        yield Case("torchvision", f"video.{name}", seeded(partial(_video, name)))
    for name, make in _DIFFUSERS.items():
        yield Case("diffusers", name, seeded(make))
    for name in PEFT:
        yield Case("PEFT", name, seeded(partial(_peft, name)))
    for name in ("GCN", "GAT", "GIN", "GraphSAGE"):
        yield Case("torch_geometric", name, seeded(partial(_graph_network, name)))
    yield Case("x-transformers", "decoder", seeded(_x_decoder))
    yield Case("x-transformers", "encoder-decoder", seeded(_x_encoder_decoder))


def _timm(name: str) -> Any:
    import timm

    model: Any = timm.create_model(name, num_classes=10)
    size = model.default_cfg["input_size"]
    images, labels = torch.randn(2, *size), torch.randint(0, 10, (2,))
    return model.train(), images, partial(_classified, labels)


def _classified(labels: torch.Tensor, output: Any) -> torch.Tensor:
    """The loss of a classifier, with labels held on the host by the caller."""
    logits = output[0] if isinstance(output, (tuple, list)) else output
    while logits.dim() > 2:
        logits = logits.flatten(2).mean(-1)
    return functional.cross_entropy(logits, labels.to(logits.device))


def _classifier(name: str) -> Any:
    import torchvision

    options = {"init_weights": True} if name == "googlenet" else {}
    model = torchvision.models.get_model(name, weights=None, num_classes=10, **options)
    return model.train(), torch.randn(2, 3, 224, 224), partial(_classified, torch.zeros(2).long())


def _detector(name: str) -> Any:
    import torchvision

    model = torchvision.models.get_model(
        f"{name}", weights=None, weights_backbone=None, num_classes=5
    )
    boxes = torch.tensor([[10.0, 10.0, 60.0, 60.0], [30.0, 40.0, 90.0, 100.0]])
    target = {"boxes": boxes, "labels": torch.tensor([1, 2])}
    if name.startswith("maskrcnn"):
        target["masks"] = torch.ones(2, 128, 128, dtype=torch.uint8)
    images = [torch.rand(3, 128, 128) for _ in range(2)]
    targets = [dict(target) for _ in range(2)]
    return TrainingStep(model.train(), (images, targets), lambda losses: sum(losses.values()))


def _segmenter(name: str) -> Any:
    import torchvision

    model = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=5)
    labels = torch.zeros(2, 64, 64, dtype=torch.int64)
    return (
        model.train(),
        torch.randn(2, 3, 64, 64),
        lambda output: functional.cross_entropy(output["out"], labels.to(output["out"].device)),
    )


def _video(name: str) -> Any:
    import torchvision

    model = torchvision.models.get_model(name, weights=None, num_classes=5)
    side, frames = {"mvit_v1_b": (224, 16), "s3d": (224, 14)}.get(name, (64, 4))
    return (
        model.train(),
        torch.randn(1, 3, frames, side, side),
        partial(_classified, torch.zeros(1, dtype=torch.int64)),
    )


# ---- diffusers -----------------------------------------------------------------------------------


def _diffusion(kind: str, sizes: dict[str, Any], inputs: dict[str, Any]) -> Any:
    import diffusers

    model = getattr(diffusers, kind)(**sizes)
    made = {name: value() if callable(value) else value for name, value in inputs.items()}
    return TrainingStep(model.train(), made, lambda output: output[0].float().square().mean())


def _noise(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*shape)


def _times(*values: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.tensor(values)


_IMAGE = {"sample": _noise(2, 4, 16, 16), "timestep": _times(3, 5)}
_BLOCKS = {"block_out_channels": (32, 64), "layers_per_block": 1, "sample_size": 16}
_DIFFUSERS: dict[str, Callable[[], Any]] = {
    "UNet2D": partial(
        _diffusion,
        "UNet2DModel",
        {
            **_BLOCKS,
            "in_channels": 4,
            "out_channels": 4,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        _IMAGE,
    ),
    "UNet2DCondition": partial(
        _diffusion,
        "UNet2DConditionModel",
        {
            **_BLOCKS,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
            "cross_attention_dim": 32,
            "attention_head_dim": 8,
        },
        {**_IMAGE, "encoder_hidden_states": _noise(2, 7, 32)},
    ),
    "DiT": partial(
        _diffusion,
        "DiTTransformer2DModel",
        {
            "sample_size": 8,
            "num_layers": 2,
            "patch_size": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 2,
            "in_channels": 4,
            "out_channels": 8,
            "num_embeds_ada_norm": 10,
            "norm_type": "ada_norm_zero",
            "activation_fn": "gelu-approximate",
            "attention_bias": True,
            "norm_elementwise_affine": False,
        },
        {
            "hidden_states": _noise(2, 4, 8, 8),
            "timestep": _times(1, 2),
            "class_labels": _times(1, 2),
        },
    ),
    "AutoencoderKL": partial(
        _diffusion,
        "AutoencoderKL",
        {
            "block_out_channels": (32, 64),
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "latent_channels": 4,
        },
        {"sample": _noise(2, 3, 32, 32)},
    ),
    "SD3": partial(
        _diffusion,
        "SD3Transformer2DModel",
        {
            "sample_size": 8,
            "patch_size": 1,
            "in_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "caption_projection_dim": 32,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 64,
            "out_channels": 4,
        },
        {
            "hidden_states": _noise(2, 4, 8, 8),
            "encoder_hidden_states": _noise(2, 7, 32),
            "pooled_projections": _noise(2, 64),
            "timestep": _times(1, 2),
        },
    ),
}


# ---- PEFT, graphs, x-transformers ----------------------------------------------------------------

PEFT = (
    "LoraConfig IA3Config AdaLoraConfig LoHaConfig LoKrConfig OFTConfig BOFTConfig VeraConfig "
    "PromptTuningConfig PrefixTuningConfig PromptEncoderConfig"
).split()
_PROMPTS = {"num_virtual_tokens": 4}


def _peft(name: str) -> Any:
    import peft
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    is_prompt = "Pr" in name
    options: dict[str, Any] = dict(_PROMPTS) if is_prompt else {"target_modules": ["q_proj"]}
    if name == "IA3Config":
        options["feedforward_modules"] = []
    if name == "AdaLoraConfig":
        options["total_step"] = 10
    chosen = getattr(peft, name)(task_type="CAUSAL_LM", **options)
    model = peft.get_peft_model(LlamaForCausalLM(config), chosen)
    tokens = torch.randint(8, 99, (2, 7))
    return model.train(), {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "labels": tokens,
    }


def _graph_network(name: str) -> Any:
    from torch_geometric.nn import models

    model = getattr(models, name)(16, 32, num_layers=2, out_channels=4)
    edges = torch.randint(0, 20, (2, 60))
    labels = torch.zeros(20, dtype=torch.int64)
    return model.train(), (torch.randn(20, 16), edges), partial(_classified, labels)


def _x_decoder() -> Any:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=32, depth=2, heads=4, rotary_pos_emb=True)
    model = TransformerWrapper(num_tokens=99, max_seq_len=32, attn_layers=layers)
    return AutoregressiveWrapper(model), torch.randint(0, 99, (2, 17))


def _x_encoder_decoder() -> Any:
    from x_transformers import XTransformer

    model = XTransformer(
        dim=32,
        enc_num_tokens=99,
        enc_depth=2,
        enc_heads=4,
        enc_max_seq_len=32,
        dec_num_tokens=99,
        dec_depth=2,
        dec_heads=4,
        dec_max_seq_len=32,
    )
    return model, (torch.randint(0, 99, (2, 16)), torch.randint(0, 99, (2, 17)))
