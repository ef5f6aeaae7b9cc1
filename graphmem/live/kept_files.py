"""Files that were there before the run, and that the script would overwrite or remove.

Tensors on the virtual card have no values, so what a script saves of them is zeros, which must not
replace the weights of an earlier, real run; nor may such a run's checkpoints be removed because
there are newer ones. Such a file is moved aside before, into a folder of its file system, and moved
back when the run ends:
(1) a file of weights that the script opens for writing, replaces, renames or removes;
(2) any other file that it removes and does not make anew, such as a checkpoint's configuration;
(3) all files in a folder that it renames, if one of them holds weights.

What the run itself has made is not kept. Not covered: what other processes and native code write,
except for `torch.save` and safetensors' `save_file`.
"""

from __future__ import annotations

import _io
import builtins
import functools
import importlib
import io
import itertools
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import Any

import torch

from graphmem.caller.turns import uninterrupted
from graphmem.frames import short_path
from graphmem.live import rank_forks
from graphmem.trace.location import Location
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.libraries.imports import prepared
from graphmem.virtual_device.patching import Replacement, replaced

_HEAD = 512
"""Bytes that hold the name of an archive's first file."""
_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"


class KeptFiles:
    """Keeps the files that are older than the run, or, of a rank, than the run of all ranks."""

    def __init__(self, recorder: Recorder, location: Location) -> None:
        self._recorder = recorder
        self._location = location
        self._start = rank_forks.served_since() or time.time()
        self._process = os.getpid()
        self._rename = os.rename
        self._numbers = itertools.count(1)
        self._aside: dict[int, Path] = {}
        """The folder of each file system."""
        self._moved: dict[Path, Path] = {}
        """Where files are now, and where they were; the last one moved is the last one."""

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep such files while the context is open, and put them back when it ends."""
        try:
            with (
                replaced([*self._writers(), *self._removers()]),
                prepared("safetensors.torch", self._of_safetensors),
            ):
                yield
        finally:
            if os.getpid() == self._process:
                with uninterrupted():
                    self._put_back()

    def _writers(self) -> Iterator[Replacement]:
        native: Any = torch.serialization._open_zipfile_writer

        opened = _Opener(builtins.open, self._overwrite)

        def opened_by_torch(file: Any) -> Any:
            self._overwrite(file)
            return native(file)

        yield builtins, "open", opened
        yield io, "open", opened  # pathlib's
        yield _io, "open", opened  # where pickle looks for it, from Python 3.13 on
        yield torch.serialization, "_open_zipfile_writer", opened_by_torch

    def _of_safetensors(self, module: ModuleType) -> AbstractContextManager[None]:
        save: Any = vars(module)["save_file"]

        def save_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
            self._overwrite(filename)
            return save(tensors, filename, *args, **kwargs)

        return replaced([(module, "save_file", save_file)])

    def _removers(self) -> Iterator[Replacement]:
        for name in ("remove", "unlink"):
            yield os, name, self._remover(getattr(os, name))
        for name in ("rename", "replace"):
            yield os, name, self._renamer(getattr(os, name))

    def _remover(self, remove: Any) -> Callable[..., None]:
        def call(path: Any, *, dir_fd: int | None = None) -> None:
            place = _place(path, dir_fd)
            if self._is_older(place):
                self._set_aside(place)
            else:
                remove(path, dir_fd=dir_fd)

        return call

    def _renamer(self, rename: Any) -> Callable[..., None]:
        def call(src: Any, dst: Any, **folders: int | None) -> None:
            source = _place(src, folders.get("src_dir_fd"))
            target = _place(dst, folders.get("dst_dir_fd"))
            older = self._older_checkpoint(source)
            if source != target and source.is_file():
                self._overwrite(target)
            rename(src, dst, **folders)
            for each in older:
                self._note(each, target / each.relative_to(source))

        return call

    def _overwrite(self, file: Any) -> None:
        """Set a file aside that holds weights, and is going to be written."""
        if isinstance(file, str | bytes | os.PathLike):
            place = Path(os.fsdecode(file)).resolve()
            if self._has_older_weights(place):
                with suppress(FileNotFoundError):  # another rank was faster
                    self._set_aside(place)

    def _older_checkpoint(self, place: Path) -> list[Path]:
        """The file, or those in the folder, if there are older weights (clauses 1 and 3)."""
        files = [place]
        if place.is_dir() and not place.is_symlink():
            files = [Path(folder, name) for folder, _, names in os.walk(place) for name in names]
        older = [each for each in files if self._is_older(each)]
        return older if any(map(_holds_weights, older)) else []

    def _has_older_weights(self, place: Path) -> bool:
        return self._is_older(place) and _holds_weights(place)

    def _is_older(self, place: Path) -> bool:
        """Whether there is a file that the run has not made.

        Moving a file changes `st_ctime`, and unpacking an archive may set `st_mtime` to any time.
        Weights are kept in doubt: another rank may have put them back.
        """
        try:
            found = place.lstat()
        except OSError:
            return False
        if os.getpid() != self._process or not stat.S_ISREG(found.st_mode):
            return False
        return (found.st_mtime if _holds_weights(place) else found.st_ctime) < self._start

    def _set_aside(self, place: Path) -> None:
        number = str(next(self._numbers))
        aside = self._folder(place) / number / place.relative_to(place.anchor)
        aside.parent.mkdir(parents=True)
        self._rename(place, aside)
        self._note(place, aside)

    def _note(self, place: Path, now: Path) -> None:
        """Note where a file is, which may have been moved before."""
        first = self._moved.pop(place, place)
        self._moved[now] = first
        if first == place and _holds_weights(now):
            self._recorder.assumptions.leave_out(
                f"{short_path(str(place))}, which was there before",
                "kept as it was",
                "tensors on the card have no values to save",
                self._location.place(),
            )

    def _folder(self, place: Path) -> Path:
        """A folder of the same file system, outside of those that the script may remove."""
        device = place.lstat().st_dev
        if device not in self._aside:
            outermost = place.parent
            for each in outermost.parents[:-1]:
                if each.stat().st_dev != device or not os.access(each, os.W_OK):
                    break
                outermost = each
            self._aside[device] = Path(tempfile.mkdtemp(prefix=".graphmem-kept-", dir=outermost))
        return self._aside[device]

    def _put_back(self) -> None:
        left = False
        for now, place in reversed(self._moved.items()):
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                if _holds_weights(now) or not place.exists():
                    now.replace(place)
            except OSError as error:
                left = True
                warnings.warn(f"{place} is kept as {now}: {error.strerror}", stacklevel=1)
        if not left:
            for folder in self._aside.values():
                shutil.rmtree(folder)


class _OfBuiltin(type):
    """A class that equals the one of Python's own functions: code asks for `type(open)`."""

    def __eq__(cls, other: object) -> bool:
        return other is BuiltinFunctionType or other is cls

    def __hash__(cls) -> int:
        return hash(BuiltinFunctionType)


class _Opener(metaclass=_OfBuiltin):
    """Python's `open`, which first sets weights aside that it would overwrite."""

    def __init__(self, python: Any, overwrite: Callable[[Any], None]) -> None:
        self._python = python
        self._overwrite = overwrite
        functools.update_wrapper(self, python)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return BuiltinFunctionType

    def __call__(self, file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(mode, str) and "w" in mode:
            self._overwrite(file)
        return self._python(file, mode, *args, **kwargs)

    def __reduce__(self) -> str:
        return "open"


def _place(path: Any, folder: int | None) -> Path:
    """The absolute path of a file whose name is relative to an open folder, or the working one."""
    name = Path(os.fsdecode(path))
    return (name.parent if folder is None else _path_of(folder)).resolve() / name.name


def _path_of(folder: int) -> Path:
    """The path of an open folder: `shutil.rmtree` names files relative to one."""
    fcntl: Any = importlib.import_module("fcntl")  # Windows, which has none, opens no folders
    get_path = getattr(fcntl, "F_GETPATH", None)
    if get_path is None:
        return Path(f"/proc/self/fd/{folder}")
    return Path(os.fsdecode(fcntl.fcntl(folder, get_path, bytes(1024)).rstrip(b"\0")))


def _holds_weights(file: Path) -> bool:
    """Whether a file is an archive of `torch.save`, a pickle, or one of safetensors'."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            head = opened.read(_HEAD)
    except OSError:
        return False
    if head.startswith(_ZIP):
        return b"/data" in head
    header = int.from_bytes(head[:8], "little")
    return head.startswith(_PICKLE) or (head[8:9] == b"{" and header < size)
