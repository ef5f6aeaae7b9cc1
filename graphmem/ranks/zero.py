"""DeepSpeed's ZeRO: names for its memory.

Under ZeRO-3 each rank keeps a shard of every parameter, in one flat tensor, and its gradient's, has
the optimizer train copies of shards in float32 (`fp32_partitioned_groups_flat`, stage3.py), and
gathers parameters when a module needs them: several at once, through one flat tensor, out of which
each is then copied (`AllGatherCoalescedHandle`, deepspeed/runtime/zero/partition_parameters.py of
0.19.8), or one alone, in place (`AllGatherHandle`). A rank that is alone gathers nothing, but
copies from the host what it keeps there (`NoGatherHandle`). Gradients are collected in a bucket for
each type, from which they are reduced (`ipg_buckets`, stage3.py; before 0.17 one buffer).

ZeRO-1 and ZeRO-2 make such buckets in each backward pass, two of a type with `overlap_comm`
(`setup_buckets`, stage_1_and_2.py), at whose end a rank has its shard of the gradients
(`independent_gradient_partition_epilogue`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary

from graphmem.graph import OwnerKind
from graphmem.trace.naming import module_together, name_copy
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.libraries.imports import prepared
from graphmem.virtual_device.patching import Replacement, replaced
from graphmem.wording import FROM_THE_HOST, GATHERED

Call = Callable[..., Any]

_SHARDS = "the shards of all gradients"


@contextmanager
def named(recorder: Recorder) -> Iterator[None]:
    """Name the memory of ZeRO while the context is open."""
    names: Any = WeakIdKeyDictionary()

    def of_models(debug: Any) -> AbstractContextManager[None]:
        return replaced([_extracting(names, debug)])

    def of_gathered(partition_parameters: Any) -> AbstractContextManager[None]:
        gathering = _gathering(recorder, partition_parameters, names)
        return replaced([*gathering, *_fetching(recorder, partition_parameters, names)])

    def of_gradients(stage3: Any) -> AbstractContextManager[None]:
        optimizer = stage3.DeepSpeedZeroOptimizer_Stage3
        return replaced([(optimizer, "__init__", _reducing(recorder, optimizer.__init__))])

    def of_buckets(stage_1_and_2: Any) -> AbstractContextManager[None]:
        return replaced(_in_buckets(recorder, stage_1_and_2.DeepSpeedZeroOptimizer))

    zero = "deepspeed.runtime.zero"
    with (
        prepared("deepspeed.utils.debug", of_models),
        prepared(f"{zero}.partition_parameters", of_gathered),
        prepared(f"{zero}.stage3", of_gradients),
        prepared(f"{zero}.stage_1_and_2", of_buckets),
    ):
        yield


def _extracting(names: Any, debug: Any) -> Replacement:
    """An engine names the parameters of its model; DeepSpeed itself knows those of the last one."""
    extract = debug.debug_extract_module_and_param_names

    @wraps(extract)
    def extract_and_note(model: Any) -> None:
        extract(model)
        for name, parameter in model.named_parameters():
            names[parameter] = name

    return debug, "debug_extract_module_and_param_names", extract_and_note


def _gathering(recorder: Recorder, partition_parameters: Any, names: Any) -> list[Replacement]:
    alone, together = (
        partition_parameters.AllGatherHandle,
        partition_parameters.AllGatherCoalescedHandle,
    )
    wait, wait_for_all, init = alone.wait, together.wait, together.__init__

    def name_gathered(parameters: Sequence[Any]) -> None:
        for each in parameters:
            name_copy(recorder, each, f"{_name_of(each, names)} {GATHERED}")

    @wraps(init)
    def init_and_name(handle: Any, *args: Any, **options: Any) -> None:
        init(handle, *args, **options)
        if handle.partitions:
            module = module_together([_name_of(each, names) for each in handle.params])
            name = f"all-gather buffer of {module}"
            recorder.identify(handle.partitions[0], OwnerKind.COMMUNICATION, name)

    @wraps(wait)
    def wait_and_name(handle: Any, *args: Any, **options: Any) -> None:
        wait(handle, *args, **options)
        name_gathered([handle._AllGatherHandle__param])

    @wraps(wait_for_all)
    def wait_for_all_and_name(handle: Any, *args: Any, **options: Any) -> None:
        wait_for_all(handle, *args, **options)
        name_gathered(handle.params)

    return [
        (together, "__init__", init_and_name),
        (alone, "wait", wait_and_name),
        (together, "wait", wait_for_all_and_name),
    ]


def _fetching(recorder: Recorder, partition_parameters: Any, names: Any) -> list[Replacement]:
    """What one rank alone copies to the card, for which it makes a handle."""

    def naming(init: Call) -> Call:
        @wraps(init)
        def init_and_name(handle: Any, parameters: Any) -> None:
            init(handle, parameters)
            for each in parameters if isinstance(parameters, Sequence) else [parameters]:
                if not each.ds_tensor.is_cuda:
                    name = f"{_name_of(each, names)} {FROM_THE_HOST}"
                    name_copy(recorder, each, name)

        return init_and_name

    handles = (partition_parameters.NoGatherHandle, partition_parameters.NoGatherCoalescedHandle)
    return [(each, "__init__", naming(each.__init__)) for each in handles]


def _name_of(parameter: Any, names: Any) -> str:
    """Its name, or until an engine has it, as while weights are read, its shape."""
    name: str = names.get(parameter) or f"of shape {list(parameter.ds_shape)}"
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
            recorder.identify(flat, OwnerKind.GRADIENT, _SHARDS)
        for number, copy in enumerate(optimizer.fp32_partitioned_groups_flat):
            if copy.is_cuda:
                name = f"{type(optimizer).__name__}.fp32_partitioned_groups_flat[{number}]"
                name_copy(recorder, copy, name)

    return init_and_name


def _in_buckets(recorder: Recorder, optimizer: Any) -> list[Replacement]:
    """Name what ZeRO-1 and ZeRO-2 reduce through, and what a rank has of it."""
    begin = getattr(optimizer, "setup_buckets", None)
    if begin is None:
        return []
    end = optimizer.independent_gradient_partition_epilogue

    @wraps(begin)
    def begin_and_name(zero: Any) -> None:
        are_new = not zero.ready_for_gradients
        begin(zero)
        for buffer in _listed(each.buffer for each in zero.ipg_buckets.values() if are_new):
            recorder.identify(buffer, OwnerKind.COMMUNICATION, "gradient bucket")

    @wraps(end)
    def end_and_name(zero: Any) -> None:
        end(zero)
        for shard in _listed([*zero.all_grad_tensors.values(), *zero.averaged_gradients.values()]):
            recorder.identify(shard, OwnerKind.GRADIENT, _SHARDS)

    return [
        (optimizer, "setup_buckets", begin_and_name),
        (optimizer, "independent_gradient_partition_epilogue", end_and_name),
    ]


def _listed(groups: Iterable[Sequence[Any] | None]) -> Iterator[Any]:
    return (each for group in groups for each in group or ())
