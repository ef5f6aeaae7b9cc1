"""The recorder of a trace: its clock, the storages seen so far, and the growing step graph."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.graph import Op, Owner, OwnerKind, Source, StepGraph, Storage, TensorOut
from graphmem.trace.assumptions import Assumptions
from graphmem.trace.descriptions import DTYPE_NAMES, described, determinism, device_name, sizes
from graphmem.trace.node_writer import MadeBy, NodeWriter
from graphmem.trace.phases import Phases
from graphmem.trace.storage_refs import StorageRef, StorageRefs
from graphmem.trace.transform_levels import innermost
from graphmem.trace.wrapper_tensors import held_by, holds_others
from graphmem.virtual_device.host_memory import HostMemory
from graphmem.virtual_device.lazy_parameters import is_unshaped
from graphmem.virtual_device.live_run import LiveRun, NoLiveRun
from graphmem.virtual_device.sparse import parts_of

_FOUND_LATER = (OwnerKind.OPTIMIZER_STATE, OwnerKind.SAVED_TENSOR)
_NO_IDENTITIES = (OwnerKind.VARIABLE, OwnerKind.SAVED_TENSOR)


class Recorder:
    """Writes the step graph while the step runs.

    Fake memory (what torch holds) and a `Storage` (what the GPU would hold) differ: what only
    autograd holds has no fake memory, and unpacking makes new. `_holders` counts it by storage.

    Attributes:
        run: notified of changes, operations and communicators.
        assume: notes an assumption, see `Assumptions`.
        phases: the phases of the iterations.
        refs: weak references to the fake memory of the storages.
        addresses: addresses of storages that own no memory, by id.
        weak: storages, by the addresses of weak references to their fake memory.
        overwritten: the error for reading a storage, by its id.
        host: follows the tensors on the CPU, unless that is the counted device.
        newest_node: the number of the newest autograd node when the last operation ran.
        operators: the names of the operators that have run.
    """

    def __init__(self, device: torch.device, run: LiveRun | None = None) -> None:
        self.device = device
        self.graph = StepGraph(device=str(device))
        self.run: LiveRun = run or NoLiveRun()
        self.assumptions = Assumptions(self.graph.assumptions)
        self.assume = self.assumptions.note
        self.addresses: dict[int, int] = {}
        self.weak: dict[int, Storage] = {}
        self.overwritten: dict[int, str] = {}
        self.newest_node = -1
        self.operators: set[str] = set()
        self.tick = 0
        self._ticks = itertools.count(1)  # atomic: storages die in every thread
        self.refs = StorageRefs(self._release)
        self._holders: dict[int, int] = {}
        self._held_as: dict[int, Owner] = {}
        self._dying: list[int] | None = None
        self._nodes = NodeWriter(self.graph.nodes, self._describe)
        self.phases = Phases(self.graph, self.next_tick)
        self.host = HostMemory()

    def next_tick(self) -> int:
        """The next tick."""
        self.tick = tick = next(self._ticks)
        return tick

    def finish(self) -> StepGraph:
        """End the trace. Live storages keep `death` None."""
        self.phases.begin_pending()
        self.refs.clear()
        self.graph.end = self.next_tick()
        self.graph.phases[-1].end = self.graph.end
        return self.graph

    # Storages ----------------------------------------------------------------------------------

    def storage_of(self, tensor: torch.Tensor) -> Storage | None:
        """The storage of `tensor`, or None if it is unknown, empty or off the device.

        A sparse tensor has none of its own; its indices and values have theirs. A lazy module's has
        none yet, and refuses to be asked.
        """
        tensor = innermost(tensor)
        if holds_others(type(tensor)):
            tensors = held_by(tensor)
            return self.storage_of(tensors[0]) if len(tensors) == 1 else None
        if is_unshaped(tensor) or tensor.layout is not torch.strided:
            return None
        return self.storage_in(tensor.untyped_storage())

    def storage_in(self, memory: torch.UntypedStorage) -> Storage | None:
        """The storage for which a piece of fake memory stands, or None."""
        ref = self.refs.get(memory._cdata)
        return None if ref is None else ref.storage

    def note_weak_reference(self, weak: int, memory: torch.UntypedStorage) -> None:
        """Note the address of a weak reference of C++ to fake memory."""
        storage = self.storage_in(memory)
        if storage is not None:
            self.weak[weak] = storage
            self.refs.note_weak_reference(memory._cdata)

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is in the memory that is counted."""
        if isinstance(tensor, FakeTensor):
            return tensor.fake_device == self.device
        return self.device.type == "cpu"

    def observe(self, tensor: torch.Tensor, op: int | None) -> tuple[Storage | None, bool]:
        """The storage of an operation's result, and whether it is new.

        A known storage whose size has changed was resized, which on CUDA is a new allocation that
        replaces the old one (aten/src/ATen/native/cuda/Resize.cpp, `resize_bytes_cuda`). Zeros
        that stand for a missing tangent have none (`ZeroTensorAllocator`, TensorFactories.h).
        """
        memory = tensor.untyped_storage()
        ref = self.refs.get(memory._cdata)
        nbytes = memory.nbytes()
        if ref is not None:
            if ref.nbytes == nbytes:
                return ref.storage, False
            storage = self._allocate(tensor, nbytes, op)
            self._release(ref)
            self._attach(memory, nbytes, storage)
            return storage, True
        if not nbytes or tensor._is_zerotensor():
            return None, False
        storage = self._allocate(tensor, nbytes, op)
        self._attach(memory, nbytes, storage)
        return storage, True

    def _allocate(self, tensor: torch.Tensor, nbytes: int, op: int | None) -> Storage:
        storages = self.graph.storages
        storage = Storage(
            id=len(storages),
            nbytes=nbytes,
            birth=self.next_tick(),
            op=op,
            shape=sizes(tensor.shape),
            dtype=DTYPE_NAMES[tensor.dtype],
            device=device_name(tensor),
        )
        storages.append(storage)
        self.run.note_change(storage)
        return storage

    def new_bytes(self, nbytes: int) -> Storage:
        """Create a storage without an operation or a holder; `run` is not notified."""
        storage = Storage(
            id=len(self.graph.storages),
            nbytes=nbytes,
            birth=self.next_tick(),
            op=None,
            shape=(nbytes,),
            dtype="uint8",
            device=self.graph.device,
        )
        self.graph.storages.append(storage)
        return storage

    def disown(self, storage: Storage) -> None:
        """End all of a storage's owners."""
        for owner in storage.owners:
            self.let_go(storage, owner)

    def bytes_of(self, memory: torch.UntypedStorage) -> int | None:
        """The last known size of fake memory; None if it is unknown."""
        ref = self.refs.get(memory._cdata)
        return None if ref is None else ref.nbytes

    def stand_for(self, memory: torch.UntypedStorage, storage: Storage | None) -> None:
        """Let fake memory stand for this storage from now on; None: for no storage."""
        ref = self.refs.get(memory._cdata)
        if ref is not None:
            self._release(ref)
        if storage is not None:
            self._attach(memory, memory.nbytes(), storage)

    def _attach(self, memory: torch.UntypedStorage, nbytes: int, storage: Storage) -> None:
        self.refs.add(memory, nbytes, storage)
        holders = self._holders.get(storage.id, 0)
        self._holders[storage.id] = holders + 1
        if not holders:
            start = storage.birth if not storage.owners else self.next_tick()
            self._hold(storage, OwnerKind.VARIABLE, "", start)

    def _hold(self, storage: Storage, kind: OwnerKind, name: str, start: int) -> Owner:
        owner = Owner(kind=kind, name=name, start=start)
        storage.owners.append(owner)
        self._held_as[storage.id] = owner
        return owner

    def _release(self, ref: StorageRef) -> None:
        if self.refs.get(ref.key) is ref:
            del self.refs[ref.key]
        number = ref.storage.id
        holders = self._holders.pop(number) - 1
        if holders:
            self._holders[number] = holders
            return
        if self._dying is None:
            self.let_go(ref.storage, self._held_as.pop(number))
        else:
            self._dying.append(number)

    @contextmanager
    def releasing_in_order(self) -> Iterator[None]:
        """Delay deaths to the end of the context, in order of birth.

        For autocast's cache, a hash table of pointers whose order differs between runs.
        """
        dying: list[int] = []
        self._dying = dying
        try:
            yield
        finally:
            self._dying = None
            for number in sorted(dying):
                self.let_go(self.graph.storages[number], self._held_as.pop(number))

    def let_go(self, storage: Storage, owner: Owner) -> None:
        """End an owner, unless it has ended."""
        if owner.end is not None:
            return
        owner.end = self.next_tick()
        self.run.note_change(storage)

    def fake_memories(self, storage: Storage) -> int:
        """How many pieces of fake memory stand for the storage."""
        return self._holders.get(storage.id, 0)

    def is_held_beyond(self, storage: Storage, memories: int) -> bool:
        """Whether it has other holders than `memories` pieces of fake memory."""
        held = self._held_as.get(storage.id)
        return self.fake_memories(storage) > memories or any(
            owner.end is None and owner is not held for owner in storage.owners
        )

    def free(self, storage: Storage) -> None:
        """Free a storage although it is held."""
        for ref in [ref for ref in self.refs.values() if ref.storage is storage]:
            self._release(ref)
        self.disown(storage)

    # Owners ------------------------------------------------------------------------------------

    def identify(self, tensor: torch.Tensor, kind: OwnerKind, name: str) -> None:
        """Name the holder of a tensor's storage: a parameter, an optimizer's state.

        The first identity stays: a storage that is both `wte.weight` and `lm_head.weight` keeps
        the former name. If a tensor wraps others, each of them is identified. What is found after
        the fact, as an optimizer's state, has always been that, unless a variable was named; and
        what is only known to be saved is anything else from the start.
        """
        if holds_others(type(tensor)):
            for each in held_by(tensor):
                self.identify(each, kind, name)
            return
        storage = self.storage_of(tensor)
        held = None if storage is None else self._held_as.get(storage.id)
        if held is not None and held.kind is OwnerKind.BUFFER and kind is OwnerKind.PARAMETER:
            held.kind = kind  # an optimizer trains it: a copy in float32 beside a parameter
        if storage is None or held is None or held.kind not in _NO_IDENTITIES:
            return
        is_only_saved = held.kind is OwnerKind.SAVED_TENSOR
        if is_only_saved or (kind in _FOUND_LATER and not held.name):
            held.kind, held.name = kind, name
            return
        held.end = self.next_tick()
        self._hold(storage, kind, name, held.end)

    def label(self, storage: int, kind: OwnerKind, name: str) -> None:
        """Label a storage, by its number, without adding a holder."""
        labelled = self.graph.storages[storage]
        labelled.owners.append(Owner(kind, name, labelled.birth, labelled.birth))

    def label_since(self, first: int, name: str) -> None:
        """Label the storages that operations from `first` on have created."""
        for op in self.graph.ops[first:]:
            for birth in op.births:
                self.label(birth, OwnerKind.COMPILED, name)

    def name_variable(self, storage: Storage, name: str, source: Source | None) -> None:
        """Name the Python variable that holds a storage."""
        if (held := self.variable_of(storage)) is not None and not held.name:
            held.name, held.source = name, source

    def variable_of(self, storage: Storage) -> Owner | None:
        """The owner that is a Python variable, named or not, if one holds a storage."""
        held = self._held_as.get(storage.id)
        return held if held is not None and held.kind is OwnerKind.VARIABLE else None

    def identity_of(self, tensor: object) -> str | None:
        """The name of the holder of a tensor's storage; None if it is just a variable."""
        storage = self.storage_of(tensor) if isinstance(tensor, torch.Tensor) else None
        held = None if storage is None else self._held_as.get(storage.id)
        return None if held is None or held.kind is OwnerKind.VARIABLE else held.name

    def own(self, storage: Storage, kind: OwnerKind, name: str) -> Owner:
        """Add a second owner, from now until its `end` is set."""
        owner = Owner(kind=kind, name=name, start=self.next_tick())
        storage.owners.append(owner)
        return owner

    # Operations --------------------------------------------------------------------------------

    def begin_op(self) -> int:
        """The tick at which an operation begins."""
        if self.phases.pending is not None:
            self.phases.begin_pending()
        self.refs.free_outlived()
        return self.next_tick()

    def record_op(
        self,
        func: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        *,
        tick: int,
        module: str,
        source: Source | None,
        autograd_node: str | None,
        forward: int | None,
    ) -> Op:
        """Append one operation with its outputs and the storages it allocated."""
        target = _name_of(func)
        self.operators.add(target)
        arguments, named = self._nodes.arguments(args, kwargs)
        op = Op(
            args=arguments,
            operator=func,
            kwargs=named,
            target=target,
            index=len(self.graph.ops),
            tick=tick,
            phase=self.phases.index,
            module=module,
            source=source,
            autograd_node=autograd_node,
            forward=forward,
            determinism=determinism(),
        )
        self.graph.nodes.append(op)
        self.graph.ops.append(op)
        births: list[int] = []
        op.outputs = tuple(
            [self._output(op, births, *each) for each in self._nodes.results(op, result)]
        )
        op.births = tuple(births)
        self.run.advance(op)
        return op

    def _output(
        self, op: Op, births: list[int], tensor: torch.Tensor, made_by: MadeBy
    ) -> TensorOut:
        self._nodes.remember(tensor, made_by)
        storage = None
        if not self.is_on_device(tensor):
            self.host.note_output(op, tensor)
        elif tensor.layout is torch.strided:
            storage = self._observed(op, births, tensor)
        elif tensor.layout is torch.sparse_coo:
            for part in parts_of(tensor):
                self._observed(op, births, part)
        return described(tensor, storage)

    def _observed(self, op: Op, births: list[int], tensor: torch.Tensor) -> Storage | None:
        storage, new = self.observe(tensor, op.index)
        if storage is not None and new:
            births.append(storage.id)
        return storage

    def maker_of(self, tensor: torch.Tensor) -> MadeBy:
        """The node that made a tensor; for one of several results, with its position."""
        return self._nodes.maker_of(tensor)

    def remember_maker(self, tensor: torch.Tensor, node: MadeBy) -> None:
        """Let another tensor stand for a node's result."""
        self._nodes.remember(tensor, node)

    def _describe(self, tensor: torch.Tensor) -> TensorOut:
        storage = self.storage_of(tensor)
        # A host tensor has one if autograd saved it before.
        is_counted = storage is not None and storage.device == self.graph.device
        return described(tensor, storage if is_counted else None)


_name_of = functools.cache(str)
