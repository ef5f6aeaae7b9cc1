"""The step graph: operations in execution order, the storages they touch, and who owns those.

Time is counted in *ticks*: every operation, allocation and change of ownership takes the next one,
so any two of them are ordered. A storage is alive from its birth until the last of its owners lets
go; nothing else decides when it dies.

This module knows nobody: the tracer fills it, passes annotate it, the simulator reads it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.fx


class OwnerKind(enum.StrEnum):
    """One reason that a storage is alive."""

    VARIABLE = "variable"
    """A Python variable, an argument of a running operation, or a gradient on its way."""
    SAVED_TENSOR = "saved_tensor"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    AUTOCAST_CACHE = "autocast_cache"
    INPUT = "input"
    WORKSPACE = "workspace"
    COMMUNICATION = "communication"
    """A buffer for what ranks exchange."""
    COMPILED = "compiled"
    """No holder, but a name: which buffer it is of the code that `torch.compile` made, or of which
    library's operator it is."""


class Category(enum.StrEnum):
    """What a storage's bytes are for, as the report groups them."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    AUTOCAST_CACHE = "autocast_cache"
    INPUT = "input"
    TEMPORARY = "temporary"
    WORKSPACE = "workspace"
    COMMUNICATION = "communication"
    KEPT = "kept"


class PhaseName(enum.StrEnum):
    """The parts of an iteration; `SETUP` is everything before the first one."""

    SETUP = "setup"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    EVALUATION = "evaluation"
    """Forward passes without gradients, in a program that was run whole."""


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the program under analysis.

    Attributes:
        called_from: the user's own line, where this one is a package's and somebody asked.
        within: in words, what ran, where no line of the user's is there.
    """

    file: str
    line: int
    function: str
    called_from: Source | None = field(default=None, compare=False)
    within: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def in_words(self) -> str:
        """The line and where it was called from, as a message has them."""
        if self.called_from is not None:
            return f"{self}, called from {self.called_from}"
        return f"{self}, {self.within}" if self.within else str(self)


@dataclass(slots=True)
class Owner:
    """One holder of a storage, from tick `start` to tick `end` (None: beyond the trace)."""

    kind: OwnerKind
    name: str
    start: int
    end: int | None = None
    source: Source | None = None

    def holds_at(self, tick: int) -> bool:
        """Whether this owner keeps the storage alive at `tick`."""
        return self.start <= tick and (self.end is None or tick < self.end)


@dataclass(slots=True)
class Storage:
    """One allocation on the device.

    Attributes:
        id: its position in `StepGraph.storages`.
        nbytes: requested bytes.
        birth: the tick of its allocation.
        op: index of the operation that allocated it, or None for kernels' workspaces.
        shape, dtype: of the first tensor that lived in it.
        device: where it is; tensors on the host are known only when autograd saves them.
    """

    id: int
    nbytes: int
    birth: int
    op: int | None
    shape: tuple[int, ...]
    dtype: str
    device: str
    owners: list[Owner] = field(default_factory=list)

    @property
    def death(self) -> int | None:
        """The tick at which the last owner lets go; None when one holds on beyond the trace."""
        last = self.birth
        for owner in self.owners:
            if owner.end is None:
                return None
            last = max(last, owner.end)
        return last

    def owned_as(self, kind: OwnerKind) -> Owner | None:
        """The first owner of that kind, or None."""
        return next((owner for owner in self.owners if owner.kind is kind), None)

    def owners_at(self, tick: int) -> list[Owner]:
        """Every owner that holds the storage at `tick`."""
        return [owner for owner in self.owners if owner.holds_at(tick)]

    def category_at(self, tick: int) -> Category:
        """What the bytes are for at `tick`.

        Clauses, the first that applies:
          (1) a storage that is ever a parameter, buffer, gradient, optimizer state, workspace,
              autocast's copy of a weight, or an input is that for its whole life;
          (2) a storage that autograd holds at that tick is an activation, and so is one that it
              held for compiled code, whose backward pass takes it over;
          (3) a buffer for what ranks exchange is that for its whole life;
          (4) everything else is temporary.

        What a program keeps across its iterations is found by `report.kept`.
        """
        for kind, category in _LIFELONG:
            if self.owned_as(kind):
                return category
        if any(_is_activation_for(owner, tick) for owner in self.owners):
            return Category.ACTIVATION
        if self.owned_as(OwnerKind.COMMUNICATION):
            return Category.COMMUNICATION
        return Category.TEMPORARY


COMPILED_NODE = "CompiledFunctionBackward"
"""The node of compiled code (torch/_functorch/_aot_autograd/runtime_wrappers.py)."""


def _is_activation_for(owner: Owner, tick: int) -> bool:
    if owner.kind is not OwnerKind.SAVED_TENSOR:
        return False
    is_taken_over = owner.name.startswith(COMPILED_NODE) and owner.start <= tick
    return is_taken_over or owner.holds_at(tick)


_LIFELONG = (
    (OwnerKind.PARAMETER, Category.PARAMETER),
    (OwnerKind.BUFFER, Category.BUFFER),
    (OwnerKind.GRADIENT, Category.GRADIENT),
    (OwnerKind.OPTIMIZER_STATE, Category.OPTIMIZER_STATE),
    (OwnerKind.WORKSPACE, Category.WORKSPACE),
    (OwnerKind.AUTOCAST_CACHE, Category.AUTOCAST_CACHE),
    (OwnerKind.INPUT, Category.INPUT),
)


@dataclass(frozen=True, slots=True)
class TensorOut:
    """One tensor that an operation returned.

    Attributes:
        stride: in elements, as `Tensor.stride()` says; empty for a sparse tensor.
        offset: of the first element in the storage, in elements.
        storage: None off the device, when empty, and for a sparse tensor, which has two.
        nonzeros: how many values a sparse COO tensor has; None for any other.
        is_coalesced: whether they are sorted, each at a place of its own.
    """

    shape: tuple[int, ...]
    dtype: str
    storage: int | None
    stride: tuple[int, ...] = ()
    offset: int = 0
    nonzeros: int | None = None
    is_coalesced: bool = False


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor that an autograd node holds.

    Attributes:
        field: as the derivative formula calls it, such as `self` or `result`; with its position
            where a field holds several, `tensors[0]`.
        tensor: None where the user's own hooks keep something else in its place.
        owner: this hold among the owners of its storage; None where no storage is counted.
    """

    field: str
    tensor: TensorOut | None
    owner: Owner | None


@dataclass(frozen=True, slots=True)
class AutogradNode:
    """One node of autograd's graph that ran.

    Attributes:
        number: unique in the trace; a node made later has a higher one.
        name: such as `AddmmBackward0`.
        op: index of the operation whose derivative it is.
        next: where each of its results goes: a node's number, the name of a leaf such as
            `h.0.ln_1.weight`, or None where no gradient is wanted.
        saved: what it held when it began to run.
        source: for a custom function, where its `forward` is written.
    """

    number: int
    name: str
    op: int | None
    next: tuple[int | str | None, ...]
    saved: tuple[SavedTensor, ...]
    source: Source | None


class AutocastState(enum.StrEnum):
    """What autocast had to do with an operation."""

    OFF = "off"
    """No region was open."""
    ON = "on"
    """A region was open."""
    CAST = "cast"
    """Autocast inserted the operation, to cast an argument of the next one."""


@dataclass(slots=True)
class Op:
    """One ATen operation of the step graph.

    Attributes:
        index: its position in `StepGraph.ops`.
        node: its `torch.fx` node; `node.meta["op"]` leads back.
        target: the overload's name, such as `aten.addmm.default`.
        tick: when it began.
        phase: index into `StepGraph.phases`.
        module: qualified name of the innermost module, "" at the top.
        source: the user's line; in the backward pass, the line of the forward operation.
        autograd_node: in the forward pass the node that autograd made for this operation, in
            the backward pass the one that ran it, such as `AddmmBackward0`.
        forward: in the backward pass, the index of the operation whose gradient this computes.
        outputs: the tensors returned, in order.
        births: storages that it allocated, in order of allocation.
        autocast: what autocast had to do with it.
    """

    index: int
    node: torch.fx.Node
    target: str
    tick: int
    phase: int
    module: str
    source: Source | None
    autograd_node: str | None
    forward: int | None
    outputs: list[TensorOut]
    births: list[int]
    autocast: AutocastState = AutocastState.OFF


@dataclass(slots=True)
class Phase:
    """A stretch of one iteration, ticks `start` to `end`, both included."""

    name: PhaseName
    step: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A named moment of an iteration, such as the return of `optimizer.step()`."""

    name: str
    step: int
    tick: int


@dataclass(slots=True)
class Assumption:
    """Something that only a real run knows, and what graphmem took for it."""

    what: str
    value: str
    why: str
    source: Source | None
    times: int = 1


@dataclass(slots=True)
class StepGraph:
    """What one trace of one or more iterations found.

    Attributes:
        fx: every operation as one `torch.fx.Graph`, in execution order. `node.meta["op"]` is the
            operation that a node stands for; a node that stands for a tensor alone, an input or
            one of several results, has a `TensorOut` in `node.meta["tensor"]`.
        device: the device whose storages are counted.
        autograd_nodes: in the order in which they ran.
        modules: the class of every module by its qualified name.
        parameters: whether each parameter requires a gradient, by its qualified name.
        tied: further names of parameters that several modules share, each with the first one.
        is_routed: sizes hang on how tokens are routed, which is assumed.
        emptied: the ticks at which `torch.cuda.empty_cache()` was called.
    """

    fx: torch.fx.Graph
    device: str
    ops: list[Op] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    assumptions: list[Assumption] = field(default_factory=list)
    autograd_nodes: list[AutogradNode] = field(default_factory=list)
    modules: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, bool] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    emptied: list[int] = field(default_factory=list)
    is_routed: bool = False
    end: int = 0

    @property
    def steps(self) -> int:
        """How many iterations were traced."""
        return 1 + max((phase.step for phase in self.phases), default=-1)

    def phases_of(self, step: int) -> list[Phase]:
        """The phases of one iteration, in order."""
        return [phase for phase in self.phases if phase.step == step]

    def op_of(self, storage: Storage) -> Op | None:
        """The operation that allocated a storage, or None."""
        return None if storage.op is None else self.ops[storage.op]

    def lines(self) -> Iterator[str]:
        """The step graph as text, one line an operation, stable between runs."""
        phase: int | None = None
        for op in self.ops:
            if op.phase != phase:
                phase = op.phase
                where = self.phases[phase]
                yield f"# step {where.step} {where.name}" if where.step >= 0 else f"# {where.name}"
            yield self._line(op)

    def _line(self, op: Op) -> str:
        outputs = ", ".join(self._output(op, output) for output in op.outputs) or "-"
        module = op.module or "-"
        autograd = op.autograd_node or "-"
        return f"%{op.node.name} = {op.target}  {outputs}  {module}  {op.source or '-'}  {autograd}"

    def _output(self, op: Op, output: TensorOut) -> str:
        shape = "x".join(map(str, output.shape)) or "scalar"
        if output.storage is None:
            return f"{output.dtype}[{shape}]"
        storage = self.storages[output.storage]
        new = f" {storage.nbytes}B" if output.storage in op.births else ""
        return f"{output.dtype}[{shape}]{new} s{output.storage}"
