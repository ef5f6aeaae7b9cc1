"""Hooks on autograd nodes, stored where the walk in Python can run them.

Tensor hooks, retained gradients and node hooks live in C++ lists that only the C++ engine reads.
While a trace runs, the calls that register them come here instead. Hooks on leaf tensors need
nothing: `AccumulateGrad` reads them from the variable's attributes.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.hooks import RemovableHandle

from graphmem.asked_types import plain_type
from graphmem.caller.tensors import leaf_of
from graphmem.frames import acts_for_the_program
from graphmem.trace import whole_backward
from graphmem.trace.freed_graphs import looked_at, seen
from graphmem.trace.python_functions import name_of
from graphmem.trace.saved_variables import note_gradient

Gradients = list[torch.Tensor | None]
NodeKey = tuple[str, int]
_METADATA_KEY = "graphmem"


def key_of(node: Any) -> NodeKey:
    """A key for a node that outlives its Python wrapper.

    Sequence numbers are unique, except for `AccumulateGrad`, which is identified by its variable.
    """
    if name_of(node).endswith("AccumulateGrad"):
        return ("leaf", id(leaf_of(node)))
    return ("node", node._sequence_nr())


@runtime_checkable
class _KnownToCompiler(Protocol):
    """A hook that is C++ in PyTorch."""

    def when_compiled(self) -> None:
        """Do what it does in compiled autograd's graph."""


@dataclass
class _Hooks:
    tensor: dict[int, Mapping[int, Callable[..., Any]]] = field(default_factory=dict)
    before: OrderedDict[int, Callable[..., Any]] = field(default_factory=OrderedDict)
    after: OrderedDict[int, Callable[..., Any]] = field(default_factory=OrderedDict)
    are_hidden: bool = False


class NodeHooks:
    """Every hook registered during a trace, by the node that runs it.

    A node's hooks live in the node's `metadata`, so that they and what they hold die with it.
    """

    def __init__(self) -> None:
        self._hooked: set[NodeKey] = set()
        self._retaining: list[weakref.ref[torch.Tensor]] = []
        self._retained_at: dict[NodeKey, list[weakref.ref[torch.Tensor]]] = {}

    def _of(self, node: Any) -> _Hooks | None:
        if not self._hooked or key_of(node) not in self._hooked:
            return None
        hooks: _Hooks | None = node.metadata.get(_METADATA_KEY)
        return hooks

    def _make(self, node: Any, hook: Any) -> _Hooks:
        seen(node)
        self._hooked.add(key_of(node))
        hooks: _Hooks = node.metadata.setdefault(_METADATA_KEY, _Hooks())
        is_known = whole_backward.leaves_autograd_alone() or isinstance(hook, _KnownToCompiler)
        hooks.are_hidden |= not is_known
        return hooks

    def hides_any(self, node: Any) -> bool:
        """Whether the node has hooks that compiled autograd does not see.

        A hook that is C++ in PyTorch does what its `when_compiled` does (`compiled_args`,
        torch/csrc/autograd/function_hook.h).
        """
        hooks = self._of(node)
        if hooks is None:
            return False
        after: list[Any] = list(hooks.after.values())
        for hook in after:
            if isinstance(hook, _KnownToCompiler):
                hook.when_compiled()
        return hooks.are_hidden

    def has_after(self, node: Any) -> bool:
        """Whether hooks run after the node: they hold a second reference to its inputs."""
        hooks = self._of(node)
        return hooks is not None and bool(hooks.after)

    def run_tensor_hooks(self, node: Any, gradients: Gradients) -> None:
        """Run tensor hooks, then store retained gradients [`call_tensor_pre_hooks`].

        A hook's result replaces the gradient in `gradients`, so that nothing else holds the old
        one.
        """
        hooks = self._of(node)
        if hooks is not None:
            for position, registered in hooks.tensor.items():
                gradients[position] = run_tensor_hooks(registered, gradients[position])
        for known in self._retained_at.get(key_of(node), ()) if self._retained_at else ():
            tensor = known()
            if tensor is not None and tensor.grad_fn is node:
                _retain(tensor, gradients[tensor.output_nr])

    def settle(self) -> None:
        """Find the nodes of tensors that retain their gradients, as a walk begins.

        A tensor that was written into since `retain_grad` has a different node.
        """
        self._retained_at = {}
        self._retaining = [known for known in self._retaining if self._retain_at_node(known)]

    def _retain_at_node(self, known: weakref.ref[torch.Tensor]) -> bool:
        tensor = known()
        if tensor is not None and tensor.grad_fn is not None:
            looked_at(tensor.grad_fn)
            self._retained_at.setdefault(key_of(tensor.grad_fn), []).append(known)
        return tensor is not None

    def run_before(self, node: Any, gradients: Gradients) -> None:
        """Run pre-hooks, which see all gradients of the node [`call_pre_hooks`].

        The engine has the first ones until the last hook has run [`PyFunctionPreHook`].
        """
        hooks = self._of(node)
        if hooks is not None:
            first = gradients[::-1]  # a list drops its last item first
            for hook in list(hooks.before.values()):
                _replace(gradients, hook(tuple(gradients)), hook)
            del first

    def run_after(self, node: Any, outputs: Gradients, inputs: Gradients) -> None:
        """Run post-hooks, which see the node's outputs and inputs, and may replace the former.

        The engine has the first outputs until the last hook has run [`PyFunctionPostHook`].
        """
        hooks = self._of(node)
        if hooks is not None:
            first = outputs[::-1]
            for hook in list(hooks.after.values()):
                _replace(outputs, hook(tuple(outputs), tuple(inputs)), hook)
            del first

    @staticmethod
    @acts_for_the_program
    def run_after_accumulation(leaf: Any) -> None:
        """Run hooks that see a leaf with its new gradient [`PyFunctionTensorPostAccGradHooks`]."""
        for hook in list((leaf._post_accumulate_grad_hooks or {}).values()):
            if hook(leaf) is not None:
                raise RuntimeError("Tensor post accumulate grad hooks should return None.")

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Handle every registration while the context is open."""

        def register_hook(node: Any, hook: Callable[..., Any]) -> RemovableHandle:
            return _register(self._make(node, hook).after, hook)

        def register_prehook(node: Any, hook: Callable[..., Any]) -> RemovableHandle:
            return _register(self._make(node, hook).before, hook)

        def register_hook_dict(node: Any, tensor: torch.Tensor) -> None:
            hooks: Any = tensor._backward_hooks
            self._make(node, hooks).tensor[tensor.output_nr] = hooks

        def retain_grad(tensor: torch.Tensor) -> None:
            if not (tensor.is_leaf or tensor.retains_grad):
                self._retaining.append(weakref.ref(tensor))
            original_retain_grad(tensor)

        original_retain_grad = torch.Tensor.retain_grad
        answers = {
            "register_hook": register_hook,
            "register_prehook": register_prehook,
            "_register_hook_dict": register_hook_dict,
        }
        torch.Tensor.retain_grad = retain_grad  # type: ignore[method-assign, assignment]
        undo = [_replace_methods(kind, answers) for kind in _node_types()]
        try:
            yield
        finally:
            for restore in undo:
                restore()
            torch.Tensor.retain_grad = original_retain_grad  # type: ignore[method-assign]


def run_tensor_hooks(
    hooks: Mapping[int, Callable[..., Any]], gradient: torch.Tensor | None
) -> torch.Tensor | None:
    """Run each hook; its result replaces the gradient (`PyFunctionTensorPreHook`)."""
    for hook in list(hooks.values()):
        replacement = hook(gradient)
        if replacement is not None:
            _check_single(gradient, replacement, hook)
            gradient = replacement
    return gradient


def _retain(tensor: torch.Tensor, gradient: torch.Tensor | None) -> None:
    """Store a non-leaf's gradient (torch/csrc/autograd/variable.cpp): clone or add."""
    if gradient is not None:
        note_gradient(tensor)
        tensor.grad = gradient.clone() if tensor.grad is None else tensor.grad + gradient


@acts_for_the_program
def _replace(values: Gradients, result: Any, hook: Any) -> None:
    """Replace what a hook saw by its result, releasing the old values first to last."""
    if result is None:
        return
    if not isinstance(result, tuple):
        raise TypeError(f"expected tuple, but hook returned '{plain_type(result).__name__}'")
    if len(result) != len(values):
        raise RuntimeError(
            f"hook '{_name_of_hook(hook)}' has returned an incorrect number of values "
            f"(got {len(result)}, but expected {len(values)})"
        )
    for i, replacement in enumerate(result):
        if replacement is not None:
            _check_single(values[i], replacement, hook)
        values[i] = replacement


@acts_for_the_program
def _check_single(value: torch.Tensor | None, result: Any, hook: Any) -> None:
    """`check_single_result` and `check_variable_result` (torch/csrc/autograd/python_hook.cpp)."""
    if result is value:
        return
    if value is None:
        raise RuntimeError("can't replace a None gradient with a non-None value")
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"expected Variable, but hook returned '{plain_type(result).__name__}'")
    changed = ""
    if _type_of(result) != _type_of(value):
        changed = f"type of value (was {value.type()} got {result.type()})"
    elif result.shape != value.shape:
        changed = "size of value"
    if changed:
        raise RuntimeError(f"hook '{_name_of_hook(hook)}' has changed the {changed}")


def _type_of(tensor: torch.Tensor) -> tuple[torch.dtype, torch.layout, str]:
    return tensor.dtype, tensor.layout, tensor.device.type


def _name_of_hook(hook: Any) -> str:
    return str(getattr(hook, "__name__", "<unknown>"))


def _register(
    hooks: OrderedDict[int, Callable[..., Any]], hook: Callable[..., Any]
) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _node_types() -> list[type]:
    kinds = [kind for kind in vars(torch._C._functions).values() if isinstance(kind, type)]
    return [*kinds, torch._C._FunctionBase]


def _replace_methods(kind: type, answers: dict[str, Any]) -> Callable[[], None]:
    """Replace methods of an extension type, which refuses `setattr`, through its dictionary."""
    members = gc.get_referents(kind.__dict__)[0]
    known = {name: members[name] for name in answers if name in members}
    members.update({name: _in_both(answers[name], known[name]) for name in known})
    _forget_cached_methods(kind)

    def restore() -> None:
        members.update(known)
        _forget_cached_methods(kind)

    return restore


class _BothHandles(RemovableHandle):
    """Removes a hook here and in C++."""

    def __init__(self, here: RemovableHandle, in_cpp: RemovableHandle) -> None:
        vars(self).update(vars(here))
        self._in_cpp = in_cpp

    def remove(self) -> None:
        super().remove()
        self._in_cpp.remove()


def _in_both(register: Callable[..., Any], register_in_cpp: Any) -> Callable[..., Any]:
    """Register a hook here, and in C++ as well where compiled autograd may read it."""

    def register_in_both(node: Any, *args: Any) -> RemovableHandle | None:
        handle: RemovableHandle | None = register(node, *args)
        if not whole_backward.leaves_autograd_alone():
            return handle
        in_cpp = register_in_cpp(node, *args)
        return handle if handle is None or in_cpp is None else _BothHandles(handle, in_cpp)

    return register_in_both


def _forget_cached_methods(kind: type) -> None:
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
