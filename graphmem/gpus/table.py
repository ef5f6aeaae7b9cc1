"""The GPUs that graphmem knows by name, with what decides how much memory a step takes.

`memory_bytes` is `torch.cuda.get_device_properties().total_memory` as printed on a real card
(deviceQuery prints the same number). It is less than the nominal size by what ECC and the driver
set aside, and differs between drivers in either direction, by up to 189 MiB: a row has the value of
the newest driver that was found, and `other_memory_bytes` those of others. Some rows are known in
whole MiB only; their `memory_note` says so.

A card that is not listed can be described (graphmem/gpus/description.py).

Not covered: MIG slices, and cards of other vendors than NVIDIA.

This module does not import torch.
"""

from __future__ import annotations

from graphmem.gpus.card import Gpu

_MIB, _GIB = 2**20, 2**30
_READ_IN_MIB = "read in whole MiB, so up to 1 MiB too low"
_NOMINAL = "the nominal size: ECC and the driver leave up to 9 % less (8.4 % on an L4)"

GPUS: tuple[Gpu, ...] = (
    # deviceQuery 12.4. A bare "v100" is the 16 GB card, the more common one on clouds.
    Gpu("v100-16gb", "Tesla V100-SXM2-16GB", 16_928_342_016, (7, 0), 80, ("v100",)),
    # deviceQuery 11.4
    Gpu("v100-32gb", "Tesla V100-SXM2-32GB", 34_089_730_048, (7, 0), 80),
    # Google Colab in 2026, driver 580.82.07 and torch 2.11.0+cu128 (several public logs); in 2025,
    # CUDA 12.4 (ECC on), 15,828,320,256; deviceQuery 12.0 elsewhere, 15,835,398,144.
    Gpu(
        "t4",
        "Tesla T4",
        15_637_086_208,
        (7, 5),
        40,
        other_memory_bytes=(15_828_320_256, 15_835_398_144),
    ),
    # deviceQuery 12.8
    Gpu("a10", "NVIDIA A10", 23_696_375_808, (8, 6), 72),
    # get_device_properties(), torch 2.15 (nightly): 22587MB and 80 multiprocessors
    Gpu("a10g", "NVIDIA A10G", 22_587 * _MIB, (8, 6), 80, memory_note=_READ_IN_MIB),
    # PyTorch's allocator's own warning: "total: 42405855232", and deviceQuery 13.0 (PCIe card);
    # deviceQuery 12.2, 42,298,834,944.
    Gpu(
        "a100-40gb",
        "NVIDIA A100-SXM4-40GB",
        42_405_855_232,
        (8, 0),
        108,
        other_memory_bytes=(42_298_834_944,),
    ),
    # deviceQuery 12.5. A bare "a100" is this card, graphmem's default.
    Gpu("a100-80gb", "NVIDIA A100-SXM4-80GB", 85_100_068_864, (8, 0), 108, ("a100",)),
    # deviceQuery 12.0
    Gpu("l4", "NVIDIA L4", 23_612_293_120, (8, 9), 58),
    # cuda-device-query 12.4
    Gpu("l40s", "NVIDIA L40S", 47_576_711_168, (8, 9), 142),
    # deviceQuery 11.8
    Gpu("rtx-3090", "NVIDIA GeForce RTX 3090", 25_447_170_048, (8, 6), 82, ("3090",)),
    # deviceQuery 13.0, and PyTorch's allocator's own warning
    Gpu("rtx-4090", "NVIDIA GeForce RTX 4090", 25_250_627_584, (8, 9), 128, ("4090",)),
    # deviceQuery 13.0, and PyTorch's allocator's own warning
    Gpu("rtx-5090", "NVIDIA GeForce RTX 5090", 33_668_857_856, (12, 0), 170, ("5090",)),
    # torch 2.10.0+cu130, unsloth-zoo PR #1053
    Gpu(
        "rtx-6000-ada",
        "NVIDIA RTX 6000 Ada Generation",
        50_865_307_648,
        (8, 9),
        142,
        ("6000-ada",),
    ),
    # deviceQuery 12.7
    Gpu("rtx-a6000", "NVIDIA RTX A6000", 51_160_023_040, (8, 6), 84, ("a6000",)),
    # get_device_properties(): 45416MB and 84 multiprocessors
    Gpu("a40", "NVIDIA A40", 45_416 * _MIB, (8, 6), 84, memory_note=_READ_IN_MIB),
    # get_device_properties(): 48601MB and 72 multiprocessors
    Gpu("quadro-rtx-8000", "Quadro RTX 8000", 48_601 * _MIB, (7, 5), 72, memory_note=_READ_IN_MIB),
    # NVIDIA's data sheets ("Quadro RTX 6000", "TITAN RTX"): 24 GB, 4,608 CUDA cores, i.e. 72
    # multiprocessors. A CNN recorded on such a card has staging buffers for 72 (576 bytes).
    Gpu(
        "quadro-rtx-6000",
        "Quadro RTX 6000",
        24 * _GIB,
        (7, 5),
        72,
        memory_note=_NOMINAL,
        other_memory_bytes=(24 * _GIB * 91 // 100,),
    ),
    Gpu(
        "titan-rtx",
        "TITAN RTX",
        24 * _GIB,
        (7, 5),
        72,
        memory_note=_NOMINAL,
        other_memory_bytes=(24 * _GIB * 91 // 100,),
    ),
    # get_device_properties(), torch 2.7.1+cu128: 97250MB and 188 multiprocessors
    Gpu(
        "rtx-pro-6000",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        97_250 * _MIB,
        (12, 0),
        188,
        ("pro-6000",),
        _READ_IN_MIB,
    ),
    # torch 2.11.0+cu130, driver 580.159.04 (fixtures/cuda); deviceQuery 12.8, 85,028,896,768. A
    # bare "h100" is this card, not the PCIe one.
    Gpu(
        "h100-80gb",
        "NVIDIA H100 80GB HBM3",
        85_017_493_504,
        (9, 0),
        132,
        ("h100", "h100-sxm"),
        other_memory_bytes=(85_028_896_768,),
    ),
    # get_device_properties(): 81008MB and 114 multiprocessors
    Gpu(
        "h100-pcie",
        "NVIDIA H100 PCIe",
        81_008 * _MIB,
        (9, 0),
        114,
        memory_note=_READ_IN_MIB,
    ),
    # get_device_properties(): 143156MB and 132 multiprocessors
    Gpu(
        "h200",
        "NVIDIA H200",
        143_156 * _MIB,
        (9, 0),
        132,
        memory_note=_READ_IN_MIB,
    ),
    # get_device_properties(), torch 2.8.0: 182631MB and 148 multiprocessors
    Gpu(
        "b200",
        "NVIDIA B200",
        182_631 * _MIB,
        (10, 0),
        148,
        memory_note=_READ_IN_MIB,
    ),
)

DEFAULT_GPU = "a100-80gb"
"""The GPU that is used if none is named."""


class AssumedCard(str):
    """The default card's name, when neither the caller nor the project chose one."""

    __slots__ = ()
