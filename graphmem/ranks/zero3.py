"""DeepSpeed's ZeRO-3: names for its memory.

Each rank keeps a shard of every parameter, in one flat tensor, and its gradient's, and gathers
parameters when a module needs them: several at once, through one flat tensor, out of which each is
then copied (`AllGatherCoalescedHandle`, deepspeed/runtime/zero/partition_parameters.py of 0.19.8),
or one alone, in place (`AllGatherHandle`). Gradients are collected in a bucket for each type, from
which they are reduced (`ipg_buckets`, stage3.py; before 0.17 one buffer).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

from graphmem.graph import OwnerKind
from graphmem.trace.naming import module_together
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.libraries.imports import prepared
from graphmem.virtual_device.patching import Replacement, replaced

Call = Callable[..., Any]


@contextmanager
def named(recorder: Recorder) -> Iterator[None]:
    """Name the memory of ZeRO-3 while the context is open."""

    def of_gathered(partition_parameters: Any) -> AbstractContextManager[None]:
        return replaced(_gathering(recorder, partition_parameters))

    def of_gradients(stage3: Any) -> AbstractContextManager[None]:
        optimizer = stage3.DeepSpeedZeroOptimizer_Stage3
        return replaced([(optimizer, "__init__", _reducing(recorder, optimizer.__init__))])

    zero = "deepspeed.runtime.zero"
    with (
        prepared(f"{zero}.partition_parameters", of_gathered),
        prepared(f"{zero}.stage3", of_gradients),
    ):
        yield


def _gathering(recorder: Recorder, partition_parameters: Any) -> list[Replacement]:
    alone, together = (
        partition_parameters.AllGatherHandle,
        partition_parameters.AllGatherCoalescedHandle,
    )
    wait, wait_for_all, init = alone.wait, together.wait, together.__init__

    @wraps(init)
    def init_and_name(handle: Any, *args: Any, **options: Any) -> None:
        init(handle, *args, **options)
        if handle.partitions:
            module = module_together([_name_of(each) for each in handle.params])
            name = f"all-gather buffer of {module}"
            recorder.identify(handle.partitions[0], OwnerKind.COMMUNICATION, name)

    @wraps(wait)
    def wait_and_name(handle: Any, *args: Any, **options: Any) -> None:
        wait(handle, *args, **options)
        _name_gathered(recorder, [handle._AllGatherHandle__param])

    @wraps(wait_for_all)
    def wait_for_all_and_name(handle: Any, *args: Any, **options: Any) -> None:
        wait_for_all(handle, *args, **options)
        _name_gathered(recorder, handle.params)

    return [
        (together, "__init__", init_and_name),
        (alone, "wait", wait_and_name),
        (together, "wait", wait_for_all_and_name),
    ]


def _name_gathered(recorder: Recorder, parameters: Sequence[Any]) -> None:
    for each in parameters:
        recorder.identify(each, OwnerKind.PARAMETER, f"{_name_of(each)} (all-gathered)")


def _name_of(parameter: Any) -> str:
    """The name by which DeepSpeed's engine knows it, which collects them when it is made."""
    name: str = importlib.import_module("deepspeed.utils.debug").debug_param2name(parameter)
    return name


def _reducing(recorder: Recorder, init: Call) -> Call:
    @wraps(init)
    def init_and_name(optimizer: Any, *args: Any, **options: Any) -> None:
        init(optimizer, *args, **options)
        for bucket in getattr(optimizer, "ipg_buckets", {}).values():
            if bucket.buffer is not None:
                recorder.identify(bucket.buffer, OwnerKind.COMMUNICATION, "reduce-scatter buffer")
        if optimizer.grad_partitions_flat_buffer is not None:
            flat = optimizer.grad_partitions_flat_buffer
            recorder.identify(flat, OwnerKind.GRADIENT, "the shards of all gradients")

    return init_and_name
