"""Files of safetensors without the zeros, which take no room on disk, as those of `torch.save`.

What a program saves of the card is zeros, of a large model more than a laptop's disk holds. The
library makes the header, of tensors without elements; here they get their shapes and places
(https://github.com/huggingface/safetensors, "Format"), and what is not zero is written.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import chain
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
    end = 0
    for name, row in rows.items():
        row["shape"] = list(_field(tensors[name], "shape"))
        row["data_offsets"] = [end, end + _length(tensors[name])]
        end = row["data_offsets"][1]
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(_ALIGNMENT, "little") + text)
        for chunk in chain.from_iterable(_chunks(tensors[name]) for name in rows):
            if chunk == _ZEROS[: len(chunk)]:
                opened.seek(len(chunk), os.SEEK_CUR)
            else:
                opened.write(chunk)
        opened.truncate(_ALIGNMENT + len(text) + end)


def _empty(tensor: Any, module: ModuleType) -> Any:
    """A tensor of the same type without elements; before 0.8, a dictionary with its bytes."""
    if isinstance(tensor, dict):
        return {**tensor, "shape": [0], "data": b""}
    dtype = str(vars(module)["_TYPES"][tensor.dtype]).removeprefix("torch.")
    return type(tensor)(dtype=dtype, shape=[0], data_ptr=tensor.data_ptr, data_len=0)


def _field(tensor: Any, name: str) -> Any:
    return tensor[name] if isinstance(tensor, dict) else getattr(tensor, name)


def _length(tensor: Any) -> int:
    length: int = len(tensor["data"]) if isinstance(tensor, dict) else tensor.data_len
    return length


def _chunks(tensor: Any) -> Iterator[bytes]:
    length = _length(tensor)
    for start in range(0, length, _CHUNK):
        count = min(_CHUNK, length - start)
        if isinstance(tensor, dict):
            yield tensor["data"][start : start + count]
        else:
            yield ctypes.string_at(tensor.data_ptr + start, count)
