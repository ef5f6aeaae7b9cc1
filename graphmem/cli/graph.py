"""`graphmem graph`: the step graph as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphmem.cli import options
from graphmem.cli.output import progress, put
from graphmem.cli.request import takes_request

if TYPE_CHECKING:
    from graphmem.analysis import Request


@takes_request("settings gpu assume autocast optimizer grads steps inference", steps=1)
def graph(
    target: options.Target,
    *,
    request: Request,
    output: options.Output = None,
) -> None:
    """Print the step graph: every ATen operation in execution order, one line each.

    A line is: name = operation, its outputs as dtype[shape] with the bytes of a new storage and
    the storage's number, the module, the source line, and the autograd node.
    """
    from graphmem.analysis import traced_step
    from graphmem.graph_lines import lines_of

    with progress() as report_progress:
        step = traced_step(target, request, report_progress)
    text = "".join(f"{line}\n" for line in lines_of(step.graph))
    put(text, output)
