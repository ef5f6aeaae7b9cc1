"""PyTorch's out-of-memory message, word for word as users of several versions posted it."""

from __future__ import annotations

import pytest

from graphmem.allocator import CachingAllocator, Device, MemoryState, OutOfMemory
from graphmem.gpus import find_gpu
from graphmem.runtime import Runtime
from tests.support.sizes import GIB, MIB

OLD_GUIDE = "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables"
NEW_GUIDE = (
    "https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
)


def message(
    release: tuple[int, int],
    tried: float,
    total: float,
    free: float,
    process: float,
    allocated: float,
    unused: float,
    allowed: int | None = None,
) -> str:
    """The text, built from the figures of a posted message."""
    state = MemoryState(
        total_bytes=round(total),
        free_bytes=round(free),
        process_bytes=round(process),
        allowed_bytes=allowed,
        allocated_bytes=round(allocated),
        reserved_bytes=round(allocated) + round(unused),
    )
    return str(OutOfMemory(round(tried), round(tried), 0, state, release))


def test_the_message_of_torch_2_1() -> None:
    """A message of torch 2.1: the typo is PyTorch's, and it recommends another setting.

    Figures and words: a comment in a public training script (batch of 32 on a card of 24 GB); the
    advice: libc10_cuda.so of the wheel of 2.1.2.
    """
    expected = (
        "CUDA out of memory. Tried to allocate 472.00 MiB. GPU 0 has a total capacty of 23.70 GiB"
        " of which 114.56 MiB is free. Including non-PyTorch memory, this process has 23.58 GiB"
        " memory in use. Of the allocated memory 18.26 GiB is allocated by PyTorch, and 3.69 GiB is"
        " reserved by PyTorch but unallocated. If reserved but unallocated memory is large try"
        " setting max_split_size_mb to avoid fragmentation.  See documentation for Memory"
        " Management and PYTORCH_CUDA_ALLOC_CONF"
    )

    assert expected == message(
        (2, 1), 472 * MIB, 23.7 * GIB, 114.56 * MIB, 23.58 * GIB, 18.26 * GIB, 3.69 * GIB
    )


def test_the_message_of_torch_2_2_to_2_9() -> None:
    """kohya-ss/sd-scripts issue #2029, a card of 24 GB; the text of torch 2.2 to 2.9."""
    expected = (
        "CUDA out of memory. Tried to allocate 1.99 GiB. GPU 0 has a total capacity of 23.56 GiB of"
        " which 1.23 GiB is free. Including non-PyTorch memory, this process has 22.27 GiB memory"
        " in use. Of the allocated memory 14.73 GiB is allocated by PyTorch, and 6.39 GiB is"
        " reserved by PyTorch but unallocated. If reserved but unallocated memory is large try"
        " setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See"
        f" documentation for Memory Management  ({OLD_GUIDE})"
    )

    assert expected == message(
        (2, 9), 1.99 * GIB, 23.56 * GIB, 1.23 * GIB, 22.27 * GIB, 14.73 * GIB, 6.39 * GIB
    )


def test_the_message_of_torch_2_10_on_a_t4() -> None:
    """A T4, from a public log of a training run: only torch 2.10 recommends the new name."""
    expected = (
        "CUDA out of memory. Tried to allocate 346.00 MiB. GPU 0 has a total capacity of 14.56 GiB"
        " of which 343.81 MiB is free. Including non-PyTorch memory, this process has 14.22 GiB"
        " memory in use. Of the allocated memory 12.84 GiB is allocated by PyTorch, and 1.26 GiB is"
        " reserved by PyTorch but unallocated. If reserved but unallocated memory is large try"
        " setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See"
        f" documentation for Memory Management  ({OLD_GUIDE})"
    )

    assert expected == message(
        (2, 10), 346 * MIB, 14.56 * GIB, 343.81 * MIB, 14.22 * GIB, 12.84 * GIB, 1.26 * GIB
    )


@pytest.mark.parametrize("release", [(2, 11), (2, 12), (2, 13)])
def test_the_message_of_torch_2_11_and_later(release: tuple[int, int]) -> None:
    """An RTX 5090, from a public log of a quantisation: the old name and a new URL.

    The machine code of 2.13.0 prints the advice whatever the settings are (pytorch issue #173049).
    """
    expected = (
        "CUDA out of memory. Tried to allocate 170.00 MiB. GPU 0 has a total capacity of 31.37 GiB"
        " of which 72.19 MiB is free. Including non-PyTorch memory, this process has 31.29 GiB"
        " memory in use. Of the allocated memory 30.80 GiB is allocated by PyTorch, and 2.80 MiB is"
        " reserved by PyTorch but unallocated. If reserved but unallocated memory is large try"
        " setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See"
        f" documentation for Memory Management  ({NEW_GUIDE})"
    )

    assert expected == message(
        release, 170 * MIB, 31.37 * GIB, 72.19 * MIB, 31.29 * GIB, 30.8 * GIB, 2.8 * MIB
    )


def test_a_memory_fraction_is_printed_before_the_allocated_memory() -> None:
    text = message((2, 13), MIB, GIB, GIB, 0, 0, 0, allowed=512 * MIB)

    assert "0 bytes memory in use. 512.00 MiB allowed; Of the allocated memory" in text


def test_an_exabyte_is_refused_at_once() -> None:
    with pytest.raises(OutOfMemory) as caught:
        CachingAllocator(capacity_bytes=GIB).malloc(1 << 60)

    assert str(caught.value) == "CUDA out of memory. Tried to allocate more than 1EB memory."


def test_the_context_counts_as_in_use() -> None:
    """10 MiB device, 3 of them the context's, one segment of 2: 5 are free, and 5 in use."""
    allocator = CachingAllocator(device=Device(7 * MIB, context_bytes=3 * MIB))
    allocator.malloc(MIB)

    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(6 * MIB)  # a segment of 20

    assert (
        "Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 10.00 MiB of which 5.00 MiB is"
        " free. Including non-PyTorch memory, this process has 5.00 MiB memory in use. Of the"
        " allocated memory 1024.00 KiB is allocated by PyTorch, and 1024.00 KiB is reserved"
    ) in str(caught.value)


def test_the_message_is_that_of_the_runtimes_torch() -> None:
    allocator = Runtime(find_gpu("t4"), "2.1.2", {}).new_allocator()

    with pytest.raises(OutOfMemory, match=r"has a total capacty of 14\.56 GiB of which 14\.37 GiB"):
        allocator.malloc(16 * GIB)
