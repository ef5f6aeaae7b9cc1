"""The caching allocator that a runtime makes: its settings and how much memory it has."""

from __future__ import annotations

import pytest

from graphmem.errors import InputError
from graphmem.gpus import find_gpu
from graphmem.runtime import Runtime

EXPANDABLE = "expandable_segments:True"


def runtime(torch: str = "2.13.0", **env: str) -> Runtime:
    return Runtime(find_gpu("t4"), torch, env)


def test_the_card_s_memory_without_the_context_is_the_capacity() -> None:
    gpu = find_gpu("t4")

    allocator = runtime().new_allocator()

    assert 15_828_320_256 - gpu.context_bytes == allocator.device.capacity_bytes


def test_an_unbounded_allocator_has_no_capacity() -> None:
    assert runtime().new_allocator(bounded=False).device.capacity_bytes is None


def test_the_environment_sets_the_allocator() -> None:
    assert runtime(PYTORCH_CUDA_ALLOC_CONF=EXPANDABLE).allocator_settings.expandable_segments
    assert not runtime().allocator_settings.expandable_segments


@pytest.mark.parametrize(("torch", "read"), [("2.9.1", False), ("2.10.0", True)])
def test_the_new_name_is_read_from_2_10_on(torch: str, read: bool) -> None:
    """pytorch issue #183387: 2.9.1 ignores it without a word."""
    settings = runtime(torch, PYTORCH_ALLOC_CONF=EXPANDABLE).allocator_settings

    assert read == settings.expandable_segments


def test_a_wrong_setting_is_the_user_s_mistake() -> None:
    with pytest.raises(InputError, match="max_split_size_mb"):
        runtime(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:8").new_allocator()
