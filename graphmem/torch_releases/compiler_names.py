"""The names in PyTorch's compiler that are replaced while it compiles for the virtual card."""

from __future__ import annotations

from graphmem.torch_releases.differences import OLDEST
from graphmem.torch_releases.names import Names

_COMPILED = "programs that use torch.compile"
_HIDING = "hiding graphmem's hooks from the compiler"
_FRAMES = "torch._dynamo.eval_frame"
_OWN = "leaving out graphmem's frames"
_AUTOTUNER = "torch._inductor.runtime.triton_heuristics.CachingAutotuner"

FRONTENDS = {
    (2, 9): "torch._functorch._aot_autograd.frontend_utils",
    OLDEST: "torch._functorch.aot_autograd",
}
"""The module with `process_inputs`, from some release on; the newest first."""
PRINTERS = {
    (2, 6): "torch.utils._sympy.printers",
    OLDEST: "torch._inductor.codegen.common",
}
"""The module with `PythonPrinter`, likewise; the older one keeps importing it."""
WHERE_MODES_ARE_LOOKED_FOR = (
    "torch._guards",
    "torch._dynamo.utils",
    "torch._functorch.aot_autograd",
    "torch._inductor.compile_fx",
    "torch._inductor.fx_passes.pre_grad",
    "torch._inductor.utils",
)
"""The modules that import `detect_fake_mode` by name, besides the frontend."""

COMPILER_NAMES = (
    Names("torch", "compile", "programs that call it", _COMPILED),
    Names("torch._C", "_get_dispatch_mode _TorchDispatchModeKey", "make_fx", "a program's make_fx"),
    Names("torch.utils._pytree", "tree_map_only", "a program's fake mode", "such programs"),
    Names("torch.export", "export", "the exporter's own operations", "torch.export"),
    Names(
        "torch._ops.HigherOrderOperator",
        "dispatch",
        "operators that call functions, under a mode",
        "torch.cond and its kin",
        before=(2, 9),
    ),
    Names(
        "torch.utils._python_dispatch",
        "_disable_current_modes",
        "the functions of torch.cond and its kin",
        "torch.cond outside compiled code",
    ),
    Names("torch._higher_order_ops.cond", "_get_current_dispatch_mode", "its kernel", "torch.cond"),
    Names(
        "torch._higher_order_ops.scan",
        "_get_current_dispatch_mode",
        "its kernel",
        "scan",
        since=(2, 6),
    ),
    Names(_FRAMES, "_callback_from_stance", "code compiled earlier", _COMPILED, since=(2, 6)),
    Names(_FRAMES, "_maybe_set_eval_frame", "code compiled earlier", _COMPILED, before=(2, 6)),
    Names(
        "torch._dynamo.convert_frame.CatchErrorsWrapper", "__call__", _OWN, _COMPILED, before=(2, 7)
    ),
    Names(
        "torch._C._dynamo.eval_frame",
        "skip_code skip_code_recursive_flag",
        _OWN,
        _COMPILED,
        before=(2, 7),
    ),
    Names(
        "torch._C._dynamo.eval_frame",
        "set_code_exec_strategy _FrameExecStrategy _FrameAction",
        _OWN,
        _COMPILED,
        since=(2, 7),
    ),
    Names("torch._dynamo.utils", "common_constant_types", "properties of the card", _COMPILED),
    Names("torch._dynamo", "reset", "programs that reset it before they compile", _COMPILED),
    Names(
        "torch._dynamo.trace_rules",
        "get_tensor_method get_torch_obj_rule_map",
        "the functions that Dynamo puts into its graphs",
        _COMPILED,
    ),
    Names(
        "torch._dynamo.variables.ctx_manager.CUDADeviceVariable",
        "_exchange_fn _maybe_exchange_fn",
        "`with torch.cuda.device(...)` in a graph",
        _COMPILED,
        since=(2, 13),
    ),
    Names(
        "torch._dynamo.compiled_autograd",
        "compiled_autograd_enabled reset",
        "backward passes that are compiled as a whole",
        "compiled autograd",
    ),
    Names(
        "torch._dynamo.compiled_autograd.AutogradCompilerInstance",
        "begin_capture end_capture",
        "PyTorch's own operations",
        "compiled autograd",
    ),
    Names(
        "torch._C._dynamo.compiled_autograd",
        "set_autograd_compiler",
        "leaving graphmem's hooks out of its graphs",
        "compiled autograd",
    ),
    Names(
        "torch._C._dynamo.compiled_autograd",
        "clear_cache",
        "forgetting what was compiled for the card",
        "compiled autograd",
    ),
    Names(
        "torch._C._autograd",
        "_saved_tensors_hooks_set_tracing",
        "leaving graphmem's hooks out of its graphs",
        "compiled autograd",
    ),
    Names("torch._dynamo.convert_frame", "_compile", "Dynamo's own operations", _COMPILED),
    Names(
        "torch._dynamo.device_interface",
        "get_cuda_stream",
        "the stream for which Inductor launches kernels",
        _COMPILED,
    ),
    Names(
        "torch._dynamo.device_interface.CudaInterface",
        "get_raw_stream",
        "the stream for which Inductor launches kernels",
        _COMPILED,
    ),
    Names(
        "torch._dynamo.device_interface.CudaInterface",
        "Event Stream",
        "timing kernels",
        "triton.testing.do_bench",
    ),
    Names(
        "torch._subclasses.fake_tensor.FakeTensorMode",
        "avoid_device_init",
        "constants of the compiler's trace, which would be made on a card",
        _COMPILED,
    ),
    Names(
        "torch.nested._internal.nested_tensor.NestedTensor",
        "__init__ _min_seqlen_tensor _max_seqlen_tensor",
        "keeping the parts of jagged tensors of one kind",
        "compiled code that is given them",
    ),
    Names(
        "torch._functorch._aot_autograd.utils",
        "top_saved_tensors_hooks",
        _HIDING,
        _COMPILED,
        since=(2, 8),
    ),
    Names(
        "torch.nn.modules.module",
        "_global_forward_pre_hooks _global_forward_hooks",
        _HIDING,
        _COMPILED,
    ),
    Names("torch.nn.modules.module", "_has_any_global_hook", _HIDING, _COMPILED, since=(2, 8)),
    Names(
        "torch.optim.optimizer",
        "_global_optimizer_pre_hooks _global_optimizer_post_hooks",
        "hiding graphmem's hooks from graphs that may not break",
        _COMPILED,
    ),
    Names("torch._guards.Guard", "create", "guards of hidden hooks", _COMPILED),
    Names(
        "torch._dynamo.guards.CheckFunctionManager", "__init__", "guards of real tensors", _COMPILED
    ),
    Names(
        "torch.utils._python_dispatch", "BaseTorchDispatchMode", "guards of real tensors", _COMPILED
    ),
    *(
        Names(owner, "FakeTensor detect_fake_mode", "the compiler's inputs", _COMPILED, since=since)
        for since, owner in FRONTENDS.items()
    ),
    *(
        Names(owner, "detect_fake_mode", "the mode of the compiler's trace", _COMPILED)
        for owner in WHERE_MODES_ARE_LOOKED_FOR
    ),
    Names(
        "torch.fx.experimental.proxy_tensor._MakefxTracer",
        "trace",
        "make_fx with fake tensors of its own",
        "a program's make_fx",
    ),
    Names(
        "torch._subclasses.fake_tensor",
        "maybe_get_fake_mode",
        "those tensors' sizes",
        "a program's make_fx",
    ),
    Names("torch._inductor.compile_fx", "_compile_fx_inner", "Inductor's operations", _COMPILED),
    Names(
        "torch.fx.experimental.proxy_tensor",
        "unset_fake_temporarily",
        "constants of one element, which the tracer computes on the card",
        _COMPILED,
    ),
    Names(
        "torch._inductor.graph.GraphLowering",
        "compile_to_module",
        "the reasons of compiled code's memory",
        _COMPILED,
    ),
    Names(
        "torch._inductor.codegen.triton.TritonKernel",
        "call_kernel",
        "the loops of kernels, which are run on known values",
        _COMPILED,
    ),
    Names(
        "torch._inductor.codecache.FxGraphCache",
        "prepare_key load_with_key _write_to_local_cache",
        "reusing what Inductor made in an earlier analysis",
        _COMPILED,
        since=(2, 7),
    ),
    Names(
        "torch._inductor.compile_fx",
        "is_tf32_warning_applicable _warn_tf32_disabled",
        "a warning of Inductor, where its output is reused",
        _COMPILED,
    ),
    Names(
        "torch._inductor.cudagraph_trees",
        "_set_cached_tensors_enabled _use_cuda_memory_pool_manager",
        "keeping outputs of graphs in their pool for the next replay, in a CPU build too",
        "mode='reduce-overhead'",
    ),
    Names(
        "torch._inductor.cudagraph_trees.StorageWeakRefWrapper",
        "__init__ swap_weakref expired",
        "taking the lifetimes of a compiled graph's outputs from the recorder",
        "mode='reduce-overhead'",
    ),
    Names(
        "torch._inductor.cudagraph_utils",
        "check_lowering_disable_cudagraph",
        "leaving CUDA graphs out of a plan",
        _COMPILED,
    ),
    Names(
        "torch._dynamo.output_graph.OutputGraph",
        "call_user_compiler",
        "the results that a graph passes on where it breaks",
        "the cost of graph breaks",
    ),
    Names("torch._inductor.async_compile.AsyncCompile", "triton", "Triton kernels", _COMPILED),
    Names(
        "torch._inductor.runtime.compile_tasks",
        "_reload_python_module",
        "executing the source of a Triton kernel",
        _COMPILED,
    ),
    Names(
        "torch._inductor.codegen.triton.TritonScheduling",
        "benchmark_codegened_module",
        "what comparing fused kernels holds",
        "mode='max-autotune'",
        since=(2, 7),
    ),
    Names(
        "torch._inductor.codegen.triton.TritonScheduling",
        "benchmark_fused_nodes",
        "what comparing fused kernels holds",
        "mode='max-autotune'",
        before=(2, 7),
    ),
    *(
        Names(
            module, "PythonPrinter", "sizes and indices in compiled loops", _COMPILED, since=since
        )
        for since, module in PRINTERS.items()
    ),
    *(
        Names(_AUTOTUNER, names, "Triton kernels", _COMPILED, since=since)
        for since, names in (
            (OLDEST, "precompile _precompile_config run"),
            ((2, 6), "copy_args_to_cpu_if_needed"),
            ((2, 7), "_make_launchers"),
        )
    ),
    Names(
        "torch._inductor.runtime.autotune_cache.AutotuneCache",
        "read_best",
        "the configurations that an earlier run chose",
        _COMPILED,
    ),
    Names("torch.cuda", "max_memory_allocated memory_allocated", "benchmarks", _COMPILED),
    Names(
        "torch.accelerator",
        "max_memory_allocated memory_allocated",
        "benchmarks",
        _COMPILED,
        since=(2, 9),
    ),
    Names(
        "torch._inductor.runtime.triton_helpers",
        "set_driver_to_gpu",
        "Triton kernels",
        _COMPILED,
        since=(2, 6),
    ),
    Names(
        "torch._inductor.runtime.benchmarking.InductorBenchmarker",
        "benchmark_gpu",
        "choices between kernels",
        _COMPILED,
        since=(2, 7),
    ),
    Names(
        "torch._inductor.select_algorithm.AlgorithmSelectorCache",
        "get_inputs",
        "naming what is made to choose between kernels",
        _COMPILED,
        since=(2, 8),
    ),
    Names(
        "torch._inductor.runtime.benchmarking.TritonBenchmarker",
        "benchmark_gpu",
        "choices between kernels",
        _COMPILED,
    ),
    Names(
        "torch._inductor.fx_passes.joint_graph.UniformValueConstantFolder",
        "__init__ _deduce_value",
        "folding constants",
        _COMPILED,
    ),
    Names(
        "torch._inductor.fx_passes.pad_mm",
        "no_dispatch should_pad_bench_key should_exclude_padding_time",
        "deciding whether to pad matrices",
        _COMPILED,
    ),
    Names(
        "torch._inductor.fx_passes.pad_mm",
        "is_padded_faster",
        "deciding whether to pad matrices",
        _COMPILED,
        since=(2, 11),
    ),
    Names(
        "torch._inductor.fx_passes.pad_mm",
        "_skip_do_bench_times",
        "deciding whether to pad matrices",
        _COMPILED,
        before=(2, 11),
    ),
    Names(
        "torch._C._dynamo.guards",
        "_empty_strided_cuda _reinterpret_tensor",
        "the memory of compiled code",
        _COMPILED,
    ),
    Names(
        "torch._C._dynamo.guards",
        "copy_if_misaligned",
        "the memory of compiled code",
        _COMPILED,
        since=(2, 13),
    ),
    Names(
        "torch._C._autograd",
        "_get_current_graph_task_keep_graph",
        "tensors that compiled code saved, and when they are freed",
        _COMPILED,
    ),
    Names(
        "torch._C._autograd",
        "_top_saved_tensors_default_hooks",
        "tensors that compiled code saved, and when they are freed",
        _COMPILED,
        since=(2, 8),
    ),
    Names(
        "torch.autograd.function.BackwardCFunction",
        "maybe_clear_saved_tensors",
        "when tensors that compiled code saved are freed",
        _COMPILED,
    ),
    Names(
        "torch.autograd.function.BackwardCFunction",
        "apply_boxed",
        "when compiled code drops its gradients",
        _COMPILED,
        since=(2, 13),
    ),
)
