"""What each compiled graph fuses and recomputes, and what its breaks pass on.

A graph that Inductor lowers has a node for each operation. A node has a buffer of its own if its
result is allocated (`get_origin_node`, torch/_inductor/ir.py), and in a backward graph a tag if it
was in the forward graph before (`partitioner_tag`, torch/_functorch/partitioners.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._guards import TracingContext

from graphmem.compiled_code import CompiledCode, CompiledGraph, GraphBreak
from graphmem.frames import Origin, is_of_absent_package, origin_of, short_path
from graphmem.graph import Source
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import FORWARD_NODES_ARE_TAGGED
from graphmem.trace.compiled.unknowns import Unknowns

_WANTED = "Call to `torch._dynamo.graph_break()`"
"""The break that graphmem makes where PyTorch's own code makes one next."""


class Savings:
    """Notes what is compiled.

    Attributes:
        code: what has been compiled so far.
    """

    def __init__(self, unknowns: Unknowns) -> None:
        """Note nothing yet.

        Args:
            unknowns: notified when a graph breaks in graphmem.
        """
        self.code = CompiledCode()
        self._unknowns = unknowns
        self._passed_on: list[torch.Tensor] = []

    def noting_results(self, call_user_compiler: Callable[..., Any]) -> Callable[..., Any]:
        """`OutputGraph.call_user_compiler`, which gets each graph of Dynamo."""

        def note_and_call(output: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
            self._passed_on = list(_passed_on(module))
            return call_user_compiler(output, module, *args, **kwargs)

        return note_and_call

    def noting_breaks(self, compile_: Callable[..., Any]) -> Callable[..., Any]:
        """Dynamo's `_compile`, which compiles a frame up to its first break."""
        from torch._dynamo.utils import graph_break_reasons

        def run(*args: Any, **kwargs: Any) -> Any:
            before, self._passed_on = len(graph_break_reasons), []
            try:
                return compile_(*args, **kwargs)
            finally:
                for reason in graph_break_reasons[before:]:
                    self._note_break(reason)

        return run

    def _note_break(self, reason: Any) -> None:
        lines = [line.strip() for line in reason.reason.splitlines()]
        what = next(filter(None, lines), "")
        frames = list(reason.user_stack or ())
        if frames and _is_own(frames[-1]):
            if _WANTED not in what and not is_of_absent_package(frames[-1].filename):
                self._unknowns.broke()
                return
            frames = [each for each in frames if origin_of(each.filename) is Origin.USER]
        frame = frames[-1] if frames else None
        source = frame and Source(short_path(frame.filename), frame.lineno, frame.name)
        count, nbytes = len(self._passed_on), sum(map(_nbytes, self._passed_on))
        self.code.breaks.append(GraphBreak(what, source, count, nbytes))


def _is_own(frame: Any) -> bool:
    return origin_of(frame.filename) is Origin.GRAPHMEM


def is_backward(graph: Any) -> bool:
    """Whether a `GraphLowering` is of a backward pass, which before torch 2.6 its name tells."""
    if hasattr(graph, "is_backward"):
        return bool(graph.is_backward)
    context = TracingContext.try_get()
    return context is not None and "backward" in str(context.aot_graph_name)


def compiled_graph(graph: Any) -> CompiledGraph:
    """What a `GraphLowering` that has been compiled fuses and recomputes."""
    buffers = graph.name_to_buffer.items()
    kept = {each.get_origin_node() for name, each in buffers if name not in graph.removed_buffers}
    results = list(_results(graph.module.graph))
    fused = [node for node in results if node not in kept]
    again = [node for node in results if _is_of_forward(node)] if is_backward(graph) else []
    return CompiledGraph(
        is_backward=is_backward(graph),
        results=len(results),
        fused=len(fused),
        fused_bytes=sum(_nbytes(node.meta["val"]) for node in fused),
        recomputed=len(again),
        recomputed_bytes=sum(_nbytes(node.meta["val"]) for node in again),
    )


def _results(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """The nodes that compute a tensor: no views, and of several results each."""
    for node in graph.nodes:
        is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
        if node.op == "call_function" and is_tensor and not _is_view(node.target):
            yield node


def _is_view(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    aliases = [] if schema is None else [each.alias_info for each in schema.arguments]
    name = "" if schema is None else schema.name.partition("::")[2]
    return any(aliases) or name in ("reshape", "_reshape_alias")


def _is_of_forward(node: torch.fx.Node) -> bool:
    tag = "is_forward" if FORWARD_NODES_ARE_TAGGED.holds_in(installed_release()) else None
    return node.meta.get("partitioner_tag") == tag


def _passed_on(module: torch.fx.GraphModule) -> Iterator[torch.Tensor]:
    """The tensors that a graph returns and does not only hand through."""
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    for node in dict.fromkeys(output.all_input_nodes):
        value = node.meta.get("example_value")
        if node.op != "placeholder" and isinstance(value, torch.Tensor):
            yield value


def _nbytes(tensor: torch.Tensor) -> int:
    return math.prod(map(_hint, tensor.shape)) * tensor.element_size()


def _hint(size: Any) -> int:
    """A size; if it is dynamic, that of the call for which it was compiled."""
    return size if isinstance(size, int) else int(size.node.hint or 0)
