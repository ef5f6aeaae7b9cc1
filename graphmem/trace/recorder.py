"""The notebook of a trace: a clock, the storages seen so far, and the step graph that grows."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.errors import InputError
from graphmem.graph import (
    Assumption,
    Mark,
    Op,
    Owner,
    OwnerKind,
    Phase,
    PhaseName,
    Source,
    StepGraph,
    Storage,
    TensorOut,
)
from graphmem.trace.nodes import MadeBy, NodeWriter
from graphmem.trace.transform_levels import innermost
from graphmem.trace.wrapper_tensors import held_by, is_wrapper
from graphmem.virtual_gpu.sparse import parts_of

DTYPE_NAMES = {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}

ELSEWHERE = "elsewhere"
"""The device of a storage that is counted nowhere: its bytes belong to another."""


class _StorageRef(weakref.ref[torch.UntypedStorage]):
    """A weak reference to a storage of fake memory that knows its key and its record."""

    __slots__ = ("key", "nbytes", "storage")
    key: int
    nbytes: int
    storage: Storage


class Recorder:
    """Writes the step graph while the step runs.

    A storage of fake memory (what torch holds) and a `Storage` of the graph (what the GPU would
    hold) are not the same thing: a tensor that only autograd saved has no fake memory at all, and
    unpacking it makes some anew. `_holders` counts the fake memory that stands for each storage.

    Attributes:
        on_communicator: called when ranks join for their first collective on the device.
        on_change: called with a storage that was born or lost an owner, from the depths of Python's
            memory management, so it may do no more than note it.
        on_op: called with each operation when it has been recorded.
        is_strict: whatever would be assumed is an error.
        addresses: of storages that own no memory, by their ids.
        newest_node: the newest node that autograd had made when the last operation ran.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.graph = StepGraph(fx=torch.fx.Graph(), device=str(device))
        self.on_change: Callable[[Storage], object] = _ignore
        self.on_communicator: Callable[[], object] = lambda: None
        self.on_op: Callable[[Op], object] = _ignore
        self.is_strict = False
        self.addresses: dict[int, int] = {}
        self._weak: dict[int, Storage] = {}
        self.newest_node = -1
        self.tick = 0
        self._ticks = itertools.count(1)  # atomic: storages die in every thread
        self.step = -1
        self._stepped_at = -1
        self._phase_to_begin: PhaseName | None = None
        self._refs: dict[int, _StorageRef] = {}
        self._holders: dict[int, int] = {}
        self._held_as: dict[int, Owner] = {}
        self._dying: list[int] | None = None
        self._nodes = NodeWriter(self.graph.fx, self._describe)
        self.begin_phase(PhaseName.SETUP)

    def next_tick(self) -> int:
        """The next moment of the trace."""
        self.tick = tick = next(self._ticks)
        return tick

    # Phases ------------------------------------------------------------------------------------

    def begin_phase(self, name: PhaseName) -> None:
        """End the running phase and begin another one of the same iteration."""
        phases = self.graph.phases
        start = self.next_tick()
        if phases:
            phases[-1].end = start - 1
        phases.append(Phase(name=name, step=self.step, start=start, end=start))

    def _begin_pending_phase(self) -> None:
        name, self._phase_to_begin = self._phase_to_begin, None
        if name is not None:
            self.begin_phase(name)

    def mark(self, name: str) -> None:
        """Note a moment of the iteration by name."""
        self.graph.marks.append(Mark(name=name, step=self.step, tick=self.next_tick()))

    def empty_cache(self) -> None:
        """The program tells the allocator to give back what nobody uses."""
        self.graph.emptied.append(self.next_tick())

    def begin_iteration(self, step: int) -> None:
        """Begin an iteration with a forward phase."""
        self._begin_pending_phase()
        self.step = step
        self.begin_phase(PhaseName.FORWARD)

    def enter_forward(self) -> None:
        """Begin another forward phase of the same iteration."""
        self._phase_to_begin = None
        self.begin_phase(PhaseName.FORWARD)

    def enter_evaluation(self) -> None:
        """Begin a phase of forward passes without gradients."""
        self._phase_to_begin = None
        self.begin_phase(PhaseName.EVALUATION)

    def enter_backward(self) -> None:
        """Begin a backward phase.

        What follows a backward pass counts as optimizer until this shows that another forward pass
        came: all of it, or what came after the last `optimizer.step()`. Where nothing came, the
        backward phase goes on.
        """
        if self._phase_to_begin is not None:
            self._phase_to_begin = None
            return
        phase = self.graph.phases[-1]
        if phase.name is PhaseName.OPTIMIZER:
            if self._stepped_at >= phase.start:
                self._split_phase(self._stepped_at)
            else:
                phase.name = PhaseName.FORWARD
        self.begin_phase(PhaseName.BACKWARD)

    def leave_backward(self) -> None:
        """The next operation begins the phase between a backward pass and the iteration's end.

        What dies before it, such as the gradient of the loss, died with the backward pass.
        """
        self._phase_to_begin = PhaseName.OPTIMIZER

    def optimizer_stepped(self) -> None:
        """An optimizer's step has just ended."""
        self._stepped_at = self.next_tick()

    def _split_phase(self, tick: int) -> None:
        """What the running phase did after `tick` was the next forward pass."""
        index = len(self.graph.phases)
        self.graph.phases[-1].end = tick
        self.graph.phases.append(Phase(PhaseName.FORWARD, self.step, tick + 1, tick + 1))
        for op in reversed(self.graph.ops):
            if op.tick <= tick:
                break
            op.phase = index

    def is_result(self, newest_node: int) -> bool:
        """Whether what the newest node saves now is a result: its operation has run.

        Autograd makes a node, saves inputs, runs the operation and saves results, in this order
        (tools/autograd/gen_variable_type.py, `emit_body`).
        """
        return self.newest_node == newest_node

    def finish(self) -> StepGraph:
        """Close the trace. What is alive now has no end: its death is not waited for."""
        self._begin_pending_phase()
        self._refs.clear()
        self.graph.end = self.next_tick()
        self.graph.phases[-1].end = self.graph.end
        return self.graph

    # Storages ----------------------------------------------------------------------------------

    def storage_of(self, tensor: torch.Tensor) -> Storage | None:
        """The storage that holds `tensor`, or None when it is unknown, empty or off the device.

        A sparse tensor has none of its own: those of its indices and values are alive.
        """
        tensor = innermost(tensor)
        if is_wrapper(type(tensor)):
            tensors = held_by(tensor)
            return self.storage_of(tensors[0]) if len(tensors) == 1 else None
        if tensor.layout is not torch.strided:
            return None
        return self.storage_in(tensor.untyped_storage())

    def storage_in(self, memory: torch.UntypedStorage) -> Storage | None:
        """The storage for which a piece of fake memory stands, or None."""
        ref = self._refs.get(memory._cdata)
        return None if ref is None else ref.storage

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lives in the memory that is counted."""
        if isinstance(tensor, FakeTensor):
            return tensor.fake_device == self.device
        return self.device.type == "cpu"

    def observe(self, tensor: torch.Tensor, op: int | None) -> tuple[Storage | None, bool]:
        """The storage of a tensor that an operation returned, and whether it is a new one.

        A known storage whose size has changed was resized, which on CUDA is a new allocation that
        replaces the old one (aten/src/ATen/native/cuda/Resize.cpp, `resize_bytes_cuda`).
        """
        memory = tensor.untyped_storage()
        ref = self._refs.get(memory._cdata)
        nbytes = memory.nbytes()
        if ref is not None:
            if ref.nbytes == nbytes:
                return ref.storage, False
            storage = self._allocate(tensor, nbytes, op)
            self._release(ref)
            self._attach(memory, nbytes, storage)
            return storage, True
        if not nbytes:
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
            shape=tuple(tensor.shape),
            dtype=DTYPE_NAMES[tensor.dtype],
            device=_device_name(tensor),
        )
        storages.append(storage)
        self.on_change(storage)
        return storage

    def add_workspace(self, what: str, nbytes: int) -> Storage:
        """A workspace that the program asked for, not an operation."""
        storage = self._new_bytes(nbytes)
        storage.owners.append(Owner(OwnerKind.WORKSPACE, what, storage.birth))
        self.on_change(storage)
        return storage

    def _new_bytes(self, nbytes: int) -> Storage:
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

    def resize(self, memory: torch.UntypedStorage) -> None:
        """A piece of fake memory has another size than before, by no operation."""
        old = self._refs.get(memory._cdata)
        nbytes = memory.nbytes()
        if old is not None and old.nbytes == nbytes:
            return
        new = self._new_bytes(nbytes) if nbytes else None
        if new is not None:
            self.on_change(new)
        if old is not None:
            self._release(old)
            self._disown(old.storage)  # whoever else looks at it has nothing left
        if new is not None:
            self._attach(memory, nbytes, new)

    def note_weak(self, weak: int, memory: torch.UntypedStorage) -> None:
        """Remember what fake memory, to which `weak` refers, stands for beyond its own life."""
        storage = self.storage_in(memory)
        if storage is not None:
            self._weak[weak] = storage

    def weak_storage(self, weak: int) -> Storage | None:
        """The storage that a weak reference was noted for."""
        return self._weak.get(weak)

    def is_kept(self, weak: int) -> bool:
        """Whether others than the fake memory of a weak reference hold what it stands for."""
        storage = self._weak.get(weak)
        if storage is None:
            return False
        itself = torch._C._storage_Use_Count(weak) > 0
        held = self._held_as.get(storage.id)
        return self._holders.get(storage.id, 0) > itself or any(
            owner.end is None and owner is not held for owner in storage.owners
        )

    def free_weak(self, weak: int) -> None:
        """What a weak reference is to is gone, though somebody holds it."""
        storage = self._weak.get(weak)
        if storage is None:
            return
        for ref in [ref for ref in self._refs.values() if ref.storage is storage]:
            self._release(ref)
        self._disown(storage)

    def _disown(self, storage: Storage) -> None:
        """Every owner's time ends now."""
        for owner in storage.owners:
            self.let_go(storage, owner)

    def point_at(self, memory: torch.UntypedStorage, address: int) -> None:
        """Let fresh fake memory stand for bytes that the allocator does not know as allocated."""
        storage = self._new_bytes(memory.nbytes())
        storage.device = ELSEWHERE
        self.addresses[storage.id] = address
        self._attach(memory, memory.nbytes(), storage)

    def alias(self, tensor: torch.Tensor, storage: Storage) -> None:
        """Let fresh fake memory stand for a storage that exists already."""
        memory = tensor.untyped_storage()
        self._attach(memory, memory.nbytes(), storage)

    def _attach(self, memory: torch.UntypedStorage, nbytes: int, storage: Storage) -> None:
        ref = _StorageRef(memory, self._release)
        ref.key = memory._cdata
        ref.nbytes = nbytes
        ref.storage = storage
        self._refs[ref.key] = ref
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

    def _release(self, ref: _StorageRef) -> None:
        if self._refs.get(ref.key) is ref:
            del self._refs[ref.key]
        number = ref.storage.id
        self._holders[number] -= 1
        if self._holders[number]:
            return
        if self._dying is None:
            self.let_go(ref.storage, self._held_as.pop(number))
        else:
            self._dying.append(number)

    @contextmanager
    def releasing_in_order(self) -> Iterator[None]:
        """What dies while the context is open dies at its end, in order of birth.

        For autocast's cache, which is a hash table of pointers: its order differs between runs.
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
        """An owner's time ends now, if it has not."""
        if owner.end is not None:
            return
        owner.end = self.next_tick()
        self.on_change(storage)

    def fake_memories(self, storage: Storage) -> int:
        """How many pieces of fake memory stand for the storage now."""
        return self._holders.get(storage.id, 0)

    # Owners ------------------------------------------------------------------------------------

    def identify(self, tensor: torch.Tensor, kind: OwnerKind, name: str) -> None:
        """Say what holds a tensor's storage from now on: a parameter's name, an optimizer's state.

        The first identity stays: a storage that is both `wte.weight` and `lm_head.weight` keeps
        the former name. Of a tensor that holds others, each of them is identified.
        """
        if is_wrapper(type(tensor)):
            for each in held_by(tensor):
                self.identify(each, kind, name)
            return
        storage = self.storage_of(tensor)
        if storage is None:
            return
        held = self._held_as[storage.id]
        if held.kind is not OwnerKind.VARIABLE:
            return
        now = self.next_tick()
        held.end = now
        self._hold(storage, kind, name, now)

    def label(self, storage: int, kind: OwnerKind, name: str) -> None:
        """Say what a storage is, by its number, without anything that holds it."""
        labelled = self.graph.storages[storage]
        labelled.owners.append(Owner(kind, name, labelled.birth, labelled.birth))

    def label_since(self, first: int, name: str) -> None:
        """Say what the storages are that operations from `first` on have made."""
        for op in self.graph.ops[first:]:
            for birth in op.births:
                self.label(birth, OwnerKind.COMPILED, name)

    def name_variable(self, storage: Storage, name: str, source: Source | None) -> None:
        """Give the Python variable that holds a storage its name in the user's code."""
        if self.is_nameless(storage):
            held = self._held_as[storage.id]
            held.name, held.source = name, source

    def is_nameless(self, storage: Storage) -> bool:
        """Whether a Python variable holds a storage, and nobody has said which."""
        held = self._held_as.get(storage.id)
        return held is not None and held.kind is OwnerKind.VARIABLE and not held.name

    def identity_of(self, tensor: object) -> str | None:
        """The name of what holds a tensor's storage, None where it is just a variable."""
        storage = self.storage_of(tensor) if isinstance(tensor, torch.Tensor) else None
        held = None if storage is None else self._held_as.get(storage.id)
        return None if held is None or held.kind is OwnerKind.VARIABLE else held.name

    def own(self, storage: Storage, kind: OwnerKind, name: str) -> Owner:
        """Add an owner beside Python's, from now until its `end` is set."""
        owner = Owner(kind=kind, name=name, start=self.next_tick())
        storage.owners.append(owner)
        return owner

    def assume(self, what: str, value: str, why: str, source: Source | None) -> None:
        """Note an assumption; the same one at the same line is noted once and counted.

        Raises:
            InputError: nothing may be assumed.
        """
        if self.is_strict:
            where = "" if source is None else f" at {source.in_words}"
            raise InputError(
                f"{what} would be assumed{where} ({value}): {why}",
                hint="leave out --strict, or decide it from what is known",
            )
        for known in self.graph.assumptions:
            if (known.what, known.value, known.source) == (what, value, source):
                known.times += 1
                return
        self.graph.assumptions.append(Assumption(what, value, why, source))

    # Operations --------------------------------------------------------------------------------

    def begin_op(self) -> int:
        """The tick at which an operation begins."""
        if self._phase_to_begin is not None:
            self._begin_pending_phase()
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
        index = len(self.graph.ops)
        node = self._nodes.write(func, args, kwargs)
        op = Op(
            index=index,
            node=node,
            target=_name_of(func),
            tick=tick,
            phase=len(self.graph.phases) - 1,
            module=module,
            source=source,
            autograd_node=autograd_node,
            forward=forward,
            outputs=[],
            births=[],
        )
        node.meta["op"] = op
        self.graph.ops.append(op)
        if isinstance(result, torch.Tensor):
            self._record_output(op, result, node)
        elif isinstance(result, (tuple, list)):
            for position, item in enumerate(result):
                if isinstance(item, torch.Tensor):
                    self._record_output(op, item, (node, position))
                elif isinstance(item, (tuple, list)):  # the weights' gradients of a cuDNN layer
                    several = self._nodes.item(node, position)
                    for number, tensor in enumerate(item):
                        self._record_output(op, tensor, (several, number))
        self.on_op(op)
        return op

    def _record_output(self, op: Op, tensor: torch.Tensor, node: Any) -> None:
        self._nodes.remember(tensor, node)
        storage = None
        if self.is_on_device(tensor):
            if tensor.layout is torch.strided:
                storage = self._record_storage(op, tensor)
            elif tensor.layout is torch.sparse_coo:
                for part in parts_of(tensor):
                    self._record_storage(op, part)
        op.outputs.append(_described(tensor, storage))

    def _record_storage(self, op: Op, tensor: torch.Tensor) -> Storage | None:
        storage, new = self.observe(tensor, op.index)
        if storage is not None and new:
            op.births.append(storage.id)
        return storage

    def maker_of(self, tensor: torch.Tensor) -> MadeBy:
        """The node that made a tensor, or the node that made several and its position."""
        return self._nodes.maker_of(tensor)

    def remember_maker(self, tensor: torch.Tensor, node: MadeBy) -> None:
        """Another tensor stands for what a node made."""
        self._nodes.remember(tensor, node)

    def _describe(self, tensor: torch.Tensor) -> TensorOut:
        storage = self.storage_of(tensor)
        # A tensor on the host has one if autograd saved it before.
        is_counted = storage is not None and storage.device == self.graph.device
        return _described(tensor, storage if is_counted else None)


def _ignore(what: object) -> None:
    return None


@functools.cache
def _name_of(func: torch._ops.OpOverload) -> str:
    return str(func)


def _device_name(tensor: torch.Tensor) -> str:
    """Where a tensor is; reading `device` off a fake one would dispatch an operation."""
    return str(tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device)


def _described(tensor: torch.Tensor, storage: Storage | None) -> TensorOut:
    is_strided = tensor.layout is torch.strided
    is_sparse = tensor.layout is torch.sparse_coo
    return TensorOut(
        shape=tuple(tensor.shape),
        dtype=DTYPE_NAMES[tensor.dtype],
        storage=None if storage is None else storage.id,
        stride=tensor.stride() if is_strided else (),
        offset=int(tensor.storage_offset()) if is_strided else 0,
        nonzeros=tensor._nnz() if is_sparse else None,
        is_coalesced=is_sparse and tensor.is_coalesced(),
    )
