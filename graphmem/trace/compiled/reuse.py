"""Reuse what Inductor made of a graph in an earlier analysis of the same code.

PyTorch does the work: its cache of compiled graphs (`FxGraphCache`, torch/_inductor/codecache.py)
is empty when a run begins, as on a card that runs the program for the first time, and when it has
no entry for a graph, graphmem gives it one of the user's own folder.

Clauses:
  (1) PyTorch decides what can be cached, and by its key. To that key is added what graphmem's
      answers depend on beyond it: the installation, the card, the program's files, the graph's
      number, and of every node its origin and the hints of its sizes;
  (2) only a compilation that nobody could notice is kept: one that runs nothing on the card, asks
      nothing that only a card knows, and makes no constant;
  (3) what graphmem learns while Inductor runs, its buffers' origins, what it fused and which values
      to follow, is kept too.

Not reused: graphs that CUDA graphs capture, and compilations in a process group, whose size and
ranks Inductor may ask for. Not covered: what Inductor logs, and a program that changes Inductor
itself in ways that depend on its arguments.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._guards import TracingContext

from graphmem.compiled_code import CompiledGraph
from graphmem.frames import Origin, origin_of
from graphmem.installation import installation_digest
from graphmem.private_cache import PrivateCache
from graphmem.trace.compiled.kernel_loops import KernelCalls
from graphmem.trace.compiled.origins import Buffer, origin_of_node
from graphmem.virtual_device.patching import Replacement

MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class Learned:
    """What graphmem learns when Inductor has compiled a graph.

    Attributes:
        buffers: the buffers of its wrapper, by name.
        graph: what was fused.
        kernels: the calls of kernels in its wrapper.
        has_constants: whether the wrapper refers to tensors made while it was compiled.
    """

    buffers: dict[str, Buffer]
    graph: CompiledGraph
    kernels: KernelCalls
    has_constants: bool


@dataclass
class _Compilation:
    """A graph that PyTorch's cache may not have.

    Attributes:
        theirs: PyTorch's key.
        own: graphmem's, which includes it.
        warns: whether it may warn that products are in full precision.
        effects: what its compilation begins with, see `Reuse`.
        learned: what has been learned from it.
    """

    theirs: str
    own: str
    warns: bool
    effects: int
    learned: list[Learned]


class Reuse:
    """Gives PyTorch's cache entries of earlier analyses, and keeps its new ones."""

    def __init__(
        self,
        cache: PrivateCache,
        learn: Callable[[str, Learned], None],
        effects: Callable[[], int],
    ) -> None:
        """Reuse nothing yet.

        Args:
            cache: the entries of earlier runs.
            learn: takes a wrapper's file, and what was learned when it was compiled.
            effects: a number that rises when something runs on the card or is assumed.
        """
        self._cache = cache
        self._learn = learn
        self._effects = effects
        self._current: _Compilation | None = None
        self._names: list[str] = []

    def note(self, learned: Learned) -> None:
        """Note what is learned from the compilation that is under way."""
        if self._current is not None:
            self._current.learned.append(learned)

    def replacements(self) -> list[Replacement]:
        """The attributes to replace."""
        from torch._inductor import compile_fx
        from torch._inductor.codecache import FxGraphCache, get_path

        prepare, load = FxGraphCache.prepare_key, FxGraphCache.load_with_key
        write = FxGraphCache._write_to_local_cache

        def prepare_key(gm: Any, inputs: Any, options: Any, *args: Any) -> Any:
            found, info = prepare(gm, inputs, options, *args)
            self._current = None
            if found is not None and _is_reusable(options):
                own = _key(found[0], self._number(), gm)
                warns = bool(compile_fx.is_tf32_warning_applicable(gm))
                self._current = _Compilation(found[0], own, warns, self._effects(), [])
            return found, info

        def load_with_key(key: str, *args: Any, **options: Any) -> Any:
            found = load(key, *args, **options)
            if found[0] is not None or (entry := self._entry(key)) is None:
                return found
            content, learned = entry
            write(key, content)
            found = load(key, *args, **options)
            if found[0] is not None:
                self._learn(get_path(found[0].cache_key, "py")[2], learned)
                if self._current and self._current.warns:
                    compile_fx._warn_tf32_disabled()  # as `codegen_and_compile` does
            return found

        def write_and_keep(key: str, content: bytes) -> None:
            write(key, content)
            self._keep(key, content)

        return [
            (FxGraphCache, "prepare_key", staticmethod(prepare_key)),
            (FxGraphCache, "load_with_key", staticmethod(load_with_key)),
            (FxGraphCache, "_write_to_local_cache", staticmethod(write_and_keep)),
        ]

    def _number(self) -> tuple[int, str]:
        """The graph's number among those of this run, and its kind, which its wrapper names."""
        context = TracingContext.try_get()
        name = str(None if context is None else context.aot_graph_name)
        if name not in self._names:
            self._names.append(name)
        return self._names.index(name), name.strip("[]'").partition("_")[2]

    def _entry(self, key: str) -> tuple[bytes, Learned] | None:
        current = self._current
        if current is None or current.theirs != key:
            return None
        kept = self._cache.read(current.own)
        return None if kept is None else pickle.loads(kept)

    def _keep(self, key: str, content: bytes) -> None:
        current = self._current
        if current is None or current.theirs != key or current.effects != self._effects():
            return
        if len(current.learned) == 1 and not current.learned[0].has_constants:
            self._cache.write(current.own, pickle.dumps((content, current.learned[0])))


def _is_reusable(options: Any) -> bool:
    if options["cudagraphs"] or not torch.cuda.is_available():
        return False
    return not (torch.distributed.is_available() and torch.distributed.is_initialized())


def _key(theirs: str, number: tuple[int, str], gm: torch.fx.GraphModule) -> str:
    """Clause (1)."""
    card = vars(torch.cuda.get_device_properties(torch.cuda.current_device()))
    digest = hashlib.sha256(repr((theirs, installation_digest(), number, card)).encode())
    for file in sorted(_program()):
        digest.update(file.encode() + b"\0" + hashlib.sha256(Path(file).read_bytes()).digest())
    for module in gm.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            digest.update(repr((node.name, *origin_of_node(node), *_facts(node.meta))).encode())
    return digest.hexdigest()


def _program() -> Iterator[str]:
    """The files of the program's modules, which may have taught Inductor other lowerings."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and origin_of(file) is Origin.USER and Path(file).is_file():
            yield file


def _facts(meta: dict[str, Any]) -> tuple[str, str]:
    return str(meta.get("partitioner_tag")), _value(meta.get("val"))


def _value(value: Any) -> str:
    """A result, and the hints of symbols in it; of objects such as generators, the type."""
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_value, value))})"
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        layout = (*value.shape, *value.stride())
        return f"{value.dtype} {value.device} {_value(layout)}"
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return f"{value}={value.node.hint}"
    return str(value) if isinstance(value, (int, float)) else type(value).__name__
