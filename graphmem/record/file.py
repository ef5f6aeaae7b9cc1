"""The file of a traced step: gzip of MessagePack, as docs/record.md specifies it.

Clauses:
  (1) a file holds numbers, strings, arrays and maps: reading it runs nothing and imports nothing;
  (2) its unpacked size is limited before it is read (`graphmem/plain_data.py`), and so is the
      memory that its arrays can take;
  (3) a later minor version can be read, ignoring its new fields; another major version is refused
      with a hint.
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
_EMPTY = (b"\x80", b"\x90")  # an empty map or array is one byte here and 56 to 64 in memory
_BYTES_OF_AN_EMPTY_ONE = 6  # bytes of the file for each empty one, at least, on average


class OlderRecordError(InputError):
    """A step was saved in a format that graphmem no longer reads."""

    def __init__(self, written: str, ours: int) -> None:
        super().__init__(f"{written}; this graphmem reads {ours}.x", hint=_AGAIN)


class TooLargeRecordError(InputError):
    """A file is too large to be a saved step."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is larger than {_LARGEST >> 20} MiB unpacked")


class NotRecordError(InputError):
    """A file is not a saved step."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is not a saved step of graphmem", hint=_AGAIN)


class EmptyArraysError(InputError):
    """A file would fill the memory with empty arrays."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} consists mostly of empty arrays", hint=_AGAIN)


class NewerRecordError(InputError):
    """A step was saved by a newer graphmem."""

    def __init__(self, written: str, ours: int) -> None:
        super().__init__(f"{written}; this graphmem reads {ours}.x", hint="upgrade graphmem")


class InconsistentRecordError(InputError):
    """The parts of a saved step do not fit together."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path} is damaged: it has {reason}", hint=_AGAIN)


class DamagedRecordError(InputError):
    """A file cannot be unpacked."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path} is damaged: {reason}", hint=_AGAIN)


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
        InputError: it is not a saved step, is damaged, or has another major version.
    """
    from graphmem.record.reading import step_of

    tables = _tables(path)
    try:
        return step_of(tables)
    except ValueError as error:
        raise InconsistentRecordError(path, error) from error


_AGAIN = f"save it again: graphmem run --save FILE{RECORD} script.py, or graphmem analyze … --save"


def _tables(path: Path) -> rows.Tables:
    data = unpacked(path)
    if len(data) > _LARGEST:
        raise TooLargeRecordError(path)
    try:
        head = msgspec.msgpack.decode(data, type=rows.Head)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise NotRecordError(path) from None
    if head.format != rows.FORMAT:
        raise NotRecordError(path)
    _check_version(path, head)
    if sum(map(data.count, _EMPTY)) * _BYTES_OF_AN_EMPTY_ONE > len(data) + 4096:
        raise EmptyArraysError(path)
    try:
        return msgspec.msgpack.decode(data, type=rows.Tables)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DamagedRecordError(path, error) from None


def _check_version(path: Path, head: rows.Head) -> None:
    major, minor = head.version
    ours = rows.VERSION[0]
    if major == ours:
        return
    written = f"{path} is of format {major}.{minor}, written by {head.written_by}"
    if major > ours:
        raise NewerRecordError(written, ours)
    raise OlderRecordError(written, ours)
