"""The step graph: operations in execution order, their storages, and the storages' owners.

Time is counted in *ticks*: every operation, allocation and change of ownership takes the next one,
so any two of them are ordered. A storage is alive from its birth until its last owner releases it;
nothing else determines its death.

This module depends on `nodes` and `op_states` alone: the tracer fills it, passes annotate it,
simulators read it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from graphmem.nodes import Node, NodeList, fx_graph
from graphmem.op_states import AutocastState, Determinism

if TYPE_CHECKING:
    import torch.fx

    from graphmem.compiled_code import CompiledCode
    from graphmem.cycle_collector import Collection
    from graphmem.host_bytes import HostBytes
    from graphmem.module_calls import ModuleCall
    from graphmem.retention import Retention


class OwnerKind(enum.StrEnum):
    """A reason for a storage to be alive."""

    VARIABLE = "variable"
    """A Python variable, an argument of a running operation, or a gradient in flight."""
    SAVED_TENSOR = "saved_tensor"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    AUTOCAST_CACHE = "autocast_cache"
    INPUT = "input"
    WORKSPACE = "workspace"
    COMMUNICATION = "communication"
    """A buffer for communication between ranks."""
    COMPILED = "compiled"
    COPY = "copy"
    """Not holders but facts: a buffer of compiled code or an operator; a copy of a parameter."""


class Category(enum.StrEnum):
    """The purpose of a storage's bytes, by which the report groups them."""

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
    """Forward passes without gradients, in a program run by `graphmem run`."""


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the program under analysis.

    Attributes:
        called_from: the user's line, if this is a package's line and the caller was looked up.
        within: what was running, in words, if no user line is on the stack.
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
        """The line and its caller, for messages."""
        if self.called_from is not None:
            return f"{self}, called from {self.called_from}"
        return f"{self}, {self.within}" if self.within else str(self)


class Owner(msgspec.Struct, gc=False):
    """One holder of a storage, from tick `start` to tick `end` (None if it outlives the trace)."""

    kind: OwnerKind
    name: str
    start: int
    end: int | None = None
    source: Source | None = None

    def holds_at(self, tick: int) -> bool:
        """Whether this owner keeps the storage alive at `tick`."""
        return self.start <= tick and (self.end is None or tick < self.end)

    @property
    def is_taken_over(self) -> bool:
        """Whether it is autograd's, for compiled code (`Storage.category_at`, clause 2)."""
        return self.kind is OwnerKind.SAVED_TENSOR and self.name.startswith(COMPILED_NODE)


class Storage(msgspec.Struct, gc=False):
    """One allocation on the device.

    Attributes:
        id: its position in `StepGraph.storages`.
        nbytes: requested bytes.
        birth: the tick of its allocation.
        op: index of the operation that allocated it; None for kernels' workspaces.
        shape, dtype: those of the first tensor that lived in it.
        device: its device; host tensors are only recorded if autograd saves them.
    """

    id: int
    nbytes: int
    birth: int
    op: int | None
    shape: tuple[int, ...]
    dtype: str
    device: str
    owners: list[Owner] = []

    @property
    def death(self) -> int | None:
        """The tick at which the last owner releases it; None if it outlives the trace."""
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
        """The category of the bytes at `tick`.

        Clauses, the first that applies:
          (1) what is ever of a kind in `_LIFELONG`, as a parameter, is that for its whole life;
          (2) a storage that autograd holds at that tick is an activation, and so is one that it
              held for compiled code, because the compiled backward pass takes it over;
          (3) a communication buffer is that for its whole life;
          (4) everything else is temporary.

        `report.kept` finds storages that a program keeps across iterations.
        """
        kinds = [owner.kind for owner in self.owners]
        for kind, category in _LIFELONG:
            if kind in kinds:
                return category
        saved = (each for each in self.owners if each.kind is OwnerKind.SAVED_TENSOR)
        if any(it.holds_at(tick) or (it.is_taken_over and it.start <= tick) for it in saved):
            return Category.ACTIVATION
        if self.owned_as(OwnerKind.COMMUNICATION):
            return Category.COMMUNICATION
        return Category.TEMPORARY


COMPILED_NODE = "CompiledFunctionBackward"
"""The autograd node of compiled code (torch/_functorch/_aot_autograd/runtime_wrappers.py)."""


_LIFELONG = (
    (OwnerKind.PARAMETER, Category.PARAMETER),
    (OwnerKind.BUFFER, Category.BUFFER),
    (OwnerKind.GRADIENT, Category.GRADIENT),
    (OwnerKind.OPTIMIZER_STATE, Category.OPTIMIZER_STATE),
    (OwnerKind.WORKSPACE, Category.WORKSPACE),
    (OwnerKind.AUTOCAST_CACHE, Category.AUTOCAST_CACHE),
    (OwnerKind.INPUT, Category.INPUT),
)


class TensorOut(msgspec.Struct, frozen=True, gc=False):
    """A tensor that an operation returned.

    Attributes:
        stride: in elements, like `Tensor.stride()`; empty for a sparse tensor.
        offset: position of the first element in the storage, in elements.
        storage: None if off the device, empty, or sparse, since sparse tensors have two.
    """

    shape: tuple[int, ...]
    dtype: str
    storage: int | None
    stride: tuple[int, ...] = ()
    offset: int = 0


class SparseOut(TensorOut, frozen=True, gc=False, kw_only=True):
    """A sparse COO tensor; if it is coalesced, its indices are sorted and unique."""

    nonzeros: int
    is_coalesced: bool


class SavedTensor(msgspec.Struct, frozen=True, gc=False):
    """A tensor that an autograd node holds.

    Attributes:
        field: its name in the derivative formula, such as `self`; in a list, `tensors[0]`.
        tensor: None if the user's hooks keep something else in its place.
        owner: autograd's entry among the storage's owners; None if no storage is counted.
    """

    field: str
    tensor: TensorOut | None
    owner: Owner | None


class AutogradNode(msgspec.Struct, frozen=True, gc=False):
    """A node of autograd's graph that ran.

    Attributes:
        number: unique in the trace; a node made later has a higher one.
        name: such as `AddmmBackward0`.
        op: index of the operation whose derivative it is.
        next: for each result a node's number, a leaf's name, or None if no gradient is wanted.
        saved: the tensors it held when it began to run.
        source: for a custom function, the line of its `forward`.
    """

    number: int
    name: str
    op: int | None
    next: tuple[int | str | None, ...]
    saved: tuple[SavedTensor, ...]
    source: Source | None


class Op(Node, gc=False, eq=False):
    """An ATen operation of the step graph.

    Attributes:
        target: the overload's name, such as `aten.addmm.default`.
        index: its position in `StepGraph.ops`.
        tick: when it began.
        phase: index into `StepGraph.phases`.
        module: qualified name of the innermost module, "" at the top.
        source: the user's line; in the backward pass, that of the forward operation.
        autograd_node: in the forward pass, the node that autograd made for this operation; in the
            backward pass, the one that ran it, such as `AddmmBackward0`.
        forward: in the backward pass, the index of the operation whose gradient this computes.
        outputs: the tensors returned, in order.
        births: storages that it allocated, in order of allocation.
        autocast: how autocast was involved.
        determinism: what `torch.use_deterministic_algorithms` asked for.
    """

    operator: Any
    kwargs: Mapping[str, Any]
    target: str
    index: int
    tick: int
    phase: int
    module: str = ""
    source: Source | None = None
    autograd_node: str | None = None
    forward: int | None = None
    outputs: tuple[TensorOut, ...] = ()
    births: tuple[int, ...] = ()
    autocast: AutocastState = AutocastState.OFF
    determinism: Determinism = Determinism.NONE

    @property
    def tensor(self) -> TensorOut | None:
        """Its first result, for which it stands as an argument."""
        return self.outputs[0] if self.outputs else None


@dataclass(slots=True)
class Phase:
    """A part of one iteration, ticks `start` to `end`, both included.

    Attributes:
        is_compiled_whole: whether compiled autograd ran it, in the thread that called `backward`.
        stepped: the tick at which the last of its optimizers had stepped.
    """

    name: PhaseName
    step: int
    start: int
    end: int
    is_compiled_whole: bool = False
    stepped: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A named moment of an iteration, such as the return of `optimizer.step()`."""

    name: str
    step: int
    tick: int


@dataclass(slots=True)
class Assumption:
    """Something that only a real run knows, and the value that graphmem assumed.

    Attributes:
        ops: the operations that it concerns, by index, if a pass found it; they are not saved.
        highest: the peak in bytes if it does not hold, where that is known.
    """

    what: str
    value: str
    why: str
    source: Source | None
    times: int = 1
    ops: tuple[int, ...] = ()
    highest: int | None = None


@dataclass(slots=True)
class StepGraph:
    """The trace of one or more iterations.

    Attributes:
        device: the device whose storages are counted.
        nodes: the operations with their arguments, in order, after the inputs.
        autograd_nodes: in the order in which they ran.
        modules: the class of every module by its qualified name.
        calls: the line that calls each module, by its qualified name, in order of the first calls.
        parameters: whether each parameter requires a gradient, by its qualified name.
        tied: additional names of parameters that several modules share, each with the first name.
        is_routed: whether sizes depend on the routing of tokens, which is assumed.
        host: the host's memory; None if the device is the CPU.
        compiled: what PyTorch's compiler made; None if the program compiles nothing.
        emptied: the ticks at which `torch.cuda.empty_cache()` was called.
        collections: the runs of Python's cycle collector that the memory depends on, in order.
        retained: by storage, how variables hold what earlier iterations made, after a trace.
    """

    device: str
    nodes: NodeList = field(default_factory=NodeList)
    ops: list[Op] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    assumptions: list[Assumption] = field(default_factory=list)
    autograd_nodes: list[AutogradNode] = field(default_factory=list)
    modules: dict[str, str] = field(default_factory=dict)
    calls: dict[str, ModuleCall] = field(default_factory=dict)
    parameters: dict[str, bool] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    emptied: list[int] = field(default_factory=list)
    collections: list[Collection] = field(default_factory=list)
    retained: dict[int, Retention] = field(default_factory=dict)
    is_routed: bool = False
    host: HostBytes | None = None
    compiled: CompiledCode | None = None
    end: int = 0

    @property
    def steps(self) -> int:
        """How many iterations were traced."""
        return 1 + max((phase.step for phase in self.phases), default=-1)

    def phases_of(self, step: int) -> list[Phase]:
        """The phases of one iteration, in order."""
        return [phase for phase in self.phases if phase.step == step]

    @property
    def fx(self) -> torch.fx.Graph:
        """The nodes as a `torch.fx.Graph`, made anew; `node.meta["op"]` is the operation."""
        return fx_graph(self.nodes)

    def op_of(self, storage: Storage) -> Op | None:
        """The operation that allocated a storage, or None."""
        return None if storage.op is None else self.ops[storage.op]
