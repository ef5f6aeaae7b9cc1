"""DeepSpeed without a CUDA compiler: its `FusedAdam`, which is its Adam and AdamW on a card.

DeepSpeed compiles its extensions when they are first used (`OpBuilder.jit_load`,
deepspeed/ops/op_builder/builder.py of 0.19.8), with nvcc. That of `FusedAdam` updates tensors in
place; lists of addresses travel in a kernel's arguments, so it allocates nothing
(deepspeed/ops/csrc/adam/multi_tensor_adam.cu, multi_tensor_apply.cuh).

Not covered: DeepSpeed's other extensions for a card. Those for the host are compiled and run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from graphmem.virtual_device.libraries.imports import executed_by, run_own_code
from graphmem.virtual_device.patching import replaced

_BUILDER = "deepspeed.ops.op_builder.builder"


@contextmanager
def standing_in() -> Iterator[None]:
    """Give DeepSpeed its extension, whether it is imported already or later."""
    with ExitStack() as stack:

        def give(module: Any) -> None:
            made = _loading(module.OpBuilder.load, module.CUDAOpBuilder)
            stack.enter_context(replaced([(module.OpBuilder, "load", made)]))

        def execute(module: ModuleType) -> None:
            run_own_code(module)
            give(module)

        if _BUILDER in sys.modules:
            give(sys.modules[_BUILDER])
        else:
            stack.enter_context(executed_by(_BUILDER, execute))
        yield


def _loading(compiled: Callable[..., Any], on_card: type) -> Callable[..., Any]:
    def load(builder: Any, *args: Any, **options: Any) -> Any:
        if builder.name == "fused_adam" and isinstance(builder, on_card):
            return SimpleNamespace(multi_tensor_adam=_in_place)
        return compiled(builder, *args, **options)

    return load


def _in_place(*args: Any) -> None:
    """Update tensors, whose values nobody knows."""
