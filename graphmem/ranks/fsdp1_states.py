"""Optimizer states that only other ranks hold, for `FullyShardedDataParallel.optim_state_dict`.

With `use_orig_params`, each rank's optimizer has states for the parameters that its own shard of a
flat parameter holds. The ranks tell each other by `all_gather_object` which these are, and how much
of each: `_map_param_key_to_optim_keys` and `_allgather_state_info` in
torch/distributed/fsdp/_optim_utils.py. A copy of this rank's own answer would leave out parameters
of other shards, so the answers are computed here, from the flat parameter's layout:

(1) a parameter that begins in another rank's shard has states there if those of this shard have;
(2) they are of the kinds and types that this shard's have, each as long as its part of the shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.fsdp import _optim_utils

from graphmem.virtual_device.patching import Replacement


def replacements() -> list[Replacement]:
    """List the functions to replace."""
    map_keys: Callable[..., Any] = _optim_utils._map_param_key_to_optim_keys
    gather_states: Callable[..., Any] = _optim_utils._allgather_orig_param_states

    def map_keys_of_all_ranks(
        optim_state_dict: Any,
        group: Any,
        param_key_to_param: Any,
        param_to_fqns: Any,
        fqn_to_fsdp_param_info: Any,
        merge_keys: bool = False,
    ) -> Any:
        given = optim_state_dict, group, param_key_to_param, param_to_fqns, fqn_to_fsdp_param_info
        keys, own = map_keys(*given, merge_keys)
        if merge_keys and any(key.is_fsdp_managed for key in own):
            keys = sorted({*keys, *_keys_of_others(fqn_to_fsdp_param_info)})
        return keys, own

    def gather_states_of_all_ranks(
        info: Any, gathered: Any, input_states: Any, *rest: Any, **options: Any
    ) -> Any:
        return gather_states(info, _states_of_all(info, gathered), input_states, *rest, **options)

    return [
        (_optim_utils, "_map_param_key_to_optim_keys", map_keys_of_all_ranks),
        (_optim_utils, "_allgather_orig_param_states", gather_states_of_all_ranks),
    ]


def _keys_of_others(infos: Mapping[str, Any]) -> list[Any]:
    """The keys of trained parameters of which this rank's shard has nothing (clause 1)."""
    found = []
    for name, info in infos.items():
        index = info.param_indices[name]
        is_here = info.handle.flat_param._shard_param_infos[index].in_shard
        if info.param_requires_grad[index] and not is_here:
            key = _optim_utils._OptimStateKey(unflat_param_names=(name,), is_fsdp_managed=True)
            found.append(key)
    return found


def _states_of_all(info: Any, gathered: Sequence[Mapping[str, Any]]) -> Sequence[Any]:
    """What each rank of the group says of its states, given copies of what this one says."""
    rank = info.state.rank
    own = gathered[rank]
    example = next((state for state in own.values() if state.tensors), None)
    if example is None:
        return gathered
    here = _lengths(info, rank)
    like = {name: state if here[name] else example for name, state in own.items()}
    lengths = [_lengths(info, each) for each in range(len(gathered))]
    return [{name: _of_length(like[name], held[name]) for name in own} for held in lengths]


def _lengths(info: Any, rank: int) -> dict[str, int]:
    """How much of each parameter a rank's shard holds."""
    size = info.handle.flat_param._sharded_size.numel()
    held = info.handle._get_shard_metadata(rank * size, (rank + 1) * size - 1)
    return {name: held[i].numel_in_shard or 0 for name, i in info.param_indices.items()}


def _of_length(state: Any, length: int) -> Any:
    """The description of a state for a part of a parameter; an empty part has none (clause 2)."""
    if not length:
        return _optim_utils.StateInfo({}, {}, {})
    tensors = {
        name: tensor._replace(shape=torch.Size([length])) for name, tensor in state.tensors.items()
    }
    return _optim_utils.StateInfo(tensors, state.scalar_tensors, state.non_tensors)
