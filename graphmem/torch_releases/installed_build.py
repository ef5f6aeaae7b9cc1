"""Differences between releases of PyTorch in the Python and C++ that run here.

The installed release counts, whatever `--torch` says.
"""

from __future__ import annotations

from graphmem.torch_releases.differences import Difference

NESTED_INTS_ARE_OF_PYTHON = Difference(
    (2, 6),
    "a jagged tensor's size is an object of Python",
    "torch/nested/_internal/nested_int.py, in the wheels of 2.5.1 (none) and 2.6.0",
)
CHECKPOINTS_HAVE_STAGERS = Difference(
    (2, 8),
    "`async_save` copies a checkpoint's tensors to the host by a `StateDictStager`",
    "torch/distributed/checkpoint/_state_dict_stager.py, in the wheels of 2.7.1 (none) and 2.8.0",
)
COPIES_GO_TO_THE_HOST = Difference(
    (2, 6),
    "before a kernel is timed, what it changes and would raise the peak is copied to the host; "
    "before, all of it is cloned on the card for each timed call",
    "PR #136701; `CachingAutotuner.bench`, `clone_args` and `copy_args_to_cpu_if_needed` in "
    "torch/_inductor/runtime/triton_heuristics.py of the wheels of 2.4.1, 2.5.1 and 2.6.0",
)
"""Followed for the release that `--torch` chooses, unless the installed one clones."""
KERNELS_ARE_COMPILED_BY_WORKERS = Difference(
    (2, 7),
    "a worker compiles Inductor's kernels; before, the program's process does",
    "torch/_inductor/async_compile.py, `triton`, in the wheels of 2.6.0 and 2.7.1",
)
CACHED_GRAPHS_ARE_BYTES = Difference(
    (2, 7),
    "Inductor's cache of graphs takes their bytes, so that one analysis can give another its own",
    "torch/_inductor/codecache.py, `_write_to_local_cache`; the wheels of 2.6.0 and 2.7.1",
)
SAVED_TENSOR_HOOKS_CAN_BE_READ = Difference(
    (2, 8),
    "the hooks for saved tensors can be read, and set aside one by one",
    "torch/csrc/autograd/init.cpp, `_top_saved_tensors_default_hooks`; the wheels of 2.7.1, 2.8.0",
)
FLASH_STATE_IS_ON_CARD = Difference(
    (2, 7),
    "flash attention keeps the generator's state on the card; before, a seed and an offset on the "
    "host, unless a CUDA graph is captured",
    "torch/_meta_registrations.py, `meta__scaled_dot_product_flash_attention`; 2.5.1, 2.6.0 and "
    "2.7.1 above a pretended card",
)
WORKS_OF_PYTHON_ARE_HELD = Difference(
    (2, 7),
    "C++ holds the Python object of a collective that a group in Python returns",
    "torch/csrc/distributed/c10d/PyProcessGroup.hpp, `PyWorkHolder`; runs of 2.6.0 and 2.7.1",
)
FRAMES_HAVE_STRATEGIES = Difference(
    (2, 7),
    "Dynamo can be told whether to compile a frame before it meets it",
    "torch/csrc/dynamo/eval_frame.c, `set_code_exec_strategy`; the wheels of 2.6.0 and 2.7.1",
)
BACKWARD_IS_COMPILED_UNDER_MODES = Difference(
    (2, 8),
    "compiled autograd runs under dispatch modes",
    "torch/csrc/dynamo/python_compiled_autograd.cpp; its error in libtorch_python.so of 2.7.1, and "
    "runs of 2.7.1 and 2.8.0",
)
POOLS_ARE_OF_THREADS = Difference(
    (2, 8),
    "`use_mem_pool` sends one thread's requests to a pool; before, all, and a context names it",
    "torch/cuda/memory.py, `use_mem_pool`, `MemPoolContext`, in the wheels of 2.7.1 and 2.8.0",
)
KERNELS_MAY_BE_OVERRIDDEN = Difference(
    (2, 8),
    "`Library.impl` has `allow_override`",
    "torch/library.py, in the wheels of 2.7.1 and 2.8.0",
)
MODES_MAY_BE_COMPILED_UNDER = Difference(
    (2, 9),
    "Dynamo looks through modes by `ignore_compile_internals`; before, through those of PyTorch's",
    "torch/_dynamo/convert_frame.py, in the wheels of 2.8.0 and 2.9.1",
)
MODES_TAKE_HIGHER_ORDER_OPERATORS = Difference(
    (2, 9),
    "a mode with `supports_higher_order_operators` takes those for which it has no rule",
    "torch/_ops.py, `HigherOrderOperator.dispatch`, in the wheels of 2.8.0 and 2.9.1",
)
PRECISIONS_HAVE_NAMES = Difference(
    (2, 9),
    "`torch.backends` and parts of it have `fp32_precision`, the names of precisions",
    "torch/backends/__init__.py, in the wheels of 2.8.0 and 2.9.1",
)
STORAGES_SURVIVE_COLLECTION = Difference(
    (2, 10),
    "a storage that a tensor holds keeps its weak references when the garbage collector finds its "
    "Python object in a cycle",
    "torch/csrc/Storage.cpp, `THPStorage_tryPreserve`; runs of 2.9.1 and 2.10.0",
)
STORAGES_DIE_WITH_THEIR_MEMORY = Difference(
    (2, 10),
    "a Python storage that its memory owns ends with it; before, not while C++ refers to it weakly",
    "c10/core/StorageImpl.h, `release_resources`; torch/csrc/Storage.cpp; runs of 2.9.1 and 2.10.0",
)
NO_OP_CUDA_GUARD = Difference(
    (2, 10),
    "PyTorch has a CUDA device guard for machines without a card",
    "c10/core/impl/DeviceGuardImplInterface.h, `ensureCUDADeviceGuardSet`",
)
COPIES_TO_DEVICES_KEPT_OFF = Difference(
    (2, 10),
    "copying a real tensor to a device gives a fake tensor, where no device may be touched",
    "torch/_subclasses/fake_tensor.py, `_dispatch_impl`, `avoiding_device_init`",
)
NORMS_GRADIENTS_KEEP_THEIR_TYPE = Difference(
    (2, 10),
    "fake gradients of a layer norm's weight and bias have its type; before, the input's",
    "torch/_decomp/decompositions.py, `native_layer_norm_backward`; aten/src/ATen/native/"
    "layer_norm.cpp, `layer_norm_backward_cpu`, run on the CPU with 2.9.1 and 2.10.0",
)
PACKED_TENSORS_CAN_BE_READ = Difference(
    (2, 10),
    "a node's `_raw_saved_FIELD` has `data`, the pack hook's result",
    "torch/csrc/autograd/init.cpp, class `SavedTensor`",
)
HOST_STATISTICS_ARE_RENAMED = Difference(
    (2, 10),
    "`host_memory_stats` calls blocks `allocations` and those in use `active_requests`; before, "
    "`segment` and `allocation`",
    "torch/csrc/cuda/Module.cpp, `hostMemoryStats`; the names in libtorch_python.so of each wheel",
)
NOTHING_IS_CACHED_IN_INFERENCE = Difference(
    (2, 11),
    "in inference mode autocast casts a weight each time; before, it cached the cast",
    "PR #165068; aten/src/ATen/autocast_mode.cpp, `cached_cast`; runs of 2.10.0 and 2.13.0; "
    "recording cs336med_infer_ctx512 of 2.11",
)
TRUNCATED_NORMALS_ARE_REDRAWN = Difference(
    (2, 12),
    "`trunc_normal_` draws again what is out of bounds; before, it maps uniform numbers, in place",
    "torch/nn/init.py, `_no_grad_trunc_normal_`",
)
OOM_REJECTIONS_ARE_COUNTED = Difference(
    (2, 12),
    "`memory_stats` has `num_oom_rejections`",
    "torch/csrc/cuda/Module.cpp, `memoryStats`; the names in libtorch_python.so of each wheel",
)
FORWARD_NODES_ARE_TAGGED = Difference(
    (2, 10),
    "the joint graph's nodes of the forward pass are tagged; before, only the others were",
    "torch/_functorch/_aot_autograd/graph_capture_wrappers.py, `partitioner_tag`",
)
CONVOLUTIONS_ASK_NO_DRIVER = Difference(
    (2, 10),
    "choosing a convolution's backend does not need a driver, with a CUDA build and fake tensors",
    "torch/_subclasses/fake_impls.py, `conv`, which calls `_select_conv_backend`; runs of 2.9.1 "
    "and 2.10.0 without a driver",
)
PRIVATE_POOLS_ARE_COUNTED = Difference(
    (2, 13),
    "`memory_stats` has `reserved_bytes_by_private_pools`",
    "torch/cuda/memory.py, `memory_stats`; the names in libtorch_python.so of each wheel",
)
INTRUSIVE_NODES = Difference(
    (2, 13),
    "an autograd node counts its own references, and is no longer held by `std::shared_ptr`",
    "torch/csrc/autograd/function.h (to 2.12) and node.h (from 2.13), `struct Node`",
)
INNER_NODES_ARE_DESTROYED = Difference(
    (2, 13),
    "a node that only `CopySlices` holds frees its saved tensors last to first, as its members are "
    "destroyed; before, `deleteNode` had it release them in the order of saving",
    "torch/csrc/autograd/function.cpp, `deleteNode`; functions/tensor.h, `CopySlices::fn`",
)
ARGUMENTS_HOLD_GRADIENTS = Difference(
    (2, 13),
    "a Python function is the only holder of the gradients that it is called with",
    "torch/csrc/autograd/python_function.cpp, `PyNode::apply`; real runs on the CPU",
)
ONE_HOT_LOOKS_ONCE = Difference(
    (2, 13),
    "`one_hot` on the CPU reads the smallest and the largest index at once",
    "aten/src/ATen/native/Onehot.cpp; real runs on the CPU",
)
UNUSED_INPUTS_ARE_COUNTED = Difference(
    (2, 13),
    "the error for an input that the graph does not use names the input",
    "torch/csrc/autograd/python_engine.cpp, `THPEngine_run_backward`",
)
NAN_CHECKS_ARE_LEFT_OUT = Difference(
    (2, 11),
    "the error for a saved tensor that was written advises `check_nan=False`",
    "torch/csrc/autograd/saved_variable.cpp; the text in libtorch_cpu.so of each wheel",
)
LDEXP_IS_A_KERNEL = Difference(
    (2, 11),
    "`ldexp` of floating numbers with whole exponents is one kernel; else `pow` and `mul`",
    "aten/src/ATen/native/BinaryOps.cpp; the kernel's name in libtorch_cuda.so of each wheel",
)
VERSION_ERRORS_NAME_OPERATIONS = Difference(
    (2, 13),
    "the error for a saved tensor that was written names `Tanh`; before, `TanhBackward0`",
    "torch/csrc/autograd/saved_variable.cpp, `SavedVariable::unpack`; real runs on the CPU",
)
TIES_ARE_SPLIT = Difference(
    (2, 14),
    "the gradient of a tie is split, in `clamp` with tensor bounds, `fmax` and `fmin`: formulas "
    "that fill the result of `where`, in place unless a mode observes",
    "tools/autograd/derivatives.yaml, `masked_fill_inplace_if_safe`",
)
ONLY_LAST_STAGES_KEEP_OUTPUTS = Difference(
    (2, 8),
    "only a pipeline's last stage keeps the outputs of all microbatches until the next step; "
    "before, each stage does",
    "PR #153383; torch/distributed/pipelining/stage.py, `forward_one_chunk`, in the wheels of "
    "2.6.0 and 2.8.0",
)
STAGES_TRY_A_BACKWARD_PASS = Difference(
    (2, 12),
    "the stages of a pipeline learn what they exchange from a forward and a backward pass before "
    "the first step; before, from a forward pass without gradients",
    "PR #177728; torch/distributed/pipelining/stage.py, `_backward_metadata_inference`, in the "
    "wheels of 2.9.1, which lacks it, and 2.12.1",
)
CHECKPOINTS_SAVE_INPUTS_ALONE = Difference(
    (2, 12),
    "`checkpoint(use_reentrant=False)` passes its inputs alone to hooks for saved tensors; before, "
    "an empty tensor first, which hooks that count tensors count as well",
    "PR #174327; torch/utils/checkpoint.py, `_NoopSaveInputs` in the wheel of 2.11.0, "
    "`_CheckpointFrame.save_inputs` in that of 2.12.0",
)
STAGES_RELEASE_WHAT_THEY_SENT = Difference(
    (2, 15),
    "a pipeline's stage lets go of outputs once they are sent, and keeps their gradients' edges",
    "torch/distributed/pipelining/stage.py, `release_fwd_send_outputs`",
)
FUNCTION_APPLY_IS_BUILT_IN = Difference(
    (2, 14),
    "`Function.apply` is a C function: its caller holds the arguments until it returns, and frees "
    "them first to last; a Python method takes them over",
    "torch/autograd/function.py, `Function.apply`",
)

ABOVE_THE_KERNELS = (
    FLASH_STATE_IS_ON_CARD,
    ONLY_LAST_STAGES_KEEP_OUTPUTS,
    FORWARD_NODES_ARE_TAGGED,
    NOTHING_IS_CACHED_IN_INFERENCE,
    TRUNCATED_NORMALS_ARE_REDRAWN,
    CHECKPOINTS_SAVE_INPUTS_ALONE,
    STAGES_TRY_A_BACKWARD_PASS,
    INNER_NODES_ARE_DESTROYED,
    ARGUMENTS_HOLD_GRADIENTS,
    TIES_ARE_SPLIT,
    FUNCTION_APPLY_IS_BUILT_IN,
    STAGES_RELEASE_WHAT_THEY_SENT,
)
"""What alters the memory of a step, and is the installed release's whatever `--torch` says."""
