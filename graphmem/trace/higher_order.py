"""`torch.cond` and its kin outside compiled code, whose functions run on the card.

PyTorch has Dynamo find what the functions close over (`_hop_compile_and_call`), traces each of them
on the operands into a graph (`materialize_as_graph`: for a schema, and for the backward pass), and
calls the operator's kernel (all in torch/_higher_order_ops). Graphs and kernels do without dispatch
modes, but the trace is one that stands for the card.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._C import DispatchKey
from torch._guards import active_fake_mode
from torch._ops import HigherOrderOperator
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from graphmem.torch_releases import MODES_TAKE_HIGHER_ORDER_OPERATORS, installed_release
from graphmem.virtual_device.patching import Replacement, replaced

_MAKES_A_GRAPH = "_materialize_as_graph_inner"
_CURRENT_MODE = "_get_current_dispatch_mode"


def replacements(mode: TorchDispatchMode) -> list[Replacement]:
    """The attributes to replace, so that functions are traced into graphs on this mode's card."""
    disable = _python_dispatch._disable_current_modes

    @contextmanager
    def all_but_the_card() -> Iterator[Any]:
        with disable() as modes, mode:
            yield modes

    def disable_current_modes() -> Any:
        makes_a_graph = sys._getframe(1).f_code.co_name == _MAKES_A_GRAPH
        is_compiling = active_fake_mode() is not None
        return all_but_the_card() if makes_a_graph and not is_compiling else disable()

    replacements: list[Replacement] = [
        (_python_dispatch, "_disable_current_modes", disable_current_modes)
    ]
    if not MODES_TAKE_HIGHER_ORDER_OPERATORS.holds_in(installed_release()):
        replacements.append((HigherOrderOperator, "dispatch", _taken_by(mode)))
    return replacements


def _taken_by(mode: TorchDispatchMode) -> Callable[..., Any]:
    """Let a mode take operators for which it has no rule of its own."""
    dispatch = HigherOrderOperator.dispatch

    def run(operator: HigherOrderOperator, key: Any, *args: Any, **kwargs: Any) -> Any:
        rules = operator.python_key_table
        if key == DispatchKey.Python and type(mode) not in rules:
            rules[type(mode)] = lambda mode, *args, **kwargs: mode.__torch_dispatch__(
                operator, (), args, kwargs
            )
        return dispatch(operator, key, *args, **kwargs)  # type: ignore[no-untyped-call]

    return run


def run_without_modes(kernel: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Run a kernel that refuses to run in a mode, and cannot see the trace's."""
    module = sys.modules[kernel.__module__]
    asked = [(module, _CURRENT_MODE, _no_mode)] if hasattr(module, _CURRENT_MODE) else []
    with replaced(asked):
        return kernel(*args, **kwargs)


def _no_mode() -> None:
    """Say that no mode is on."""
