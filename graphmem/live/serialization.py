"""Save and load tensors of the virtual GPU.

(1) `torch.save` writes zeros with `cuda:0` as the location, so that the file has its true size and
    `torch.load` knows the tensors' device.
(2) `torch.load` puts whole storages onto the virtual GPU, or where `map_location` says.
(3) `pickle` without `torch.save`, as of objects that ranks send each other, writes as many bytes,
    and reads them into a new storage on the virtual GPU, without values. PyTorch writes each
    storage in the format before torch 1.6 (`TypedStorage.__reduce__`, torch/storage.py), which
    names its card; the name and its end take some bytes more or less here.
(4) Zeros take no room on disk: `torch.save` leaves them out of a file of the same size, as within
    `torch.serialization.skip_data`. Their checksums are left out as well; `torch.load` needs none.

graphmem's notes on tensors are not saved. Not covered: files in the format before torch 1.6.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from graphmem import constructors
from graphmem.trace.reads import Reads
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.patching import Replacement

_LARGE = 1 << 20
"""Bytes; less would save nothing."""
_NOTES = "_graphmem_"


def replacements(recorder: Recorder, fake_mode: FakeTensorMode, reads: Reads) -> list[Replacement]:
    """The attributes to replace."""
    to_host: Any = torch.UntypedStorage.cpu
    to_device: Any = torch.UntypedStorage.to
    rebuild: Any = torch._utils._rebuild_tensor
    of_host: Any = torch.storage.TypedStorage.__reduce__

    def zeros_on_host(memory: torch.UntypedStorage) -> Any:
        if not _is_on_device(memory, recorder):
            return to_host(memory)
        if memory.nbytes():
            reads.saved()
        return constructors.zeros(
            memory.nbytes(), dtype=torch.uint8, device="cpu"
        ).untyped_storage()

    def moved(memory: torch.UntypedStorage, *, device: Any, non_blocking: bool = False) -> Any:
        target = torch.device(device)
        if target.type != "cuda" or _is_on_device(memory, recorder):
            return to_device(memory, device=target, non_blocking=non_blocking)
        return constructors.empty(
            memory.nbytes(), dtype=torch.uint8, device=target
        ).untyped_storage()

    def pickled(storage: Any) -> Any:
        memory = storage._untyped_storage
        if not _is_on_device(memory, recorder):
            return of_host(storage)
        host = torch.storage.TypedStorage(
            wrap_storage=zeros_on_host(memory), dtype=storage.dtype, _internal=True
        )
        return _on_card, (host, str(recorder.device))

    def rebuilt(storage: Any, offset: int, size: Any, stride: Any) -> Any:
        memory = storage._untyped_storage
        if not _is_on_device(memory, recorder):
            return rebuild(storage, offset, size, stride)
        with torch._C._DisableTorchDispatch():
            like = constructors.empty(0, dtype=storage.dtype, device="meta")
            like.set_(memory, offset, size, stride)
        return FakeTensor(fake_mode, like, recorder.device)

    return [
        (torch.serialization, "_open_zipfile_writer", _opening_sparse_files()),
        (torch.UntypedStorage, "cpu", zeros_on_host),
        (torch.UntypedStorage, "to", moved),
        (torch._utils, "_rebuild_tensor", rebuilt),
        (torch.storage.TypedStorage, "__reduce__", pickled),
        (FakeTensor, "__reduce_ex__", _reduce),
        *(
            (kind, "__reduce_ex__", _without_notes(kind.__reduce_ex__))
            for kind in (torch.Tensor, torch.nn.Parameter)
        ),
    ]


def _is_on_device(memory: torch.UntypedStorage, recorder: Recorder) -> bool:
    storage = recorder.storage_in(memory)
    if storage is None:  # without elements; a tensor of the meta device is saved without a storage
        return memory.device.type == "meta" and not memory.nbytes()
    return storage.device == str(recorder.device)


def _opening_sparse_files() -> Callable[[Any], Any]:
    opening: Any = torch.serialization._open_zipfile_writer

    def opened(file: Any) -> Any:
        archive = opening(file)
        if getattr(archive, "file_stream", archive) is None:  # C++ writes the file
            archive.file_like = _SparseWriter(archive.file_like)
        return archive

    return opened


class _SparseWriter:
    """`torch._C.PyTorchFileWriter`, which leaves out zeros [clause 4]."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def write_record(self, name: str, data: Any, size: int) -> None:
        """Write a file of the archive, or leave room for it."""
        if size >= _LARGE and isinstance(data, torch.UntypedStorage) and _is_zeros(data):
            self._writer.write_record_metadata(name, size)
        else:
            self._writer.write_record(name, data, size)


def _is_zeros(memory: torch.UntypedStorage) -> bool:
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunctionSubclass():
        return not constructors.empty(0, dtype=torch.uint8, device="cpu").set_(memory).any()


def _on_card(host: Any, device: str) -> Any:
    """What a pickled storage on the card becomes."""
    return torch.storage.TypedStorage(
        wrap_storage=host._untyped_storage.to(device=device), dtype=host.dtype, _internal=True
    )


def _reduce(tensor: FakeTensor, protocol: Any) -> tuple[Any, ...]:
    """Reduce as `Tensor._reduce_ex_internal` does for a plain tensor."""
    hooks: OrderedDict[Any, Any] = OrderedDict()
    if tensor.fake_device.type == "meta":
        of_meta = (tensor.dtype, tuple(tensor.size()), tensor.stride(), tensor.requires_grad)
        return torch._utils._rebuild_meta_tensor_no_storage, of_meta
    if getattr(tensor, "_is_param", False):
        data = tensor.detach()
        return torch._utils._rebuild_parameter, (data, tensor.requires_grad, hooks)
    storage: Any = torch.storage.TypedStorage(
        wrap_storage=tensor.untyped_storage(), dtype=tensor.dtype, _internal=True
    )
    storage._fake_device = tensor.fake_device
    looks = (tensor.storage_offset(), tuple(tensor.size()), tensor.stride())
    return torch._utils._rebuild_tensor_v2, (storage, *looks, tensor.requires_grad, hooks)


def _without_notes(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method so that it does not see graphmem's notes on a tensor."""

    def call(tensor: torch.Tensor, *args: Any) -> Any:
        for name in [name for name in vars(tensor) if name.startswith(_NOTES)]:
            delattr(tensor, name)
        return method(tensor, *args)

    return call
