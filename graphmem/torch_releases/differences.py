"""What one release of PyTorch does otherwise than another: a row each, with release and source.

`Difference.holds_in(release)` is asked wherever behaviour depends on a release. Some rows are of
the card's kernels and libraries: there `--torch` chooses the release that is asked about. The
others are of the Python and C++ that run here, where only the installed release counts.
"""

from __future__ import annotations

from dataclasses import dataclass

Release = tuple[int, int]

OLDEST: Release = (2, 9)
"""The first release that graphmem runs on."""
NEWEST_TRIED: Release = (2, 15)
"""The last one that its tests have run on (docs/versions.md)."""


@dataclass(frozen=True)
class Difference:
    """Something that holds from a release on.

    Attributes:
        since: the first release of which it is true.
        what: holds from then on.
        source: where in PyTorch it is to be read, or what shows it.
    """

    since: Release
    what: str
    source: str

    def holds_in(self, release: Release) -> bool:
        """Whether it is true of a release."""
        return release >= self.since


# Of the card: `--torch` decides ------------------------------------------------------------------

LT_WORKSPACE_MAY_BE_SHARED = Difference(
    (2, 8),
    "`TORCH_CUBLASLT_UNIFIED_WORKSPACE` says whether cublasLt shares cuBLAS's workspace",
    "PR #151163; docs/sources.md, cublasLt workspaces",
)
PARTIAL_SUMS_OF_NORMS = Difference(
    (2, 8),
    "the gradients of a norm's weight and bias are summed in two steps over many short rows",
    "aten/src/ATen/native/cuda/layer_norm_kernel.cu; docs/kernel_memory.md",
)
LT_WORKSPACE_IS_KEPT = Difference(
    (2, 9),
    "cublasLt keeps a workspace for each handle and stream, and frees none after a call",
    "PR #156495; docs/sources.md, cublasLt workspaces",
)
ALLOC_CONF_IS_READ = Difference(
    (2, 10),
    "`PYTORCH_ALLOC_CONF` configures the allocator where `PYTORCH_CUDA_ALLOC_CONF` is not set",
    "issue #183387 of PyTorch, PR #41158 of vllm; libc10.so of 2.13.0 takes the latter of both",
)
LT_LOOKS_AT_BOTH_OPERANDS = Difference(
    (2, 10),
    "cublasLt adds a bias where both sizes of both operands exceed 1; before, of the second",
    "aten/src/ATen/native/cuda/Blas.cpp, `addmm_out_cuda_impl`",
)
EMBEDDINGS_ADD_ATOMICALLY = Difference(
    (2, 11),
    "the gradient of a small embedding is added atomically, without sorting",
    "aten/src/ATen/native/cuda/Embedding.cu",
)
CUB_IS_OF_CUDA_13 = Difference(
    (2, 11),
    "the wheel on PyPI is built with CUDA 13.0, and so with CUB of CCCL 3.0",
    "`torch.version.cuda` of the wheels; cub/version.cuh of CUDA 13.0",
)
LT_WORKSPACE_IS_SHARED = Difference(
    (2, 12),
    "cublasLt has no workspace besides cuBLAS's",
    "PRs #168175 and #175879; docs/sources.md, cublasLt workspaces",
)
BLACKWELL_HAS_THE_LARGE_WORKSPACE = Difference(
    (2, 12),
    "cuBLAS's workspace on cards of capability 10 and 12 is as large as on Hopper",
    "PR #175344; docs/sources.md, cuBLAS workspaces",
)
AUTOCAST_CASTS_RMS_NORM = Difference(
    (2, 12),
    "autocast casts `rms_norm` to float32",
    "aten/src/ATen/autocast_mode.h, `AT_FORALL_FP32`, read in the wheels of 2.9.1 to 2.15.0",
)

SEED_OF_EACH_CAPTURE = Difference(
    (2, 12),
    "each capture of a CUDA graph has a seed and an offset on the card, allocated for the default "
    "stream; before, all captures shared a pair, allocated for the stream of the first",
    "aten/src/ATen/cuda/CUDAGeneratorImpl.cpp and .h, `CUDAGeneratorCaptureState`; to 2.11 "
    "`CUDAGeneratorState::register_graph`, which fixtures/cuda/memory/graphs_whole shows",
)
SEED_WHEN_NEEDED = Difference(
    (2, 14),
    "they are allocated when the first captured kernel asks for random numbers",
    "aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, `get_capture_state(…, create_if_not_found)`",
)

# Of the installed build --------------------------------------------------------------------------

NO_OP_CUDA_GUARD = Difference(
    (2, 10),
    "PyTorch has a CUDA device guard for machines without a card",
    "c10/core/impl/DeviceGuardImplInterface.h, `ensureCUDADeviceGuardSet`",
)
COPIES_TO_DEVICES_KEPT_OFF = Difference(
    (2, 10),
    "a copy of a real tensor to a device is fake, where no device may be touched",
    "torch/_subclasses/fake_tensor.py, `_dispatch_impl`, `avoiding_device_init`",
)
PACKED_TENSORS_CAN_BE_READ = Difference(
    (2, 10),
    "a node's `_raw_saved_FIELD` has `data`, what the pack hook made",
    "torch/csrc/autograd/init.cpp, class `SavedTensor`",
)
OOM_REJECTIONS_ARE_COUNTED = Difference(
    (2, 12),
    "`memory_stats` has `num_oom_rejections`",
    "torch/csrc/cuda/Module.cpp, `memoryStats`; the names in libtorch_python.so of each wheel",
)
PRIVATE_POOLS_ARE_COUNTED = Difference(
    (2, 13),
    "`memory_stats` has `reserved_bytes_by_private_pools`",
    "torch/cuda/memory.py, `memory_stats`; the names in libtorch_python.so of each wheel",
)
INTRUSIVE_NODES = Difference(
    (2, 13),
    "an autograd node counts its references itself, and is no longer held by `std::shared_ptr`",
    "torch/csrc/autograd/function.h (to 2.12) and node.h (from 2.13), `struct Node`",
)
INNER_NODES_ARE_DESTROYED = Difference(
    (2, 13),
    "what a node saved that only `CopySlices` holds goes last to first, as its members are "
    "destroyed; before, `deleteNode` had it release them in the order of saving",
    "torch/csrc/autograd/function.cpp, `deleteNode`; functions/tensor.h, `CopySlices::fn`",
)
ARGUMENTS_HOLD_GRADIENTS = Difference(
    (2, 13),
    "a function in Python is the only one to hold the gradients that it is called with",
    "torch/csrc/autograd/python_function.cpp, `PyNode::apply`; real runs on the CPU",
)
ONE_HOT_LOOKS_ONCE = Difference(
    (2, 13),
    "`one_hot` on the CPU asks for the least and the greatest index at once",
    "aten/src/ATen/native/Onehot.cpp; real runs on the CPU",
)
UNUSED_INPUTS_ARE_COUNTED = Difference(
    (2, 13),
    "the error of an input that the graph does not use says which it is",
    "torch/csrc/autograd/python_engine.cpp, `THPEngine_run_backward`",
)
TIES_ARE_SPLIT = Difference(
    (2, 14),
    "tensors that bound `clamp`, and `fmax` and `fmin`, share the gradient of a tie: formulas that "
    "fill what `where` made, in place where nobody observes",
    "tools/autograd/derivatives.yaml, `masked_fill_inplace_if_safe`",
)
FUNCTION_APPLY_IS_BUILT_IN = Difference(
    (2, 14),
    "`Function.apply` is C's: its caller holds the arguments until it returns, and lets go of them "
    "first to last; a method of Python's takes them over",
    "torch/autograd/function.py, `Function.apply`",
)
