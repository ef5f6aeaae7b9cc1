"""Names for the memory of `fully_shard`: gathered parameters, reduced gradients, buffers.

It gathers and reduces all parameters of a module together, each time through one flat tensor
(`foreach_all_gather`, `foreach_reduce`, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

from graphmem.graph import OwnerKind
from graphmem.trace.naming import name_together
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.patching import Replacement

Call = Callable[..., Any]


def replacements(recorder: Recorder) -> list[Replacement]:
    """List the functions to replace."""
    names = vars(_fsdp_param_group)
    gather: Call = names["foreach_all_gather"]
    reduce: Call = names["foreach_reduce"]
    unshard: Call = FSDPParam.to_unsharded

    def gather_and_name(parameters: Sequence[Any], *args: Any, **options: Any) -> Any:
        gathered = gather(parameters, *args, **options)
        if gathered is not None:
            name = f"all-gather buffer of {_module_of(parameters)}"
            recorder.identify(gathered.all_gather_output, OwnerKind.COMMUNICATION, name)
        return gathered

    def reduce_and_name(parameters: Sequence[Any], *args: Any, **options: Any) -> Any:
        reduced = reduce(parameters, *args, **options)
        name = f"reduce-scatter buffer of {_module_of(parameters)}"
        recorder.identify(reduced[0], OwnerKind.COMMUNICATION, name)
        for each in parameters:
            if each.sharded_param.grad is not None:
                name = f"{name_together(_names_of(parameters))}.grad"
                recorder.identify(each.sharded_param.grad, OwnerKind.GRADIENT, name)
        return reduced

    def unshard_and_name(parameter: Any) -> None:
        unshard(parameter)
        for gathered in parameter.all_gather_outputs:
            if gathered.untyped_storage().nbytes():
                name = f"{parameter._param_fqn} (all-gathered)"
                recorder.identify(gathered, OwnerKind.PARAMETER, name)

    return [
        (_fsdp_param_group, "foreach_all_gather", gather_and_name),
        (_fsdp_param_group, "foreach_reduce", reduce_and_name),
        (FSDPParam, "to_unsharded", unshard_and_name),
    ]


def _names_of(parameters: Sequence[Any]) -> list[str]:
    return [each._param_fqn or each._module_info.param_name for each in parameters]


def _module_of(parameters: Sequence[Any]) -> str:
    return name_together(_names_of(parameters)).rpartition(".")[0] or "the root module"
