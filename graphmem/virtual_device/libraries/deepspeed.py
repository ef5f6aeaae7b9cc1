"""DeepSpeed without a CUDA compiler and without other ranks.

(1) `FusedAdam`, which is its Adam and AdamW on a card. DeepSpeed compiles its extensions when they
are first used (`OpBuilder.jit_load`, deepspeed/ops/op_builder/builder.py of 0.19.8), with nvcc.
That of `FusedAdam` updates tensors in place; lists of addresses travel in a kernel's arguments, so
it allocates nothing (deepspeed/ops/csrc/adam/multi_tensor_adam.cu, multi_tensor_apply.cuh).

(2) ZeRO-3 asserts that numbers are those of rank 0, which broadcasts them; the other ranks give in
-1 (deepspeed/runtime/zero/utils.py). Here each gives in its own. Beside rank 0 it gets those of
rank 0 all the same, and alone it keeps its own, as any rank alone does, so the assertion holds.

(3) `DeepSpeedCPUAdam` updates tensors on the host in place (deepspeed/ops/csrc/adam/cpu_adam.cpp),
from gradients whose values nobody knows. It is not run, so that its states stay untouched
(`live/untouched.py`).

Not covered: DeepSpeed's other extensions for a card. Its others for the host are compiled and run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

from graphmem.virtual_device.libraries.imports import prepared
from graphmem.virtual_device.patching import replaced

_OF_CPU_ADAM = ("create_adam", "adam_update", "adam_rollback", "destroy_adam")
_BUILDER = "deepspeed.ops.op_builder.builder"
_ZERO = "deepspeed.runtime.zero.utils"


@contextmanager
def standing_in() -> Iterator[None]:
    """Give DeepSpeed its extension, whether it is imported already or later."""
    with prepared(_BUILDER, _with_extension), prepared(_ZERO, _alike_on_all_ranks):
        yield


def _with_extension(builder: Any) -> AbstractContextManager[None]:
    load = _loading(builder.OpBuilder.load, builder.CUDAOpBuilder)
    return replaced([(builder.OpBuilder, "load", load)])


def _alike_on_all_ranks(utils: Any) -> AbstractContextManager[None]:
    names = ("assert_lst_len_same_as_other_ranks", "get_lst_from_rank0")
    return replaced((utils, name, _giving_own(utils, getattr(utils, name))) for name in names)


def _giving_own(utils: Any, compare: Callable[..., Any]) -> Callable[..., Any]:
    """Let a comparison begin as on rank 0, which gives in its own numbers."""

    @wraps(compare)
    def compared(*args: Any) -> Any:
        ranks = chain([0], repeat(utils.dist.get_rank()))  # later ones are for a message
        with replaced([(utils.dist, "get_rank", lambda: next(ranks))]):
            return compare(*args)

    return compared


def _loading(compiled: Callable[..., Any], on_card: type) -> Callable[..., Any]:
    def load(builder: Any, *args: Any, **options: Any) -> Any:
        if builder.name == "fused_adam" and isinstance(builder, on_card):
            return SimpleNamespace(multi_tensor_adam=_in_place)
        if builder.name == "cpu_adam":
            return SimpleNamespace(**dict.fromkeys(_OF_CPU_ADAM, _in_place))
        return compiled(builder, *args, **options)

    return load


def _in_place(*args: Any) -> None:
    """Update tensors, whose values nobody knows."""
