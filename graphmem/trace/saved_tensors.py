"""Separate autograd's saved tensors from Python's: autograd holds a token, not the tensor.

`torch.autograd.graph.saved_tensors_hooks` lets a pack hook replace what autograd keeps
(torch/csrc/autograd/saved_variable.cpp). With a token, a tensor's fake memory dies when Python
releases it, while the token lives as long as autograd's ownership. Unpacking makes a fake tensor of
the same geometry whose memory stands for the same storage.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem import graph
from graphmem.errors import InputError
from graphmem.frames import acts_for_the_program
from graphmem.graph import Storage
from graphmem.torch_releases import INNER_NODES_ARE_DESTROYED, installed_release
from graphmem.trace import checkpoints, hook_stack, jit_tracer, whole_backward
from graphmem.trace.naming import name_saved
from graphmem.trace.python_functions import is_argument, name_of
from graphmem.trace.recorder import Recorder
from graphmem.trace.replaced_storages import ReplacedStorages
from graphmem.trace.saved_fields import SavedFields, names_of
from graphmem.trace.saved_leaves import SavedLeaves, requires_grad_by_base
from graphmem.trace.saved_token import Hook, SavedToken
from graphmem.trace.saved_variables import mark_unpacked, note_saved, note_unpacked
from graphmem.trace.saved_versions import SavedVersions
from graphmem.trace.transform_levels import innermost, rewrapped
from graphmem.trace.wrapper_tensors import is_wrapper, taken_apart
from graphmem.values.known import KnownValues
from graphmem.virtual_device.fake_mode import VirtualFakeMode
from graphmem.virtual_device.patching import replaced
from graphmem.virtual_device.sparse import is_coalesced, parts_of, sparse_of


class _OfThread(threading.local):
    """A thread's running nodes, with what each has unpacked, and the user's hooks."""

    def __init__(self) -> None:
        self.unpacked: list[list[SavedToken]] = []
        self.regions: list[list[Hook]] = []
        self.taken_over: Any = None


class SavedTensorHooks:
    """Packs and unpacks saved tensors, and releases them node by node.

    Attributes:
        replaced: storages that others have replaced since tensors in them were saved.
    """

    def __init__(self, recorder: Recorder, fake_mode: VirtualFakeMode, known: KnownValues) -> None:
        """Nothing is saved yet.

        Args:
            recorder: lists who holds what.
            fake_mode: the mode of the tensors.
            known: the values that go with what is saved.
        """
        self.replaced = ReplacedStorages()
        self._known = known
        self._recorder = recorder
        self._fake_mode = fake_mode
        self._versions = SavedVersions(fake_mode)
        self._leaves = SavedLeaves(recorder, known)
        self._by_node: dict[int, list[weakref.ref[SavedToken]]] = {}
        self._numbers = itertools.count()
        self._fields = SavedFields()
        self._of_thread = _OfThread()
        self._is_over = False

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Install the hooks; the user's are wrapped, or PyTorch's own business."""
        manager = torch.autograd.graph.saved_tensors_hooks
        enter, leave = manager.__enter__, manager.__exit__
        of_thread = self._of_thread

        def enter_wrapped(hooks: Any) -> None:
            regions = of_thread.regions
            if whole_backward.leaves_autograd_alone():
                regions.append([])
                whole_backward.choose_hooks(are_users=True)
                enter(hooks)
                return
            regions.append([hooks.pack_hook, hooks.unpack_hook])
            torch._C._autograd._push_saved_tensors_default_hooks(
                self._wrapped_pack(regions[-1]), self._unpack_by_user
            )

        def leave_wrapped(hooks: Any, *exception: Any) -> None:
            leave(hooks, *exception)
            of_thread.regions.pop().clear()
            whole_backward.choose_hooks(are_users=bool(of_thread.regions))

        @contextmanager
        def disabled(message: str) -> Iterator[None]:
            """Raise PyTorch's error: torch.func's derivatives disallow the user's hooks."""
            if of_thread.regions:
                raise InputError(
                    message, hint="leave out save_on_cpu() or other hooks around the transform"
                )
            yield

        replacements = [
            *checkpoints.replacements(self._recorder),
            *self._leaves.replacements(),
            (manager, "__enter__", enter_wrapped),
            (manager, "__exit__", leave_wrapped),
            (torch.autograd.graph, "disable_saved_tensors_hooks", disabled),
            whole_backward.choosing_hooks(lambda: bool(of_thread.regions)),
        ]
        with (
            replaced(hook_stack.watched()),
            manager(self._pack, self._unpack),
            replaced(replacements),
        ):
            try:
                yield
            finally:
                self._is_over = True
                self._forget()

    @contextmanager
    def hooks_of_thread(self) -> Iterator[None]:
        """Install the hooks in another of the program's threads, which may outlive the trace."""
        torch._C._autograd._push_saved_tensors_default_hooks(self._pack_while_on, self._unpack_any)
        try:
            yield
        finally:
            torch._C._autograd._pop_saved_tensors_default_hooks()

    def _pack_while_on(self, tensor: torch.Tensor) -> Any:
        return tensor if self._is_over else self._pack(tensor)

    def _unpack_any(self, packed: Any) -> torch.Tensor:
        return self._unpack(packed) if isinstance(packed, SavedToken) else packed

    def _forget(self) -> None:
        """Let tokens that autograd still holds when the trace ends never get an end tick."""
        tokens = itertools.chain.from_iterable(self._by_node.values())
        alive = [saved for token in tokens if (saved := token()) is not None]
        for saved in alive:
            saved.owner = None
        for saved in alive:
            saved.variables.clear()

    def forget_released(self) -> None:
        """Drop nodes that no longer keep anything, so that long programs do not fill memory."""
        alive = (
            (number, [token for token in tokens if token() is not None])
            for number, tokens in self._by_node.items()
        )
        self._by_node = {number: tokens for number, tokens in alive if tokens}

    def _pack(self, tensor: torch.Tensor) -> SavedToken:
        return jit_tracer.unheard(self._token_of, tensor)

    def _token_of(self, tensor: torch.Tensor) -> SavedToken:
        saved = self._new_token([])
        wrapper, tensor = tensor, innermost(tensor)
        if is_wrapper(type(tensor)):
            held, saved.together = taken_apart(tensor)
            saved.parts = tuple(map(self._token_of, held))
            return saved
        if tensor.layout is not torch.strided:
            self._pack_sparse(saved, tensor)
            return saved
        is_checkpoints = checkpoints.saves_inputs()
        if wrapper is tensor:
            saved.version = self._versions.of(tensor)
            saved.is_of_base = requires_grad_by_base(tensor)
            node = self._saving_node()
            is_input = is_checkpoints or is_argument(tensor, node)
            # Autograd makes a node, saves inputs, runs the operation and then saves results
            # (tools/autograd/gen_variable_type.py, `emit_body`).
            if is_input or self._recorder.newest_node != node:
                note_saved(saved, tensor)
                if tensor.is_leaf:
                    self._leaves.note(saved, tensor)
        owner = checkpoints.OWNER if is_checkpoints else ""
        rewraps = None if wrapper is tensor else rewrapped(wrapper)
        self._leaves.describe(saved, tensor, owner, rewraps)
        return saved

    def _pack_sparse(self, saved: SavedToken, tensor: torch.Tensor) -> None:
        if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.sparse_coo:
            saved.payload = tensor
            return
        shape, has_sums = tensor.shape, is_coalesced(tensor)
        saved.parts = tuple(map(self._token_of, parts_of(tensor)))
        saved.geometry = (shape, (), tensor.dtype, tensor.fake_device)

        def together(parts: Sequence[Any]) -> torch.Tensor:
            indices, values = parts
            return sparse_of(self._fake_mode, indices, values, shape, is_coalesced=has_sums)

        saved.together = together
        saved.made_by = self._recorder.maker_of(tensor)

    @acts_for_the_program
    def _open(self, saved: SavedToken) -> None:
        saved.check()
        if self._of_thread.unpacked:
            self._of_thread.unpacked[-1].append(saved)

    def _unpack(self, saved: SavedToken) -> torch.Tensor:
        stand_in = self._fields.stand_in_for(saved)
        if stand_in is not None:
            return stand_in
        self._open(saved)
        alias = self._restored(saved)
        if saved.made_by is not None:
            self._recorder.remember_maker(alias, saved.made_by)
        if saved.geometry is not None:
            if saved.version is not None and torch.is_grad_enabled():
                saved.version.note_unpacked(alias)
            note_unpacked(saved, alias)
            mark_unpacked(alias)
        self._leaves.note_unpacked(saved)
        return alias

    def _restored(self, saved: SavedToken) -> torch.Tensor:
        if saved.together is not None:
            return saved.together([self._restored(part) for part in saved.parts])
        if saved.geometry is not None:
            return self._remake(saved)
        tensor: torch.Tensor = saved.payload
        return tensor

    def _remake(self, saved: SavedToken) -> FakeTensor:
        assert saved.geometry is not None
        shape, stride, dtype, device = saved.geometry
        with torch._C._DisableTorchDispatch():
            memory = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            if saved.values is not None:  # they cover the whole storage
                whole = torch.UntypedStorage(saved.values.nbytes, device="meta")
                memory.set_(whole, saved.offset, shape, stride)
            for view in saved.pending:
                memory = view(memory)
        alias = self._fake_mode.wrap(memory, device)
        if saved.storage is not None:
            storage = self.replaced.newest(saved.storage)
            self._recorder.stand_for(alias.untyped_storage(), storage)
        if saved.values is not None:
            self._known.share(alias, saved.values)
        return alias

    def _wrapped_pack(self, region: list[Hook]) -> Hook:
        """The user's pack hook, which only the packed object may hold, not autograd.

        Autograd releases hooks together with what they packed, but here it keeps the token, and
        checkpointing's hooks hold everything that the recomputation needs.
        """

        def pack_into_token(tensor: torch.Tensor) -> SavedToken:
            saved = self._new_token(list(region))
            saved.payload = region[0](tensor)
            return saved

        return pack_into_token

    def _unpack_by_user(self, saved: SavedToken) -> torch.Tensor:
        stand_in = self._fields.stand_in_for(saved)
        if stand_in is not None:
            return stand_in
        self._open(saved)
        tensor: torch.Tensor = saved.hooks[1](saved.payload)
        self._leaves.note_unpacked(saved)
        return tensor

    def _saving_node(self) -> int:
        """The number of the node being saved for: autograd makes a node before it saves."""
        node, newest = self._of_thread.taken_over, torch._C._autograd._get_sequence_nr() - 1
        number: int = newest if node is None else node._sequence_nr()
        return number

    def _new_token(self, hooks: list[Hook]) -> SavedToken:
        saved = SavedToken(next(self._numbers), self._recorder.let_go, hooks)
        self._by_node.setdefault(self._saving_node(), []).append(weakref.ref(saved))
        return saved

    @contextmanager
    def running(self, node: Any, *, release: bool) -> Iterator[None]:
        """Run one node, then release what it saved, unless `release` is false."""
        held = self._held_by(node)
        self._of_thread.unpacked.append([])
        try:
            yield
        finally:
            unpacked = self._of_thread.unpacked.pop()
        if release:
            if not names_of(node):
                held = self._unexposed(node, unpacked)
            for saved in held:
                saved.release()

    def release(self, node: Any) -> None:
        """Release what a dying node saved."""
        for saved in self._held_by(node) or self._saved_under(node):
            saved.release()

    def holds_any(self, node: Any) -> bool:
        """Whether a node holds tokens."""
        return bool(self._held_by(node) or self._saved_under(node))

    def take_over(self, nodes: Iterable[Any]) -> None:
        """Hold by tokens what nodes saved without hooks, unless FSDP has freed it for now."""

        def needs(tensor: torch.Tensor) -> bool:
            return is_wrapper(type(tensor)) or self._recorder.storage_of(tensor) is not None

        for node in nodes:
            self._fields.give_hooks(node, partial(self._take, node), self._unpack, needs)

    def _take(self, node: Any, field: str, tensor: torch.Tensor) -> SavedToken:
        name_saved(tensor, f"{name_of(node)}.{field}", self._recorder)
        self._of_thread.taken_over = node
        try:
            return self._pack(tensor)
        finally:
            self._of_thread.taken_over = None

    def describe(self, node: Any) -> Iterator[graph.SavedTensor]:
        """Describe what a node saved; the field is "" if it exposes none."""
        for saved in self._held_by(node) or self._saved_under(node):
            yield graph.SavedTensor(saved.field, saved.described(), saved.owner)

    def storages_of(self, node: Any) -> Iterator[Storage]:
        """The storages that a node keeps alive before it runs."""
        for token in self._by_node.get(node._sequence_nr(), ()):
            saved = token()
            if saved is not None and saved.storage is not None and not saved.is_released:
                yield saved.storage

    def _held_by(self, node: Any) -> list[SavedToken]:
        """The tokens in a node's fields, named after the field, such as `GeluBackward0.self`.

        The order is that of saving, in which `release_variables` frees them.
        """
        found: list[SavedToken] = []
        for field in names_of(node):
            try:
                held = list(self._fields.packed_in(node, field))
            except RuntimeError:  # released before, or a Python function without saved tensors
                continue
            for name, saved in held:
                if isinstance(saved, SavedToken):
                    found.append(saved)
                    saved.field = name
                    saved.name_after(f"{name_of(node)}.{field}")
        return sorted(found, key=lambda saved: saved.number)

    def _unexposed(self, node: Any, unpacked: list[SavedToken]) -> list[SavedToken]:
        """The tokens of a node that does not expose them.

        They are those that it unpacked, and those saved while it was the newest node. `CopySlices`
        is such a node: it holds the node of the operation that wrote into a view, made just before
        it. Functions written in C++ are others. All generated nodes expose what they save.
        """
        held = [*self._saved_under(node), *unpacked]
        for saved in held:
            if saved.owner is not None:
                saved.owner.name = saved.owner.name or str(name_of(node))
        is_copy = isinstance(node, _FUNCTIONS.CopySlices)
        if is_copy and not INNER_NODES_ARE_DESTROYED.holds_in(installed_release()):
            held.sort(key=lambda saved: saved.number)
        return held

    def _saved_under(self, node: Any) -> list[SavedToken]:
        """The live tokens saved while a node that does not expose them was the newest."""
        if type(node) in _GENERATED:
            return []
        number = node._sequence_nr()
        is_copy = isinstance(node, _FUNCTIONS.CopySlices)
        numbers = [number - 1, number] if is_copy else [number]
        tokens = itertools.chain.from_iterable(self._by_node.get(n, ()) for n in numbers)
        return [saved for token in tokens if (saved := token()) is not None]


_FUNCTIONS: Any = torch._C._functions
_GENERATED = {kind for kind in vars(_FUNCTIONS).values() if isinstance(kind, type)}
_GENERATED.remove(_FUNCTIONS.CopySlices)
