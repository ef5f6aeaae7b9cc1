"""Slices of storages: `storage[a:b]`."""

from __future__ import annotations

import pytest
import torch

import graphmem


def _gradients(device: str) -> list[object]:
    """Two tensors in one buffer, as nanotron makes its gradients in float32."""
    buffer = torch.zeros(96, device=device)
    memory = buffer.untyped_storage()
    first, second = memory[: 4 * 32], memory[4 * 32 :][: 4 * 64]
    made = [
        torch.empty([], device=part.device).set_(source=part).view(-1, 8)
        for part in (first, second)
    ]
    made.append(torch.empty([], device=device).set_(second, 8, (2, 4), (8, 1)))
    buffer.zero_()
    made[1].add_(3)
    start = buffer.data_ptr()
    return [
        [part.nbytes() for part in (first, second)],
        [(each.device == buffer.device, each.shape, each.stride()) for each in made],
        [each.data_ptr() - start for each in made],
        sum(each.sum().item() for each in made[:1]),
    ]


def test_tensors_on_slices_lie_in_the_whole() -> None:
    with graphmem.virtual_gpu("a100-80gb"):
        on_card = _gradients("cuda")

    assert on_card == _gradients("cpu")


def test_a_slice_takes_nothing_and_keeps_the_whole() -> None:
    with graphmem.virtual_gpu("a100-80gb"):
        buffer = torch.zeros(1024, device="cuda")
        part = buffer.untyped_storage()[2048:]
        del buffer
        held = torch.cuda.memory_allocated()
        tensor = torch.empty([], device="cuda").set_(source=part)
        del part
        peak, kept = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        del tensor
        left = torch.cuda.memory_allocated()

    assert (held, peak, kept, left) == (4096, 4096 + 512, 4096, 0)


def test_a_slice_has_no_step() -> None:
    with graphmem.virtual_gpu("a100-80gb"):
        memory = torch.zeros(8, device="cuda").untyped_storage()
        with pytest.raises(RuntimeError, match="step of 2, but only a step of 1 is supported"):
            memory[::2]


def _comparisons(device: str) -> list[bool]:
    """Views of one storage, and a copy, as TorchRL compares target networks' parameters."""
    made = torch.zeros(4, 4, device=device)
    parameter = torch.nn.Parameter(made)
    others = (parameter, parameter.data, made.view(4, 4), made.t(), made[1:], made.clone())
    return [made.is_set_to(each) for each in others]


def test_the_same_view_of_a_storage_is_known_without_a_kernel() -> None:
    with graphmem.virtual_gpu("a100-80gb") as gpu:
        on_card = _comparisons("cuda")

    assert on_card == _comparisons("cpu") == [True, True, True, False, False, False]
    assert gpu.peak == 2 * 512
