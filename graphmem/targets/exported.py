"""An exported program, `model.pt2`, as a target.

It is read on the CPU before any trace, with real weights; each step made from it has fake ones
instead. Devices that the export wrote into the program are replaced by the GPU.

Not covered: switching an exported program between training and evaluation; it runs in the mode it
was exported in. Its operations have no module names, and their lines are those of the program
(`print(torch.export.load("model.pt2").module().code)`), not those of the user's code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram

from graphmem.silenced import silenced
from graphmem.targets import messages
from graphmem.targets.modules import existing_file
from graphmem.targets.returned import step_from
from graphmem.training_step import TrainingStep

aten = torch.ops.aten


def load_exported(name: str) -> Callable[[], TrainingStep]:
    """Read an exported program; the returned callable makes a training step from it.

    Raises:
        InputError: there is no such file, or it is not an exported program with example inputs.
    """
    path = existing_file(name)
    try:
        with silenced(logging.getLogger("torch.export")):  # it also raises what it logs
            program = torch.export.load(path)
    except Exception as error:
        summary, *_ = str(error).splitlines() or [""]
        raise messages.NoExportedProgramError(name, type(error).__name__, summary) from error
    if program.example_inputs is None:
        raise messages.NoExampleInputsError(name)
    return partial(_make_step, program, name)


def _make_step(program: ExportedProgram, name: str) -> TrainingStep:
    model: Any = program.module()
    model.train = model.eval = lambda mode=True: model
    _renew_parameters(model)
    _move_constants(model)
    _name_code(model, name)
    args, kwargs = program.example_inputs
    if args and kwargs:
        return step_from((_CalledWithBoth(model), (args, kwargs)), name)
    return step_from((model, kwargs or args), name)


class _CalledWithBoth(torch.nn.Module):
    """Passes on positional and keyword arguments."""

    def __init__(self, program: torch.nn.Module) -> None:
        super().__init__()
        self.program = program

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.program(*args, **kwargs)


def _renew_parameters(model: torch.nn.Module) -> None:
    """Recreate every parameter, which makes it fake on the virtual GPU.

    This also ties parameters again: a saved program has several, in the same memory.
    """
    renewed: dict[Any, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            memory = (parameter.data_ptr(), parameter.shape, parameter.stride(), parameter.dtype)
            if memory not in renewed:
                renewed[memory] = torch.nn.Parameter(parameter.detach(), parameter.requires_grad)
            module.register_parameter(name, renewed[memory])


def _move_constants(model: torch.nn.Module) -> None:
    """Replace devices written into the program by the GPU, if there is one."""
    if not torch.cuda.is_available():
        return
    device = torch.device("cuda", torch.cuda.current_device())
    for module in model.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if node.kwargs.get("device") is not None:
                node.update_kwarg("device", device)
            if node.target is aten.to.device:
                node.update_arg(1, device)
        module.recompile()


def _name_code(model: torch.nn.Module, name: str) -> None:
    """Attribute the program's lines to its file; torch.fx invents a numbered name for them."""
    forward: Any = type(model).forward
    forward.__code__ = forward.__code__.replace(co_filename=name)
