"""Tell Dynamo about the virtual card and graphmem's stand-ins for PyTorch's functions."""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CellType, CodeType, FunctionType
from typing import Any

import torch
import torch.nn.modules.module as module_hooks
from torch._guards import Guard, TracingContext
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import graph as autograd_graph
from torch.fx.experimental import proxy_tensor
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import BaseTorchDispatchMode
from torch.utils._pytree import tree_leaves

from graphmem.frames import Origin, is_of_absent_package, origin_of
from graphmem.torch_releases import installed_one, installed_release
from graphmem.torch_releases.compiler_names import FRONTENDS, WHERE_MODES_ARE_LOOKED_FOR
from graphmem.torch_releases.installed_build import FRAMES_HAVE_STRATEGIES
from graphmem.trace.compiled.savings import Savings
from graphmem.trace.compiled.unwatched import Unwatched
from graphmem.trace.proxies import is_own_fake
from graphmem.virtual_device.cuda_api import FACTORIES
from graphmem.virtual_device.device_properties import DeviceProperties
from graphmem.virtual_device.patching import (
    Replacement,
    original_of,
    replaced,
    stand_ins,
    suspended,
)

_FORWARD = ("_global_forward_pre_hooks", "_global_forward_hooks")
_WITH_FUNCTIONS = (
    *(FunctionType, type, CellType, dict, tuple, list, staticmethod, classmethod, property),
    *(functools.cached_property, functools.partial, functools._lru_cache_wrapper),
)
"""Kinds of objects in which a module's functions may be."""
_DISABLED = "disable_saved_tensors_hooks"
"""`torch.func` asks for it while it differentiates; the program's hooks are set aside."""
_OF_STEPS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
_HOOKS = ("_global_backward_pre_hooks", "_global_backward_hooks", *_FORWARD)


def replacements(unwatched: Unwatched, savings: Savings) -> list[Replacement]:
    """The attributes to replace.

    Args:
        unwatched: stops recording while the compiler runs.
        savings: notified when a graph breaks.
    """
    import torch._dynamo.convert_frame as frames
    import torch._inductor.compile_fx as compile_fx
    from torch._dynamo import device_interface
    from torch._functorch._aot_autograd import utils as aot_utils

    stream_of = torch._C._cuda_getCurrentRawStream
    return [
        (
            frames,
            "_compile",
            unwatched.running(savings.noting_breaks(_hiding_hooks(frames._compile))),
        ),
        # A backward pass may not be compiled until it first runs.
        (compile_fx, "_compile_fx_inner", unwatched.running(compile_fx._compile_fx_inner)),
        (device_interface, "get_cuda_stream", stream_of),
        (device_interface.CudaInterface, "get_raw_stream", staticmethod(stream_of)),
        # Compiled code and its guards must not count graphmem's own hooks.
        (aot_utils, "top_saved_tensors_hooks", lambda: None),
        (module_hooks, "_has_any_global_hook", _has_any_global_hook),
        *fake_constants(unwatched),
        *_switches_of_devices(),
        *_tensors_of_traces(),
        *_guards_under_modes(),
        *_frames_left(),
    ]


def fake_constants(unwatched: Unwatched) -> list[Replacement]:
    """Let a trace on fake tensors make constants on the card, and record those that are real."""
    return [
        (proxy_tensor, "unset_fake_temporarily", unwatched.recorded),
        (FakeTensorMode, "avoid_device_init", property(lambda mode: True)),
    ]


@contextmanager
def properties_as_constants() -> Iterator[None]:
    """Let Dynamo fold the card's properties into its graphs, as it does those of a real one."""
    constants = importlib.import_module("torch._dynamo.utils").common_constant_types
    constants.add(DeviceProperties)
    try:
        yield
    finally:
        constants.discard(DeviceProperties)


def _switches_of_devices() -> Iterator[Replacement]:
    """From torch 2.13 on, Dynamo keeps what `torch.cuda.device` calls (`GenericDeviceVariable`)."""
    switch = importlib.import_module("torch._dynamo.variables.ctx_manager").CUDADeviceVariable
    if hasattr(switch, "_exchange_fn"):
        yield switch, "_exchange_fn", staticmethod(torch.cuda._exchange_device)
        yield switch, "_maybe_exchange_fn", staticmethod(torch.cuda._maybe_exchange_device)


def _tensors_of_traces() -> Iterator[Replacement]:
    """Let the compiler, whose traces have fake modes of their own, take the card's tensors as real.

    It looks for a fake mode among its inputs (`detect_fake_mode`, torch/_guards.py), and converts
    those that are not fake yet: parameters have static shapes then, and the others the symbols
    that Dynamo chose (`process_inputs`, torch/_functorch/_aot_autograd/frontend_utils.py).
    """
    frontend = installed_one(FRONTENDS)
    yield frontend, "FakeTensor", _OwnFake
    for module in {frontend, *map(importlib.import_module, WHERE_MODES_ARE_LOOKED_FOR)}:
        yield module, "detect_fake_mode", _of_the_trace(module.detect_fake_mode)


def _of_the_trace(detect: Callable[..., Any]) -> Callable[..., Any]:
    def detect_fake_mode(inputs: Any = None) -> Any:
        context = TracingContext.try_get()  # before torch 2.11, the inputs' modes had to agree
        if context is not None and context.fake_mode is not None:
            return context.fake_mode
        leaves = tree_leaves(inputs)
        return detect([x for x in leaves if not isinstance(x, FakeTensor) or is_own_fake(x)])

    return detect_fake_mode


class _IsOwnFake(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return is_own_fake(value)


class _OwnFake(metaclass=_IsOwnFake):
    """A fake tensor that the program or the compiler made."""


def _guards_under_modes() -> Iterator[Replacement]:
    """Make guards for the dispatch keys that real tensors have where compiled code is called.

    A mode adds Python's keys to those of every tensor, and Dynamo compiles without graphmem's. So,
    before torch 2.10, the guards of a real tensor, which is on the CPU, failed at each call, which
    compiled again. Later guards leave these keys out (PR #164992, torch/csrc/dynamo/guards.h).
    """
    if installed_release() >= (2, 10):
        return
    checks = importlib.import_module("torch._dynamo.guards").CheckFunctionManager
    make = checks.__init__

    @functools.wraps(make)
    def make_under_mode(*args: Any, **kwargs: Any) -> None:
        with BaseTorchDispatchMode():
            make(*args, **kwargs)

    yield checks, "__init__", make_under_mode


def factories(unwatched: Unwatched) -> list[Replacement]:
    """Torch's factories, to replace before Dynamo learns of stand-ins."""
    return [(torch, name, unwatched.on_card(getattr(torch, name))) for name in FACTORIES]


def tables() -> list[Replacement]:
    """Dynamo's tables of PyTorch's functions, extended by the functions that stand in for them.

    Dynamo looks up every function in them, and puts a stand-in into its graphs where it would put
    PyTorch's own. `init_process_group` clears them (torch/distributed/distributed_c10d.py).
    """
    from torch._dynamo import trace_rules

    rules = trace_rules.get_torch_obj_rule_map
    methods = trace_rules.get_tensor_method
    return [
        (trace_rules, "get_torch_obj_rule_map", _looked_up(rules, _with_stand_ins)),
        (trace_rules, "get_tensor_method", _looked_up(methods, lambda known: known)),
    ]


def _looked_up(table: Any, completed: Callable[[Any], Any]) -> Callable[[], Any]:
    @functools.cache
    def made() -> Any:
        table.cache_clear()
        with suspended():
            known = table()
        return completed(known)

    return made


def _with_stand_ins(rules: dict[Any, Any]) -> dict[Any, Any]:
    from torch._dynamo.variables import SkipFunctionVariable

    known = [(theirs, own) for theirs, own in stand_ins() if _is_in(rules, theirs)]
    # Dynamo breaks the graph at a builtin of Python, so it must not look into what replaces one.
    builtin = [own for theirs, own in stand_ins() if theirs is original_of(gc.collect)]
    return {
        **dict.fromkeys(builtin, SkipFunctionVariable),
        **{own: rules[theirs] for theirs, own in known},
        **rules,
    }


def passing_compilers(frames: Any, answer: Callable[[Any], Any]) -> Replacement:
    """Have compiled functions, at each call, use the compiler that is the answer to theirs.

    Args:
        frames: `torch._dynamo.eval_frame`.
        answer: takes and returns a compiler, or None.
    """
    names = ("_callback_from_stance", "_maybe_set_eval_frame")  # the latter before torch 2.6
    name = next(each for each in names if hasattr(frames, each))
    use = getattr(frames, name)

    def use_answer(callback: Any) -> Any:
        return use(answer(callback))

    if not FRAMES_HAVE_STRATEGIES.holds_in(installed_release()):
        _engine().skip_code(use_answer.__code__)  # it may end compilation
    return frames, name, use_answer


def _engine() -> Any:
    return torch._C._dynamo.eval_frame


def _frames_left() -> Iterator[Replacement]:
    """Do as `leave_own_frames` where frames have no strategies (up to torch 2.6).

    What Dynamo returns for a frame is kept with its code (`_custom_eval_frame`,
    torch/csrc/dynamo/eval_frame.c).
    """
    if FRAMES_HAVE_STRATEGIES.holds_in(installed_release()):
        return
    wrapper = importlib.import_module("torch._dynamo.convert_frame").CatchErrorsWrapper
    convert, skip = wrapper.__call__, _engine().skip_code_recursive_flag

    @functools.wraps(convert)
    def convert_or_leave(self: Any, frame: Any, *args: Any) -> Any:
        return skip if _is_own_code(frame.f_code) else convert(self, frame, *args)

    yield wrapper, "__call__", convert_or_leave


def leave_own_frames() -> None:
    """Keep Dynamo from compiling graphmem's frames, and their callees, after a graph break.

    It may still inline them: a function that the program calls in place of PyTorch's is part of the
    program. The functions of absent packages are compiled as the packages' own.
    """
    if not FRAMES_HAVE_STRATEGIES.holds_in(installed_release()):
        return
    frames = _engine()
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    codes = {code for function in _own_functions() for code in _codes_in(function.__code__)}
    for code in codes:
        frames.set_code_exec_strategy(code, skip)


def _own_functions() -> Iterator[FunctionType]:
    """The functions of graphmem's modules, those below decorators and in tables included.

    `gc.get_objects` lacks those imported before the command set its objects aside (`gc.freeze`).
    """
    modules = list(sys.modules.items())
    found: list[Any] = [vars(module) for name, module in modules if _is_graphmems(name)]
    seen: set[int] = set()
    while found:
        value = found.pop()
        if id(value) in seen or not _is_graphmems(getattr(value, "__module__", None)):
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType):
            yield value
        found += [each for each in gc.get_referents(value) if isinstance(each, _WITH_FUNCTIONS)]


def _is_graphmems(module: Any) -> bool:
    return not isinstance(module, str) or module.partition(".")[0] == "graphmem"


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """The code of a graphmem function, and of the functions defined in it."""
    if _is_own_code(code):
        yield code
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _codes_in(constant)


def _is_own_code(code: CodeType) -> bool:
    file = code.co_filename
    return origin_of(file) is Origin.GRAPHMEM and not is_of_absent_package(file)


def _is_in(rules: dict[Any, Any], function: Any) -> bool:
    try:
        return function in rules
    except TypeError:  # unhashable
        return False


def without_own_hooks() -> list[Replacement]:
    """What an export sees: its `get_traced_fn` (convert_frame.py) traces hooks of modules, too."""
    return _without(module_hooks, _FORWARD)


def _without(module: Any, names: Iterable[str]) -> list[Replacement]:
    return [(module, name, _without_own(getattr(module, name))) for name in names]


def _hiding_hooks(compile_: Callable[..., Any]) -> Callable[..., Any]:
    """Compile calls of modules as their `forward`, as Dynamo does where no hook is registered.

    With one it inlines `_call_impl`, whose closure makes arguments inputs of the graph sooner
    (torch/_dynamo/variables/nn_module.py). If the program has hooks too, guards compare the lists.

    The hooks of optimizers' steps break graphs, so they are hidden where none may break.
    """
    parameters = inspect.signature(compile_)

    @functools.wraps(compile_)
    def compile_without_hooks(*args: Any, **kwargs: Any) -> Any:
        hidden = [] if _has_any_global_hook() else without_own_hooks()
        if parameters.bind(*args, **kwargs).arguments["one_graph"]:
            hidden += _without(optimizers, _OF_STEPS)
        if installed_release() < (2, 7):  # Dynamo cannot look into a generator's context
            hidden.append(
                (autograd_graph, _DISABLED, original_of(getattr(autograd_graph, _DISABLED)))
            )
        with replaced([*hidden, _unguarded([name for _, name, _ in hidden])]):
            return compile_(*args, **kwargs)

    return compile_without_hooks


def _unguarded(hidden: Iterable[str]) -> Replacement:
    """Compiled code that read the empty lists must not ask whether they still are.

    Dynamo inlines `_call_impl` of a module with hooks of its own, as those of `parallelize_module`,
    and guards the length of the global lists, which have graphmem's when the code runs.
    """
    create = Guard.create

    def create_unless_hidden(guard: Guard, builder: Any) -> Any:
        is_hidden = any(f".{each}" in guard.name for each in hidden)
        return None if is_hidden else create(guard, builder)

    return Guard, "create", create_unless_hidden


def _without_own(hooks: dict[int, Any]) -> OrderedDict[int, Any]:
    return OrderedDict((number, hook) for number, hook in hooks.items() if not is_own_hook(hook))


def is_own_hook(hook: Any) -> bool:
    """Whether a hook is graphmem's."""
    return str(hook.__module__).startswith("graphmem.")


def _has_any_global_hook() -> bool:
    return any(_without_own(getattr(module_hooks, name)) for name in _HOOKS)
