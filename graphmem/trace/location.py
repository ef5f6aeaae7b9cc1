"""Where in the user's program an operation happens: the module and the source line."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.nn.modules import module as module_hooks

from graphmem.graph import Source

_LIBRARIES = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parent.parent}/")
_STANDARD_LIBRARY = f"{Path(sysconfig.get_paths()['stdlib'])}/"
_INSTALLED = f"{Path(torch.__file__).parent.parent}/"


class Location:
    """Follows module calls by global hooks, and finds the user's line on the Python stack."""

    def __init__(self) -> None:
        self._outermost: FrameType | None = None
        self._stack: list[str] = []
        self._names: dict[int, str] = {}
        self._roots: list[torch.nn.Module] = []
        self._is_user_code: dict[CodeType, bool] = {}
        self._sources: dict[tuple[CodeType, int], Source] = {}

    @property
    def module(self) -> str:
        """Qualified name of the innermost module that runs, "" outside of any."""
        return self._stack[-1] if self._stack else ""

    @contextmanager
    def following(self, outermost: FrameType) -> Iterator[None]:
        """Know which module runs; frames from `outermost` on outwards are not searched."""
        self._outermost = outermost
        enter = module_hooks.register_module_forward_pre_hook(self._enter)
        leave = module_hooks.register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            enter.remove()
            leave.remove()
            self._outermost = None

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        name = self._names.get(id(module))
        if name is None:
            name = self._name(module)
        self._stack.append(name)

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._stack.pop()

    def _name(self, module: torch.nn.Module) -> str:
        """Name a module first seen: inside another one by its class, else as a new root."""
        if self._stack:
            self._roots.append(module)
            self._names[id(module)] = f"{self._stack[-1]}.{type(module).__name__}".lstrip(".")
        else:
            self.know(module)
        return self._names[id(module)]

    def know(self, root: torch.nn.Module) -> None:
        """Name every module below a root; a module under two names keeps the first."""
        self._roots.append(root)
        for name, module in root.named_modules():
            self._names.setdefault(id(module), name)

    @property
    def roots(self) -> list[torch.nn.Module]:
        """The modules that were called from outside of any other."""
        return self._roots

    def source(self) -> Source | None:
        """The innermost line of the user's own code, or None when there is none on the stack."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self._outermost:
            code = frame.f_code
            is_user_code = self._is_user_code.get(code)
            if is_user_code is None:
                is_user_code = self._is_user_code[code] = is_user_file(code.co_filename)
            if is_user_code:
                return self._source(code, frame.f_lineno)
            frame = frame.f_back
        return None

    def _source(self, code: CodeType, line: int) -> Source:
        key = (code, line)
        source = self._sources.get(key)
        if source is None:
            source = Source(short_path(code.co_filename), line, code.co_name)
            self._sources[key] = source
        return source

    def user_frames(self) -> Iterator[FrameType]:
        """The user's frames on the Python stack, innermost first."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self._outermost:
            if is_user_file(frame.f_code.co_filename):
                yield frame
            frame = frame.f_back


def is_user_file(filename: str) -> bool:
    """Whether a file is neither torch's, nor graphmem's, nor the standard library's."""
    if filename.startswith((*_LIBRARIES, "<frozen")):
        return False
    return not filename.startswith(_STANDARD_LIBRARY) or "site-packages" in filename


def short_path(filename: str) -> str:
    """A path as people write it: relative to here, or to site-packages, else whole."""
    path = Path(filename)
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return filename.removeprefix(_INSTALLED)
