"""Notice that a tensor was written in place after autograd had saved it.

PyTorch compares the tensor's version when it unpacks what it saved, but not behind hooks
(`SavedVariable::unpack`, torch/csrc/autograd/saved_variable.cpp). A trace has hooks of its own
there, so it compares, in the same words and at the same moment.

A token must not hold what was saved. It holds an empty tensor that shares the version counter, as
every `detach()` does, and that `.data =` has taken off the memory.

Not covered: the name of the node where an operation in place on a view saved its own result.
"""

from __future__ import annotations

import re
import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from graphmem.frames import acts_for_the_program

# As it is in C++: a virtual GPU has a `data` of its own (graphmem/virtual_gpu/parameters.py).
_set_data: Any = torch._C.TensorBase.data.__set__  # type: ignore[attr-defined]


def note_write(func: Any, args: tuple[Any, ...]) -> None:
    """A foreach operation in place tells of its write by itself, which fake tensors pass over.

    ATen/native/cuda/ForeachFunctors.cuh, `increment_version`. Fused optimizers do not tell.
    """
    if func.__name__.startswith("_foreach_") and func._schema.is_mutable:
        torch._C._increment_version(args[0])


class SavedVersions:
    """Makes the note of a version for each tensor that is saved."""

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        self._empty = FakeTensor(fake_mode, torch.empty(0, device="meta"), torch.device("cpu"))

    def of(self, tensor: torch.Tensor) -> SavedVersion:
        """The version of now of a tensor that is being saved.

        Its `grad_fn` must not be asked for: that makes a Python object of the node, and changes
        the order in which a graph dies that nobody walks.
        """
        if not isinstance(tensor, FakeTensor):  # a real one is kept by the token itself
            return SavedVersion(tensor, tensor)
        with torch._C._DisableTorchDispatch():
            counter = tensor.detach()
            _set_data(counter, self._empty)
        return SavedVersion(tensor, counter)


class SavedVersion:
    """The version at which a tensor was saved.

    Args:
        tensor: is being saved.
        counter: shares its version counter.
    """

    __slots__ = ("_counter", "_is_view", "_looks", "_output", "_saved_at", "_variable")

    def __init__(self, tensor: torch.Tensor, counter: torch.Tensor) -> None:
        self._counter = counter
        self._saved_at = counter._version
        self._looks = (tensor.dtype, tensor.device.type, tensor.shape)
        self._output = tensor.output_nr
        self._is_view = tensor._is_view()
        self._variable = None if tensor.is_leaf else weakref.ref(tensor)

    @acts_for_the_program
    def check(self, held_as: str) -> None:
        """Compare with the version of now.

        Args:
            held_as: the node that asks and its field, such as `SigmoidBackward0.result`.

        Raises:
            RuntimeError: the tensor was written in place since.
        """
        version = self._counter._version
        if version == self._saved_at:
            return
        dtype, device, shape = self._looks
        with torch._C._DisableTorchDispatch():
            kind = torch.empty(0, dtype=dtype, device="cpu").type()
        if device != "cpu":
            kind = kind.replace("torch.", f"torch.{device}.", 1)
        made_by = self._maker(held_as)
        output = f", which is output {self._output} of {made_by}," if made_by else ""
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{kind} {list(shape)}]{output} is at version {version}; expected version "
            f"{self._saved_at} instead. Hint: {_hint()}"
        )

    def _maker(self, held_as: str) -> str:
        """What made the tensor; "" for a leaf, and for what nobody holds any more.

        A node's own result is that node's; one of its inputs is of what has written into it last.
        """
        node, _, field = held_as.partition(".")
        if self._variable is None:
            return ""
        if not _RESULT.fullmatch(field):
            variable = self._variable()
            made_by: Any = None if variable is None else variable.grad_fn
            node = made_by.name() if made_by is not None else _REGENERATED if self._is_view else ""
        return re.sub(r"Backward\d*$", "", node)


# A view's node is recreated once its base was written (`VariableHooks::grad_fn`,
# torch/csrc/autograd/variable.cpp), which a write that is noticed here has done.
_REGENERATED = "AsStridedBackward0"


# How tools/autograd/derivatives.yaml calls what an operation returns.
_RESULT = re.compile(r"(result|output)\d*")


def _hint() -> str:
    if torch.is_anomaly_enabled():
        return (
            "the backtrace further above shows the operation that failed to compute its gradient. "
            "The variable in question was changed in there or anywhere later. Good luck!"
        )
    return (
        "enable anomaly detection to find the operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True, check_nan=False)."
    )
