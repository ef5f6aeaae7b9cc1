"""Detect in-place writes to a tensor after autograd saved it.

PyTorch compares the tensor's version when it unpacks, but not if there are hooks
(`SavedVariable::unpack`, torch/csrc/autograd/saved_variable.cpp). A trace has hooks there, so it
compares itself, at the same moment and with the same message.

A token must not hold the saved tensor. It holds an empty tensor that shares the version counter, as
every `detach()` does, and that `.data =` has detached from the memory. What is unpacked from the
token is the saved variable: saved again, for a second derivative, it has the same counter.

Not covered: the node's name if an in-place operation on a view saved its own result.
"""

from __future__ import annotations

import re
import weakref
from copy import copy
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from graphmem import constructors
from graphmem.frames import acts_for_the_program
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import (
    NAN_CHECKS_ARE_LEFT_OUT,
    VERSION_ERRORS_NAME_OPERATIONS,
)
from graphmem.trace.python_functions import name_of
from graphmem.virtual_device.notes import NOTHING, Note

_SAVED_AT = "_graphmem_saved_at"

# The setter in C++: a virtual GPU replaces `data` (graphmem/virtual_device/parameters.py).
_set_data: Any = torch._C.TensorBase.data.__set__  # type: ignore[attr-defined]


def note_write(func: Any, args: tuple[Any, ...]) -> None:
    """Bump the versions that an in-place foreach operation bumps, which fake tensors skip.

    ATen/native/cuda/ForeachFunctors.cuh, `increment_version`. Fused optimizers do not bump them.
    """
    if func.__name__.startswith("_foreach_") and func._schema.is_mutable:
        torch._C._increment_version(args[0])


class SavedVersions:
    """Notes the version of each tensor that is saved."""

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        with torch._C._DisableTorchDispatch():  # of a virtual GPU, which then rejects a second
            self._empty_meta = constructors.empty(0, device="meta")
        self._empty = FakeTensor(fake_mode, self._empty_meta, torch.device("cpu"))

    def of(self, tensor: torch.Tensor) -> SavedVersion:
        """The current version of a tensor that is being saved.

        Its `grad_fn` must not be read: that makes a Python object of the node, and changes the
        order in which a graph that is never walked dies.
        """
        unpacked_from: SavedVersion | None = getattr(tensor, _SAVED_AT, NOTHING).value
        if unpacked_from is not None:
            return unpacked_from.again()
        if not isinstance(tensor, FakeTensor):  # the token itself keeps a real one
            return SavedVersion(tensor, tensor)
        with torch._C._DisableTorchDispatch():
            counter = tensor.detach()
            # of a meta tensor only one with the same keys, which `detach` made without Python's
            is_meta = tensor.fake_device.type == "meta"
            _set_data(counter, self._empty_meta if is_meta else self._empty)
        return SavedVersion(tensor, counter)


class SavedVersion:
    """The version at which a tensor was saved.

    Args:
        tensor: the tensor being saved.
        counter: a tensor that shares its version counter.
    """

    __slots__ = ("_counter", "_is_view", "_looks", "_output", "_saved_at", "_variable")

    def __init__(self, tensor: torch.Tensor, counter: torch.Tensor) -> None:
        self._counter = counter
        self._saved_at = counter._version
        self._looks = (tensor.dtype, tensor.device.type, tensor.shape)
        self._output = tensor.output_nr
        self._is_view = tensor._is_view()
        self._variable = None if tensor.is_leaf else weakref.ref(tensor)

    def again(self) -> SavedVersion:
        """The version at which the tensor is saved once more, after it was unpacked."""
        version = copy(self)
        version._saved_at = self._counter._version
        return version

    def note_unpacked(self, alias: torch.Tensor) -> None:
        """Note that a tensor was unpacked, in whose place it may be saved again."""
        setattr(alias, _SAVED_AT, Note(self))

    @acts_for_the_program
    def check(self, held_as: str) -> None:
        """Compare with the current version.

        Args:
            held_as: the node that unpacks, and its field, such as `SigmoidBackward0.result`.

        Raises:
            RuntimeError: the tensor was written in place since it was saved.
        """
        version = self._counter._version
        if version == self._saved_at:
            return
        dtype, device, shape = self._looks
        with torch._C._DisableTorchDispatch():
            kind = constructors.empty(0, dtype=dtype, device="cpu").type()
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
        """The node that made the tensor; "" for a leaf, or a tensor that no longer exists.

        The node's own result was made by the node; an input, by the last operation that wrote into
        it.
        """
        node, _, field = held_as.partition(".")
        if self._variable is None:
            return ""
        if not _RESULT.fullmatch(field):
            variable = self._variable()
            made_by: Any = None if variable is None else variable.grad_fn
            node = (
                name_of(made_by) if made_by is not None else _REGENERATED if self._is_view else ""
            )
        if not VERSION_ERRORS_NAME_OPERATIONS.holds_in(installed_release()):
            return node
        return re.sub(r"Backward\d*$", "", node)


# A view's node is recreated once its base is written (`VariableHooks::grad_fn`,
# torch/csrc/autograd/variable.cpp), as it was if a write is detected here.
_REGENERATED = "AsStridedBackward0"


# The names of results in tools/autograd/derivatives.yaml.
_RESULT = re.compile(r"(result|output)\d*")


def _hint() -> str:
    if torch.is_anomaly_enabled():
        return (
            "the backtrace further above shows the operation that failed to compute its gradient. "
            "The variable in question was changed in there or anywhere later. Good luck!"
        )
    options = ", check_nan=False" if NAN_CHECKS_ARE_LEFT_OUT.holds_in(installed_release()) else ""
    return (
        "enable anomaly detection to find the operation that failed to compute its gradient, with "
        f"torch.autograd.set_detect_anomaly(True{options})."
    )
