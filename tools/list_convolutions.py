"""List the distinct convolutions of networks that people train, the most common first.

    python -m tools.list_convolutions -o fixtures/convolutions.txt

Each network runs forward once on the meta device, at the size it is usually trained at; a line is
`NETWORKS CONVOLUTION` as `tools/record_convolutions.py` reads it. It needs torchvision, timm,
transformers and diffusers (the committed list: 0.26, 1.0.31, 5.17, 0.42). A network that the
installed release does not have, or that fails, is named.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tools.record_convolutions import LIST, Convolution

BATCH = 2

TORCHVISION = """
resnet18 resnet34 resnet50 resnet101 resnet18:32 resnet18:64 resnet50:32 resnet50:384
resnext50_32x4d resnext101_64x4d wide_resnet50_2 regnet_y_400mf regnet_y_1_6gf regnet_y_8gf
regnet_y_16gf regnet_x_400mf regnet_x_3_2gf regnet_x_8gf efficientnet_b0 efficientnet_b1:240
efficientnet_b2:260 efficientnet_b3:300 efficientnet_b4:380 efficientnet_v2_s:300
efficientnet_v2_s:384 efficientnet_v2_m:384 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small
mnasnet1_0 shufflenet_v2_x1_0 squeezenet1_0 squeezenet1_1 alexnet vgg11 vgg16 vgg19 densenet121
densenet161 densenet169 densenet201 inception_v3:299 googlenet convnext_tiny convnext_small
convnext_base convnext_large convnext_tiny:384 swin_t swin_v2_t:256 swin_b swin_s maxvit_t vit_b_16
vit_b_32 vit_l_16 vit_b_16:384
""".split()

PIXELS = """
fcn_resnet50:480 fcn_resnet50:520 deeplabv3_resnet50:480 deeplabv3_resnet50:512
deeplabv3_resnet101:520 deeplabv3_mobilenet_v3_large:480 lraspp_mobilenet_v3_large:480
""".split()

VIDEOS = "r3d_18:112 mc3_18:112 r2plus1d_18:112 s3d:224 mvit_v2_s:224 swin3d_t:224".split()

TIMM = """
resnet26d resnet50d resnet101d:256 resnet200d:256 resnetv2_50x1_bit resnetv2_101x1_bit:448
resnest50d seresnet50 seresnext50_32x4d ecaresnet50d ecaresnetlight skresnet34 res2net50_26w_4s
resnetrs50:160 resnetaa50 nf_resnet50 dm_nfnet_f0:192 dm_nfnet_f1:224 eca_nfnet_l0:224
regnety_032 regnety_160 regnetz_c16:256 tf_efficientnet_b0 tf_efficientnet_b4:380
tf_efficientnet_b7:600 tf_efficientnetv2_b0 tf_efficientnetv2_s:300 tf_efficientnet_lite0
efficientnet_es mobilenetv3_large_100 mobilenetv3_small_100 mobilenetv4_conv_small
mobilenetv4_conv_medium:256 mobilenetv4_hybrid_medium:256 mixnet_s ghostnet_100 lcnet_100
fbnetc_100 hardcorenas_a tinynet_a:192 rexnet_100 semnasnet_100 cspresnet50:256 cspdarknet53:256
darknet53:256 dla34 dla60 hrnet_w18 hrnet_w32 hrnet_w48 selecsls42b vovnet39a ese_vovnet39b
repvgg_a0 repvgg_b1 xception41:299 xception65:299 inception_v4:299 inception_resnet_v2:299
densenet121 dpn68 convnext_atto convnext_nano convnext_base convnextv2_tiny convnextv2_base
convnextv2_nano convmixer_768_32 convmixer_1024_20_ks9_p14 poolformer_s12 poolformerv2_s12
caformer_s18 convformer_s18 focalnet_tiny_srf visformer_small
coatnet_0_rw_224 coatnet_1_rw_224 maxxvit_rmlp_small_rw_256:256 maxvit_tiny_rw_224
edgenext_small edgenext_x_small fastvit_t8:256 fastvit_sa12:256 mobilevit_s:256 mobilevitv2_100:256
mobileone_s1 efficientvit_b1 efficientvit_m4 efficientformer_l1 efficientformerv2_s0 levit_256
repvit_m1 starnet_s1 pvt_v2_b1 pvt_v2_b2 twins_svt_small cait_s24_224 crossvit_small_240:240
coat_lite_small gcvit_tiny xcit_small_12_p16_224 volo_d1_224 nest_tiny davit_tiny hiera_tiny_224
vit_tiny_patch16_224 vit_small_patch16_224 vit_base_patch16_224 vit_base_patch8_224
vit_large_patch16_224 vit_base_patch16_384:384 vit_small_patch14_dinov2:518
vit_large_patch14_clip_224 vit_base_patch14_dinov2:518 vit_base_r50_s16_224
vit_so400m_patch14_siglip_384:384 deit_small_patch16_224 deit3_base_patch16_224
beitv2_base_patch16_224 eva02_small_patch14_224 mixer_b16_224 resmlp_24_224
""".split()


class Listed(TorchDispatchMode):
    """Notes every convolution that runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[Convolution] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            self.found[convolution_of(*args)] += 1
        return func(*args, **(kwargs or {}))


def convolution_of(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *settings: Any,
) -> Convolution:
    """The convolution that aten's arguments describe."""
    stride, padding, dilation, is_transposed, output_padding, groups = settings
    kernel = tuple(weight.shape[2:])

    def spread(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(values) * len(kernel) if len(values) == 1 else tuple(values)

    results = weight.shape[1] * groups if is_transposed else weight.shape[0]
    has_batch = source.dim() == weight.dim()
    channels, *space = source.shape[1:] if has_batch else source.shape
    return Convolution(
        channels,
        tuple(space),
        results,
        kernel,
        spread(stride),
        spread(padding),
        spread(dilation),
        groups,
        spread(output_padding) if is_transposed else None,
    )


# The networks ------------------------------------------------------------------------------------


def networks() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names, and what runs each once."""
    make: Callable[[str, int], Any]
    for listed, make in ((TORCHVISION, of_torchvision), (PIXELS, of_pixels), (VIDEOS, of_videos)):
        for text in listed:
            yield f"torchvision {text}", partial(make, *sized(text))
    for text in TIMM:
        yield f"timm {text}", partial(of_timm, *sized(text))
    for side in (640, 800):
        yield f"detection {side}", partial(of_detection, side)
    yield from OTHERS.items()


def sized(name: str) -> tuple[str, int]:
    """`resnet18:32` is a ResNet-18 for images of 32 x 32; 224 x 224 is usual."""
    network, _, size = name.partition(":")
    return network, int(size or 224)


def of_torchvision(name: str, size: int) -> None:
    """A classifier of torchvision; RegNet computes its widths, and so is made with data."""
    from torchvision import models

    options: dict[str, Any] = (
        {"init_weights": False} if name in ("inception_v3", "googlenet") else {}
    )
    options |= {"image_size": size} if name.startswith("vit") else {}
    with torch.device("cpu" if name.startswith("regnet") else "meta"):
        network = models.get_model(name, weights=None, **options).to("meta")
    network(torch.empty(BATCH, 3, size, size))


def of_pixels(name: str, size: int) -> None:
    """A network of torchvision that classifies pixels."""
    from torchvision import models

    network = models.get_model(name, weights=None, weights_backbone=None, num_classes=21)
    network(torch.empty(BATCH, 3, size, size))


def of_videos(name: str, size: int) -> None:
    """A network of torchvision for videos of 16 frames."""
    from torchvision import models

    network = models.get_model(name, weights=None)
    network(torch.empty(BATCH, 3, 16, size, size))


def of_timm(name: str, size: int) -> None:
    """A classifier of timm."""
    import timm

    network = timm.create_model(name)
    network(torch.empty(BATCH, 3, size, size))


def of_detection(side: int) -> None:
    """The backbone with its pyramid, and the heads, of Mask R-CNN, RetinaNet and FCOS."""
    from torchvision.models import detection

    images = torch.empty(BATCH, 3, side, 1344 if side == 800 else side)
    boxes = torch.empty(BATCH * 128, 256, 14, 14)
    unloaded = {"weights": None, "weights_backbone": None}
    masks = detection.maskrcnn_resnet50_fpn(**unloaded)
    levels = list(masks.backbone(images).values())
    masks.rpn.head(levels)
    masks.roi_heads.mask_predictor(masks.roi_heads.mask_head(boxes))
    for make in (detection.retinanet_resnet50_fpn, detection.fcos_resnet50_fpn):
        network = make(**unloaded)
        network.head(list(network.backbone(images).values()))


def diffusion_unet(channels: Sequence[int], side: int, **options: Any) -> None:
    """The U-Nets of Stable Diffusion."""
    from diffusers import UNet2DConditionModel

    network = UNet2DConditionModel(block_out_channels=channels, sample_size=side, **options)
    width = network.config.cross_attention_dim
    more = {}
    if options.get("addition_embed_type"):
        times, text = torch.empty(BATCH, 6), torch.empty(BATCH, 1280)
        more = {"added_cond_kwargs": {"text_embeds": text, "time_ids": times}}
    latents = torch.empty(BATCH, 4, side, side)
    network(latents, torch.zeros(BATCH), torch.empty(BATCH, 77, width), **more)


def sdxl_unet(side: int) -> None:
    """The U-Net of Stable Diffusion XL, without its configuration file."""
    down = ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D")
    up = ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D")
    diffusion_unet(
        (320, 640, 1280),
        side,
        down_block_types=down,
        up_block_types=up,
        cross_attention_dim=2048,
        attention_head_dim=[5, 10, 20],
        transformer_layers_per_block=[1, 2, 10],
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    )


def diffusion_vae(side: int) -> None:
    """The autoencoder of Stable Diffusion."""
    from diffusers import AutoencoderKL

    network = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(128, 256, 512, 512),
        layers_per_block=2,
    )
    network.decode(network.encode(torch.empty(BATCH, 3, side, side)).latent_dist.mode())


def unconditional_unet(side: int, width: int) -> None:
    """The U-Net of diffusers' training tutorial, and of `train_unconditional.py`."""
    from diffusers import UNet2DModel

    network = UNet2DModel(
        sample_size=side,
        block_out_channels=(width, width, 2 * width, 2 * width, 4 * width, 4 * width),
        down_block_types=("DownBlock2D",) * 4 + ("AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D") + ("UpBlock2D",) * 4,
    )
    network(torch.empty(BATCH, 3, side, side), torch.zeros(BATCH))


def whisper(width: int, bins: int) -> None:
    """The two convolutions before Whisper's encoder."""
    first = nn.Conv1d(bins, width, 3, padding=1)
    nn.Conv1d(width, width, 3, stride=2, padding=1)(first(torch.empty(BATCH, bins, 3000)))


def wav2vec2(seconds: int, kind: str) -> None:
    """A speech encoder of transformers with one layer: the convolutions come before."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(num_hidden_layers=1)
    network = getattr(transformers, f"{kind}Model")(config)
    features = network.feature_extractor(torch.empty(BATCH, 16000 * seconds))
    width = config.hidden_size
    network.encoder.pos_conv_embed(torch.empty(BATCH, features.size(2), width))


def encodec() -> None:
    """A second of sound through EnCodec."""
    from transformers import EncodecConfig, EncodecModel

    with torch.device("cpu"):  # it computes its padding
        network = EncodecModel(EncodecConfig())
        network.decoder(network.encoder(torch.zeros(BATCH, 1, 24000)))


def hifi_gan() -> None:
    """A vocoder, from 32 frames."""
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    SpeechT5HifiGan(SpeechT5HifiGanConfig())(torch.empty(BATCH, 32, 80))


def mamba(width: int, length: int) -> None:
    """The causal depthwise convolution of state-space models."""
    nn.Conv1d(width, width, 4, padding=3, groups=width)(torch.empty(BATCH, width, length))


def segformer(side: int, **options: Any) -> None:
    """SegFormer, whose keys and values come from strided convolutions."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    network = SegformerForSemanticSegmentation(SegformerConfig(**options))
    network(torch.empty(BATCH, 3, side, side))


def unet(side: int) -> None:
    """The U-Net of fixtures/vision.py."""
    made = importlib.import_module("fixtures.vision")

    made.UNet(21)(torch.empty(BATCH, 3, side, side))


def medical_unet(sides: Sequence[int], widths: Sequence[int]) -> None:
    """nnU-Net's plain network: pairs of convolutions, strided at each level, transposed back."""
    layer = {2: nn.Conv2d, 3: nn.Conv3d}[len(sides)]
    transposed = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}[len(sides)]
    skips = []
    x = torch.empty(BATCH, 1, *sides)
    for level, width in enumerate(widths):
        x = layer(x.size(1), width, 3, stride=2 if level else 1, padding=1)(x)
        x = layer(width, width, 3, padding=1)(x)
        skips.append(x)
    skips.pop()
    for width in widths[-2::-1]:
        x = transposed(x.size(1), width, 2, stride=2)(x)
        x = layer(2 * width, width, 3, padding=1)(torch.cat((x, skips.pop()), 1))
        x = layer(width, width, 3, padding=1)(x)
        layer(width, 4, 1)(x)


def digits() -> None:
    """pytorch/examples, mnist; and the tutorial's network for CIFAR-10."""
    nn.Conv2d(32, 64, 3)(nn.Conv2d(1, 32, 3)(torch.empty(BATCH, 1, 28, 28)))
    nn.Conv2d(3, 6, 5)(torch.empty(BATCH, 3, 32, 32))
    nn.Conv2d(6, 16, 5)(torch.empty(BATCH, 6, 14, 14))


def small_resnet() -> None:
    """The ResNets of He et al. for CIFAR-10, with widths 16, 32 and 64."""
    x = nn.Conv2d(3, 16, 3, padding=1)(torch.empty(BATCH, 3, 32, 32))
    for width in (16, 32, 64):
        nn.Conv2d(x.size(1), width, 1, stride=1 + (width > 16))(x)
        x = nn.Conv2d(x.size(1), width, 3, stride=1 + (width > 16), padding=1)(x)
        x = nn.Conv2d(width, width, 3, padding=1)(x)


def dcgan(width: int = 64) -> None:
    """pytorch/examples, dcgan: generator and discriminator for images of 64 x 64."""
    x = nn.ConvTranspose2d(100, 8 * width, 4)(torch.empty(BATCH, 100, 1, 1))
    for factor in (4, 2, 1):
        x = nn.ConvTranspose2d(2 * factor * width, factor * width, 4, 2, 1)(x)
    x = nn.ConvTranspose2d(width, 3, 4, 2, 1)(x)
    for factor in (1, 2, 4, 8):
        x = nn.Conv2d(x.size(1), factor * width, 4, 2, 1)(x)
    nn.Conv2d(8 * width, 1, 4)(x)


def cycle_gan(width: int = 64, side: int = 256) -> None:
    """CycleGAN: its generator with reflected edges, and the PatchGAN, which pix2pix has too."""
    x = nn.Conv2d(3, width, 7)(torch.empty(BATCH, 3, side + 6, side + 6))
    for factor in (2, 4):
        x = nn.Conv2d(x.size(1), factor * width, 3, 2, 1)(x)
    nn.Conv2d(4 * width, 4 * width, 3)(torch.empty(BATCH, 4 * width, side // 4 + 2, side // 4 + 2))
    for factor in (2, 1):
        x = nn.ConvTranspose2d(x.size(1), factor * width, 3, 2, 1, 1)(x)
    nn.Conv2d(width, 3, 7)(torch.empty(BATCH, width, side + 6, side + 6))
    for colours in (3, 6):
        x = torch.empty(BATCH, colours, side, side)
        for factor, stride in ((1, 2), (2, 2), (4, 2), (8, 1)):
            x = nn.Conv2d(x.size(1), factor * width, 4, stride, 1)(x)
        nn.Conv2d(8 * width, 1, 4, 1, 1)(x)


def super_resolution(side: int, width: int) -> None:
    """EDSR, SRResNet, ESRGAN: plain 3 x 3 convolutions, then a pixel shuffle."""
    x = nn.Conv2d(3, width, 3, padding=1)(torch.empty(BATCH, 3, side, side))
    x = nn.Conv2d(width, width, 3, padding=1)(x)
    x = nn.PixelShuffle(2)(nn.Conv2d(width, 4 * width, 3, padding=1)(x))
    nn.Conv2d(width, 3, 3, padding=1)(x)


def temporal(width: int, length: int) -> None:
    """TCN and WaveNet: 1-d convolutions with growing dilation."""
    for level in range(6):
        step = 2**level
        nn.Conv1d(width, width, 3, padding=2 * step, dilation=step)(
            torch.empty(BATCH, width, length)
        )


OTHERS: dict[str, Callable[[], Any]] = {
    **{f"sd15_unet {n}": partial(diffusion_unet, (320, 640, 1280, 1280), n) for n in (32, 64, 96)},
    **{f"sdxl_unet {n}": partial(sdxl_unet, n) for n in (64, 128)},
    **{f"vae {n}": partial(diffusion_vae, n) for n in (256, 512, 1024)},
    **{f"ddpm {n}": partial(unconditional_unet, n, 128) for n in (64, 128)},
    **{f"whisper {w}": partial(whisper, w, 80) for w in (384, 512, 768, 1024, 1280)},
    "whisper large-v3": partial(whisper, 1280, 128),
    **{f"wav2vec2 {n}": partial(wav2vec2, n, "Wav2Vec2") for n in (5, 10, 16)},
    "hubert": partial(wav2vec2, 10, "Hubert"),
    "encodec": encodec,
    "hifi_gan": hifi_gan,
    **{f"mamba {w}": partial(mamba, w, n) for w, n in ((1536, 2048), (5120, 2048), (3352, 1024))},
    "segformer b0": partial(segformer, 512),
    "segformer b2": partial(segformer, 512, hidden_sizes=[64, 128, 320, 512]),
    **{f"unet {n}": partial(unet, n) for n in (128, 256, 512, 576)},
    "nnunet 128": partial(medical_unet, (128, 128, 128), (32, 64, 128, 256, 320, 320)),
    "nnunet 96": partial(medical_unet, (96, 96, 96), (32, 64, 128, 256, 320)),
    "nnunet 64": partial(medical_unet, (64, 64, 64), (16, 32, 64, 128)),
    "nnunet 2d": partial(medical_unet, (512, 512), (32, 64, 128, 256, 512, 512)),
    "digits": digits,
    "small resnet": small_resnet,
    "dcgan": dcgan,
    "cycle gan": cycle_gan,
    **{f"super resolution {n}": partial(super_resolution, n, 64) for n in (48, 96, 128)},
    "super resolution 256": partial(super_resolution, 48, 256),
    **{f"temporal {w}": partial(temporal, w, n) for w, n in ((64, 1024), (128, 8192))},
}


def main() -> int:
    """Write the list."""
    parser = argparse.ArgumentParser(description="List the convolutions of many networks.")
    parser.add_argument("-o", "--output", type=Path, default=LIST)
    parser.add_argument("--only", default="", help="networks whose name contains this text")
    options = parser.parse_args()
    in_networks: Counter[Convolution] = Counter()
    times: Counter[Convolution] = Counter()
    chosen = [(name, run) for name, run in networks() if options.only in name]
    for name, run in chosen:
        found = convolutions_of(name, run)
        in_networks.update(found.keys())
        times.update(found)
    ordered = sorted(times, key=lambda each: (-in_networks[each], -times[each], str(each)))
    options.output.write_text("".join(f"{in_networks[each]} {each}\n" for each in ordered))
    print(f"{len(ordered)} convolutions of {len(chosen)} networks")
    return 0


def convolutions_of(name: str, run: Callable[[], Any]) -> Counter[Convolution]:
    """The convolutions of one network; none if it fails."""
    listed = Listed()
    try:
        with torch.device("meta"), torch.no_grad(), listed:
            run()
    except Exception as error:  # noqa: BLE001 - whatever a network raises, the next one is listed
        print(f"{name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
    return listed.found


if __name__ == "__main__":
    sys.exit(main())
