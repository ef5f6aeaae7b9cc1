"""The names in autograd, fake tensors and the dispatcher that a trace reads or replaces."""

from __future__ import annotations

from graphmem.torch_releases.names import Names

_NO_TRACE = "every trace"
_BACKWARD = "the backward pass"
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
        "the nodes that saved tensors",
        _NO_TRACE,
    ),
    Names("torch._library.custom_ops", "OPDEFS", "a program's own operators", "their scratch"),
    Names("torch._subclasses.meta_utils", "safe_grad", "gradients of moved tensors", _NO_TRACE),
    Names("torch.utils", "swap_tensors", "swapping tensors", "NF4 weights"),
    Names("torch._C._autograd", "_unsafe_set_version_counter", "restoring models", "it"),
    Names("torch._C._functions", "AccumulateGrad CopySlices", "kinds of nodes", _BACKWARD),
    Names(
        "torch._C._FunctionBase",
        "_sequence_nr _input_metadata _materialize_non_diff_grads",
        "the walk of the autograd graph",
        _BACKWARD,
    ),
    Names(
        "torch._C",
        "_current_graph_task_id _current_autograd_node _will_engine_execute_node",
        "telling checkpointing which backward pass it is in",
        "checkpointing",
    ),
    Names("torch.nn.Module", "_call_impl", "the calls of modules", _NO_TRACE),
    Names("torch.autograd", "_make_grads", "the start of a backward pass", _BACKWARD),
    Names("torch.autograd.Variable", "_execution_engine", "replacing the engine", _BACKWARD),
    Names("torch.autograd.function.Function", "apply", "Python functions", _BACKWARD),
    Names(
        "torch.autograd.function.Function._backward_cls",
        "_forward_cls",
        "Python functions",
        _BACKWARD,
    ),
    Names(
        "torch.autograd.function.BackwardCFunction",
        "saved_tensors",
        "functions that ask a saved parameter for its attributes",
        "programs with such functions",
    ),
    Names(
        "torch.autograd.function.FunctionCtx",
        "set_materialize_grads",
        "Python functions",
        _BACKWARD,
    ),
    Names(
        "torch.autograd.function.FunctionCtx",
        "set_output_grad_dtype",
        "the dtypes of gradients of Python functions",
        _BACKWARD,
        (2, 14),
    ),
    Names("torch.autograd.graph", "disable_saved_tensors_hooks", "torch.func", "torch.func"),
    Names("torch.autograd.graph.save_on_cpu", "__init__", "its copies", "programs that use it"),
    Names(
        "torch.autograd.graph.saved_tensors_hooks",
        "__enter__ __exit__",
        "the program's own hooks for saved tensors",
        "programs that have some",
    ),
    Names(
        "torch.utils.checkpoint._CheckpointFrame",
        "save_inputs",
        "the inputs that checkpoints save",
        "checkpointing",
        since=(2, 12),
    ),
    Names("torch.utils.checkpoint", "_NoopSaveInputs", "the same", "checkpointing", before=(2, 12)),
    Names("torch.utils.checkpoint._VersionWrapper", "__init__", "selective ones", "their results"),
    Names("torch._C", "_increment_version", "noticing in-place writes", "errors about them"),
    Names("torch.autograd.profiler.profile", "__init__", "profilers", "programs that profile"),
    # tensors and their memory
    Names(
        "torch.Tensor",
        "_base _cdata _version _is_view _backward_hooks _post_accumulate_grad_hooks _use_count "
        "_nnz _make_subclass as_subclass",
        "the properties of a tensor",
        _NO_TRACE,
    ),
    Names(
        "torch.Tensor",
        "record_stream pin_memory is_pinned cuda to data set_ grad type type_as float double "
        "half bfloat16 new_empty new_empty_strided new_full new_ones new_tensor new_zeros "
        "cpu data_ptr __reduce_ex__ share_memory_ is_shared",
        "moves to the virtual GPU, the program's casts, addresses",
        _NO_TRACE,
    ),
    Names("torch.Tensor", "numpy tolist __dlpack__ _typed_storage", "weights on the host", "`run`"),
    Names("torch._C", "_to_dlpack _from_dlpack", "tensors by DLPack", "them"),
    Names("torch._C", "_to_dlpack_versioned", "tensors by DLPack", "them", since=(2, 9)),
    Names("torch", "to_dlpack", "tensors by DLPack", "them"),
    Names("torch.utils.dlpack", "to_dlpack", "tensors by DLPack", "them"),
    Names("torch.UntypedStorage", "_cdata", "telling storages apart", _NO_TRACE),
    Names("torch.UntypedStorage", "__getitem__", "slices of storages", "a slice"),
    Names("torch.UntypedStorage", "data_ptr cpu to resize_", "addresses, saved files", "them"),
    Names("torch.serialization", "_open_zipfile_writer", "saved files", "torch.save"),
    Names(
        "torch._C",
        "_storage_Use_Count _is_cached_tensor",
        "deciding when gradients are stolen",
        _BACKWARD,
    ),
    Names("torch._C", "_swap_tensor_impl", "moving and restoring models", "models of the caller"),
    Names("torch.nn.Parameter", "__new__ __reduce_ex__", "parameters without memory", _NO_TRACE),
    Names("torch.nn.Module", "_apply _parameters _buffers", "moving models", _NO_TRACE),
    Names(
        "torch.nn.parameter.UninitializedTensorMixin",
        "materialize",
        "lazy modules on the card",
        "them",
    ),
    Names("torch._C", "_is_torch_function_enabled", "lazy modules on the card", "them"),
    Names(
        "torch._utils",
        "_rebuild_parameter _rebuild_tensor _rebuild_tensor_v2 _rebuild_meta_tensor_no_storage",
        "saved files",
        "them",
    ),
    Names("torch.storage.TypedStorage", "__reduce__", "pickled tensors", "them"),
    Names("torch._tensor_str", "PRINT_OPTS", "restoring settings", "it"),
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
        "_prep_args_for_hash _dispatch_impl _cache_key avoid_device_init "
        "create_symbolic_nested_int",
        "tensors without data",
        _NO_TRACE,
    ),
    Names(
        "torch._subclasses.fake_tensor.FakeTensorMode",
        "_get_output_tensor_from_cache_entry",
        "answers of its cache, faster",
        "the speed of a trace",
        since=(2, 6),
    ),
    Names(
        "torch._subclasses.fake_tensor.FakeTensor",
        "__new__ __format__ __deepcopy__ __repr__ tolist numpy __array__ __reduce_ex__",
        "printing, copying and saving tensors without data",
        "programs that do so",
    ),
    Names(
        "torch._C",
        "_AutoDispatchBelowADInplaceOrView _DisableAutocast _DisableTorchDispatch "
        "DisableTorchFunctionSubclass "
        "TensorBase _FunctionBase "
        "_ExcludeDispatchKeyGuard DispatchKey DispatchKeySet _get_default_device "
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
    Names("torch._C._nn", "_parse_to", "devices given by number", "`.to(0)`"),
    Names("torch._ops", "OpOverload", "operations", _NO_TRACE),
    Names("torch._ops.OpOverload", "_can_decompose", "composites", "inference mode"),
    Names("torch.library.Library", "_destroy", "removing kernels again", _NO_TRACE),
    Names("torch.library", "_impls", "kernels in place of others", _NO_TRACE, before=(2, 8)),
    Names(
        "torch.utils._python_dispatch",
        "TorchDispatchMode _disable_current_modes _get_current_dispatch_mode_stack _pop_mode "
        "_push_mode",
        "dispatch modes",
        _NO_TRACE,
    ),
    Names(
        "torch._C",
        "_len_torch_dispatch_stack _len_torch_function_stack",
        "dispatch and function modes",
        "new ones",
    ),
    Names("torch.overrides", "_pop_mode", "restoring modes", "it"),
    Names(
        "torch.utils._device",
        "_device_constructors DeviceContext",
        "torch.device as a context manager",
        "it",
    ),
    Names(
        "torch.utils._device.DeviceContext",
        "__torch_function__",
        "torch.device as a context manager",
        "it",
    ),
    Names("torch", _FACTORIES, "devices given by number", _NO_TRACE),
    Names("torch._C", "_set_default_tensor_type", "default tensor types", "them"),
    Names(
        "torch",
        "_GLOBAL_DEVICE_CONTEXT _is_any_true _neg_view",
        "restoring settings, and detecting anomalies",
        "both",
    ),
    Names(
        "torch._C",
        "_get_deterministic_fill_uninitialized_memory _get_mkldnn_enabled _set_mkldnn_enabled "
        "_set_deterministic_algorithms _set_deterministic_fill_uninitialized_memory",
        "restoring settings",
        "it",
    ),
    # parts of PyTorch written in Python
    Names("torch.amp.autocast_mode.autocast", "__enter__ __exit__", "autocast", "autocast"),
    Names(
        "torch.optim.optimizer", "_foreach_supported_types", "foreach forms of optimizers", "them"
    ),
    Names(
        "torch.utils._foreach_utils",
        "_foreach_supported_types",
        "the foreach form of gradient clipping",
        "it",
    ),
    Names("torch.optim.Optimizer", "__init__", "noting the optimizers that a program makes", "it"),
    Names("torch.optim.LBFGS", "step", "line searches", "LBFGS"),
    Names(
        "torch.nn.init",
        f"{_DRAWING} orthogonal_ sparse_ dirac_",
        "initializing weights quickly",
        "large models",
    ),
    Names("torch.nn.RNNBase", "flatten_parameters", "cuDNN's layers", "LSTM, GRU"),
    Names("torch.nn.parallel._functions", "_streams _get_stream Scatter", "DataParallel", "it"),
    Names("torch.nn.parallel._functions.Scatter", "forward", "DataParallel", "it"),
    Names("torch._C", "_get_nested_int", "sizes of jagged tensors", "them", before=(2, 6)),
    Names("torch.nested", _NESTED, "refusing strided nested tensors by name", "that error"),
    Names(
        "torch.nested._internal.nested_tensor",
        "get_tensor_symint _dummy_instance _tensor_symint_registry",
        "giving jagged tensors with the same offsets the same ragged size",
        "jagged tensors",
    ),
    Names(
        "torch.nested._internal.sdpa",
        "can_use_flash_attention can_use_efficient_attention",
        "attention on jagged tensors",
        "it",
    ),
    Names("torch.nn.attention.bias.CausalBias", "__new__", "causal masks of attention", "them"),
    # torch.func
    Names(
        "torch._functorch.eager_transforms",
        "_grad_increment_nesting _grad_decrement_nesting _jvp_increment_nesting "
        "_jvp_decrement_nesting enable_inplace_requires_grad",
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
        "torch._C",
        "_get_tracing_state _set_tracing_state _dispatch_key_parse "
        "_dispatch_tls_is_dispatch_key_excluded _dispatch_tls_set_dispatch_key_excluded",
        "setting the tracer of `torch.jit.trace` aside",
        _NO_TRACE,
    ),
    Names(
        "torch._C._profiler", "ProfilerActivity ProfilerState", "profilers", "those that profile"
    ),
)
