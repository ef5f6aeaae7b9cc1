"""The origin of a buffer in compiled code: its operations, its module and its line.

Inductor knows it while it writes the wrapper: each buffer has the graph nodes that it comes from,
and each node has the module and the line where Dynamo found it. A wrapper's lines name their
buffers.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

from graphmem.frames import Origin, origin_of, short_path
from graphmem.graph import Source

_MADE_OR_WRITTEN = re.compile(
    r"\s*(?P<made>(buf|u)\d+)(_undivided)?( = |\.copy_\()|out=(?P<written>buf\d+)"
)
_LINE_OF_TRACE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_NAMES = re.compile(r"\w+")
_DYNAMO_SAYS = {"L", "G", "self", "_modules", "_orig_mod", "fn"}
_VIEWS = {"view", "t", "permute", "transpose", "expand", "unsqueeze", "squeeze", "slice", "detach"}


@dataclass(frozen=True)
class Buffer:
    """A buffer of a wrapper.

    Attributes:
        name: its name in the wrapper, such as "buf4".
        operations: those fused into it, in order, without views; such as ("mm", "gelu").
        module: qualified name of the last operation's module, or "".
        source: the last operation's line.
    """

    name: str
    operations: tuple[str, ...]
    module: str
    source: Source | None

    def place(
        self, caller: str, source: Source | None, modules: Collection[str]
    ) -> tuple[str, Source | None]:
        """The module and the line of the buffer.

        Args:
            caller: the module that called the compiled code. Dynamo names others from the one that
                it compiles, which is this one where a layer is compiled by itself, or from a
                variable of the function that it compiles.
            source: the line that called it.
            modules: the names of all modules.
        """
        of_variable = self.module.partition(".")[2]
        places = (f"{caller}.{self.module}", self.module, of_variable)
        known = (each for each in places if each in modules)
        return next(known, self.module or caller), self.source or source

    def __str__(self) -> str:
        if not self.operations:
            return f"{self.name} of compiled code"
        return f"{self.name} of compiled code, {' + '.join(self.operations)}"


class Origins:
    """The buffers of every wrapper, by its file."""

    def __init__(self) -> None:
        self._of_file: dict[str, dict[str, Buffer]] = {}
        self._of_line: dict[tuple[str, int], Buffer | None] = {}  # of those that ran

    def note(self, file: str, buffers: dict[str, Buffer]) -> None:
        """Note the buffers of the wrapper in a file."""
        self._of_file[file] = buffers

    def at(self, frame: FrameType | None) -> Buffer | None:
        """The buffer that the innermost line of a wrapper makes or writes."""
        if not self._of_file:  # nothing is compiled, and every operation asks
            return None
        while frame is not None:
            file = frame.f_code.co_filename
            if file in self._of_file:
                line = file, frame.f_lineno
                if line not in self._of_line:
                    self._of_line[line] = self._at_line(*line)
                return self._of_line[line]
            if origin_of(file) in (Origin.USER, Origin.LIBRARY):
                return None
            frame = frame.f_back
        return None

    def _at_line(self, file: str, line: int) -> Buffer | None:
        match = _MADE_OR_WRITTEN.search(linecache.getline(file, line))
        if match is None:
            return None
        name = match["made"] or match["written"]
        return self._of_file[file].get(name, Buffer(name, (), "", None))


def buffers_of(graph: Any) -> dict[str, Buffer]:
    """The buffers of a `GraphLowering`, and the sizes that it reads from them, by name."""
    found = {name: _of(name, each) for name, each in graph.name_to_buffer.items()}
    sizes = (each for each in graph.operations if type(each).__name__ == "DynamicScalar")
    return found | {str(each.sym): _of(str(each.sym), each) for each in sizes}


def _of(name: str, buffer: Any) -> Buffer:
    nodes = sorted(getattr(buffer, "origins", ()))  # in the order of the graph
    origins = [origin_of_node(node) for node in nodes]
    operations = dict.fromkeys(operation for operation, _, _ in origins if operation)
    _, module, source = origins[-1] if origins else ("", "", None)
    return Buffer(name, tuple(operations), module, source)


def origin_of_node(node: Any) -> tuple[str, str, Source | None]:
    """A node's operation, or "" for a view; its module; its line."""
    return _operation_of(node), _module_of(node.meta), _source_of(node.meta)


def _operation_of(node: Any) -> str:
    aten = node.meta.get("original_aten")
    name = str(aten).partition(".")[2].partition(".")[0] if aten is not None else ""
    return "" if name in _VIEWS else name


def _module_of(meta: dict[str, Any]) -> str:
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
    path = next(reversed([each[0] for each in stack.values()]), "")
    return ".".join(part for part in _NAMES.findall(path) if part not in _DYNAMO_SAYS)


def _source_of(meta: dict[str, Any]) -> Source | None:
    found = _innermost(meta.get("stack_trace") or "")
    return found and Source(short_path(found["file"]), int(found["line"]), found["function"])


@lru_cache(maxsize=1024)
def _innermost(stack_trace: str) -> re.Match[str] | None:
    """The innermost line of the program in a stack trace recorded by Dynamo."""
    lines: Iterable[re.Match[str]] = _LINE_OF_TRACE.finditer(stack_trace)
    own = [each for each in lines if origin_of(each["file"]) in (Origin.USER, Origin.LIBRARY)]
    return own[-1] if own else None
