"""Backward passes that are compiled as a whole (`torch._dynamo.config.compiled_autograd`).

PyTorch's engine then runs no node: it has them, with their hooks and the sums of gradients, written
into one graph, which Dynamo compiles (torch/csrc/dynamo/python_compiled_autograd.cpp). That needs
no card, so the engine itself is called. While compiled autograd is on, autograd saves tensors as it
does without graphmem, and has the program's hooks itself: those of graphmem would be in the graph.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch._guards import TracingContext

from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import BACKWARD_IS_COMPILED_UNDER_MODES
from graphmem.trace.messages import OldCompiledAutogradError
from graphmem.trace.naming import name_saved
from graphmem.trace.python_functions import name_of
from graphmem.trace.recorder import Recorder
from graphmem.trace.saved_fields import SavedFields
from graphmem.virtual_device.device_guard import HiddenDevices
from graphmem.virtual_device.patching import Replacement, replaced

_ENGINE: Any = torch.autograd.Variable._execution_engine
_MODULE = "torch._dynamo.compiled_autograd"


class _Process:
    """What has happened in this process.

    Attributes:
        hidden: the devices of each running pass, hidden until the engine calls Python.
        was_on: whether compiled autograd has been on in this program.
    """

    def __init__(self) -> None:
        self.hidden: list[HiddenDevices] = []
        self.was_on = False


_PROCESS = _Process()


def is_on() -> bool:
    """Whether a backward pass that began now would be compiled as a whole."""
    return bool(getattr(sys.modules.get(_MODULE), "compiled_autograd_enabled", False))


def name_all_saved(nodes: Iterable[Any], recorder: Recorder) -> None:
    """Name what nodes saved without hooks."""
    fields = SavedFields()
    for node in nodes:
        for field, tensor in fields.tensors_of(node):
            name_saved(tensor, f"{name_of(node)}.{field}", recorder)


def was_on() -> bool:
    """Whether autograd may have saved tensors without graphmem's hooks."""
    return _PROCESS.was_on


def is_running() -> bool:
    """Whether the engine runs a pass that it has compiled."""
    return bool(_PROCESS.hidden)


def run(*args: Any) -> tuple[torch.Tensor | None, ...]:
    """Run a backward pass, with the arguments of the engine's `run_backward`.

    Raises:
        InputError: the engine refuses a dispatch mode, as it does before torch 2.8.
    """
    if not BACKWARD_IS_COMPILED_UNDER_MODES.holds_in(installed_release()):
        raise OldCompiledAutogradError()
    _PROCESS.hidden.append(HiddenDevices())
    try:
        results: tuple[torch.Tensor | None, ...] = _ENGINE.run_backward(*args)
    finally:
        _PROCESS.hidden.pop().show()
    return results


def queue_callback(callback: Callable[[], None]) -> None:
    """Run a callback when the running pass ends."""
    _ENGINE.queue_callback(callback)


def unless_running(
    answers: Iterable[Replacement], is_walking: Callable[[], bool]
) -> Iterator[Replacement]:
    """Functions of a walk in place of the engine's, but for when the engine runs a pass itself.

    Args:
        answers: the functions of a walk.
        is_walking: whether a walk runs, perhaps within such a pass.
    """
    return only_if(answers, lambda: is_walking() or not is_running())


def only_if(
    replacements: Iterable[Replacement], applies: Callable[[], bool]
) -> Iterator[Replacement]:
    """Functions that give way to those that they replace unless they apply."""
    for owner, name, function in replacements:
        yield owner, name, _chosen(function, getattr(owner, name), applies)


def _chosen(
    function: Callable[..., Any], otherwise: Callable[..., Any], applies: Callable[[], bool]
) -> Callable[..., Any]:
    def answer(*args: Any) -> Any:
        return (function if applies() else otherwise)(*args)

    return answer


def leaves_autograd_alone() -> bool:
    """Whether autograd saves tensors as it does without graphmem.

    It does so in the compiled pass as well, whose own graph may be compiled later.
    """
    return is_on() or is_running()


def choose_hooks(*, are_users: bool) -> None:
    """Let autograd save without hooks, unless those in force are the user's."""
    if leaves_autograd_alone() and not _compiler_traces():
        _leave_out_hooks(not are_users)


def choosing_hooks(are_users: Callable[[], bool]) -> Replacement:
    """The attribute to replace so that hooks are chosen whenever compiled autograd goes on or off.

    Args:
        are_users: whether the innermost hooks for saved tensors are the user's.
    """
    engines: Any = torch._C._dynamo.compiled_autograd
    switch = engines.set_autograd_compiler
    _PROCESS.was_on = False  # for this program

    def switch_and_choose(compiler: Any, *dynamic: bool) -> Any:
        _PROCESS.was_on |= compiler is not None
        is_for_none = compiler is None and not is_running()
        if not _compiler_traces():
            _leave_out_hooks(not is_for_none and not are_users())
        return switch(compiler, *dynamic)  # before torch 2.6 there is none

    return engines, "set_autograd_compiler", switch_and_choose


@contextmanager
def spared() -> Iterator[None]:
    """Let Dynamo's reset leave compiled autograd as it is: the program may have it on.

    Amid a pass the engine holds an entry of the cache (`CacheNode`,
    torch/csrc/dynamo/python_compiled_autograd.cpp), which clearing would free.
    """
    compiled_autograd: Any = importlib.import_module(_MODULE)
    reset = compiled_autograd.reset

    def reset_if_off() -> None:
        if is_running():
            return
        if is_on():
            torch._C._dynamo.compiled_autograd.clear_cache()
        else:
            reset()

    leaves_out_hooks = _leave_out_hooks(False)
    try:
        with replaced([(compiled_autograd, "reset", reset_if_off)]):
            yield
    finally:
        _leave_out_hooks(leaves_out_hooks)


def capturing(unwatched: Callable[[], AbstractContextManager[None]]) -> list[Replacement]:
    """The attributes to replace so that the engine's work on the graph is not recorded.

    Args:
        unwatched: opens a context in which nothing is recorded.
    """
    from torch._dynamo.compiled_autograd import AutogradCompilerInstance as Compiler

    begin, end = Compiler.begin_capture, Compiler.end_capture

    def begin_unwatched(capture: Any, *args: Any) -> Any:
        _PROCESS.hidden[-1].show()
        capture.stack.enter_context(unwatched())  # `end_capture` leaves it
        return begin(capture, *args)

    def end_and_show(capture: Any, outputs: Any) -> Any:
        run_compiled, compiled = end(capture, outputs)

        def show_and_run(*args: Any) -> Any:
            _PROCESS.hidden[-1].show()
            return run_compiled(*args)

        return show_and_run, compiled

    return [(Compiler, "begin_capture", begin_unwatched), (Compiler, "end_capture", end_and_show)]


def _compiler_traces() -> bool:
    """Whether Dynamo or AOTAutograd traces: they leave out hooks, also those of checkpointing.

    AOTAutograd turns compiled autograd off meanwhile (`compiled_autograd._disable`).
    """
    return TracingContext.try_get() is not None


def _leave_out_hooks(value: bool) -> bool:
    """As Dynamo does while it traces (`get_hooks`, aten/src/ATen/SavedTensorHooks.cpp).

    Returns:
        Whether they were left out.
    """
    were_left_out: bool = torch._C._autograd._saved_tensors_hooks_set_tracing(value)
    return were_left_out
