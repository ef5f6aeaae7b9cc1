"""What each of Inductor's kernels computes, as plain loops that can be run on the host.

Inductor keeps the body of every loop that it fuses into a kernel (`LoopBody`,
torch/_inductor/loop_body.py), an FX graph of loads, stores and scalar operations. Here it becomes
data that can be kept (`reuse.py`) and be run on known values (`loop_runs.py`).

Not covered: loops that draw random numbers or use operations other than those of `loop_runs.py`;
kernels from templates, and those that combine several kernels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from graphmem.torch_releases import installed_one
from graphmem.torch_releases.compiler_names import PRINTERS
from graphmem.trace.compiled.loop_runs import KINDS, Block, FusedLoop, Step, StepResult
from graphmem.virtual_device.patching import Replacement

_NAME = re.compile(r"[a-z]\w*")
_COMBINATIONS = {"ops.add(a, b)": "add", "a + b": "add", "ops.mul(a, b)": "mul", "a * b": "mul"}
"""How `MockHandler` (torch/_inductor/ops_handler.py) writes the function of a scan."""


class KernelCall(NamedTuple):
    """A call of a kernel in a wrapper.

    Attributes:
        arguments: the names of its first arguments, which are buffers.
        places: the position of the argument with the memory of a buffer that a loop names.
        loops: those that can be run, in order.
        made: dtype and elements of each buffer that they store.
        unknown: the buffers that other loops store.
        symbols: the sizes that only the wrapper knows.
    """

    arguments: tuple[str, ...]
    places: dict[str, int]
    loops: tuple[FusedLoop, ...]
    made: dict[str, tuple[torch.dtype, str]]
    unknown: frozenset[str]
    symbols: frozenset[str]


KernelCalls = dict[str, list[KernelCall]]
"""The calls in a wrapper, by the kernel's name."""


def replacements(note: Callable[[str, KernelCall], None]) -> list[Replacement]:
    """The attributes to replace so that `note` gets each call of a kernel that is written."""
    from torch._inductor.codegen.triton import TritonKernel

    call_kernel = TritonKernel.call_kernel

    def note_and_call(kernel: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        features = getattr(kernel, "features", None)
        if features is not None and type(kernel) is TritonKernel:
            note(name, _call(kernel.args, features.scheduler_nodes()))
        return call_kernel(kernel, name, *args, **kwargs)

    return [(TritonKernel, "call_kernel", note_and_call)]


def _call(arguments: Any, nodes: Any) -> KernelCall:
    names, outer = arguments.python_argdefs()[:2]
    # Up to torch 2.6 the parameters are strings.
    position = {str(getattr(each, "name", each)): place for place, each in enumerate(names)}
    count = sum(name.startswith(("in_ptr", "out_ptr", "in_out_ptr")) for name in position)
    found = [(node, _loop(node)) for node in nodes]
    loops = tuple(loop for _, loop in found if loop)
    buffers = {name for loop in loops for name in loop.buffers()}
    inner = {name: _inner(arguments, name) for name in buffers}
    made = {name: _made(name) for loop in loops for name in loop.stored()}
    return KernelCall(
        tuple(map(str, outer[:count])),
        {name: position[each] for name, each in inner.items() if each in position},
        loops,
        made,
        frozenset(name for node, loop in found if not loop for name in node.get_buffer_names()),
        frozenset(_symbols(node for node, loop in found if loop)) | _names(made),
    )


def _symbols(nodes: Iterable[Any]) -> Iterator[str]:
    """The symbols in the sizes and indices of loops that are no variables of theirs."""
    for node in nodes:
        body = node._body
        own = {*body.iter_vars, *body.reduce_vars, *body.indirect_vars}
        expressions = [*body.indexing_exprs.values(), *body.var_ranges.values()]
        free = set().union(*(getattr(each, "free_symbols", ()) for each in expressions))
        yield from map(str, free - own)


def _names(made: dict[str, tuple[torch.dtype, str]]) -> set[str]:
    return {name for _, size in made.values() for name in _NAME.findall(size)}


def _inner(arguments: Any, name: str) -> str | None:
    """The parameter that has a buffer's memory (`KernelArgs.input`)."""
    from torch._inductor.virtualized import V

    name = V.graph.scheduler.mutation_real_name.get(name, name)
    inplaced = arguments.inplace_buffers.get(name)
    found = arguments.output_buffers.get(name) or arguments.input_buffers.get(name)
    inner = getattr(inplaced, "inner_name", found)
    return inner if isinstance(inner, str) else None


def _made(name: str) -> tuple[torch.dtype, str]:
    from torch._inductor.virtualized import V

    layout = V.graph.get_buffer(name).get_layout()
    return layout.dtype, _text(layout.storage_size())


def _loop(node: Any) -> FusedLoop | None:
    """The loop of a scheduler's node; None if it cannot be followed."""
    body = getattr(node, "_body", None)
    if body is None:
        return None
    try:
        blocks = {name: _block(body, block.graph) for name, block in body.subblocks.items()}
        main = _block(body, body.root_block.graph)
    except _NotFollowedError:
        return None
    variables = [*body.iter_vars, *body.reduce_vars]
    ranges = tuple((str(each), _text(body.var_ranges[each])) for each in variables)
    return FusedLoop(ranges, len(body.reduce_vars), main, blocks)


class _NotFollowedError(Exception):
    """A loop does something that is not followed."""


def _block(body: Any, graph: torch.fx.Graph) -> Block:
    return tuple(_steps(body, graph))


def _steps(body: Any, graph: torch.fx.Graph) -> Iterator[Step]:
    for node in graph.nodes:
        if node.op == "placeholder":
            continue
        args = torch.fx.map_arg((node.args, node.kwargs), lambda each: StepResult(each.name))
        if node.op == "call_method":
            if node.target not in KINDS:
                raise _NotFollowedError
            yield Step(node.name, node.target, args[0][1:], args[1])
        elif node.op == "call_module":
            yield _of_module(body, node, args[0])
        else:  # the output, and `getitem` of several results
            kind = "output" if node.op == "output" else "getitem"
            yield Step(node.name, kind, args[0], {})


def _of_module(body: Any, node: torch.fx.Node, args: Any) -> Step:
    target = str(node.target)
    if target == "get_index":
        return Step(node.name, "get_index", (_text(body.indexing_exprs[args[0]]),), {})
    if target in body.subblocks:
        return Step(node.name, "masked", (target, *args), {})
    options = body.submodules[target].clone.keywords
    if "combine_fn" in options:
        return Step(node.name, "scan", (_combination(options["combine_fn"], args[1]), *args), {})
    variable, size = str(options["var"]), _text(options["size"])
    return Step(node.name, "indirect", (variable, size, bool(options["wrap_neg"]), *args), {})


def _combination(combine: Callable[..., Any], values: Any) -> str:
    """The operation by which a scan combines numbers."""
    from torch._inductor.ops_handler import MockHandler
    from torch._inductor.virtualized import V

    if len(values) != 1:
        raise _NotFollowedError
    with V.set_ops_handler(MockHandler()):
        (made,) = combine(("a",), ("b",))
    if str(made) not in _COMBINATIONS:
        raise _NotFollowedError
    return _COMBINATIONS[str(made)]


def _text(expression: Any) -> str:
    """An expression of sizes and indices, in Python."""
    return str(installed_one(PRINTERS).PythonPrinter().doprint(expression))
