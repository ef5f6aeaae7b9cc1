"""The file of a traced step: gzip of MessagePack, as docs/record.md specifies it.

Clauses:
  (1) a file holds numbers, texts, arrays and maps: reading it runs nothing and imports nothing;
  (2) what it unpacks to is bounded before it is read (`graphmem/plain_data.py`), and so is what its
      arrays can take in memory;
  (3) a later minor version opens here, its new fields unread; another major version is refused
      with what to do.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec

from graphmem.errors import InputError
from graphmem.files import write_bytes
from graphmem.plain_data import unpacked
from graphmem.record import rows
from graphmem.record.step import TracedStep
from graphmem.targets import RECORD

_LEVEL = 6
_LARGEST = 1 << 29  # bytes of MessagePack: four million operations
_EMPTY = (b"\x80", b"\x90")  # a map and an array that cost a byte here and 56 to 64 in memory
_BYTES_OF_AN_EMPTY_ONE = 6  # at least, of the file, on average


def save(step: TracedStep, path: Path) -> None:
    """Write a step to a file, whole or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    from graphmem.record.writing import tables_of

    packed = msgspec.msgpack.encode(tables_of(step))
    write_bytes(path, gzip.compress(packed, _LEVEL, mtime=0))


def load(path: Path) -> TracedStep:
    """Read a step that `save` wrote.

    Raises:
        InputError: it is no saved step, is damaged, or of another major version.
    """
    from graphmem.record.reading import step_of

    tables = _tables(path)
    try:
        return step_of(tables)
    except ValueError as error:
        raise InputError(f"{path} is damaged: it has {error}", hint=_AGAIN) from error


_AGAIN = f"save it again: graphmem run --save FILE{RECORD} script.py, or graphmem analyze … --save"


def _tables(path: Path) -> rows.Tables:
    data = unpacked(path)
    if len(data) > _LARGEST:
        raise InputError(f"{path} is larger than {_LARGEST >> 20} MiB unpacked")
    try:
        head = msgspec.msgpack.decode(data, type=rows.Head)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise InputError(f"{path} is not a saved step of graphmem", hint=_AGAIN) from None
    if head.format != rows.FORMAT:
        raise InputError(f"{path} is not a saved step of graphmem", hint=_AGAIN)
    _check_version(path, head)
    if sum(map(data.count, _EMPTY)) * _BYTES_OF_AN_EMPTY_ONE > len(data) + 4096:
        raise InputError(f"{path} is a heap of empty arrays", hint=_AGAIN)
    try:
        return msgspec.msgpack.decode(data, type=rows.Tables)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged: {error}", hint=_AGAIN) from None


def _check_version(path: Path, head: rows.Head) -> None:
    major, minor = head.version
    ours = rows.VERSION[0]
    if major == ours:
        return
    written = f"{path} is of format {major}.{minor}, written by {head.written_by}"
    if major > ours:
        raise InputError(f"{written}; this graphmem reads {ours}.x", hint="upgrade graphmem")
    raise InputError(f"{written}; this graphmem reads {ours}.x", hint=_AGAIN)
