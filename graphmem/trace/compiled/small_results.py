"""The values of a compiled graph's small results, which its kernels do not compute here.

A program may decide by them, such as by whether a loss's weight is above zero. Inductor's kernels
do nothing, so what is known of a graph's operands is followed through the graph that it lowered.

Clauses:
  (1) a result of at most `TABLE` elements is known if it is not random and comes from known inputs
      and constants, through results that are as small, that are views, which cost nothing (a model
      reads one element of a table), or that are integers or truth values, as a compared mask;
  (2) an input that the graph writes into gets the value that the graph copies into it at its end
      (`keep_inference_input_mutations`, torch/_inductor/compile_fx.py), if that is known; otherwise
      its values are forgotten;
  (3) where a graph writes into a tensor in place (`triton_kernel_wrapper_mutation`), views and
      bases change as well: what came before is not known from there on.

Not covered: sizes that vary, and operators of other libraries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple, Self

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.values.held import KNOWN, KnownTensor
from graphmem.values.known import KnownValues
from graphmem.values.limits import TABLE, is_carried, is_number
from graphmem.values.plans import is_pure
from graphmem.virtual_device.patching import Replacement

_COPY = torch.ops.aten.copy_.default


class SmallResult(NamedTuple):
    """A result of an earlier operation, or an input, as an argument."""

    name: str


class SmallOperation(NamedTuple):
    """An operation that is followed; `target` is such as `aten.gt.Scalar`."""

    name: str
    target: str
    args: Any
    kwargs: Any


@dataclass(frozen=True)
class SmallResults:
    """What of a graph has to be followed.

    Attributes:
        inputs: the positions of inputs, by name.
        operations: those on these inputs, and on each other's results, in order.
        outputs: the names of small results that the graph returns, by position.
        written: the names of small results that are copied into inputs, by the input's position.
    """

    inputs: dict[str, int]
    operations: tuple[SmallOperation, ...]
    outputs: dict[int, str]
    written: dict[int, str]


_NOTHING = SmallResults({}, (), {}, {})


def small_results(graph: torch.fx.Graph) -> SmallResults:
    """What of a graph that Inductor has lowered has to be followed."""
    places = {node: i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
    followed = {node for node in places if _is_whole(node)}
    operations, written = [], {}
    for node in graph.find_nodes(op="call_function", target=_COPY):
        target, value = node.args[:2]
        if target in places:
            written[places[target]] = value
    for node in graph.nodes:
        if node.op == "call_function" and _can_be_followed(node, followed):
            followed.add(node)
            target = str(node.target)
            args = torch.fx.map_arg((node.args, node.kwargs), lambda each: SmallResult(each.name))
            operations.append(SmallOperation(node.name, target, *args))
        elif _writes(node) and not (node.target is _COPY and node.args[0] in places):
            followed.clear()
    (output,) = graph.find_nodes(op="output")
    small = {node for node in followed if _is_small(node)}
    returned = enumerate(output.args[0])
    outputs = {place: node.name for place, node in returned if node in small and node not in places}
    copied = {place: value.name for place, value in written.items() if value in small}
    needed = _needed(operations, {*outputs.values(), *copied.values()})
    return SmallResults(
        {node.name: place for node, place in places.items() if node.name in needed},
        tuple(each for each in operations if each.name in needed),
        outputs,
        copied,
    )


def _writes(node: torch.fx.Node) -> bool:
    """Clause (3)."""
    if isinstance(node.target, HigherOrderOperator):
        return bool(node.target.name() == "triton_kernel_wrapper_mutation")
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _needed(operations: Sequence[SmallOperation], results: set[str]) -> set[str]:
    """The names of these results, and of what they are computed from."""
    needed = set(results)
    for each in reversed(operations):
        if each.name in needed:
            needed |= {operand.name for operand in _results(each[2:])}
    return needed


def _can_be_followed(node: torch.fx.Node, followed: set[torch.fx.Node]) -> bool:
    is_known = all(each in followed for each in node.all_input_nodes)
    return is_known and is_pure(node.target) and _is_whole(node) and _is_cheap(node)


def _is_whole(node: torch.fx.Node) -> bool:
    """Whether a node is a tensor whose values can be carried."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    is_sized = all(isinstance(size, int) for size in value.shape)
    return is_sized and is_carried(value.dtype, value.numel())


def _is_cheap(node: torch.fx.Node) -> bool:
    """Clause (1)."""
    is_view = getattr(node.target, "is_view", False)
    return _is_small(node) or is_view or not is_number(node.meta["val"].dtype)


def _is_small(node: torch.fx.Node) -> bool:
    return bool(node.meta["val"].numel() <= TABLE)


def replacements(known: KnownValues, followed: Mapping[str, SmallResults]) -> list[Replacement]:
    """The attributes to replace.

    Args:
        known: the values of tensors.
        followed: what to follow of each graph, by the file of its wrapper.
    """
    from torch._inductor.codecache import get_path
    from torch._inductor.output_code import CompiledFxGraph

    call = CompiledFxGraph.__call__

    def call_and_follow(compiled: Any, inputs: Sequence[Any]) -> Any:
        small = followed.get(get_path(compiled.cache_key, "py")[2], _NOTHING)
        values = dict(_values(known, small, inputs))
        written = [values.get(small.written.get(i, "")) for i in compiled.mutated_input_idxs]
        mutated = [inputs[i] for i in compiled.mutated_input_idxs]
        writes = [write for write in map(_Write.of, repeat(known), mutated, written) if write]
        del mutated  # the wrapper frees inputs that nobody else has
        outputs = call(compiled, inputs)
        if writes:
            known.compute_postponed()
        for write in writes:
            write.apply()
        for place, name in small.outputs.items():
            if name in values and _is_alone(outputs[place]):
                known.note_output(outputs[place], *values[name])
        return outputs

    return [(CompiledFxGraph, "__call__", call_and_follow)]


def _values(
    known: KnownValues, small: SmallResults, inputs: Sequence[Any]
) -> Iterator[tuple[str, KnownTensor]]:
    """Clause (1): what is known of a graph's results, by name."""
    found: dict[str, KnownTensor] = {}
    for name, place in small.inputs.items():
        value = None if inputs[place].requires_grad else known.of(inputs[place])
        if value is not None:
            found[name] = value
    for operation in small.operations:
        value = _computed(known, operation, found)
        if value is not None:
            found[operation.name] = value
            yield operation.name, value


def _computed(
    known: KnownValues, operation: SmallOperation, found: dict[str, KnownTensor]
) -> KnownTensor | None:
    basis = KNOWN
    for each in _results(operation[2:]):
        if each.name not in found:
            return None
        basis |= found[each.name].basis
    namespace, name, overload = operation.target.split(".")
    target = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    args, kwargs = _filled(operation[2:], found)
    made = known.compute(target, args, kwargs)
    return None if made is None else KnownTensor(made[0], basis)


def _results(argument: Any) -> Iterator[SmallResult]:
    if isinstance(argument, SmallResult):
        yield argument
    elif isinstance(argument, dict):
        yield from _results(list(argument.values()))
    elif isinstance(argument, (list, tuple)):
        for each in argument:
            yield from _results(each)


def _filled(argument: Any, found: dict[str, KnownTensor]) -> Any:
    if isinstance(argument, SmallResult):
        return found[argument.name].tensor
    if isinstance(argument, dict):
        return {name: _filled(each, found) for name, each in argument.items()}
    if isinstance(argument, (list, tuple)):
        return [_filled(each, found) for each in argument]
    return argument


class _Write(NamedTuple):
    """What is written into an input whose values are known; it does not keep the input."""

    values: torch.Tensor
    held: Any
    value: KnownTensor

    @classmethod
    def of(cls, known: KnownValues, tensor: Any, value: KnownTensor | None) -> Self | None:
        """Clause (2), before the graph runs; None if there is nothing to write."""
        values = known.of(tensor) if isinstance(tensor, FakeTensor) else None
        if values is None or value is None or known.is_capturing:
            known.forget(tensor)
            return None
        return cls(values.tensor, known.saved(tensor), value)

    def apply(self) -> None:
        with torch._C._DisableTorchDispatch():
            self.values.copy_(self.value.tensor)
        self.held.basis |= self.value.basis


def _is_alone(tensor: torch.Tensor) -> bool:
    """Whether a tensor has its storage to itself."""
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
