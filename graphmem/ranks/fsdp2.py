"""`fully_shard`: names for its memory, and shards that are padded once.

It gathers and reduces all parameters of a module together, each time through one flat tensor
(`foreach_all_gather`, `foreach_reduce`, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py).

The first forward pass pads uneven shards again if somebody has replaced them, which it finds out by
their addresses, but only of tensors of the type `torch.Tensor` (`FSDPParam.reset_sharded_param`,
_fsdp_param.py). Fake tensors are of another. Before pytorch/pytorch#163130 it always padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from graphmem.graph import OwnerKind
from graphmem.torch_releases import installed_one
from graphmem.torch_releases.rank_names import FSDP2
from graphmem.trace.naming import module_together, name_copy, name_together
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.patching import Replacement
from graphmem.wording import GATHERED, NOT_REDUCED

Call = Callable[..., Any]
_GROUPS = {since: f"{package}._fsdp_param_group" for since, package in FSDP2.items()}
_fsdp_param_group: Any = installed_one(_GROUPS)
FSDPParam: Any = _fsdp_param_group.FSDPParam
FSDPParamGroup: Any = _fsdp_param_group.FSDPParamGroup


def replacements(recorder: Recorder) -> list[Replacement]:
    """List the functions to replace."""
    names = vars(_fsdp_param_group)
    gather: Call = names["foreach_all_gather"]
    reduce: Call = names["foreach_reduce"]
    unshard: Call = FSDPParam.to_unsharded

    def gather_and_name(parameters: Sequence[Any], *args: Any, **options: Any) -> Any:
        gathered = gather(parameters, *args, **options)
        if gathered is not None:
            name = f"all-gather buffer of {module_together(_names_of(recorder, parameters))}"
            recorder.identify(gathered.all_gather_output, OwnerKind.COMMUNICATION, name)
        return gathered

    def reduce_and_name(
        parameters: Sequence[Any], gradients: list[Any], *args: Any, **options: Any
    ) -> Any:
        _name_unreduced(recorder, parameters, gradients)
        reduced = reduce(parameters, gradients, *args, **options)
        name = f"reduce-scatter buffer of {module_together(_names_of(recorder, parameters))}"
        recorder.identify(reduced[0], OwnerKind.COMMUNICATION, name)
        for each in parameters:
            if each.sharded_param.grad is not None:
                name = f"{name_together(_names_of(recorder, parameters))}.grad"
                recorder.identify(each.sharded_param.grad, OwnerKind.GRADIENT, name)
        return reduced

    def unshard_and_name(parameter: Any) -> None:
        unshard(parameter)
        for gathered in parameter.all_gather_outputs:
            if gathered.untyped_storage().nbytes():
                name = f"{_names_of(recorder, [parameter])[0]} {GATHERED}"
                name_copy(recorder, gathered, name)

    return [
        (FSDPParam, "reset_sharded_param", _resetting_once(recorder)),
        (FSDPParamGroup, "post_backward", _naming_accumulated(recorder)),
        (_fsdp_param_group, "foreach_all_gather", gather_and_name),
        (_fsdp_param_group, "foreach_reduce", reduce_and_name),
        (FSDPParam, "to_unsharded", unshard_and_name),
    ]


def _name_unreduced(recorder: Recorder, parameters: Sequence[Any], gradients: list[Any]) -> None:
    """Name gradients; their caller has no variable that holds one while it is reduced."""
    for each, gradient in zip(parameters, gradients, strict=True):
        name = f"{_names_of(recorder, [each])[0]}{NOT_REDUCED}"
        recorder.identify(gradient, OwnerKind.GRADIENT, name)


def _naming_accumulated(recorder: Recorder) -> Call:
    """`post_backward`, after a backward pass whose gradients are not reduced.

    Up to 2.14 they are in `unsharded_accumulated_grad` if they were cast, then always in `grad`.
    """
    post_backward: Call = FSDPParamGroup.post_backward

    def finish_and_name(group: Any, *unused: Any) -> None:
        post_backward(group, *unused)
        for parameter in () if group.reduce_grads else group.fsdp_params:
            gradient = parameter.unsharded_accumulated_grad
            if gradient is None and hasattr(parameter, "_unsharded_param"):
                gradient = parameter._unsharded_param.grad
            if gradient is not None:
                name = f"{_names_of(recorder, [parameter])[0]}{NOT_REDUCED}"
                recorder.identify(gradient, OwnerKind.GRADIENT, name)

    return finish_and_name


def _resetting_once(recorder: Recorder) -> Call:
    """`reset_sharded_param`, which leaves a shard alone that is part of the padded one."""
    reset: Call = FSDPParam.reset_sharded_param
    looks = "data_ptr" in FSDPParam.reset_sharded_param.__code__.co_names

    def reset_if_replaced(parameter: Any) -> None:
        module = parameter._module_info
        shard = getattr(module.module, module.param_name)._local_tensor
        padded, size = parameter._sharded_param_data, parameter.padded_sharded_param_size
        held = recorder.storage_of(shard)  # none on the host, whose tensors PyTorch tells apart
        if not looks or held is None or held is not recorder.storage_of(padded):
            reset(parameter)
            return
        parameter.padded_sharded_param_size = shard.size()
        reset(parameter)
        parameter._sharded_param_data, parameter.padded_sharded_param_size = padded, size

    return reset_if_replaced


def _names_of(recorder: Recorder, parameters: Sequence[Any]) -> list[str]:
    """Names of parameters: those of their shards, unless a program's model is not known yet."""
    return [
        recorder.identity_of(each._sharded_param_data)
        or each._param_fqn
        or each._module_info.param_name
        for each in parameters
    ]
