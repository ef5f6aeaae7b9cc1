"""The names through which PyTorch's Python code reaches a card; the virtual GPU replaces them.

C functions are those of torch/csrc/cuda/Module.cpp and torch/csrc/DeviceAccelerator.cpp. A CPU
build lacks those with "cuda" in their names, so there they are added.
"""

from __future__ import annotations

from graphmem.torch_releases.names import Build, Names

_C = "torch._C"
_PROGRAM = "programs that use it, which would then need a driver"
_RANKS = "launched jobs"
_DEVICES = "the list of devices, and the current one"
_ALL = "the whole virtual GPU"
_STREAMS = "streams and events of the virtual GPU's clock"
_WITH_STREAMS = "programs with streams of their own"
_POOLS = "CUDA graphs and memory pools of the virtual GPU"
_WITH_POOLS = "programs with CUDA graphs or memory pools"

CUDA_NAMES = (
    Names(
        _C,
        "_conv_determine_backend_memory_format _select_conv_backend _ConvBackend",
        "the layout in which cuDNN computes convolutions",
        "those in 16-bit precision and channels-last",
    ),
    Names(
        _C,
        "_cuda_init _cuda_isInBadFork _cuda_hasPrimaryContext _cuda_getDeviceCount "
        "_cuda_getDevice _cuda_setDevice _cuda_exchangeDevice _cuda_maybeExchangeDevice "
        "_cuda_canDeviceAccessPeer _cuda_ipc_collect _cuda_getArchFlags _cuda_getCompiledVersion",
        _DEVICES,
        _ALL,
        build=Build.CUDA,
    ),
    Names(_C, "_gather", "gradients of DataParallel's inputs", "those", build=Build.CUDA),
    Names(_C, "_has_cuda _get_accelerator", _DEVICES, _ALL),
    Names(
        _C,
        "_accelerator_getAccelerator _accelerator_getDeviceIndex _accelerator_setDeviceIndex",
        _DEVICES,
        _ALL,
        since=(2, 6),
    ),
    Names(
        _C,
        "_accelerator_exchangeDevice _accelerator_maybeExchangeDevice",
        _DEVICES,
        _ALL,
        since=(2, 8),
    ),
    Names(
        _C,
        "_cuda_memoryStats _cuda_resetPeakMemoryStats _cuda_resetAccumulatedMemoryStats "
        "_cuda_memorySnapshot _cuda_emptyCache _cuda_setMemoryFraction "
        "_cuda_record_memory_history _cuda_record_memory_history_legacy _cuda_isHistoryEnabled "
        "_cuda_attach_out_of_memory_observer _cuda_getAllocatorBackend "
        "_cuda_cudaCachingAllocator_raw_alloc _cuda_cudaCachingAllocator_raw_delete",
        "memory queries",
        _PROGRAM,
        build=Build.CUDA,
    ),
    Names(
        _C,
        "_cuda_getMemoryFraction _cuda_cudaCachingAllocator_enable",
        "memory queries",
        _PROGRAM,
        since=(2, 6),
        build=Build.CUDA,
    ),
    Names(
        _C,
        "_cuda_setMemoryMetadata _cuda_getMemoryMetadata",
        "the text that a program attaches to its memory history",
        _PROGRAM,
        since=(2, 10),
        build=Build.CUDA,
    ),
    Names(
        _C,
        "_cuda_allocationTraceback _cuda_cudaCachingAllocator_is_enabled",
        "memory queries",
        _PROGRAM,
        since=(2, 12),
        build=Build.CUDA,
    ),
    Names(
        _C,
        "_cuda_cudaCachingAllocator_set_allocator_settings",
        "settings of the allocator (from 2.10 on `_accelerator_setAllocatorSettings`)",
        _PROGRAM,
        before=(2, 10),
        build=Build.CUDA,
    ),
    Names(
        _C,
        "_accelerator_isAllocatorInitialized _accelerator_emptyCache _accelerator_getDeviceStats "
        "_accelerator_resetPeakStats _accelerator_resetAccumulatedStats",
        "memory queries through torch.accelerator",
        _PROGRAM,
        since=(2, 9),
    ),
    Names(
        _C,
        "_accelerator_getMemoryInfo _accelerator_setAllocatorSettings",
        "free memory, and settings of the allocator",
        _PROGRAM,
        since=(2, 10),
    ),
    Names(
        _C,
        "_accelerator_getAllocatorSettings _accelerator_emptyHostCache",
        "settings of the allocator, and page-locked memory",
        _PROGRAM,
        since=(2, 12),
    ),
    Names(
        _C,
        "_CudaStreamBase _CudaEventBase",
        _STREAMS,
        _WITH_STREAMS,
    ),
    Names(
        _C,
        "_cuda_getCurrentStream _cuda_getDefaultStream _cuda_getCurrentRawStream _cuda_setStream "
        "_cuda_synchronize _cuda_sleep",
        _STREAMS,
        _WITH_STREAMS,
        build=Build.CUDA,
    ),
    Names(
        _C, "_cuda_getStreamFromExternal", _STREAMS, _WITH_STREAMS, since=(2, 7), build=Build.CUDA
    ),
    Names(_C, "_cuda_isCurrentStreamCapturing", _STREAMS, _WITH_STREAMS),
    Names(
        _C,
        "_accelerator_getStream _accelerator_setStream _accelerator_synchronizeDevice",
        _STREAMS,
        _WITH_STREAMS,
        since=(2, 6),
    ),
    Names(_C, "_host_emptyCache", "page-locked memory", _PROGRAM, build=Build.CUDA),
    Names(
        _C,
        "_cuda_hostMemoryStats _cuda_resetPeakHostMemoryStats "
        "_cuda_resetAccumulatedHostMemoryStats",
        "page-locked memory",
        _PROGRAM,
        since=(2, 7),
        build=Build.CUDA,
    ),
    Names(
        _C,
        "_cuda_getCurrentBlasHandle _cuda_clearCublasWorkspaces _cuda_get_cudnn_benchmark_limit "
        "_cuda_set_cudnn_benchmark_limit _cuda_get_sync_debug_mode _cuda_set_sync_debug_mode "
        "_cuda_customAllocator _cuda_changeCurrentAllocator _cudart",
        "libraries around the driver",
        _PROGRAM,
        build=Build.CUDA,
    ),
    Names(
        _C,
        "_cuda_resetCublasWorkspaceSize _cuda_resetCublasLtWorkspaceSize "
        "_cuda_setCublasWorkspaceSize _cuda_setCublasLtWorkspaceSize _cuda_getCublasWorkspaceSize "
        "_cuda_getCurrentSolverHandle",
        "libraries around the driver",
        _PROGRAM,
        since=(2, 13),
        build=Build.CUDA,
    ),
    Names(
        _C,
        "_cuda_jiterator_compile_and_launch_kernel",
        "kernels for each element that a program compiles (`torch.cuda.jiterator`)",
        _PROGRAM,
        build=Build.CUDA,
    ),
    Names(
        "torch._prims_common",
        "ELEMENTWISE_TYPE_PROMOTION_KIND compute_elementwise_output_strides elementwise_dtypes",
        "the results of such kernels",
        _PROGRAM,
    ),
    Names(
        "torch.cuda._utils",
        "_nvrtc_compile _get_cuda_library",
        "compiling and launching kernels in CUDA C++ (`torch.cuda._compile_kernel`)",
        _PROGRAM,
        since=(2, 8),
    ),
    Names(
        "torch.cuda._utils._CudaKernel",
        "__call__",
        "forgetting the values of what a program's own kernel may have written into",
        _PROGRAM,
        since=(2, 8),
    ),
    Names(
        "torch.cuda",
        "_get_device_properties",
        "properties of the card (`torch._C._cuda_init` adds it)",
        _PROGRAM,
        build=Build.INITIALIZED,
    ),
    Names(
        "torch.cuda",
        "_exchange_device _maybe_exchange_device _CudaDeviceProperties _is_in_bad_fork "
        "_device_count_nvml _cached_device_count _initialized",
        "having CUDA count as initialized, with one device",
        "the whole virtual GPU",
    ),
    Names(
        "torch.cuda",
        "utilization memory_usage temperature power_draw clock_rate",
        "what NVML would read off the card",
        _PROGRAM,
    ),
    Names("torch.cuda", "device_memory_used", "what NVML would read", _PROGRAM, since=(2, 6)),
    Names(
        "torch.cuda",
        "Stream ExternalStream Event is_current_stream_capturing default_generators _cudart "
        "graph_pool_handle CUDAGraph graph make_graphed_callables MemPool use_mem_pool "
        "_check_bf16_tensor_supported BFloat16Tensor BoolTensor ByteTensor "
        "CharTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor ShortTensor",
        "streams, random numbers and tensors of the virtual GPU",
        _PROGRAM,
    ),
    Names("torch.cuda.amp.common", "amp_definitely_not_available", "autocast", "autocast"),
    Names(
        "torch.cuda.graphs",
        "CUDAGraph graph graph_pool_handle is_current_stream_capturing make_graphed_callables",
        "CUDA graphs of the virtual GPU",
        "programs with CUDA graphs",
    ),
    Names("torch.cuda.graphs.CUDAGraph", "__new__", "refusing graphs in `plan`", "that error"),
    Names(
        _C,
        "_CUDAGraph _graph_pool_handle _MemPool _cuda_beginAllocateToPool _cuda_releasePool",
        _POOLS,
        _WITH_POOLS,
    ),
    Names(
        _C,
        "_cuda_beginAllocateCurrentThreadToPool _cuda_endAllocateToPool",
        _POOLS,
        _WITH_POOLS,
        since=(2, 8),
    ),
    Names(
        _C,
        "_cuda_beginAllocateCurrentStreamToPool _cuda_endAllocateCurrentStreamToPool",
        _POOLS,
        _WITH_POOLS,
        before=(2, 8),
    ),
    Names(
        _C,
        "_construct_storage_from_data_pointer",
        "the tensors that graphs of compiled code leave in their pool",
        "mode='reduce-overhead'",
    ),
    Names(
        _C,
        "_construct_CUDA_Tensor_From_Storage_And_Metadata _free_And_Remove_DeleterFn "
        "_has_Standard_Deleter _tensors_data_ptrs_at_indices_equal _set_storage_access_error_msg "
        "_cuda_CUDAAllocator_AllocatorState _cuda_getCheckpointState "
        "_cuda_setCheckpointPoolState _cuda_checkPoolLiveAllocations "
        "_cuda_get_conv_benchmark_empty_cache _cudnn_set_conv_benchmark_empty_cache",
        "the tensors that graphs of compiled code leave in their pool",
        "mode='reduce-overhead'",
        build=Build.CUDA,
    ),
    Names(
        _C,
        "_set_storage_data_ptr_access_error_msg",
        "the tensors that graphs of compiled code leave in their pool",
        "mode='reduce-overhead'",
        since=(2, 6),
        build=Build.CUDA,
    ),
    Names(
        "torch.UntypedStorage",
        "_new_with_weak_ptr",
        "the tensors that graphs of compiled code leave in their pool",
        "mode='reduce-overhead'",
    ),
    Names(
        "torch.distributed.distributed_c10d",
        "_NCCL_AVAILABLE default_pg_nccl_timeout",
        "making NCCL available in a CPU build too",
        _RANKS,
    ),
    Names(
        "torch.distributed.distributed_c10d", "ProcessGroupNCCL", "NCCL", _RANKS, build=Build.CUDA
    ),
    Names("torch.distributed", "ProcessGroupNCCL", "NCCL", _RANKS, build=Build.CUDA),
    Names(
        "torch.distributed.ProcessGroupNCCL",
        "__init__",
        "refusing NCCL groups of a program's own",
        "that error",
        build=Build.CUDA,
    ),
    Names("torch._C", "_nccl_version _nccl_version_suffix", "NCCL", _RANKS, build=Build.CUDA),
    Names("torch.cuda.memory", "MemPool use_mem_pool", "memory pools", "programs with pools"),
    Names("torch.cuda.MemPool", "__new__", "refusing pools in `analyze`", "that error"),
    Names("torch.cuda.nvtx", "_nvtx", "NVTX ranges", _PROGRAM),
    Names("torch.cuda.streams", "Stream ExternalStream Event", "streams", _PROGRAM),
    Names(_C, "_is_flash_attention_available", "what a build for CUDA has", "xformers"),
    Names("torch.version", "cuda", "the CUDA version of the simulated build", _PROGRAM),
    Names("torch", "Stream Event Generator", "streams and random numbers", _PROGRAM),
)
