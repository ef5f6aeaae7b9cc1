"""The variable that keeps a storage alive, through containers and autograd's graph.

The search starts at names: the attributes of models, the globals of the program's modules, the
variables of functions that run, that an exception has left, or that functions which graphmem calls
close over. From there it follows lists, tuples, sets, dicts, the attributes of objects, the caches
of functions, and what generators and exceptions keep of the functions that they left, to tensors,
and from each tensor its gradient function's graph to what autograd saved there. The first name that
reaches a storage is its holder; that of an attribute is `trainer.losses`. A tensor in a variable of
a function that was left, or of none of its lines, has the name of what keeps the function.

Not covered: containers nested deeper than `DEPTH`, and objects that only C++ holds.
"""

from __future__ import annotations

import functools
import gc
import itertools
import sys
from collections import UserDict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import FrameType, FunctionType, GeneratorType, MethodType, ModuleType, TracebackType
from typing import Any, NamedTuple

import torch

from graphmem.frames import is_program
from graphmem.graph import Source
from graphmem.retention import Referrer, Retention
from graphmem.trace.location import Location, below, without_wrappers
from graphmem.trace.naming import is_initialised, variables_of
from graphmem.trace.quantised import OF_EVERY_MODULE
from graphmem.trace.recorder import Recorder
from graphmem.trace.retaining_lines import Function, retaining_line
from graphmem.trace.saved_tensors import SavedTensorHooks

DEPTH = 4
_PLAIN = (str, bytes, int, float, type(None), type, ModuleType)
_HOOKS = tuple(name for name in sorted(OF_EVERY_MODULE) if name.endswith("_hooks"))
_CACHED = type(functools.cache(len))
_CALLABLES = (FunctionType, MethodType, functools.partial)
_LEFT = (BaseException, GeneratorType)


class Variable(NamedTuple):
    """A variable of a file: a global, a local one of a function, or an object's attribute.

    Attributes:
        name: its name; for an attribute, with the object's, `trainer.losses`.
        file: the file that assigns it.
        function: the function of a local variable.
        of: the classes of an attribute's object; none for a variable.
        outer: the variable that leads to an attribute, or to the function of a variable.
        is_bounded: whether it holds a deque with a bound, which lets go of what it held first.
    """

    name: str
    file: str
    function: Function | None
    of: tuple[type, ...] = ()
    outer: Variable | None = None
    is_bounded: bool = False

    def attribute(self, holder: object, name: str) -> Variable:
        """An attribute of an object that this variable holds."""
        of = type(holder).__mro__
        return Variable(f"{self.name}.{name}", self.file, None, of, self, self.is_bounded)

    def line(self) -> Source | None:
        """The line that stores objects in it; for an attribute without one, the outer one's."""
        if not self.of:
            return retaining_line(self.file, self.name, of_function=self.function)
        attribute = self.name.rpartition(".")[2]
        lines = (retaining_line(_file_of(c), attribute, of_class=c.__name__) for c in self.of)
        found = next(filter(None, lines), None)
        return self.outer.line() if found is None and self.outer is not None else found

    def referrer(self) -> Referrer:
        """Itself; if it is of no line, as a lambda's argument, what leads to it from one."""
        line = self.line()
        if line is None and not self.of and self.outer is not None:
            outer = self.outer.referrer()
            return Referrer(self.name, None) if outer.source is None else outer
        return Referrer(self.name, line)


def _file_of(kind: type) -> str:
    """The file of a class; "<frozen>" for one without."""
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or "<frozen>"


def holders_of(
    wanted: Iterable[int], recorder: Recorder, saved: SavedTensorHooks, location: Location
) -> dict[int, Retention]:
    """The holder of each storage, by id, except for storages that no name reaches."""
    search = _Search(set(wanted), recorder, saved, location.user_frames())
    values = itertools.chain(_attributes_of_models(location), named_values(location))
    for variable, value in values:
        if not search.missing:
            break
        search.look(variable, value)
    return search.found


class _Search:
    """A search that visits each object and each node once."""

    def __init__(
        self,
        missing: set[int],
        recorder: Recorder,
        saved: SavedTensorHooks,
        running: Iterable[FrameType],
    ) -> None:
        self.missing = missing
        self.found: dict[int, Retention] = {}
        self._recorder = recorder
        self._saved = saved
        self._seen = set(map(id, running))  # their variables have names of their own
        self._nodes: set[Any] = set()

    def look(self, variable: Variable, value: Any) -> None:
        """Follow one named value."""
        tensors = list(_tensors_below(variable, value, DEPTH, self._seen))
        for holder, tensor in tensors:
            storage = self._recorder.storage_of(tensor)
            if storage is not None:
                self._found(storage.id, holder, through_graph=False)
        for holder, tensor in tensors:
            node = _node_of(tensor)
            if node is not None:
                self._follow(node, holder)

    def _follow(self, node: Any, holder: Variable) -> None:
        stack = [node]
        while stack:
            node = stack.pop()
            if node in self._nodes:
                continue
            self._nodes.add(node)
            for storage in self._saved.storages_of(node):
                self._found(storage.id, holder, through_graph=True)
            stack += [following for following, _ in node.next_functions if following is not None]

    def _found(self, storage: int, holder: Variable, *, through_graph: bool) -> None:
        if storage in self.missing:
            self.missing.discard(storage)
            self.found[storage] = Retention(holder.referrer(), through_graph, holder.is_bounded)


def _node_of(tensor: torch.Tensor) -> Any:
    """The node that made a tensor; None if PyTorch does not tell.

    It refuses to for one of several views, as of FSDP's flat parameter, whose base was written to
    (`VariableHooks::grad_fn`, `handle_view_on_rebase`; torch/csrc/autograd/variable.cpp).
    """
    with suppress(RuntimeError):
        return tensor.grad_fn
    return None


def named_values(location: Location) -> Iterator[tuple[Variable, Any]]:
    """Each variable with its value; variables that outlive a function come first."""
    frames = [*location.user_frames(), *_left_frames()]
    names = [frame.f_globals.get("__name__", "") for frame in frames]
    names += [getattr(each, "__module__", None) or "" for each in location.functions]
    for module in map(_module, dict.fromkeys(["__main__", *names])):
        if module is not None:
            for name, value in list(vars(module).items()):
                yield Variable(name, str(module.__file__), None), value
    for frame in reversed(frames):
        for name, value in variables_of(frame).items():
            yield Variable(name, frame.f_code.co_filename, Function.of(frame.f_code)), value
    yield from _called_functions(location)


def _left_frames() -> list[FrameType]:
    """The frames that the current exception has left, whose variables its traceback keeps."""
    error = sys.exception()
    found = [] if error is None else _frames_of(error.__traceback__)
    return [each for each in reversed(found) if is_program(each.f_code.co_filename)]


def _frames_of(traceback: TracebackType | None) -> list[FrameType]:
    found = []
    while traceback is not None:
        found.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return found


def _called_functions(location: Location) -> Iterator[tuple[Variable, Any]]:
    """What graphmem and models call of a program: no frame holds its variables meanwhile."""
    modules = [module for _, root in location.roots for module in root.modules()]
    hooks = [hook for each in modules for kind in _HOOKS for hook in vars(each)[kind].values()]
    for called in (*location.functions, *hooks):
        kind = type(called)
        yield Variable(kind.__name__, _file_of(kind), None), called


def closure_of(function: FunctionType) -> dict[str, Any]:
    """The variables of the functions around a function that it uses."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a cell may be empty
            found[name] = cell.cell_contents
    return found


def _defaults(function: FunctionType) -> dict[str, Any]:
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][code.co_argcount - len(values) :]
    return dict(zip(names, values, strict=True)) | (function.__kwdefaults__ or {})


def _attributes_of_models(location: Location) -> Iterator[tuple[Variable, Any]]:
    """What modules keep apart from parameters, buffers and hooks, named as the report does."""
    for root_name, root in location.roots:
        for path, module in root.named_modules():
            whole = below(root_name, without_wrappers(path)) or type(module).__name__
            of_module = Variable(whole, "", None)
            for name, value in _own_attributes(module):
                yield of_module.attribute(module, name), value


def _own_attributes(module: torch.nn.Module) -> list[tuple[str, Any]]:
    return [each for each in list(vars(module).items()) if each[0] not in OF_EVERY_MODULE]


def _module(name: str) -> ModuleType | None:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return module if file is not None and is_program(file) else None


def _tensors_below(
    variable: Variable, value: Any, depth: int, seen: set[int]
) -> Iterator[tuple[Variable, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield variable, value
    elif not isinstance(value, _PLAIN) and depth and id(value) not in seen:
        seen.add(id(value))
        is_function = isinstance(value, _CALLABLES)
        for holder, item in _items_of(variable, value, seen):
            yield from _tensors_below(holder, item, depth - (not is_function), seen)


def _items_of(variable: Variable, value: Any, seen: set[int]) -> list[tuple[Variable, Any]]:
    if isinstance(value, _CALLABLES):
        return _items_of_function(variable, value)
    if isinstance(value, _LEFT):
        return _items_of_left(variable, value, seen)
    return _items(variable, value)


def _items_of_left(variable: Variable, value: Any, seen: set[int]) -> list[tuple[Variable, Any]]:
    """What an exception or a generator keeps of the functions that it has left."""
    is_error = isinstance(value, BaseException)
    frames = _frames_of(value.__traceback__) if is_error else [value.gi_frame]
    items = [(variable, value.__context__)] if is_error else []
    for frame in frames:
        if frame is None or id(frame) in seen or frame.f_locals is frame.f_globals:
            continue
        seen.add(id(frame))
        where = Function.of(frame.f_code)
        for name, each in variables_of(frame).items():
            inner = Variable(name, frame.f_code.co_filename, where, outer=variable)
            items.append((variable if isinstance(each, torch.Tensor) else inner, each))
    return items


def _items_of_function(variable: Variable, value: Any) -> list[tuple[Variable, Any]]:
    """What a function keeps between two calls: its closure, its arguments, the object it is of."""
    if isinstance(value, MethodType):
        kind = type(value.__self__)
        of_object = Variable(kind.__name__, _file_of(kind), None)
        return [(of_object, value.__self__), (of_object, value.__func__)]
    if isinstance(value, functools.partial):
        given = (*value.args, *value.keywords.values())
        if not isinstance(value.func, FunctionType):
            return [(variable, each) for each in (value.func, *given)]
        names = (*value.func.__code__.co_varnames[: len(value.args)], *value.keywords)
        named = dict(zip(names, given, strict=False))
        return [(variable, value.func), *_variables(variable, value.func, named)]
    return _variables(variable, value, closure_of(value) | _defaults(value))


def _variables(
    outer: Variable, function: FunctionType, values: Mapping[str, Any]
) -> list[tuple[Variable, Any]]:
    code = function.__code__
    of = functools.partial(Variable, function=Function.of(code), outer=outer)
    return [(of(name, code.co_filename), each) for name, each in values.items()]


def _items(variable: Variable, value: Any) -> list[tuple[Variable, Any]]:
    """What a container or an object holds, each with the variable that is named for it."""
    if isinstance(value, UserDict):
        value = vars(value).get("data")
    if isinstance(value, dict):  # its class may load what it has not got yet when it is asked
        return [(variable, each) for each in dict.values(value)]
    if isinstance(value, deque) and value.maxlen is not None:
        variable = variable._replace(is_bounded=True)
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return [(variable, each) for each in value]
    if isinstance(value, _CACHED):  # only its C code knows what it has cached
        is_bounded = value.cache_parameters()["maxsize"] is not None
        variable = variable._replace(is_bounded=variable.is_bounded or is_bounded)
        return [(variable, each) for each in gc.get_referents(value)]
    if isinstance(value, torch.nn.Module):
        children = value.named_children() if is_initialised(value) else ()
        return [(variable.attribute(value, name), each) for name, each in children] + [
            (variable.attribute(value, name), each) for name, each in _own_attributes(value)
        ]
    module = getattr(type(value), "__module__", "").partition(".")[0]
    if module in ("graphmem", "builtins"):
        return []
    held = list(getattr(value, "__dict__", {}).items())
    if module == "torch":  # the program knows a distribution, not its `logits`
        return [(variable, each) for _, each in held]
    return [(variable.attribute(value, name), each) for name, each in held]
