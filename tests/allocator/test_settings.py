"""The caching allocator of a runtime: its settings and its capacity."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from graphmem import TrainingStep
from graphmem.allocator import AllocatorSettings
from graphmem.analysis import Request
from graphmem.errors import InputError
from graphmem.gpus import find_gpu
from graphmem.runtime import Runtime
from graphmem.verify.prediction import predict

EXPANDABLE = "expandable_segments:True"


def runtime(version: str = "2.13.0", **env: str) -> Runtime:
    return Runtime(find_gpu("t4"), version, env)


def test_the_capacity_is_the_cards_memory_less_the_context() -> None:
    gpu = find_gpu("t4")

    allocator = runtime().new_allocator()

    assert 15_637_086_208 - gpu.context_bytes == allocator.device.capacity_bytes


def test_an_unbounded_allocator_has_no_capacity() -> None:
    assert runtime().new_allocator(bounded=False).device.capacity_bytes is None


def test_the_environment_sets_the_allocator() -> None:
    assert runtime(PYTORCH_CUDA_ALLOC_CONF=EXPANDABLE).allocator_settings.expandable_segments
    assert not runtime().allocator_settings.expandable_segments


@pytest.mark.parametrize(("version", "read"), [("2.9.1", False), ("2.10.0", True)])
def test_the_new_name_is_read_from_2_10_on(version: str, read: bool) -> None:
    """pytorch issue #183387: 2.9.1 silently ignores it; libc10_cuda.so of 2.10.0 contains it."""
    settings = runtime(version, PYTORCH_ALLOC_CONF=EXPANDABLE).allocator_settings

    assert read == settings.expandable_segments


def test_the_old_name_overrides_the_new_one() -> None:
    """As `AcceleratorAllocatorConfig` of libc10.so does in the wheels of 2.10.0 to 2.13.0."""
    both = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:200", "PYTORCH_ALLOC_CONF": EXPANDABLE}

    settings = runtime(**both).allocator_settings

    assert settings.max_split_size == 200 * 2**20
    assert not settings.expandable_segments


def test_an_invalid_setting_is_the_users_mistake() -> None:
    with pytest.raises(InputError, match="max_split_size_mb"):
        runtime(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:8").new_allocator()


def test_verify_follows_the_environment() -> None:
    """`--env` overrides the settings of the recording."""
    step = TrainingStep(model=nn.Linear(4, 4), inputs=torch.empty(1, 4))
    request = Request(env={"PYTORCH_CUDA_ALLOC_CONF": EXPANDABLE}, steps=1)

    prediction = predict(lambda: step, request, AllocatorSettings())

    assert prediction.settings is not None
    assert prediction.settings.expandable_segments
