"""The names of autograd, of fake tensors and of the dispatcher that a trace reads or replaces."""

from __future__ import annotations

from graphmem.torch_releases.names import Build, Names

_NO_TRACE = "nothing can be traced"
_BACKWARD = "the backward pass"
_RANKS = "launched jobs"
_FACTORIES = (
    "arange as_tensor asarray empty empty_like empty_strided eye full full_like linspace logspace "
    "ones ones_like rand rand_like randint randint_like randn randn_like randperm scalar_tensor "
    "tensor tril_indices triu_indices zeros zeros_like"
)
_NESTED = "nested_tensor as_nested_tensor narrow"
_DRAWING = "_no_grad_trunc_normal_ _no_grad_uniform_ _no_grad_normal_ _no_grad_fill_ _no_grad_zero_"

INNER_NAMES = (
    # autograd
    Names(
        "torch._C._autograd",
        "_get_sequence_nr _push_saved_tensors_default_hooks _pop_saved_tensors_default_hooks",
        "which node saved what",
        _NO_TRACE,
    ),
    Names("torch.utils", "swap_tensors", "tensors become others", "NF4 weights"),
    Names("torch._C._autograd", "_unsafe_set_version_counter", "models are put back", "them"),
    Names("torch._C._functions", "AccumulateGrad CopySlices", "kinds of nodes", _BACKWARD),
    Names("torch._C._FunctionBase", "_sequence_nr _input_metadata", "the walk", _BACKWARD),
    Names(
        "torch._C",
        "_current_graph_task_id _current_autograd_node _will_engine_execute_node",
        "checkpointing asks in which walk it is",
        "checkpointing",
    ),
    Names("torch.autograd", "_make_grads", "a backward pass begins", _BACKWARD),
    Names("torch.autograd.Variable", "_execution_engine", "the walk stands in", _BACKWARD),
    Names("torch.autograd.function.Function", "apply", "functions in Python", _BACKWARD),
    Names("torch.autograd.function.FunctionCtx", "set_materialize_grads", "the same", _BACKWARD),
    Names("torch.autograd.graph", "disable_saved_tensors_hooks", "torch.func", "torch.func"),
    Names(
        "torch.autograd.graph.saved_tensors_hooks",
        "__enter__ __exit__",
        "hooks of the program for what is saved",
        "programs that have some",
    ),
    Names(
        "torch.utils.checkpoint._CheckpointFrame",
        "save_inputs",
        "checkpoints save what they are given",
        "checkpointing",
        since=(2, 12),
    ),
    Names("torch._C", "_increment_version", "writes in place are noticed", "those errors"),
    Names("torch.autograd.profiler.profile", "__init__", "profilers", "programs that profile"),
    # tensors and their memory
    Names(
        "torch.Tensor",
        "_base _cdata _version _is_view _backward_hooks _post_accumulate_grad_hooks _use_count "
        "_nnz _make_subclass",
        "what a tensor is",
        _NO_TRACE,
    ),
    Names(
        "torch.Tensor",
        "record_stream pin_memory is_pinned cuda to data type type_as float double half bfloat16 "
        "cpu data_ptr __reduce_ex__ share_memory_ is_shared",
        "moves to the virtual GPU, casts that the program asks for, addresses",
        _NO_TRACE,
    ),
    Names("torch.UntypedStorage", "_cdata", "storages are told apart", _NO_TRACE),
    Names(
        "torch.UntypedStorage", "data_ptr cpu to resize_", "addresses; saved files", "torch.save"
    ),
    Names(
        "torch._C",
        "_storage_Use_Count _is_cached_tensor",
        "when gradients are stolen",
        _BACKWARD,
    ),
    Names("torch._C", "_swap_tensor_impl", "models move, and are put back", "models of the caller"),
    Names("torch.nn.Parameter", "__new__ __reduce_ex__", "parameters without memory", _NO_TRACE),
    Names("torch.nn.Module", "_apply _parameters _buffers", "models move", _NO_TRACE),
    Names(
        "torch._utils",
        "_rebuild_parameter _rebuild_tensor _rebuild_tensor_v2 _rebuild_meta_tensor_no_storage",
        "files",
        "them",
    ),
    Names("torch._tensor_str", "PRINT_OPTS", "settings are put back", "them"),
    # fake tensors and the dispatcher
    Names(
        "torch._subclasses.fake_tensor",
        "DataDependentOutputException DynamicOutputShapeException FakeTensor FakeTensorMode "
        "UnsupportedOperatorException _BypassDispatchCache init_gpu_context",
        "tensors without data",
        _NO_TRACE,
    ),
    Names(
        "torch._subclasses.fake_tensor.FakeTensorMode",
        "_prep_args_for_hash _dispatch_impl _get_output_tensor_from_cache_entry avoid_device_init",
        "tensors without data",
        _NO_TRACE,
    ),
    Names(
        "torch._subclasses.fake_tensor.FakeTensor",
        "__new__ __format__ __deepcopy__ __repr__ tolist numpy __array__ __reduce_ex__",
        "tensors without data are shown, copied and saved",
        "programs that do so",
    ),
    Names(
        "torch._C",
        "_DisableTorchDispatch DisableTorchFunctionSubclass TensorBase _FunctionBase "
        "_ExcludeDispatchKeyGuard DispatchKey DispatchKeySet "
        "_dispatch_has_kernel_for_dispatch_key _dispatch_find_schema_or_throw "
        "_only_lift_cpu_tensors _set_only_lift_cpu_tensors parse_schema "
        "_set_throw_on_mutable_data_ptr _set_warn_deprecated_on_mutable_data_ptr",
        "the dispatcher",
        _NO_TRACE,
    ),
    Names(
        "torch._C",
        "_ensureCUDADeviceGuardSet",
        "a device guard without a card",
        _NO_TRACE,
        since=(2, 10),
    ),
    Names("torch._C", "_RestorePythonTLSSnapshot", "autocast inside composites", "inference mode"),
    Names("torch._C._nn", "_parse_to", "devices by their number", "`.to(0)`"),
    Names("torch._ops", "OpOverload", "operations", _NO_TRACE),
    Names("torch._ops.OpOverload", "_can_decompose", "composites", "inference mode"),
    Names("torch.library.Library", "_destroy", "kernels are taken off again", _NO_TRACE),
    Names(
        "torch.utils._python_dispatch",
        "TorchDispatchMode _disable_current_modes _get_current_dispatch_mode_stack _pop_mode "
        "_push_mode",
        "dispatch modes",
        _NO_TRACE,
    ),
    Names("torch._C", "_len_torch_dispatch_stack _len_torch_function_stack", "modes", "new ones"),
    Names("torch.overrides", "_pop_mode", "modes are put back", "them"),
    Names("torch.utils._device", "_device_constructors", "torch.device as a context", "it"),
    Names("torch", _FACTORIES, "devices by their number", _NO_TRACE),
    Names("torch", "_GLOBAL_DEVICE_CONTEXT _is_any_true _neg_view", "settings; anomalies", "them"),
    Names(
        "torch._C",
        "_get_deterministic_fill_uninitialized_memory _get_mkldnn_enabled _set_mkldnn_enabled "
        "_set_deterministic_fill_uninitialized_memory",
        "settings are put back",
        "them",
    ),
    # parts of PyTorch written in Python
    Names("torch.amp.autocast_mode.autocast", "__enter__ __exit__", "autocast", "autocast"),
    Names("torch.optim.optimizer", "_foreach_supported_types", "foreach forms", "optimizers"),
    Names("torch.utils._foreach_utils", "_foreach_supported_types", "foreach forms", "clipping"),
    Names("torch.optim.Optimizer", "__init__", "marks of optimizers", "them"),
    Names("torch.optim.LBFGS", "step", "line searches", "LBFGS"),
    Names("torch.nn.init", f"{_DRAWING} orthogonal_ sparse_ dirac_", "weights", "large models"),
    Names("torch.nn.RNNBase", "flatten_parameters", "cuDNN's layers", "LSTM, GRU"),
    Names("torch.nn.parallel._functions", "_streams _get_stream Scatter", "DataParallel", "it"),
    Names("torch.nn.parallel._functions.Scatter", "forward", "DataParallel", "it"),
    # torch.distributed
    Names(
        "torch.distributed",
        "Reducer Logger _verify_params_across_processes _register_comm_hook "
        "_register_builtin_comm_hook",
        "DistributedDataParallel",
        "it",
    ),
    Names(
        "torch.distributed.distributed_c10d",
        "_new_process_group_helper rendezvous",
        "process groups",
        _RANKS,
    ),
    Names("torch.distributed.distributed_c10d", "broadcast scatter", "objects of one rank", _RANKS),
    Names(
        "torch.distributed.fsdp._init_utils",
        "_init_device_handle _get_device_from_device_id",
        "FullyShardedDataParallel given a card's number",
        _RANKS,
    ),
    Names(
        "torch.distributed.fsdp.fully_sharded_data_parallel",
        "_init_device_handle",
        "FullyShardedDataParallel given a card's number",
        _RANKS,
    ),
    Names("torch.multiprocessing", "start_processes", "ranks that a script starts", _RANKS),
    Names("torch.multiprocessing.spawn", "start_processes", "ranks that a script starts", _RANKS),
    Names("torch.distributed.c10d_logger", "_get_msg_dict", "collectives that fail", _RANKS),
    Names("torch.distributed.distributed_c10d", "_world", "process groups", _RANKS),
    Names(
        "torch.distributed.distributed_c10d",
        "_NCCL_AVAILABLE default_pg_nccl_timeout",
        "NCCL is there, on a build for the CPU too",
        _RANKS,
    ),
    Names(
        "torch.distributed.distributed_c10d", "ProcessGroupNCCL", "NCCL", _RANKS, build=Build.CUDA
    ),
    Names("torch.distributed", "ProcessGroupNCCL", "NCCL", _RANKS, build=Build.CUDA),
    Names("torch._C", "_nccl_version _nccl_version_suffix", "NCCL", _RANKS, build=Build.CUDA),
    Names("torch.distributed.device_mesh", "_get_device_handle", "the card of a rank", _RANKS),
    Names("torch.distributed.distributed_c10d.Backend", "_plugins", "process groups", _RANKS),
    Names(
        "torch.distributed.tensor._sharding_prop.ShardingPropagator",
        "_propagate_tensor_meta_non_cached",
        "DTensors",
        _RANKS,
    ),
    Names(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group",
        "foreach_all_gather foreach_reduce",
        "what fully_shard holds has names",
        _RANKS,
    ),
    Names(
        "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam",
        "to_unsharded",
        "what fully_shard holds has names",
        _RANKS,
    ),
    Names("torch._C._distributed_c10d", "ProcessGroup Work ReduceOp", "collectives", _RANKS),
    Names("torch.nested", _NESTED, "strided nested tensors are refused by name", "that message"),
    Names(
        "torch.nested._internal.nested_tensor",
        "get_tensor_symint _dummy_instance",
        "jagged tensors of one tensor of offsets have one ragged size",
        "jagged tensors",
    ),
    Names(
        "torch.nested._internal.sdpa",
        "can_use_flash_attention can_use_efficient_attention",
        "attention of jagged tensors",
        "it",
    ),
    Names("torch.nn.attention.bias.CausalBias", "__new__", "attention's masks", "them"),
    # torch.func
    Names(
        "torch._functorch.eager_transforms",
        "_grad_increment_nesting _grad_decrement_nesting _jvp_increment_nesting "
        "_jvp_decrement_nesting",
        "levels of transforms",
        "torch.func",
    ),
    Names(
        "torch._functorch.vmap",
        "_vmap_increment_nesting _vmap_decrement_nesting",
        "levels of transforms",
        "torch.func",
    ),
    Names(
        "torch._C._functorch",
        "_wrap_for_grad get_unwrapped is_functorch_wrapped_tensor is_gradtrackingtensor "
        "maybe_get_level",
        "levels of transforms",
        "torch.func",
    ),
    Names("torch._C", "_DisableFuncTorch", "levels of transforms", "torch.func"),
    # TorchScript
    Names("torch.jit._builtins", "_find_builtin", "TorchScript", "TorchScript"),
    Names("torch.jit._recursive", "_find_builtin try_compile_fn", "TorchScript", "TorchScript"),
    Names("torch._C.ScriptFunction", "__call__", "TorchScript", "TorchScript"),
    Names("torch._C.ScriptMethod", "__call__", "TorchScript", "TorchScript"),
    Names("torch._C", "_jit_can_fuse_on_gpu _jit_override_can_fuse_on_gpu", "TorchScript", "it"),
    Names(
        "torch._C._profiler", "ProfilerActivity ProfilerState", "profilers", "those that profile"
    ),
)
