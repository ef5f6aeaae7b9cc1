"""Read untrusted files as plain data: gzip and pickle without code, with bounded memory.

Clauses:
  (1) a gzip file is unpacked piece by piece, and rejected as soon as it grows more than `_GROWTH`
      times (recordings of real runs grow 10 to 40 times, repetitive bombs 1,000 times);
  (2) a pickle is checked opcode by opcode against the few that plain data needs, so it cannot name
      a class, call anything, or build deep nests; then an unpickler that rejects every global reads
      it;
  (3) before it is read, the memory of its objects is bounded from above: lists and dictionaries are
      counted, and may not be denser than real ones, whose entries also take bytes in the file; the
      bound for all objects is `_MEMORY`.

Not covered: naming a list again costs a pickle only two bytes, so callers must not walk a shared
list twice.
"""

from __future__ import annotations

import gzip
import io
import pickle
import re
import zlib
from pathlib import Path
from typing import Any

from graphmem.errors import InputError

MAX_BYTES = 1 << 30  # per file, packed or unpacked
_MEMORY = 1 << 32
_GROWTH = 250
_PIECE = 1 << 16
_READ_AT_ONCE = 1 << 24
_ALWAYS_UNPACKED = 1 << 22  # bytes that any file may unpack to


class TruncatedPickleError(InputError):
    """A pickle ends too early."""

    def __init__(self) -> None:
        super().__init__("the pickle is truncated.")


class TooLargeFileError(InputError):
    """No recording is that large."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is larger than {MAX_BYTES >> 20} MiB.")


class ForeignPickleError(InputError):
    """A pickle holds objects, not plain data."""

    def __init__(self, module_name: str, global_name: str) -> None:
        super().__init__(
            f"the pickle names {module_name}.{global_name}, which plain data never does."
        )


class UnreadablePickleError(InputError):
    """The operating system does not hand the file out."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path} cannot be read: {reason}.")


class DamagedGzipError(InputError):
    """A file is not what gzip wrote."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is a damaged or truncated gzip file.")


class DamagedPickleError(InputError):
    """A file is not what pickle wrote."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"the pickle is damaged or truncated ({reason}).")


class ForeignOpcodeError(InputError):
    """A pickle does more than to hold plain data."""

    def __init__(self, opcode: int) -> None:
        super().__init__(f"the pickle has an opcode ({opcode:#04x}) that plain data never has.")


class EmptyContainersError(InputError):
    """A pickle is made to fill the memory."""

    def __init__(self) -> None:
        super().__init__("the pickle consists mostly of empty lists or dictionaries.")


class TooCostlyError(InputError):
    """Reading a pickle may fill the memory."""

    def __init__(self) -> None:
        super().__init__(f"reading it could take more than {_MEMORY >> 30} GiB of memory.")


class GzipBombError(InputError):
    """A file unpacks to far more than its size."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} unpacks to more than {_GROWTH} times its size, which no recording does."
        )


def unpacked(path: Path) -> bytes:
    """The file's bytes, unpacked if it is gzip, within the size limit.

    Raises:
        InputError: it cannot be read, is damaged, or too large.
    """
    try:
        with path.open("rb") as file:
            pieces: list[bytes] = []  # a device's size is not known beforehand
            while sum(map(len, pieces)) <= MAX_BYTES and (piece := file.read(_READ_AT_ONCE)):
                pieces.append(piece)
            data = b"".join(pieces)
    except OSError as error:
        raise UnreadablePickleError(path, error.strerror or error) from None
    if data[:2] == b"\x1f\x8b":
        data = _unpacked(path, data)
    if len(data) > MAX_BYTES:
        raise TooLargeFileError(path)
    return data


def _unpacked(path: Path, packed: bytes) -> bytes:
    source, made = io.BytesIO(packed), bytearray()
    try:
        with gzip.open(source) as file:
            while piece := file.read(_PIECE):
                made += piece
                if len(made) > _ALWAYS_UNPACKED + _GROWTH * source.tell():
                    raise GzipBombError(path)
                if len(made) > MAX_BYTES:
                    break
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DamagedGzipError(path) from None
    return bytes(made)


class NoGlobals(pickle.Unpickler):
    """Rejects every class and function, as `_check_opcodes` already does."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Reject the global."""
        raise ForeignPickleError(module_name, global_name)


def plain_data(data: bytes) -> object:
    """The lists, dictionaries, strings and numbers of a pickle.

    Raises:
        InputError: it is damaged, contains anything else, or would take too much memory.
    """
    _check_opcodes(data)
    _check_cost(data)
    try:
        return NoGlobals(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, MemoryError, OverflowError) as error:
        raise DamagedPickleError(error) from None


_INT = rb"(?:K.|M..|J....)"
_FIXED = re.compile(  # opcodes with arguments of fixed length; tuples must be pairs of integers
    _INT + rb"{2}\x86|" + _INT + rb"|h.|j.{4}|q.|r.{4}|G.{8}|\x8a\x06.{6}|\x95.{8}|\x80."
    rb"|[\]}(Neuas\x88\x89\x94]",
    re.DOTALL,
)
_FIXED_RUN = re.compile(rb"(?:" + _FIXED.pattern + rb")++", re.DOTALL)
_LENGTH_BYTES = {0x8C: 1, 0x58: 4, 0x8D: 8, 0x8A: 1}  # three kinds of string, and LONG1
_STOP = ord(".")


def _check_opcodes(data: bytes) -> None:
    """Allow only opcodes of plain data: no globals, no calls, no tuples but pairs of integers."""
    at = 0
    while at < len(data):
        run = _FIXED_RUN.match(data, at)
        if run is not None:
            at = run.end()
            continue
        opcode = data[at]
        if opcode == _STOP:
            return
        width = _LENGTH_BYTES.get(opcode)
        if width is None:
            raise ForeignOpcodeError(opcode)
        at += 1 + width
        at += int.from_bytes(data[at - width : at], "little")
    raise TruncatedPickleError()


# CPython 3.11, sys.getsizeof: a dictionary of one to five entries takes 232 bytes and 16 for the
# collector, a list after an append 56 + 4 * 8 + 16; every other opcode makes fewer than 13 bytes
# per byte of file, such as `M` (three bytes: a number of 28 bytes and 8 for its slot).
_DICTIONARY_BYTES = 248
_LIST_BYTES = 104
_OTHER_BYTES = 13
_BYTES_OF_A_CONTAINER = 8  # of the file, at least, on average over `_SAMPLE` bytes
_SAMPLE = 1 << 16


def _check_cost(data: bytes) -> None:
    """Reject a pickle that would take far more memory than a recording of the same size.

    An argument byte that looks like an opcode is counted as well; one byte in 256 does.
    """
    cost = 0
    for start in range(0, len(data), _SAMPLE):
        end = min(start + _SAMPLE, len(data))
        dictionaries = data.count(b"}", start, end)
        lists = data.count(b"]", start, end)
        if (dictionaries + lists) * _BYTES_OF_A_CONTAINER > end - start + _SAMPLE // 16:
            raise EmptyContainersError()
        cost += dictionaries * _DICTIONARY_BYTES + lists * _LIST_BYTES
        cost += (end - start) * _OTHER_BYTES
        if cost > _MEMORY:
            raise TooCostlyError()
