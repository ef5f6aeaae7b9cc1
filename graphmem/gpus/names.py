"""Find GPUs by name, and name a GPU so that it can be found again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING

from graphmem.gpus.card import Gpu
from graphmem.gpus.description import described_gpu
from graphmem.gpus.messages import UnknownGpuError, UnknownPlatformError
from graphmem.gpus.table import GPUS

if TYPE_CHECKING:
    from graphmem.allocator.addresses import Driver


def find_gpu(name: str) -> Gpu:
    """Return the GPU with this name, title or alias, or with this description.

    Case, spaces, hyphens and the words NVIDIA, GeForce and Tesla are ignored. A description is like
    "name=my-card,memory=24GiB,sm=75,multiprocessors=72" (graphmem/gpus/description.py). Either may
    end in ",driver=linux" or ",driver=wddm" (Windows, WSL 2), which gives the platform.

    Raises:
        InputError: there is no such GPU; the hint names the closest ones.
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
    raise UnknownPlatformError(name)


def _gpu_without_platform(name: str) -> Gpu:
    if "=" in name:
        return described_gpu(name)
    wanted = _normalised(name)
    gpu = _BY_NORMALISED_NAME.get(wanted)
    if gpu is not None:
        return gpu
    nearest = dict.fromkeys(
        _BY_NORMALISED_NAME[near].name
        for near in get_close_matches(wanted, _BY_NORMALISED_NAME, n=4, cutoff=_cutoff(wanted))
    )
    if nearest:
        hint = f"did you mean {' or '.join(nearest)}? `graphmem gpus` lists them all"
    else:
        hint = "`graphmem gpus` lists the known ones, and explains how to describe another"
    raise UnknownGpuError(name, hint)


def _cutoff(name: str) -> float:
    """The least likeness of a name to be suggested; of one with two characters, one is wrong."""
    return 0.6 if len(name) > 2 else 0.5


_PLATFORM = re.compile(r",\s*driver\s*=([^,]*)")


def _normalised(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", name.lower())


def label_of(gpu: Gpu) -> str:
    """The name or description by which `find_gpu` finds a card again."""
    listed = _BY_NORMALISED_NAME.get(_normalised(gpu.name))
    if listed == gpu:
        return gpu.name
    if listed is not None and replace(listed, driver=gpu.driver) == gpu:
        return f"{gpu.name},driver={gpu.driver}"
    if gpu.driver is not None:
        return f"{label_of(replace(gpu, driver=None))},driver={gpu.driver}"
    sm = "".join(map(str, gpu.compute_capability))
    return (
        f"name={gpu.name},memory={gpu.memory_bytes},sm={sm},multiprocessors={gpu.multiprocessors}"
    )


_BY_NORMALISED_NAME: Mapping[str, Gpu] = MappingProxyType(
    {_normalised(label): gpu for gpu in GPUS for label in (gpu.name, gpu.title, *gpu.aliases)}
)
