"""One operation as a rule sees it: its arguments by name, and the machine it runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from graphmem.graph import Op, SparseOut, TensorOut
from graphmem.kernel_program import Free, Output, Scratch, Step, Take, outputs_of
from graphmem.nodes import Node
from graphmem.runtime import Runtime


class UnknownOperandError(Exception):
    """A rule needs sizes and strides of an operand that the graph does not know."""


@dataclass
class Workspaces:
    """Which threads have taken their workspaces so far."""

    cublas: set[str] = field(default_factory=set)
    cublaslt: set[str] = field(default_factory=set)

    def copy(self) -> Workspaces:
        """A snapshot of the workspaces taken so far."""
        return Workspaces(set(self.cublas), set(self.cublaslt))


Notes = dict[tuple[str, str, str], list[Op]]
"""Memory that was left out, as (what, value, why), and the operations concerned."""


@dataclass(frozen=True)
class Call:
    """One call of an operator.

    Attributes:
        op: the operation.
        runtime: GPU, version of PyTorch, environment.
        thread: the name of the thread that runs it.
        workspaces: those that the process has taken so far.
        notes: memory that rules have left out so far.
    """

    op: Op
    runtime: Runtime
    thread: str
    workspaces: Workspaces
    notes: Notes

    @property
    def name(self) -> str:
        """The operator's name without its overload, such as `aten.sum`."""
        return self.op.target.rpartition(".")[0]

    def leave_out(self, what: str, value: str, why: str) -> None:
        """Have the report list memory that no rule knows; `value` is the size assumed."""
        self.notes.setdefault((what, value, why), []).append(self.op)

    def value(self, name: str) -> Any:
        """An argument by its name in the operator's schema; None if it was not given."""
        return self.op.argument(name)

    def optional(self, name: str) -> TensorOut | None:
        """A tensor argument; None if it was not given.

        Raises:
            UnknownOperandError: its sizes are not known, or it is sparse.
        """
        value = self.value(name)
        return described(value) if isinstance(value, Node) else None

    def tensor(self, name: str) -> TensorOut:
        """A tensor argument.

        Raises:
            UnknownOperandError: there is none, its sizes are not known, or it is sparse.
        """
        found = self.optional(name)
        if found is None:
            raise UnknownOperandError(name)
        return found

    def sparse(self, name: str) -> SparseOut | None:
        """A sparse COO argument; None if it is another kind of tensor."""
        value = self.value(name)
        found = value.tensor if isinstance(value, Node) else None
        return found if isinstance(found, SparseOut) else None

    def tensors(self, name: str) -> list[TensorOut | None]:
        """A list of tensors, with None for those left out."""
        value = self.value(name)
        items = value if isinstance(value, (list, tuple)) else []
        return [described(item) if isinstance(item, Node) else None for item in items]

    def outputs(self) -> Iterator[Output]:
        """The steps that allocate the operation's results."""
        return outputs_of(self.op)


Rule = Callable[[Call], Iterator[Step]]


def described(node: Node) -> TensorOut:
    """The tensor that a node stands for.

    Raises:
        UnknownOperandError: the graph does not know its sizes, or it is sparse.
    """
    tensor = node.tensor
    if tensor is None or len(tensor.stride) != len(tensor.shape):
        raise UnknownOperandError(str(node))
    return tensor


def during(scratch: Iterable[Scratch], steps: Iterable[Step] = ()) -> Iterator[Step]:
    """Take scratch memory, do `steps`, and free it in reverse order, as C++ scopes do."""
    held = list(scratch)
    yield from map(Take, held)
    yield from steps
    yield from map(Free, reversed(held))
