"""Files of safetensors without the zeros, which take no room on disk, as those of `torch.save`.

What a program saves of the card is zeros, of a large model more than a laptop's disk holds. The
library makes the header, of tensors without elements; here they get their shapes and places
(https://github.com/huggingface/safetensors, "Format"), and what is not zero is written.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import accumulate, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from graphmem.virtual_device.libraries.imports import prepared
from graphmem.virtual_device.patching import replaced

_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)
_ALIGNMENT = 8


def sparse_safetensors() -> AbstractContextManager[None]:
    """Let `safetensors.torch` leave out zeros while the context is open."""

    def prepare(module: ModuleType) -> AbstractContextManager[None]:
        def serialize_file(tensors: Mapping[str, Any], filename: Any, metadata: Any = None) -> None:
            empty = {name: _empty(each, module) for name, each in tensors.items()}
            head = vars(module)["serialize"](empty, metadata=metadata)
            _write(tensors, Path(os.fsdecode(filename)), json.loads(head[_ALIGNMENT:]))

        return replaced([(module, "serialize_file", serialize_file)])

    return prepared("safetensors.torch", prepare)


def _write(tensors: Mapping[str, Any], file: Path, header: dict[str, Any]) -> None:
    """Write tensors, in the header's order."""
    rows = {name: row for name, row in header.items() if name != "__metadata__"}
    data = [_bytes_of(tensors[name]) for name in rows]
    ends = list(accumulate((each.nbytes for each in data), initial=0))
    for (name, row), offsets in zip(rows.items(), pairwise(ends), strict=True):
        row["shape"] = list(_shape_of(tensors[name]))
        row["data_offsets"] = offsets
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(_ALIGNMENT, "little") + text)
        for each in data:
            for start in range(0, each.nbytes, _CHUNK):
                chunk = bytes(each[start : start + _CHUNK])
                if chunk == _ZEROS[: len(chunk)]:
                    opened.seek(len(chunk), os.SEEK_CUR)
                else:
                    opened.write(chunk)
        opened.truncate(_ALIGNMENT + len(text) + ends[-1])


# A tensor as the library passes it on is a `TensorSpec`; before 0.8, a dictionary with its bytes.


def _empty(tensor: Any, module: ModuleType) -> Any:
    """A tensor of the same type without elements."""
    if isinstance(tensor, dict):
        return {**tensor, "shape": [0], "data": b""}
    dtype = str(vars(module)["_TYPES"][tensor.dtype]).removeprefix("torch.")
    return type(tensor)(dtype=dtype, shape=[0], data_ptr=tensor.data_ptr, data_len=0)


def _shape_of(tensor: Any) -> Iterable[int]:
    shape: Iterable[int] = tensor["shape"] if isinstance(tensor, dict) else tensor.shape
    return shape


def _bytes_of(tensor: Any) -> memoryview:
    if isinstance(tensor, dict):
        return memoryview(tensor["data"])
    if not tensor.data_len:  # there need be no address
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * tensor.data_len).from_address(tensor.data_ptr)).cast("B")
