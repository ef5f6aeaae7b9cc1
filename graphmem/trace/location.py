"""Where in the user's program an operation happens: the module and the source line."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.nn.modules import module as module_hooks
from torch.utils import checkpoint

from graphmem.frames import (
    Origin,
    is_by_dataclasses,
    is_program,
    is_program_code,
    origin_of,
    short_path,
)
from graphmem.graph import Source
from graphmem.module_calls import ModuleCall
from graphmem.trace.compiled.origins import Buffer
from graphmem.trace.operands import tensors_of
from graphmem.training_step import TrainingStep

_WALK = str(Path(__file__).with_name("backward.py"))
"""The file that calls autograd's nodes."""


class _Named(weakref.ref[torch.nn.Module]):
    """A weak reference to a module, with its name; holding the model would keep its memory.

    Attributes:
        key: the module's identity.
        name: its first name.
        within: its name below each module that called it by another one.
    """

    __slots__ = ("key", "name", "within")
    key: int
    name: str
    within: dict[str, str]


class _OfThread(threading.local):
    """The modules running in a thread, innermost last, and how many outer ones prepare data."""

    def __init__(self) -> None:
        self.modules: list[tuple[str, torch.nn.Module]] = []
        self.preparing = 0


class Location:
    """Tracks module calls by global hooks, and finds the user's line on the Python stack.

    Attributes:
        within: the running target, in words, for package lines that no user line called.
        whole: finds the model to which a module belongs that is called outside of any other.
        root_name: what the names of a model's modules begin with; "" where there is one model.
        compiled: finds the buffer that compiled code is making, from a frame outwards.
        calls: how each module is called, by its name.
        functions: what graphmem itself calls of a program, whose variables no frame holds between
            two calls.
        is_trial: whether the modules called so far are forgotten when the next one is called from
            outside any other. A layer that was tried alone is then named as part of its model.
    """

    def __init__(self, on_root: Callable[[torch.nn.Module], object] = lambda module: None) -> None:
        """Follows nothing yet.

        Args:
            on_root: called with each module that is called from outside of any other, before it
                runs; not with one that only prepares data on the host.
        """
        self._on_root = on_root
        self.within = ""
        self.compiled: Callable[[FrameType | None], Buffer | None] = _nothing
        self.whole: Callable[[torch.nn.Module], torch.nn.Module] = lambda module: module
        self.root_name: Callable[[torch.nn.Module], str] = lambda root: ""
        self.calls: dict[str, ModuleCall] = {}
        self.functions: list[Callable[..., Any]] = []
        self.is_trial = False
        self._outermost: FrameType | None = None
        self._hooks: list[Any] = []
        self._of_thread = _OfThread()
        self._names: dict[int, _Named] = {}
        self._roots: list[tuple[str, weakref.ref[torch.nn.Module]]] = []
        self._is_user_file: dict[str, bool] = {}
        self._sources: dict[tuple[str, str, int], Source] = {}

    @property
    def module(self) -> str:
        """Qualified name of the innermost running module; "" outside any."""
        stack = self._of_thread.modules
        return stack[-1][0] if stack else ""

    @property
    def is_in_module(self) -> bool:
        """Whether a module is running."""
        return bool(self._of_thread.modules)

    @contextmanager
    def following(self, outermost: FrameType | None) -> Iterator[None]:
        """Track the running module; frames from `outermost` outwards are not searched."""
        self._outermost = outermost
        self._hooks = [
            module_hooks.register_module_forward_pre_hook(self._enter),
            module_hooks.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            self.unfollow()
            self._outermost = None
            self.functions.clear()

    def unfollow(self) -> None:
        """Track the running module no longer."""
        for hook in self._hooks:
            hook.remove()

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_dynamo_compiling():  # Dynamo inlines hooks
            return
        stack = self._of_thread.modules
        if not stack and self.is_trial:
            self._forget_all()
        known = self._names.get(id(module))
        name = self._name(module) if known is None else self._name_here(known, module)
        if len(stack) == self._of_thread.preparing:
            if _prepares_data(module, args):
                self._of_thread.preparing += 1
            else:
                self._on_root(module)
        if name not in self.calls or not self.calls[name].checkpointed:
            self._note_call(name, sys._getframe(1))
        stack.append((name, module))

    def _note_call(self, name: str, frame: FrameType | None) -> None:
        """Note how a module is called, from the frames between its call and its caller's.

        A checkpointed method or function runs part of the module that is running already, which
        stands for the part; a local function usually runs another module, as `block` in
        `checkpoint(lambda x: block(x), x)`.
        """
        first: FrameType | None = None
        entered = 0
        while frame is not None and frame is not self._outermost:
            code = frame.f_code
            entered += code is _CALL
            if entered > 1:
                break
            if code.co_name == "checkpoint" and code.co_filename == checkpoint.__file__:
                if first is not None and self.module and "<locals>" not in first.f_code.co_qualname:
                    name = self.module
                self.calls[name] = ModuleCall(self._line_of(frame), checkpointed=True)
                return
            if first is None and is_program_code(code):
                first = frame
            frame = frame.f_back
        if name not in self.calls:
            self.calls[name] = ModuleCall(self._line_of(first), checkpointed=False)

    def _line_of(self, frame: FrameType | None) -> str | None:
        """The user's own line that led to a frame; without one on the stack, a package's."""
        frames = list(self._program_frames(frame))
        own = (each for each in frames if origin_of(each.f_code.co_filename) is Origin.USER)
        found = next(own, next(iter(frames), None))
        return None if found is None else str(source_of(found))

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            return
        thread = self._of_thread
        thread.modules.pop()
        thread.preparing = min(thread.preparing, len(thread.modules))

    def _name(self, module: torch.nn.Module) -> str:
        """Name a module on first sight, which none had registered when it became known.

        Inside another one it is named as that registers it by now, or as that by which an adapter
        has replaced the other's `forward` does, else by its class.
        """
        if self._of_thread.modules:
            caller, running = self._of_thread.modules[-1]
            self._know_replacing(running, caller)
            if id(module) not in self._names:
                self._know_parts(running, caller)
            if id(module) not in self._names:
                self.know(module, below(caller, type(module).__name__))
        else:
            root = self.whole(module)
            self.know(root, self.root_name(root))
        return self._names[id(module)].name

    def _name_here(self, known: _Named, module: torch.nn.Module) -> str:
        """The name below the running module of one that several hold, such as an activation.

        One without parameters may be an attribute of their class; it is named by its own, as is one
        that nothing registers.
        """
        stack = self._of_thread.modules
        caller, running = stack[-1] if stack else ("", module)
        if not caller or known.name.startswith(f"{caller}."):
            return known.name
        if caller not in known.within:
            paths = (path for path, each in running.named_modules() if each is module)
            path = without_wrappers(next(paths, ""))
            if not path and not _has_state(module):
                path = type(module).__name__
            known.within[caller] = f"{caller}.{path}" if path else known.name
        return known.within[caller]

    def knows(self, module: torch.nn.Module) -> bool:
        """Whether a module has a name."""
        return id(module) in self._names

    def name_of(self, module: torch.nn.Module) -> str:
        """The first name of a module; "" of one without a name."""
        known = self._names.get(id(module))
        return "" if known is None else known.name

    def know(self, root: torch.nn.Module, name: str = "") -> None:
        """Name every module below a root, one under two names by the first until it is called."""
        self._roots.append((name, weakref.ref(root)))
        self._know_parts(root, name)

    def _know_parts(self, root: torch.nn.Module, name: str) -> None:
        for path, module in root.named_modules():
            if id(module) not in self._names:
                self._note(module, below(name, without_wrappers(path)))

    def _know_replacing(self, module: torch.nn.Module, name: str) -> None:
        """Know the module whose method stands for another's `forward`, as kohya's LoRA does."""
        replacing = getattr(vars(module).get("forward"), "__self__", None)
        if isinstance(replacing, torch.nn.Module) and id(replacing) not in self._names:
            self.know(replacing, name)

    def follow(self, step: TrainingStep) -> None:
        """Know the functions of a step that graphmem calls."""
        own = (step.step, step.loss, step.inputs)
        self.functions += [each for each in own if callable(each)]

    def _note(self, module: torch.nn.Module, name: str) -> None:
        known = _Named(module, self._forget)
        known.key, known.name, known.within = id(module), name, {}
        self._names[known.key] = known

    def _forget_all(self) -> None:
        self.is_trial = False
        for each in (self._names, self._roots, self.calls):
            each.clear()

    def _forget(self, known: _Named) -> None:
        del self._names[known.key]

    @property
    def roots(self) -> list[tuple[str, torch.nn.Module]]:
        """The modules that no other one registers, if they still exist, with their names."""
        found = [(name, known()) for name, known in self._roots]
        return [(name, module) for name, module in found if module is not None]

    def source(self, *, in_node: bool = False) -> Source | None:
        """The innermost line of the program, or None if there is none on the stack.

        With `in_node`, only what the running autograd node has called: its own `backward`.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self._outermost:
            code = frame.f_code
            if in_node and code.co_filename == _WALK:
                return None
            is_user_file = self._is_user_file.get(code.co_filename)
            if is_user_file is None:
                is_user_file = self._is_user_file[code.co_filename] = is_program(code.co_filename)
            if is_user_file and not is_by_dataclasses(code):
                return self._source(code, frame.f_lineno)
            frame = frame.f_back
        return None

    def place(self) -> Source | None:
        """The line that `source` gives, with the user's line above it if that is a package's.

        In compiled code, the line that it was compiled from. For messages only: it takes longer.
        """
        compiled = self.compiled(sys._getframe(1))
        if compiled is not None and compiled.source is not None:
            return compiled.source
        innermost = next(self.user_frames(), None)
        if innermost is None:
            return None
        source = source_of(innermost)
        if origin_of(innermost.f_code.co_filename) is Origin.USER:
            return source
        own = (f for f in self.user_frames() if origin_of(f.f_code.co_filename) is Origin.USER)
        caller = next(own, None)
        if caller is None:
            return replace(source, within=self.within)
        return replace(source, called_from=source_of(caller))

    def _source(self, code: CodeType, line: int) -> Source:
        key = (code.co_filename, code.co_name, line)  # Dynamo's code may have unhashable constants
        source = self._sources.get(key)
        if source is None:
            source = Source(short_path(code.co_filename), line, code.co_name)
            self._sources[key] = source
        return source

    def user_frames(self) -> Iterator[FrameType]:
        """The user's frames on the Python stack, innermost first."""
        return self._program_frames(sys._getframe(1))

    def frames(self) -> Iterator[FrameType]:
        """The frames on the Python stack below the program's first, innermost first."""
        return self._frames(sys._getframe(1))

    def _program_frames(self, frame: FrameType | None) -> Iterator[FrameType]:
        return (each for each in self._frames(frame) if is_program_code(each.f_code))

    def _frames(self, frame: FrameType | None) -> Iterator[FrameType]:
        while frame is not None and frame is not self._outermost:
            yield frame
            frame = frame.f_back


def below(name: str, path: str) -> str:
    """The name of what has a path within a module of a name; the one or the other may be empty."""
    return f"{name}.{path}" if name and path else name or path


WRAPPED = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"}
)
"""By which name wrappers have their module: `torch.compile`'s, FSDP1's and those of checkpoints
(torch/distributed/fsdp/_common_utils.py, `clean_tensor_name`), and Lightning Fabric's, whose
state_dict has no such part either (`_FabricModule`, lightning/fabric/wrappers.py)."""


def without_wrappers(name: str) -> str:
    """The qualified name of a module or parameter without the parts of wrappers."""
    return ".".join(part for part in name.split(".") if part not in WRAPPED)


def source_of(frame: FrameType) -> Source:
    """The line that a frame is at."""
    code = frame.f_code
    return Source(short_path(code.co_filename), frame.f_lineno, code.co_name)


# A module's hooks and `forward` run in `_call_impl` (torch/nn/modules/module.py of 2.13).
# `checkpoint` calls its function itself, or by way of `CheckpointFunction.forward`
# (torch/utils/checkpoint.py); when that runs again in the backward pass, it is not on the stack.
_CALL = torch.nn.Module._call_impl.__code__


def _has_state(module: torch.nn.Module) -> bool:
    return any(True for _ in chain(module.parameters(), module.buffers()))


def _prepares_data(module: torch.nn.Module, args: Any) -> bool:
    """Whether a module without state is given data on the host, as torchvision's transforms."""
    on_host = bool(args) and all(each.is_cpu for each in tensors_of(args))
    return on_host and not _has_state(module)


def _nothing(frame: FrameType | None) -> None:
    return None
