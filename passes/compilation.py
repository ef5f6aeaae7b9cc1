"""What compiling the program saved, and what the breaks of its graphs cost.

Clauses, of each graph that Inductor compiled, once, however often it runs:
  (1) a result is *fused* if kernels compute and use it without allocating it;
  (2) a result is *recomputed* if the backward graph computes it again, where the partitioner found
      that cheaper than keeping it (`min_cut_rematerialization_partition`,
      torch/_functorch/partitioners.py);
  (3) at a break, the results that the graph before it returns are allocated for the code after it,
      which could have been fused into it; code that is compiled again breaks at the same places.

Not covered: buffers that one graph reuses for another, which the timeline shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graphmem.compiled_code import CompiledCode, CompiledGraph, GraphBreak
from graphmem.graph import StepGraph
from graphmem.pipeline import Annotations, Pass
from graphmem.runtime import Runtime
from graphmem.units import counted, format_bytes

_LISTED = 5


@dataclass(frozen=True)
class CompilationSavings:
    """What was compiled; nothing if the program compiles nothing."""

    graphs: tuple[CompiledGraph, ...]
    breaks: tuple[GraphBreak, ...]
    is_timed: bool = False

    def report_lines(self) -> Iterator[str]:
        """Yield lines on fused and recomputed results, on tuning, and one for each break."""
        if self.graphs:
            yield from self._savings()
        if self.is_timed:
            yield (
                "kernels' configurations are timed, which takes memory, as in a first run; a later "
                "one finds the fastest in Inductor's cache: --assume tuned=true"
            )
        for each in self.breaks[:_LISTED]:
            yield _line(each)
        if len(self.breaks) > _LISTED:
            yield f"{len(self.breaks) - _LISTED} more graph breaks"

    def _savings(self) -> Iterator[str]:
        results = sum(each.results for each in self.graphs)
        fused = sum(each.fused for each in self.graphs)
        nbytes = sum(each.fused_bytes for each in self.graphs)
        yield (
            f"of {results:,} results in {counted(len(self.graphs), 'compiled graph')}, {fused:,} "
            f"({format_bytes(nbytes)}) exist only inside fused kernels"
        )
        again = sum(each.recomputed for each in self.graphs)
        if again:
            nbytes = sum(each.recomputed_bytes for each in self.graphs)
            yield (
                f"backward graphs recompute {counted(again, 'result')} of forward graphs "
                f"({format_bytes(nbytes)}): the partitioner found that cheaper than keeping them"
            )


def find_compilation(
    graph: StepGraph, runtime: Runtime, annotations: Annotations
) -> CompilationSavings:
    """Collect what was compiled."""
    code = graph.compiled or CompiledCode()
    breaks = tuple(dict.fromkeys(code.breaks))
    return CompilationSavings(tuple(code.graphs), breaks, code.is_timed)


def _line(each: GraphBreak) -> str:
    at = f" at {each.source}" if each.source else ""
    held = f"{counted(each.results, 'result')} of the graph before it ({format_bytes(each.nbytes)})"
    cost = f"; {held}, allocated for the code after it" if each.results else ""
    return f"the graph breaks{at}: {each.reason}{cost}"


COMPILATION = Pass(provides="compilation", run=find_compilation)
