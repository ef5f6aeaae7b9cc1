"""Tensors of a class of the program's own stay of it on the device, with their attributes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import graphmem


class Tracked(Tensor):
    """Carries where its data come from, as MONAI's `MetaTensor` does."""

    source = ""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        made = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        given = [each for each in args if isinstance(each, Tracked) and each.source]
        if isinstance(made, Tracked) and given:
            made.__dict__ = {"source": given[0].source}
        return made


class Scan(Tracked):
    """As fastai's `TensorImage`, which its transforms multiply by a `TensorBase`."""


class Casting(Tensor):
    """As fastai's `TensorBase`, whose methods cast to a plain tensor, with its attributes."""

    def new_empty(self, *sizes: Any, **options: Any) -> Tensor:
        plain = self.as_subclass(Tensor)
        plain.__dict__ = self.__dict__
        return plain.new_empty(*sizes, **options).as_subclass(type(self))


class Rows(torch.nn.Parameter):
    """As torchrec's `TableBatchedEmbeddingSlice`, a part of a table."""

    __slots__ = ["first"]

    def __new__(cls, table: Tensor, first: int) -> Rows:
        return table[first : first + 4].as_subclass(cls)

    def __init__(self, table: Tensor, first: int) -> None:
        self.first = first


class Named(torch.nn.Parameter):
    __slots__ = ["name_of_table"]


def tracked(*sizes: int) -> Tracked:
    made = torch.randn(sizes).as_subclass(Tracked)
    made.source = "scan 7"
    return made


def results(device: str) -> dict[str, Any]:
    """What a program makes of a tensor of its class, with a layer and with plain tensors."""
    layer = torch.nn.Linear(4, 4).to(device)
    x = tracked(2, 4).to(device)
    y = layer(x)
    return {
        "moved": x,
        "of a layer": y,
        "of two": x + y,
        "with one of its base": x.as_subclass(Scan) + x,
        "its base with one": x + x.as_subclass(Scan),
        "with a plain one": torch.zeros(2, 4, device=device) * x,
        "with one on the host": x * torch.tensor(2.0).as_subclass(Tracked),
        "a view": y[0],
        "several": x.chunk(2)[1],
        "detached": y.detach(),
        "on the host": x.cpu(),
        "plain again": x.as_subclass(Tensor),
        "a gradient": torch.autograd.grad(y.sum(), layer.weight)[0],
    }


def described(result: Tensor) -> tuple[bool, bool, str, tuple[int, ...], bool]:
    is_tracked = isinstance(result, Tracked)
    source = result.source if is_tracked else ""
    return isinstance(result, Scan), is_tracked, source, tuple(result.shape), result.requires_grad


def test_results_are_of_the_class_as_in_a_real_run() -> None:
    real = {name: described(each) for name, each in results("cpu").items()}
    with graphmem.virtual_gpu("h100"):
        virtual = results("cuda")

        assert {name: described(each) for name, each in virtual.items()} == real
        on_host = {name for name, each in virtual.items() if each.device.type == "cpu"}
    assert on_host == {"on the host"}


def test_attributes_are_the_programs_alone() -> None:
    with graphmem.virtual_gpu("h100"):
        first, second = tracked(2, 4).to("cuda"), tracked(3, 4).to("cuda")
        first.affine = torch.eye(4)
        second.__dict__.update(copy.deepcopy(first.__dict__))

        assert vars(first).keys() == vars(second).keys() == {"source", "affine"}
        assert second.affine is not first.affine
        second.__dict__ = {"source": "scan 8"}
        assert (second * 2).source == "scan 8"
        assert not hasattr(second, "affine")
        assert (tuple(second.shape), second.device.type) == ((3, 4), "cuda")


@pytest.mark.parametrize("replacing", [dict, copy.copy], ids=["a new dict", "a copy"])
def test_attributes_of_a_tensor_that_is_plain_again_can_be_replaced(replacing: Any) -> None:
    """As fastai's `Tensor.set_meta` does, for a loss whose class casts itself to be cloned."""
    with graphmem.virtual_gpu("h100") as gpu:
        x = tracked(2, 128).to("cuda")
        plain = x.as_subclass(Tensor)
        plain.__dict__ = replacing(x.__dict__)

        assert vars(plain) == {"source": "scan 7"}
        assert not isinstance(plain, Tracked)
        assert (tuple(plain.shape), plain.device.type) == ((2, 128), "cuda")
        kept = plain.clone()
        assert gpu.allocated == 2 * (2 * 128 * 4)
        assert vars(x) == {"source": "scan 7"}
        assert not isinstance(kept, Tracked)


def test_a_kernel_may_call_the_methods_of_the_class() -> None:
    """As `torch.linalg.solve` does (`_linalg_solve_ex`, torch/_meta_registrations.py)."""
    with graphmem.virtual_gpu("h100"):
        x = torch.eye(4, device="cuda").as_subclass(Casting)
        solved = torch.linalg.solve(x, x)

        assert (type(solved).__name__, tuple(solved.shape)) == ("Casting", (4, 4))


def test_one_that_is_plain_again_becomes_a_parameter() -> None:
    with graphmem.virtual_gpu("h100"):
        layer = torch.nn.Linear(4, 4)
        layer.weight = torch.nn.Parameter(tracked(4, 4).to("cuda").as_subclass(Tensor))
        layer.cuda()(torch.ones(2, 4, device="cuda")).sum().backward()

        assert layer.weight.is_leaf
        assert layer.weight.grad is not None
        assert not isinstance(layer.weight, Tracked)


def test_data_on_the_device_can_be_given_to_one_on_the_host() -> None:
    with graphmem.virtual_gpu("h100"):
        host = tracked(2, 4)
        host.data = tracked(3, 4).to("cuda")

        assert (isinstance(host, Tracked), host.source) == (True, "scan 7")
        assert (tuple(host.shape), host.device.type) == ((3, 4), "cuda")


def test_they_take_the_memory_of_plain_tensors() -> None:
    with graphmem.virtual_gpu("h100") as gpu:
        x = tracked(1 << 10, 1 << 10).to("cuda")
        assert gpu.allocated == 4 << 20
        view = x[0]
        assert gpu.allocated == 4 << 20
        del x
        assert gpu.allocated == 4 << 20  # the view holds it
        del view
        assert gpu.allocated == 0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_after_the_run_the_class_is_made_as_before(device: str) -> None:
    with graphmem.virtual_gpu("h100"):
        tracked(2, 4).to(device)

    assert type(tracked(2, 4) * 2) is Tracked


def test_a_host_copy_takes_the_class_of_one_that_is_plain_again() -> None:
    """As fastai's `to_detach`, which casts what it gathers on the host to the class it had."""
    with graphmem.virtual_gpu("t4"):
        plain = tracked(2, 4).cuda().as_subclass(Tensor)
        plain.__dict__ = {"source": "scan 7"}
        copied = plain.detach().cpu().as_subclass(type(plain))
        copied.__dict__ = plain.__dict__
        assert copied.device.type == "cpu"
        assert copied.source == "scan 7"  # type: ignore[attr-defined]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_class_may_have_slots(device: str) -> None:
    """Whose layout is not that of a tensor, so that no tensor can change to it."""
    with graphmem.virtual_gpu("h100"):
        table = torch.nn.Parameter(torch.ones(10, 3, device=device))
        rows = Rows(table, 2)
        (rows * 2).sum().backward()
        name = Named(torch.ones(2, device=device))
        name.name_of_table = "t"

        assert (type(rows).__name__, isinstance(rows, Rows), rows.first) == ("Rows", True, 2)
        assert (tuple(rows.shape), rows.device.type) == ((4, 3), device)
        assert table.grad is not None
        assert (rows.is_leaf, tuple(table.grad.shape)) == (False, (10, 3))
        assert (isinstance(name, Named), name.requires_grad, name.is_leaf) == (True, True, True)


def test_a_part_of_a_class_with_slots_takes_no_memory() -> None:
    with graphmem.virtual_gpu("h100") as gpu:
        table = torch.ones(1 << 10, 1 << 10, device="cuda")
        rows = Rows(table, 2)
        assert gpu.allocated == 4 << 20
        del table
        assert (gpu.allocated, rows.untyped_storage().nbytes()) == (4 << 20, 4 << 20)
        del rows
        assert gpu.allocated == 0
