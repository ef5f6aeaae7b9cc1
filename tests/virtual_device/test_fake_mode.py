"""The cache of fake results: what it distinguishes, and that its answers are right."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from graphmem import virtual_gpu
from graphmem.gpus import find_gpu
from graphmem.trace import TraceOptions, trace
from graphmem.virtual_device.device_guard import ensure_cuda_device_guard
from graphmem.virtual_device.fake_mode import VirtualFakeMode
from tests.house.test_fixtures import TINY, build


def key_of(mode: VirtualFakeMode, *arguments: Any) -> tuple[Any, ...]:
    """The cache key of arguments, computed as PyTorch does."""
    key: list[Any] = []
    mode._prep_args_for_hash(key, arguments, None, [])
    return tuple(key)


DIFFERENT: dict[str, Callable[[], Any]] = {
    "fp32": lambda: torch.empty(4, 4),
    "fp16": lambda: torch.empty(4, 4, dtype=torch.float16),
    "bf16": lambda: torch.empty(4, 4, dtype=torch.bfloat16),
    "transposed": lambda: torch.empty(4, 4).t(),
    "longer": lambda: torch.empty(5, 4),
    "part of a larger storage": lambda: torch.empty(5, 4)[:4],
    "at an offset": lambda: torch.empty(5, 4)[1:],
    "differentiable": lambda: torch.empty(4, 4, requires_grad=True),
    "conjugated": lambda: torch.empty(4, 4, dtype=torch.complex64).conj(),
    "complex": lambda: torch.empty(4, 4, dtype=torch.complex64),
    "imaginary": lambda: torch.empty(4, 4, dtype=torch.complex64).imag,
    "negated": lambda: torch.empty(4, 4, dtype=torch.complex64).conj().imag,
    "elsewhere": lambda: torch.empty(4, 4, device="meta"),
    "in a list": lambda: [torch.empty(4, 4)],
    "in a tuple": lambda: (torch.empty(4, 4),),
    "integer": lambda: 1,
    "fraction": lambda: 1.0,
    "truth": lambda: True,
    "nothing": lambda: None,
    "in a nested list": lambda: [[torch.empty(4, 4)]],
}


@pytest.fixture(scope="module")
def mode() -> VirtualFakeMode:
    return VirtualFakeMode()


@pytest.mark.parametrize(("one", "other"), list(combinations(DIFFERENT, 2)))
def test_arguments_that_differ_have_different_keys(
    mode: VirtualFakeMode, one: str, other: str
) -> None:
    mode.allow_meta = True
    with mode:
        assert key_of(mode, DIFFERENT[one]()) != key_of(mode, DIFFERENT[other]())


@pytest.mark.parametrize("name", list(DIFFERENT))
def test_arguments_that_look_alike_have_one_key(mode: VirtualFakeMode, name: str) -> None:
    mode.allow_meta = True
    with mode:
        assert key_of(mode, DIFFERENT[name]()) == key_of(mode, DIFFERENT[name]())


def test_inference_tensors_are_told_apart(mode: VirtualFakeMode) -> None:
    with mode:
        ordinary = torch.empty(4)
        with torch.inference_mode():
            inferred = torch.empty(4)
    assert key_of(mode, ordinary) != key_of(mode, inferred)


def test_an_unsafe_view_shares_its_storage_and_is_cached(mode: VirtualFakeMode) -> None:
    """A linear layer ends with one, and PyTorch's own cache refuses it ("unsafe view")."""
    refused = FakeTensorMode.cache_bypasses["unsafe view"]
    with mode:
        product = torch.empty(6, 4)[2:]
        views = [torch.ops.aten._unsafe_view.default(product, [2, 2, 4]) for _ in range(2)]

    for view in views:
        assert view.untyped_storage()._cdata == product.untyped_storage()._cdata
        assert view.storage_offset() == product.storage_offset() == 2 * 4
        assert (view.shape, view.stride()) == ((2, 2, 4), (2 * 4, 4, 1))
    assert FakeTensorMode.cache_bypasses["unsafe view"] == refused


def test_an_answer_is_asked_for_again_where_a_setting_differs(mode: VirtualFakeMode) -> None:
    """A factory's dtype is the default one; its key has no tensor that would tell."""
    with mode:
        first = [torch.empty(5, 3) for _ in range(3)]
        torch.set_default_dtype(torch.float64)
        try:
            second = [torch.empty(5, 3) for _ in range(3)]
        finally:
            torch.set_default_dtype(torch.float32)

    assert {each.dtype for each in first} == {torch.float32}
    assert {each.dtype for each in second} == {torch.float64}
    assert len({each.untyped_storage()._cdata for each in (*first, *second)}) == 6


@pytest.mark.parametrize(
    ("gpu", "model"),
    [
        ("A100", "gpt2"),
        ("A100", "unet_block"),
        (None, "gpt2"),
        (None, "moe"),
        pytest.param("A100", "resnet", marks=pytest.mark.slow),
        pytest.param("A100", "moe", marks=pytest.mark.slow),
        pytest.param(None, "resnet", marks=pytest.mark.slow),
        pytest.param(None, "unet_block", marks=pytest.mark.slow),
    ],
)
def test_a_cached_result_is_what_the_operation_returns(model: str, gpu: str | None) -> None:
    """PyTorch's own cross-check reruns every operation whose result came from the cache."""
    step = partial(build, model, **TINY[model])
    hits = FakeTensorMode.cache_hits
    with torch._dynamo.config.patch(fake_tensor_cache_crosscheck_enabled=True):
        graph = trace(step, gpu=gpu and find_gpu(gpu), options=TraceOptions(steps=2))

    assert FakeTensorMode.cache_hits - hits > len(graph.ops) / 2


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.Adam,
        partial(torch.optim.Adam, foreach=False),
        torch.optim.SGD,
        partial(torch.optim.AdamW, fused=True),
        torch.optim.Adagrad,
    ],
    ids=["foreach", "loop", "sgd", "fused", "adagrad"],
)
def test_another_step_size_is_not_another_result(make: Any) -> None:
    """Adam divides by `1 - beta ** step`, and a schedule changes the rate."""
    with virtual_gpu("a100"):
        model = nn.Linear(5, 3).cuda()
        optimizer = make(model.parameters())
        misses = []
        for i in range(5):
            optimizer.param_groups[0]["lr"] = 1 / (2 + i)
            model(torch.ones(2, 5, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            misses.append(FakeTensorMode.cache_misses)

    assert misses[-1] == misses[-3]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_cached_fake_tensor_is_what_the_constructor_makes(
    device: str, requires_grad: bool
) -> None:
    mode = VirtualFakeMode()
    ensure_cuda_device_guard()
    memory = [torch.empty(2, 3, device="meta", requires_grad=requires_grad) for _ in range(2)]
    made = mode.wrap(memory[0], torch.device(device))
    constructed = FakeTensor(mode, memory[1], torch.device(device))

    assert vars(made) == vars(constructed)
    assert str(torch._C._dispatch_keys(made)) == str(torch._C._dispatch_keys(constructed))
    assert (made.device, made.requires_grad) == (torch.device(device), requires_grad)


def test_lists_of_results_are_found_again_as_pytorch_makes_them() -> None:
    real = [torch.ones(2, 3), torch.ones(4, 5, dtype=torch.bfloat16).t()]
    mode = VirtualFakeMode()
    fakes = [mode.from_tensor(each) for each in real]
    with mode:
        for _ in range(3):
            results = torch._foreach_sqrt(fakes)

    assert isinstance(results, list | tuple)
    assert list(map(looks, results)) == list(map(looks, torch._foreach_sqrt(real)))
    storages = {each.untyped_storage()._cdata for each in (*fakes, *results)}
    assert len(storages) == len(fakes) + len(results)


def looks(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device
