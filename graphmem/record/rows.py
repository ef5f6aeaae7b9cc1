"""The rows of a saved step, in the order and with the types of docs/record.md.

A row is an array, so a later minor version may append fields; those have defaults here. Rows refer
to each other by position. Bytes are requested bytes; ticks are those of the trace.
"""

from __future__ import annotations

from typing import Any

import msgspec

from graphmem.compiled_code import CompiledCode
from graphmem.host_bytes import HostBytes
from graphmem.module_calls import ModuleCall
from graphmem.report.schema import MemoryInfo, OnCard

FORMAT = "graphmem.step"
VERSION = (1, 10)
"""docs/record.md says what each minor version added."""


class Row(msgspec.Struct, array_like=True, gc=False):
    """Base class of rows, which occur many times in a file."""


class SourceRow(Row):
    """A line of the program; `called_from` is another row of the table, written before it."""

    file: str
    line: int
    function: str
    called_from: int | None = None
    within: str = ""


class OwnerRow(Row):
    """`kind` is a value of `OwnerKind`."""

    kind: str
    name: str
    start: int
    end: int | None
    source: int | None = None


class StorageRow(Row):
    """One allocation, with its owners in order."""

    nbytes: int
    birth: int
    op: int | None
    shape: list[int]
    dtype: str
    device: int
    owners: list[OwnerRow]


class TensorRow(Row):
    """One tensor that an operation returned."""

    shape: list[int]
    dtype: str
    storage: int | None
    stride: list[int]
    offset: int = 0
    nonzeros: int | None = None
    is_coalesced: bool = False


class OpRow(Row):
    """One operation; `autocast` and `determinism` are values of enums in graphmem/op_states.py."""

    target: int
    tick: int
    phase: int
    module: int
    source: int | None
    autograd_node: int | None
    forward: int | None
    outputs: list[TensorRow]
    births: list[int]
    autocast: str
    determinism: str = "none"


class NodeRow(Row):
    """One node of the graph: an operation, a selection of one of several results, or an input.

    `args` and `kwargs` are encoded by record/arguments.py; without `op`, a node with arguments is a
    selection, `(node, position)`.
    """

    name: str
    op: int | None
    args: list[Any]
    kwargs: dict[str, Any] = {}
    tensor: TensorRow | None = None


class SavedRow(Row):
    """One tensor that an autograd node holds; `owner` is `(storage, position among its owners)`."""

    field: str
    tensor: TensorRow | None
    owner: tuple[int, int] | None


class AutogradRow(Row):
    """One node of autograd's graph; `next` has numbers of nodes and names of leaves."""

    number: int
    name: str
    op: int | None
    next: list[int | str | None]
    saved: list[SavedRow]
    source: int | None


class PhaseRow(Row):
    """A stretch of one iteration; `name` is a value of `PhaseName`."""

    name: str
    step: int
    start: int
    end: int
    is_compiled_whole: bool = False
    stepped: int | None = None


class MarkRow(Row):
    """A named moment."""

    name: str
    step: int
    tick: int


class AssumptionRow(Row):
    """Something that only a real run knows, and the value assumed for it."""

    what: str
    value: str
    why: str
    source: int | None
    times: int
    highest: int | None = None


class OperatorRow(Row):
    """An operator by its name, `namespace.name.overload`, with its schema."""

    name: str
    schema: str = ""


class BlockRow(Row):
    """A block of a segment, with the fields of `BlockInfo`."""

    address: int
    size: int
    requested_size: int
    state: str


class SegmentRow(Row):
    """A segment, with the fields of `SegmentInfo`."""

    address: int
    size: int
    stream: int
    is_small: bool
    is_expandable: bool
    blocks: list[BlockRow]
    pool_id: tuple[int, int] = (0, 0)


class MomentRow(Row):
    """One allocation or free; `born` and `died` are ids of storages, negative ones in `scratch`."""

    tick: int
    allocated: int
    requested: int
    reserved: int
    born: int | None
    died: int | None


class ScratchRow(Row):
    """A storage that a kernel allocated; `id` is negative."""

    id: int
    storage: StorageRow


class CollectionRow(Row):
    """A run of Python's cycle collector, with the fields of `Collection`."""

    start: int
    end: int
    is_asked: bool


class RetentionRow(Row):
    """How a variable holds a storage at the end of a trace."""

    storage: int
    name: str
    source: int | None
    through_graph: bool


class ObservedTable(msgspec.Struct, frozen=True):
    """What was observed while a program ran."""

    moments: list[MomentRow]
    scratch: list[ScratchRow]
    blocks: list[tuple[int, int, int]]
    segments: list[SegmentRow]
    given_back: list[tuple[int, list[tuple[str, int, int]]]]
    sections: dict[str, list[str]]
    on_card: OnCard | None = None
    memory: MemoryInfo | None = None


class Head(msgspec.Struct, frozen=True):
    """The fields that a reader checks first."""

    format: str
    version: tuple[int, int]
    written_by: str


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    format: str
    version: tuple[int, int]
    written_by: str
    target: str
    gpu: str
    torch: str
    env: dict[str, str]
    device: str
    end: int
    is_routed: bool
    names: list[str]
    devices: list[str]
    sources: list[SourceRow]
    operators: list[OperatorRow]
    storages: list[StorageRow]
    ops: list[OpRow]
    nodes: list[NodeRow]
    phases: list[PhaseRow]
    marks: list[MarkRow]
    assumptions: list[AssumptionRow]
    autograd_nodes: list[AutogradRow]
    modules: dict[str, str]
    parameters: dict[str, bool]
    tied: dict[str, str]
    emptied: list[int]
    observed: ObservedTable | None = None
    host: HostBytes | None = None
    compiled: CompiledCode | None = None
    collections: list[CollectionRow] = []
    calls: dict[str, ModuleCall] = {}
    options: str = ""
    retained: list[RetentionRow] = []
