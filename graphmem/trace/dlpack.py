"""Tensors of the virtual GPU through DLPack, by which libraries share memory.

(1) A capsule is PyTorch's own, with the card as its device, so that NumPy refuses it as it does
    on a card ("Unsupported device in DLTensor"). It holds its tensor (`toDLPackImpl`,
    aten/src/ATen/DLConvertor.cpp), but no address, since a tensor without data has none.
(2) PyTorch makes of such a capsule a tensor of the same memory (`fromDLPackImpl`, the same file).
(3) For the host, as in `numpy.from_dlpack(tensor, device="cpu")`, a tensor is copied first
    (`maybeCopyTensor`, the same file).

Not covered: libraries that would read a card's memory, which is not there.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from graphmem.virtual_device.patching import Replacement

_Makes = Callable[..., Any]


def replacements(fake_mode: FakeTensorMode) -> list[Replacement]:
    """The attributes to replace, for tensors of one mode."""
    exported: dict[int, weakref.ref[torch.Tensor]] = {}  # by the capsules' identities

    def exporting(make: _Makes) -> _Makes:
        def export(tensor: torch.Tensor, **options: Any) -> Any:
            if not isinstance(tensor, FakeTensor) or tensor.fake_mode is not fake_mode:
                return make(tensor, **options)
            moved = _moved(tensor, options.pop("dl_device", None), options.pop("copy", None))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of an address that it has not
                capsule = make(moved, **options)
            exported[id(capsule)] = weakref.ref(moved)
            return capsule

        return export

    make_tensor = torch._C._from_dlpack

    def take(capsule: Any) -> torch.Tensor:
        held = exported.pop(id(capsule), None)
        tensor = None if held is None else held()
        return make_tensor(capsule) if tensor is None else tensor.detach()

    return [
        *(
            (owner, name, exporting(getattr(owner, name)))
            for owner, name in (
                (torch._C, "_to_dlpack"),
                (torch._C, "_to_dlpack_versioned"),
                (torch.utils.dlpack, "to_dlpack"),
                (torch, "to_dlpack"),
            )
            if hasattr(owner, name)
        ),
        (torch._C, "_from_dlpack", take),
    ]


def _moved(tensor: torch.Tensor, dl_device: Any, copy: bool | None) -> torch.Tensor:
    """The tensor that a capsule holds: the same, or a copy if one is asked for."""
    device = tensor.device if dl_device is None else _device_of(dl_device)
    if device == tensor.device:
        return tensor.clone() if copy else tensor
    if copy is False:
        raise ValueError("cannot export a tensor to another device without copying it")
    return tensor.to(device)


def _device_of(dl_device: tuple[Any, int]) -> torch.device:
    kind, index = dl_device
    return torch.device("cpu") if int(kind) == _HOST else torch.device("cuda", index)


_HOST = 1
"""`kDLCPU` (torch/utils/dlpack.py, `DLDeviceType`)."""
