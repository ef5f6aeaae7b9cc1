"""Switch PyTorch's compiler on for the virtual card when the program first uses it."""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch

from graphmem.environment import environment
from graphmem.private_cache import PrivateCache, users_folder
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import CACHED_GRAPHS_ARE_BYTES
from graphmem.trace import whole_backward
from graphmem.trace.compiled import (
    dynamo,
    graph_outputs,
    inductor,
    kernel_loops,
    kernel_values,
    steps,
    traced_graphs,
)
from graphmem.trace.compiled.kernel_loops import KernelCall, KernelCalls
from graphmem.trace.compiled.origins import Origins, buffers_of
from graphmem.trace.compiled.reuse import MOST_BYTES, Learned, Reuse
from graphmem.trace.compiled.savings import Savings, compiled_graph, is_backward
from graphmem.trace.compiled.unknowns import Unknowns
from graphmem.trace.compiled.unwatched import Unwatched
from graphmem.trace.messages import NoTritonError
from graphmem.trace.recorder import Recorder
from graphmem.values.known import KnownValues
from graphmem.virtual_device.device_memory import DeviceMemory
from graphmem.virtual_device.libraries import triton
from graphmem.virtual_device.patching import Replacement, replaced, suspended

_MODULES = (
    "torch._dynamo.convert_frame",
    "torch._inductor.compile_fx",
    "torch._inductor.async_compile",
    "torch._inductor.cudagraph_trees",
    "torch._inductor.fx_passes.joint_graph",
    "torch._inductor.runtime.triton_heuristics",
    "triton.runtime.driver",
)
_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_CODE = "torch._inductor.codecache"
_WHAT_THEY_KNOW_OF_A_CARD = {
    "torch.utils._triton",
    "torch._dynamo.variables.torch",
    _CODE,
    "torch._inductor.runtime.benchmarking",
    "torch._inductor.runtime.hints",
    "torch._inductor.utils",
    "torch.overrides",
}
"""Modules whose caches depend on the machine, or on functions that graphmem replaces."""
_FRAMES = "torch._dynamo.eval_frame"


class Compilation:
    """PyTorch's compiler on a virtual card.

    Attributes:
        origins: the origins of compiled code's buffers.
        noted: called when a graph is compiled, with whether it is one to be differentiated.
    """

    def __init__(
        self,
        recorder: Recorder,
        unwatched: Unwatched,
        unknowns: Unknowns,
        known: KnownValues,
        *,
        knows_memory: bool,
        memory: DeviceMemory | None,
    ) -> None:
        """Make a compiler that is not switched on yet.

        Args:
            recorder: knows who owns a storage.
            unwatched: stops recording while the compiler runs.
            unknowns: answers what only a card knows.
            known: the values of the program's tensors.
            knows_memory: whether the program can ask how much memory is in use.
            memory: the device's, if it can be followed; otherwise CUDA graphs are left out.
        """
        self._memory = memory
        self._recorder = recorder
        self._unknowns = unknowns
        self._known = known
        self._knows_memory = knows_memory
        self._unwatched = unwatched
        self.origins = Origins()
        self.noted: Callable[[bool], object] = lambda trains: None
        self._stack = ExitStack()
        self._is_on = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Wait for the program's first use, while the context is open."""
        with self._stack, replaced(self._entrances()):
            yield

    def _entrances(self) -> list[Replacement]:
        found: list[Replacement] = [
            (torch, "compile", self._noting_steps(self._first(torch.compile))),
            (torch.export, "export", self._exporting(torch.export.export)),
            traced_graphs.replacement(self._unwatched),
        ]
        frames = sys.modules.get(_FRAMES)
        if frames is not None:  # functions compiled before the program began go through this

            def chosen(callback: Any) -> Any:
                if callback not in (None, False):
                    self.switch_on()
                return callback

            found.append(dynamo.passing_compilers(frames, chosen))
            # It imports modules that a build for CPUs has only once the compiler is on.
            found.append((torch._dynamo, "reset", self._first(torch._dynamo.reset)))
        return found

    def _first(self, compile_: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compile_)
        def switch_on_and_compile(*args: Any, **kwargs: Any) -> Any:
            self.switch_on()
            return compile_(*args, **kwargs)

        return switch_on_and_compile

    def _noting_steps(self, compile_: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compile_)
        def compile_and_note(model: Any = None, **options: Any) -> Any:
            compiled = compile_(model, **options)
            return steps.between_hooks(model, compiled) if options.get("fullgraph") else compiled

        return compile_and_note

    def _exporting(self, export: Callable[..., Any]) -> Callable[..., Any]:
        unwatched = self._unwatched.running(export)

        @functools.wraps(export)
        def export_unwatched(*args: Any, strict: bool = False, **kwargs: Any) -> Any:
            if not strict:
                return unwatched(*args, **kwargs)
            self.switch_on()  # Dynamo traces the program, and not Python itself
            with replaced(dynamo.without_own_hooks()):
                return unwatched(*args, strict=True, **kwargs)

        return export_unwatched

    def switch_on(self) -> None:
        """Make the compiler see the card.

        Raises:
            InputError: Triton, in which Inductor writes its kernels, is not installed.
        """
        if self._is_on:
            return
        _check_triton()
        self._is_on = True
        enter = self._stack.enter_context
        enter(_cache_of_its_own())
        with suspended():
            for module in _MODULES:
                importlib.import_module(module)
        enter(_forgetting())
        enter(replaced(dynamo.factories(self._unwatched)))
        enter(replaced(dynamo.tables()))
        dynamo.leave_own_frames()
        enter(dynamo.properties_as_constants())
        savings = Savings(self._unknowns)
        self._recorder.graph.compiled = savings.code
        enter(replaced(dynamo.replacements(self._unwatched, savings)))
        on_card = inductor.replacements(
            self._unwatched.recorded,
            self._unknowns,
            savings.code,
            self._recorder,
            knows_memory=self._knows_memory,
            memory=self._memory,
        )
        enter(replaced(on_card))
        enter(replaced(graph_outputs.replacements(self._recorder)))
        enter(replaced(self._notes(savings)))
        enter(replaced(whole_backward.capturing(self._unwatched.opened)))
        enter(importlib.import_module("torch._inductor.config").patch(inductor.SETTINGS))

    def _notes(self, savings: Savings) -> list[Replacement]:
        """The attributes to replace so that each graph is noted."""
        from torch._dynamo.output_graph import OutputGraph
        from torch._inductor.graph import GraphLowering

        compile_to_module = GraphLowering.compile_to_module
        kernels: dict[str, KernelCalls] = {}
        written: KernelCalls = {}

        def learn(file: str, learned: Learned) -> None:
            self.origins.note(file, learned.buffers)
            kernels[file] = learned.kernels
            savings.code.graphs.append(learned.graph)

        # In a run Python's collector is at work, at moments that depend on what is made.
        is_kept = not self._knows_memory and CACHED_GRAPHS_ARE_BYTES.holds_in(installed_release())
        folder = users_folder() if is_kept else None
        reuse = folder and Reuse(PrivateCache(folder, MOST_BYTES), learn, self._effects)

        def note_call(name: str, call: KernelCall) -> None:
            written.setdefault(name, []).append(call)

        def compile_and_note(graph: Any) -> Any:
            written.clear()
            module = compile_to_module(graph)
            constants = bool(graph.constants or graph.torchbind_constants)
            learned = Learned(buffers_of(graph), compiled_graph(graph), {**written}, constants)
            learn(str(module.__file__), learned)
            self.noted(not (graph.is_inference or is_backward(graph)))
            if reuse:
                reuse.note(learned)
            return module

        return [
            *(reuse.replacements() if reuse else []),
            *kernel_loops.replacements(note_call),
            *kernel_values.replacements(self._known, kernels),
            (GraphLowering, "compile_to_module", compile_and_note),
            (
                OutputGraph,
                "call_user_compiler",
                savings.noting_results(OutputGraph.call_user_compiler),
            ),
        ]

    def _effects(self) -> int:
        """How much is recorded and assumed so far."""
        graph = self._recorder.graph
        assumed = sum(each.times for each in graph.assumptions)
        return len(graph.ops) + len(graph.storages) + assumed


def _check_triton() -> None:
    if not triton.is_installed():
        raise NoTritonError()


@contextmanager
def _cache_of_its_own() -> Iterator[None]:
    """Keep Inductor's cache separate from that of real runs: a first run is predicted."""
    with (
        tempfile.TemporaryDirectory(prefix="graphmem-torchinductor_") as folder,
        environment({_CACHE: folder}),
    ):
        try:
            yield
        finally:
            _unload(folder)


def _unload(folder: str) -> None:
    """Unload the modules of kernels in a folder: they hold functions that the trace replaced."""
    for name, module in list(sys.modules.items()):
        is_kernel = name.startswith("torch._inductor.")
        if is_kernel and str(vars(module).get("__file__")).startswith(folder):
            del sys.modules[name]


@contextmanager
def _forgetting() -> Iterator[None]:
    """Clear what the compiler remembers of the machine and of code, before and after."""
    _forget()
    try:
        yield
    finally:
        _forget()


def _forget() -> None:
    with suspended():
        compiler = importlib.import_module("torch._dynamo")
        with whole_backward.spared():
            compiler.reset()
    if _CODE in sys.modules:  # up to torch 2.5 it finds kernels by their code, with what was chosen
        sys.modules[_CODE].PyCodeCache.cache_clear()
    for name in _WHAT_THEY_KNOW_OF_A_CARD:
        if name in sys.modules:
            for cache in _caches_of(sys.modules[name]):
                cache.cache_clear()


def _caches_of(module: ModuleType) -> Iterator[Any]:
    """The functions and methods of a module that remember their results.

    They are looked up by name: the garbage collector does not list what `gc.freeze` has put away.
    """
    own = [value for value in vars(module).values() if _is_from(module, value)]
    methods = (vars(value).values() for value in own if isinstance(value, type))
    for value in itertools.chain(own, itertools.chain.from_iterable(methods)):
        function = getattr(value, "__func__", value)  # of a class method
        if isinstance(function, functools._lru_cache_wrapper):
            yield function


def _is_from(module: ModuleType, value: Any) -> bool:
    return getattr(value, "__module__", None) == module.__name__
