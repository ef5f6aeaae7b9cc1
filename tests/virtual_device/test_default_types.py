"""`torch.set_default_tensor_type` of the card's types, as NeRF's scripts call it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import graphmem


@pytest.fixture
def card() -> Iterator[None]:
    """A virtual card, with its type of floats as the default."""
    with graphmem.virtual_gpu("t4"):
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
        yield


@pytest.mark.usefixtures("card")
def test_tensors_are_made_on_the_card() -> None:
    made = [torch.zeros(2), torch.tensor([1]), torch.Tensor(2, 3), torch.Tensor(np.ones(3))]
    made.append(torch.nn.Linear(2, 2).weight)

    assert {each.device.type for each in made} == {"cuda"}
    assert [list(each.shape) for each in made] == [[2], [1], [2, 3], [3], [2, 2]]


@pytest.mark.usefixtures("card")
def test_what_is_copied_stays_on_the_host() -> None:
    host = torch.from_numpy(np.ones(3, dtype=np.float32))
    made = [torch.tensor(host.numpy()).cpu(), torch.as_tensor(host), torch.Tensor(host)]
    made += [torch.FloatTensor(3), torch.zeros(2, device="cpu")]

    assert {each.device.type for each in made} == {"cpu"}


@pytest.mark.usefixtures("card")
def test_another_default_type_ends_it() -> None:
    torch.set_default_tensor_type(torch.DoubleTensor)

    assert (torch.zeros(2).device.type, torch.Tensor([1.0]).dtype) == ("cpu", torch.float64)


@pytest.mark.usefixtures("card")
def test_integers_are_no_default() -> None:
    with pytest.raises(TypeError, match="only floating-point types are supported"):
        torch.set_default_tensor_type(torch.cuda.IntTensor)


def test_the_default_ends_with_the_virtual_gpu() -> None:
    with graphmem.virtual_gpu("t4"):
        torch.set_default_tensor_type(torch.cuda.HalfTensor)

    assert (torch.zeros(2).dtype, torch.Tensor([1.0]).device.type) == (torch.float32, "cpu")
    assert "__new__" not in vars(torch.Tensor)
