"""Give storages the names by which the user's program knows them."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from types import FrameType, ModuleType
from typing import Any

import torch

from graphmem.frames import is_program, short_path
from graphmem.graph import Owner, OwnerKind, Source, StepGraph, Storage
from graphmem.trace.location import WRAPPED, Location, below, without_wrappers
from graphmem.trace.python_functions import kept_by, name_of
from graphmem.trace.quantised import (
    OF_EVERY_MODULE,
    is_foreign,
    is_foreign_kind,
    parts_of,
    subscript,
    tensors_beside,
    tensors_of_objects,
    tensors_within,
)
from graphmem.trace.recorder import Recorder
from graphmem.trace.retaining_lines import Function, retaining_line

MOST_ITEMS = 1000
STEPS = 4
"""From a variable to a tensor, as in `trainer.averages[0][2]`."""


_BESIDE = {
    "main_grad": OwnerKind.GRADIENT,
    "_hp_grad": OwnerKind.GRADIENT,
    "ds_tensor": OwnerKind.PARAMETER,
    "ds_secondary_tensor": OwnerKind.PARAMETER,
}
"""What libraries keep in attributes of a parameter: Megatron-LM, and the kernels of Apex and
Transformer Engine with it, its gradient in float32
(`megatron/core/distributed/distributed_data_parallel.py`), as DeepSpeed does
(`deepspeed/runtime/bf16_optimizer.py`); DeepSpeed's ZeRO-3 the rank's shard, and ZeRO++ that of
the node (`deepspeed/runtime/zero/partition_parameters.py`)."""


def name_saved(tensor: torch.Tensor, name: str, recorder: Recorder) -> None:
    """Name a tensor that was saved, unless a variable of the program holds it."""
    storage = recorder.storage_of(tensor)
    held = None if storage is None else recorder.variable_of(storage)
    if held is not None and not held.name:
        recorder.identify(tensor, OwnerKind.SAVED_TENSOR, name)


def name_kept(node: Any, recorder: Recorder) -> None:
    """Name what a Python function keeps in its context, of which autograd's hooks do not know."""
    for name, tensor in kept_by(node):
        name_saved(tensor, f"{name_of(node)}.{name}", recorder)


def is_initialised(module: torch.nn.Module) -> bool:
    """Whether `Module.__init__` has run, before which a module has no parameters to ask for."""
    return "_parameters" in vars(module)


def name_model(recorder: Recorder, model: torch.nn.Module, root: str = "") -> None:
    """Name parameters, their gradients, and buffers by their qualified names below a root's."""
    parameters = model.named_parameters()
    named = [(below(root, without_wrappers(name)), each) for name, each in parameters]
    _name_parts(recorder, OwnerKind.PARAMETER, named, "")
    leaves = [(name, each) for name, each in named if each.is_leaf or each.retains_grad]
    gradients = [(name, each.grad) for name, each in leaves if each.grad is not None]
    _name_parts(recorder, OwnerKind.GRADIENT, gradients, ".grad")
    for attribute, kind in _BESIDE.items():
        kept = [(name, vars(each).get(attribute)) for name, each in named]
        found = [(name, each) for name, each in kept if isinstance(each, torch.Tensor)]
        _name_parts(recorder, kind, found, f".{attribute}")
    for name, buffer in model.named_buffers():
        recorder.identify(buffer, OwnerKind.BUFFER, below(root, without_wrappers(name)))
    for name, parameter in named:
        for path, tensor in tensors_beside(parameter):
            recorder.identify(tensor, OwnerKind.BUFFER, f"{name}.{path}")
    for path, module in model.named_modules():
        for name, tensor in tensors_of_objects(module):
            if tensor.grad_fn is None:  # else a result, as of the model that an object keeps
                whole = below(root, without_wrappers(below(path, name)))
                recorder.identify(tensor, OwnerKind.BUFFER, whole)


def name_models(recorder: Recorder, location: Location) -> None:
    """Name what models hold, each with its name."""
    for name, model in location.roots:
        name_model(recorder, model, name)


def _name_parts(
    recorder: Recorder, kind: OwnerKind, named: Sequence[tuple[str, torch.Tensor]], suffix: str
) -> None:
    """Name storages, each of which may hold several tensors, like a flat parameter."""
    alike: dict[int, list[str]] = {}
    for name, tensor in named:
        storage = recorder.storage_of(tensor)
        if storage is not None:
            alike.setdefault(storage.id, []).append(name)
    for name, tensor in named:
        storage = recorder.storage_of(tensor)
        names = [name] if storage is None else alike[storage.id]
        for path, part in parts_of(tensor):
            recorder.identify(part, kind, name_together(names) + path + suffix)


def name_together(names: Sequence[str]) -> str:
    """The common name of parameters that share one tensor, such as `blocks.3.*`."""
    if len(names) == 1:
        return names[0]
    paths = zip(*(name.split(".")[:-1] for name in names), strict=False)
    common = itertools.takewhile(lambda parts: len(set(parts)) == 1, paths)
    return ".".join([*(parts[0] for parts in common), "*"])


def module_together(names: Sequence[str]) -> str:
    """The module that has all of these parameters."""
    return name_together(names).rpartition(".")[0] or "the root module"


def describe_model(recorder: Recorder, model: torch.nn.Module, root: str = "") -> None:
    """Record the class of every module, which parameters train, and which have several names."""
    graph = recorder.graph
    for name, module in model.named_modules():
        if WRAPPED.isdisjoint(child for child, _ in module.named_children()):
            graph.modules.setdefault(below(root, without_wrappers(name)), type(module).__name__)
    first: dict[int, str] = {}
    for wrapped_name, parameter in torch.nn.Module.named_parameters(model, remove_duplicate=False):
        name = below(root, without_wrappers(wrapped_name))
        if first.setdefault(id(parameter), name) != name:
            graph.tied[name] = first[id(parameter)]
        else:
            graph.parameters.setdefault(name, parameter.requires_grad)


def name_optimizer(recorder: Recorder, optimizer: torch.optim.Optimizer) -> None:
    """Name an optimizer's state by parameter and key, and what it trains outside of modules."""
    for group_number, group in enumerate(optimizer.param_groups):
        for number, parameter in enumerate(group["params"]):
            place = f"{type(optimizer).__name__}.param_groups[{group_number}].params[{number}]"
            name = _name_trained(recorder, parameter, place)
            if parameter.grad is not None:
                recorder.identify(parameter.grad, OwnerKind.GRADIENT, f"{name}.grad")
            for key, value in optimizer.state.get(parameter, {}).items():
                for path, tensor in tensors_within(value):
                    recorder.identify(tensor, OwnerKind.OPTIMIZER_STATE, f"{name}.{key}{path}")


def name_replaced(recorder: Recorder, location: Location, optimizer: torch.optim.Optimizer) -> None:
    """Name a model again if a parameter has another storage, as after `parameter.data = other`."""
    trained = (each for group in optimizer.param_groups for each in group["params"])
    storages = (recorder.storage_of(each) for each in trained)
    if any(each is not None and recorder.variable_of(each) is not None for each in storages):
        name_models(recorder, location)


def _name_trained(recorder: Recorder, parameter: torch.Tensor, place: str) -> str:
    """The name of what an optimizer trains: a module's, else the variable's, else its place."""
    known = recorder.identity_of(parameter)
    if known is not None:
        recorder.identify(parameter, OwnerKind.PARAMETER, known)
        if _is_beside_a_parameter(known, recorder.graph):
            name_copy(recorder, parameter, known)
        return known
    storage = recorder.storage_of(parameter)
    variable = None if storage is None else recorder.variable_of(storage)
    name = variable.name if variable is not None and variable.name else place
    recorder.identify(parameter, OwnerKind.PARAMETER, name)
    return name


def name_copy(recorder: Recorder, tensor: torch.Tensor, name: str) -> None:
    """Name a parameter that a rank has for a while beside its own shard, or in another type."""
    recorder.identify(tensor, OwnerKind.PARAMETER, name)
    storage = recorder.storage_of(tensor)
    if storage is not None and storage.owned_as(OwnerKind.COPY) is None:
        recorder.label(storage.id, OwnerKind.COPY, name)


def _is_beside_a_parameter(name: str, graph: StepGraph) -> bool:
    """Whether a name is that of an attribute of a parameter, as its copy in float32."""
    return any(name[:end] in graph.parameters for end, it in enumerate(name) if it == ".")


def name_variables(recorder: Recorder, location: Location) -> None:
    """Name the local variables of the user's frames on the stack, attributes and globals."""
    for frame in location.user_frames():
        code = frame.f_code
        source = Source(short_path(code.co_filename), frame.f_lineno, code.co_name)
        names: dict[int, tuple[Storage, dict[str, Source]]] = {}
        for name, value in variables_of(frame).items():
            for suffix, tensor in tensors_held(value, STEPS):
                storage = recorder.storage_of(tensor)
                if storage is not None:
                    line = _retaining(frame, name) if suffix else None
                    names.setdefault(storage.id, (storage, {}))[1][name + suffix] = line or source
        for storage, found in names.values():
            _name_local(recorder.variable_of(storage), found)
    for name, root in location.roots:
        _name_attributes(recorder, root, name)
    for module in _user_modules(location):
        _name_globals(recorder, module)


def _retaining(frame: FrameType, name: str) -> Source | None:
    """The line that fills a local container, which the running line seldom is."""
    return retaining_line(frame.f_code.co_filename, name, of_function=Function.of(frame.f_code))


def _name_local(variable: Owner | None, lines: Mapping[str, Source]) -> None:
    """Name a local variable; one that a tensor has left, as for a list, gives up its name."""
    if variable is None or variable.name in lines:
        return
    known = variable.source
    name, source = min(lines.items(), key=lambda line: line[0].count(".") + line[0].count("["))
    is_ours = known is not None and (known.file, known.function) == (source.file, source.function)
    if not variable.name or is_ours:
        variable.name, variable.source = name, source


def _is_nameless(recorder: Recorder, storage: Storage) -> bool:
    variable = recorder.variable_of(storage)
    return variable is not None and not variable.name


def _name_attributes(recorder: Recorder, root: torch.nn.Module, root_name: str) -> None:
    """Name the tensors that modules keep apart from parameters and buffers."""
    for path, module in root.named_modules():
        kind = type(module)
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        own = (each for each in vars(module).items() if each[0] not in OF_EVERY_MODULE)
        for attribute, value in own:
            for suffix, tensor in tensors_held(value, STEPS - 1):
                storage = recorder.storage_of(tensor)
                if storage is not None and file is not None and _is_nameless(recorder, storage):
                    source = retaining_line(file, attribute, of_class=kind.__name__)
                    of_module = below(root_name, without_wrappers(path)) or kind.__name__
                    name = f"{of_module}.{attribute}{suffix}"
                    recorder.name_variable(storage, name, source)


def _user_modules(location: Location) -> list[ModuleType]:
    """The Python modules of the user's frames and of the classes of the models, and the script."""
    names = ["__main__"]  # at whose end no frame is left
    names += [type(module).__module__ for _, root in location.roots for module in root.modules()]
    names += [frame.f_globals.get("__name__", "") for frame in location.user_frames()]
    found = [sys.modules[name] for name in dict.fromkeys(names) if name in sys.modules]
    return [each for each in found if is_program(getattr(each, "__file__", None) or "<frozen")]


def _name_globals(recorder: Recorder, module: ModuleType) -> None:
    for name, value in list(vars(module).items()):
        for suffix, tensor in tensors_held(value, STEPS):
            storage = recorder.storage_of(tensor)
            if storage is not None and _is_nameless(recorder, storage):
                source = retaining_line(str(module.__file__), name)
                recorder.name_variable(storage, f"{name}{suffix}", source)


def variables_of(frame: FrameType) -> dict[str, Any]:
    """A function's current variables.

    Before Python 3.13, `f_locals` is a dictionary that stays with the frame: it would keep the
    values alive until the function returns.
    """
    found: Mapping[str, Any] = frame.f_locals
    variables = dict(found)
    if isinstance(found, dict) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        found.clear()
    return variables


def tensors_held(value: Any, steps: int = 1) -> Iterator[tuple[str, torch.Tensor]]:
    """A tensor, or those in lists, tuples and dicts, each with its path; the shortest come first.

    Of a large container, such as a data set, only the first `MOST_ITEMS`, and as many of each step:
    names are looked for often.

    Args:
        value: what a variable holds.
        steps: the length of the longest path. Above 1, paths also lead through the attributes of
            objects.
    """
    level = [("", value)]
    for step in range(steps + 1):
        below: list[tuple[str, Any]] = []
        for path, each in level:
            if isinstance(each, torch.Tensor):
                yield path, each
            elif step < steps and len(below) < MOST_ITEMS:
                below += islice(items_of(each, path, of_objects=steps > 1), MOST_ITEMS)
        level = below


def items_of(value: Any, path: str, *, of_objects: bool) -> Iterator[tuple[str, Any]]:
    """What a value with a path holds, except for plain values, each with its path."""
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, (list, tuple)):
        items, place = enumerate(value), "[{}]"
    elif isinstance(value, dict):
        items, place = dict.items(value), ""
    elif of_objects and is_foreign(value) and not isinstance(value, torch.optim.Optimizer):
        items, place = vars(value).items(), ".{}"
    else:
        return
    few = list(islice(items, MOST_ITEMS))
    kinds: set[Any] = {type(item) for _, item in few}
    holding = set(filter(_may_hold, kinds))  # in most there are numbers or names only
    for key, item in few if holding else ():
        if type(item) in holding:
            yield path + (place.format(key) or subscript(key)), item


@lru_cache(maxsize=4096)
def _may_hold(kind: Any) -> bool:
    """Whether a value of this class may hold tensors; most that are looked at are plain."""
    kinds = (torch.Tensor, torch.nn.Module, list, tuple, dict)
    return issubclass(kind, kinds) or is_foreign_kind(kind)
