"""The names in torch.distributed that the processes of a launched job read or replace."""

from __future__ import annotations

from graphmem.torch_releases.differences import OLDEST
from graphmem.torch_releases.names import Names

_RANKS = "launched jobs"
FSDP2 = {
    (2, 6): "torch.distributed.fsdp._fully_shard",
    OLDEST: "torch.distributed._composable.fsdp",
}
"""The package of `fully_shard`, from some release on; the newest first."""
_NAMES_OF_SHARDS = "the memory of fully_shard, and its names"

RANK_NAMES = (
    Names("torch._prims_common", "make_contiguous_strides_for", "parameters' strides", "DDP"),
    Names(
        "torch.distributed",
        "Reducer Logger _verify_params_across_processes _register_comm_hook "
        "_register_builtin_comm_hook",
        "DistributedDataParallel",
        "it",
    ),
    Names(
        "torch.distributed.distributed_c10d",
        "_new_process_group_helper _set_pg_timeout _store_based_barrier",
        "process groups",
        _RANKS,
    ),
    Names("torch.distributed.rendezvous", "TCPStore FileStore", "process groups", _RANKS),
    Names(
        "torch.distributed.distributed_c10d",
        "broadcast scatter all_gather gather _object_to_tensor _pickler",
        "objects that ranks send",
        _RANKS,
    ),
    Names("torch.distributed.distributed_c10d", "all_gather_single", "them", _RANKS, (2, 14)),
    *(
        Names(module, "batch_isend_irecv", "messages in batches", _RANKS)
        for module in ("torch.distributed.distributed_c10d", "torch.distributed")
    ),
    *(
        Names(module, "_sync_params_and_buffers", "weights that one rank sends to all", _RANKS)
        for module in ("torch.distributed.utils", "torch.distributed.fsdp._init_utils")
    ),
    *(
        Names(f"torch.distributed.fsdp.{where}", names, "FullyShardedDataParallel", _RANKS)
        for where, names in (
            ("_init_utils", "_init_device_handle _get_device_from_device_id _get_compute_device"),
            ("fully_sharded_data_parallel", "_init_device_handle"),
            ("_flat_param.FlatParamHandle", "_use_unsharded_flat_param"),
            ("_runtime_utils", "_post_backward_reshard _post_reduce_grad_callback"),
        )
    ),
    Names(
        "torch.distributed.fsdp._optim_utils",
        "_map_param_key_to_optim_keys _allgather_orig_param_states",
        "optimizer states that only other ranks hold",
        _RANKS,
    ),
    Names(
        "torch.distributed.checkpoint.default_planner",
        "_validate_global_plan dedup_save_plans",
        "distributed checkpoints of a single rank",
        _RANKS,
    ),
    Names(
        "torch.distributed.checkpoint._state_dict_stager.StateDictStager",
        "_offload_tensor",
        "staging of checkpoints that are saved while training goes on",
        _RANKS,
        since=(2, 8),
    ),
    Names(
        "torch.distributed.checkpoint.state_dict_saver",
        "_ProcessBasedAsyncCheckpointExecutor _ThreadBasedAsyncCheckpointExecutor",
        "checkpoints that are saved while training goes on",
        _RANKS,
        since=(2, 7),
    ),
    Names(
        "torch.cuda._pin_memory_utils",
        "pin_memory",
        "async_save in pinned memory",
        _RANKS,
        since=(2, 8),
    ),
    Names("torch.distributed", "TCPStore", "stores that a script makes", _RANKS),
    Names("torch.distributed", "FileStore", "stores that a script makes", _RANKS),
    Names("torch.distributed.rpc", "init_rpc", "refusing remote calls", _RANKS),
    Names("torch.multiprocessing", "start_processes", "ranks that a script starts", _RANKS),
    Names("torch.multiprocessing.spawn", "start_processes", "ranks that a script starts", _RANKS),
    Names("torch.distributed.c10d_logger", "_get_msg_dict", "collectives that fail", _RANKS),
    Names("torch.distributed.distributed_c10d", "_world", "process groups", _RANKS),
    Names("torch.distributed.device_mesh", "_get_device_handle", "the card of a rank", _RANKS),
    Names("torch.distributed.distributed_c10d.Backend", "_plugins", "process groups", _RANKS),
    Names(
        "torch.distributed.tensor._sharding_prop.ShardingPropagator",
        "_propagate_tensor_meta_non_cached",
        "DTensors",
        _RANKS,
        since=(2, 6),
    ),
    Names(
        "torch.distributed.tensor._sharding_prop.ShardingPropagator",
        "_propagate_tensor_meta",
        "DTensors",
        _RANKS,
        before=(2, 6),
    ),
    *(
        Names(
            f"{package}.{where}",
            names,
            _NAMES_OF_SHARDS,
            _RANKS,
            since=since,
            before=(2, 6) if since == OLDEST else None,
        )
        for since, package in FSDP2.items()
        for where, names in (
            ("_fsdp_param_group", "foreach_all_gather foreach_reduce"),
            ("_fsdp_param_group.FSDPParamGroup", "post_backward"),
            ("_fsdp_param.FSDPParam", "reset_sharded_param to_unsharded"),
        )
    ),
    Names(
        "torch.distributed.pipelining.stage._PipelineStageBase",
        "_output_slot_is_releasable",
        "releasing what a pipeline's stage has sent",
        _RANKS,
        since=(2, 15),
    ),
    Names("torch._C._distributed_c10d", "ProcessGroup Work ReduceOp", "collectives", _RANKS),
    Names(
        "torch._C._distributed_c10d",
        "AllgatherOptions AllreduceOptions BroadcastOptions",
        "what C++ passes with a collective",
        _RANKS,
    ),
)
