"""The GPUs that graphmem knows by name, and what of each decides how many bytes a step takes.

`memory_bytes` is what `torch.cuda.get_device_properties().total_memory` printed on a real card
(deviceQuery prints the same number). It is less than the nominal size by what ECC and the driver
set aside, and differs between drivers in either direction, by up to 189 MiB: a row has what the
newest driver printed that was found, and `other_memory_bytes` what others did. Five rows were seen
in whole MiB only; their `memory_note` says so.

Compute capability, multiprocessors and threads: NVIDIA's data sheets, CUDA C++ Programming Guide
("Technical Specifications per Compute Capability"), and docs/sources.md, "Multiprocessors".

A card that is not listed can be described (graphmem/gpu_description.py).

Not covered: MIG slices, cards that are not NVIDIA's.

This module does not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING

from graphmem.cuda_context import context_of
from graphmem.errors import InputError

if TYPE_CHECKING:
    from graphmem.allocator.addresses import Driver

_MIB, _GIB = 2**20, 2**30

# CUDA C++ Programming Guide, "Maximum number of resident threads per SM".
MAX_THREADS_PER_MULTIPROCESSOR: Mapping[tuple[int, int], int] = MappingProxyType(
    {
        (7, 0): 2048,
        (7, 5): 1024,
        (8, 0): 2048,
        (8, 6): 1536,
        (8, 9): 1536,
        (9, 0): 2048,
        (10, 0): 2048,
        (12, 0): 1536,
    }
)

CONTEXT_NOTE = (
    "an estimate: memory of the CUDA context, loaded kernels and library handles, seen by "
    "nvidia-smi and not by torch.cuda.memory_reserved(); the largest of a few public readings "
    "for the compute capability, and lazy kernel loading moves it"
)

# docs/sources.md, "cuBLAS workspaces" (read in the machine code of the wheels of torch 2.7,
# 2.8, 2.10, 2.11, 2.12.1 and 2.13.0; pytorch PR #175344).
_CUBLAS_WORKSPACE_BYTES = 4096 * 1024 * 2 + 16 * 1024 * 8
_CUBLAS_WORKSPACE_BYTES_LARGE = 4096 * 1024 * 8
_BLACKWELL_LARGE_WORKSPACE_SINCE = (2, 12)

_READ_IN_MIB = "read in whole MiB, so up to 1 MiB too low"
_NOMINAL = "the nominal size: ECC and the driver leave up to 9 % less (of an L4 8.4 %)"


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        name: the key by which it is asked for, such as "a100-80gb".
        title: what `torch.cuda.get_device_name()` answers.
        memory_bytes: what `total_memory` printed (see the module's docstring).
        compute_capability: (major, minor).
        multiprocessors: streaming multiprocessors that a program sees.
        aliases: other names that `find_gpu` takes.
        memory_note: what is not exact in `memory_bytes`, or empty.
        other_memory_bytes: what other drivers printed.
        driver: the platform, which decides where new segments lie; None: it was not said.
    """

    name: str
    title: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    multiprocessors: int
    aliases: tuple[str, ...] = ()
    memory_note: str = ""
    other_memory_bytes: tuple[int, ...] = ()
    driver: Driver | None = None

    @property
    def memory_spread_bytes(self) -> int:
        """How much less of the card another driver was seen to leave."""
        return self.memory_bytes - min((self.memory_bytes, *self.other_memory_bytes))

    @property
    def memory_surplus_bytes(self) -> int:
        """How much more of the card another driver was seen to leave."""
        return max((self.memory_bytes, *self.other_memory_bytes)) - self.memory_bytes

    @property
    def label(self) -> str:
        """What `find_gpu` takes to find this card again."""
        if self.driver is not None:
            return f"{replace(self, driver=None).label},driver={self.driver}"
        if _BY_NORMALISED_NAME.get(_normalised(self.name)) == self:
            return self.name
        sm = "".join(map(str, self.compute_capability))
        return (
            f"name={self.name},memory={self.memory_bytes},sm={sm},"
            f"multiprocessors={self.multiprocessors}"
        )

    @property
    def max_threads_per_multiprocessor(self) -> int:
        """Threads that one multiprocessor keeps resident."""
        return MAX_THREADS_PER_MULTIPROCESSOR[self.compute_capability]

    @property
    def context_bytes(self) -> int:
        """Bytes that a process takes besides what PyTorch's allocator reserves; `CONTEXT_NOTE`."""
        return context_of(self.compute_capability).estimate_bytes

    @property
    def context_spread_bytes(self) -> int:
        """How much less than `context_bytes` it may be."""
        return self.context_bytes - context_of(self.compute_capability).least_bytes

    @property
    def context_surplus_bytes(self) -> int:
        """How much more than `context_bytes` it may be."""
        return context_of(self.compute_capability).most_bytes - self.context_bytes

    def cublas_workspace_bytes(self, torch_version: str) -> int:
        """Bytes of one cuBLAS workspace where CUBLAS_WORKSPACE_CONFIG is not set.

        Args:
            torch_version: such as "2.13", "2.13.0" or "2.13.0+cpu".

        Raises:
            InputError: `torch_version` does not begin with two numbers.
        """
        major, _ = self.compute_capability
        is_hopper = major == 9
        is_blackwell = major in (10, 12)
        release = parse_release(torch_version)
        if is_hopper or (is_blackwell and release >= _BLACKWELL_LARGE_WORKSPACE_SINCE):
            return _CUBLAS_WORKSPACE_BYTES_LARGE
        return _CUBLAS_WORKSPACE_BYTES


# The comment of a row says where its bytes were printed. "deviceQuery" is CUDA's sample of that
# name, with the driver's CUDA version; the printouts are public, in repositories on GitHub.
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
    # get_device_properties() of torch 2.15 (nightly): 22587MB and 80 multiprocessors
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
    # deviceQuery 12.5. A bare "a100" is this card, the default of graphmem.
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
    # Data sheets of NVIDIA ("Quadro RTX 6000", "TITAN RTX"): 24 GB, 4,608 CUDA cores, which are 72
    # multiprocessors. A CNN recorded on such a card has the staging buffers of 72 (576 bytes).
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
    # get_device_properties() of torch 2.7.1+cu128: 97250MB and 188 multiprocessors
    Gpu(
        "rtx-pro-6000",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        97_250 * _MIB,
        (12, 0),
        188,
        ("pro-6000",),
        _READ_IN_MIB,
    ),
    # deviceQuery 12.8. A bare "h100" is this card, not the PCIe one.
    Gpu("h100-80gb", "NVIDIA H100 80GB HBM3", 85_028_896_768, (9, 0), 132, ("h100", "h100-sxm")),
    # get_device_properties(): 81008MB and 114 multiprocessors
    Gpu("h100-pcie", "NVIDIA H100 PCIe", 81_008 * _MIB, (9, 0), 114, memory_note=_READ_IN_MIB),
    # get_device_properties(): 143156MB and 132 multiprocessors
    Gpu("h200", "NVIDIA H200", 143_156 * _MIB, (9, 0), 132, memory_note=_READ_IN_MIB),
    # get_device_properties() of torch 2.8.0: 182631MB and 148 multiprocessors
    Gpu("b200", "NVIDIA B200", 182_631 * _MIB, (10, 0), 148, memory_note=_READ_IN_MIB),
)

DEFAULT_GPU = "a100-80gb"
"""The GPU that is meant where none is named."""


def find_gpu(name: str) -> Gpu:
    """Return the GPU called `name`: its name, its title or an alias, or the one that is described.

    Case, spaces, hyphens and the words NVIDIA, GeForce and Tesla do not count. A description is
    "name=my-card,memory=24GiB,sm=75,multiprocessors=72" (graphmem/gpu_description.py). After
    either, ",driver=linux" or ",driver=wddm" (Windows, WSL 2) says the platform.

    Raises:
        InputError: no GPU is called so; the hint names the nearest ones.
    """
    platform = _PLATFORM.search(name)
    if platform is None:
        return _gpu_without_platform(name)
    gpu = _gpu_without_platform(name[: platform.start()] + name[platform.end() :])
    return replace(gpu, driver=_driver_named(platform[1].strip()))


def _driver_named(name: str) -> Driver:
    if name == "linux":
        return "linux"
    if name == "wddm":
        return "wddm"
    raise InputError(f"driver={name} is no platform", hint="write linux, or wddm (Windows, WSL 2)")


def _gpu_without_platform(name: str) -> Gpu:
    if "=" in name:
        from graphmem.gpu_description import described_gpu

        return described_gpu(name)
    wanted = _normalised(name)
    gpu = _BY_NORMALISED_NAME.get(wanted)
    if gpu is not None:
        return gpu
    nearest = dict.fromkeys(
        _BY_NORMALISED_NAME[near].name
        for near in get_close_matches(wanted, _BY_NORMALISED_NAME, n=4)
    )
    if nearest:
        hint = f"did you mean {' or '.join(nearest)}? `graphmem gpus` lists all"
    else:
        hint = "`graphmem gpus` lists the known ones, and says how to describe another"
    raise InputError(f"unknown GPU {name!r}", hint=hint)


_PLATFORM = re.compile(r",\s*driver\s*=([^,]*)")


def _normalised(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", name.lower())


def parse_release(torch_version: str) -> tuple[int, int]:
    """The first two numbers of a version, such as (2, 13) of "2.13.0+cpu".

    Raises:
        InputError: it does not begin with two numbers.
    """
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    if match is None:
        raise InputError(
            f"not a version of torch: {torch_version!r}", hint='write it like "2.13" or "2.13.0"'
        )
    return int(match[1]), int(match[2])


_BY_NORMALISED_NAME: Mapping[str, Gpu] = MappingProxyType(
    {_normalised(label): gpu for gpu in GPUS for label in (gpu.name, gpu.title, *gpu.aliases)}
)
