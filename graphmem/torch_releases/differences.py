"""Differences between releases of PyTorch, one row each, with the release and the source.

Code whose behaviour depends on a release calls `Difference.holds_in(release)`. These rows concern
the card's kernels and libraries, whose release `--torch` chooses; `installed_build.py` has those
for which only the installed release counts.
"""

from __future__ import annotations

from dataclasses import dataclass

Release = tuple[int, int]

OLDEST: Release = (2, 5)
"""The first release that graphmem runs on."""
NEWEST_TRIED: Release = (2, 15)
"""The last one that its tests have run on (docs/versions.md)."""


@dataclass(frozen=True)
class Difference:
    """A fact that holds from some release on.

    Attributes:
        since: the first release in which it is true.
        what: the fact.
        source: where it can be read in PyTorch, or what shows it.
    """

    since: Release
    what: str
    source: str

    def holds_in(self, release: Release) -> bool:
        """Whether the fact is true in a release."""
        return release >= self.since


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
    "`PYTORCH_ALLOC_CONF` configures the allocator if `PYTORCH_CUDA_ALLOC_CONF` is not set",
    "issue #183387 of PyTorch, PR #41158 of vllm; if both are set, libc10.so of 2.13.0 takes the "
    "latter",
)
NESTED_POOLS_ARE_A_STACK = Difference(
    (2, 10),
    "of several private pools that take a request, the one begun last gets it; before, the first",
    "c10/cuda/CUDACachingAllocator.cpp, `get_pool`, `captures_underway.rbegin()`; issue #161193; "
    "libc10_cuda.so has the message of that change's assertion from 2.10.0 on",
)
REST_IS_ABOVE_THE_LAST_CLASS = Difference(
    (2, 10),
    "the `>` of `roundup_power2_divisions` leaves the last class that was named as it is",
    "c10/core/AllocatorConfig.cpp, `last_index + 1`; before, c10/cuda/CUDAAllocatorConfig.cpp, "
    "`last_index`; libc10_cuda.so of 2.9.1 and 2.10.0, run on a pretended driver",
)
LT_LOOKS_AT_BOTH_OPERANDS = Difference(
    (2, 10),
    "cublasLt adds a bias if both sizes of both operands exceed 1; before, of the second only",
    "aten/src/ATen/native/cuda/Blas.cpp, `addmm_out_cuda_impl`",
)
RESTORED_POOLS_MAY_HAVE_GROWN = Difference(
    (2, 11),
    "the state of a private pool of expandable segments can be set again after it has grown; "
    "before, that is an error",
    "PR #174444; c10/cuda/CUDACachingAllocator.cpp, `setSegmentStateToCheckpoint`, in "
    "libc10_cuda.so of 2.9.1 to 2.15.0, run on a pretended driver",
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
    "cublasLt has no workspace of its own, but shares cuBLAS's",
    "PRs #168175 and #175879; docs/sources.md, cublasLt workspaces",
)
LT_HANDLE_TAKES_NOTHING = Difference(
    (2, 12),
    "asking for cublasLt's handle does not allocate the workspace of cuBLAS's, which it is",
    "aten/src/ATen/cuda/CublasHandlePool.cpp, `getCurrentCUDABlasHandle(setup=false)`; "
    "`getCurrentCUDABlasLtHandle` in libtorch_cuda.so of 2.9.1 to 2.12.1, 2.14.1 and 2.15.0",
)
OLDEST_BLOCK_IS_TAKEN = Difference(
    (2, 12),
    "of free blocks of one size the allocator takes the one that it made first; before, the one at "
    "the lowest address",
    "PR #178362; c10/cuda/CUDACachingAllocator.cpp, `BlockComparatorRegistrationCounter`, in "
    "libc10_cuda.so of 2.12.1, which was also run on a pretended driver",
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

NORMS_OF_ORDER_0_ARE_FAST = Difference(
    (2, 12),
    "`_foreach_norm` of order 0 reduces all tensors at once; before, one by one",
    "aten/src/ATen/native/cuda/ForeachReduceOp.cu, `foreach_tensor_norm_cuda`; the orders that it "
    "compares with in libtorch_cuda.so of 2.11.0 and 2.12.1",
)
RANGES_ARE_FOUND_AT_ONCE = Difference(
    (2, 12),
    "`histc` and `multinomial` find a range by one `aminmax`; before, by `min` and `max`",
    "`_histc_cuda_template` in libtorch_cuda.so of 2.11.0 and 2.12.1; PR #178018 (`multinomial`), "
    "older than #178362 of 2.12: 2.11.0 and 2.13.0 themselves, above a pretended card",
)
INDICES_ARE_LOOKED_AT_ONCE = Difference(
    (2, 13),
    "`index_put` with accumulation and `bincount` find the smallest and the largest index by one "
    "`aminmax`; before, by `min` and `max`",
    "aten/src/ATen/native/cuda/Indexing.cu, `wrapIndexOnce`; SummaryOps.cu, "
    "`_bincount_cuda_template`; both in libtorch_cuda.so of 2.12.1 and 2.13.0",
)
EMBEDDINGS_SORT_BY_NEEDED_BITS = Difference(
    (2, 13),
    "the gradient of an embedding sorts indices by the bits that its table's size needs",
    "PR #183578 (aten/src/ATen/native/cuda/Embedding.cu); 2.11.0 and 2.13.0 above a pretended card",
)
OLDEST_SEGMENT_IS_TAKEN = Difference(
    (2, 13),
    "of free blocks of one size the allocator takes the one in the segment opened first, and in it "
    "the one at the lowest address",
    "PR #183591; c10/cuda/CUDACachingAllocator.cpp, `BlockComparatorSizeCounterAddress`, in "
    "libc10_cuda.so of 2.13.0, 2.14.1 and 2.15.0, which were also run on a pretended driver",
)
ONLY_CAPTURES_HOLD_MEMORY_BACK = Difference(
    (2, 13),
    "while a `MemPool` is in use, cached memory of the other pools can be returned, and blocks "
    "that other streams used can be taken back; before, as during the capture of a graph, neither",
    "PRs #181830 and #175374; c10/cuda/CUDACachingAllocator.cpp, `is_capture_context`; its callers "
    "in libc10_cuda.so of 2.13.0, which was also run on a pretended driver",
)
LIMITS_OF_HOST_ARE_IN_SNAPSHOTS = Difference(
    (2, 13),
    "the settings in a snapshot have `max_round_threshold` and `max_cached_size`",
    "torch/csrc/cuda/Module.cpp, `THCPModule_memorySnapshot`, in libtorch_python.so of 2.13.0",
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
    "seed and offset are allocated when the first captured kernel draws random numbers",
    "aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, `get_capture_state(…, create_if_not_found)`",
)
GROUP_NORM_KEEPS_STATISTICS_TWICE = Difference(
    (2, 14),
    "group norm in half precision also computes its statistics in float32, in temporary tensors",
    "aten/src/ATen/native/cuda/group_norm_kernel.cu, `GroupNormKernelImplInternal`; the parameters "
    "of `RowwiseMomentsCUDAKernel` in libtorch_cuda.so of 2.12.1 and 2.14.1",
)
EFFICIENT_ATTENTION_SHARES_KEYS = Difference(
    (2, 14),
    "efficient attention takes fewer heads of keys than of queries; its backward pass allocates "
    "gradients of keys and values for each head of queries and sums them",
    "PR #191085; aten/src/ATen/native/transformers/cuda/attention_backward.cu, "
    "`_efficient_attention_backward`; sdp_utils_cpp.h, `check_batch_size_and_num_heads_dense`; "
    "both in libtorch_cuda.so of 2.13.0, 2.14.1 and 2.15.0",
)
ONE_POSITION_HAS_NO_SUMS = Difference(
    (2, 14),
    "the backward pass of group norm over one position allocates no sums of channels; before, two "
    "that it did not use",
    "aten/src/ATen/native/cuda/group_norm_kernel.cu, `GroupNormBackwardKernelImplInternal`, in "
    "libtorch_cuda.so of 2.13.0 and 2.14.1",
)
WORKSPACES_ARE_RETURNED = Difference(
    (2, 15),
    "cuBLAS and cublasLt take a workspace for each call and return it, unless "
    "`TORCH_CUBLAS_WORKSPACE_CACHE=1`",
    "PR #194311; aten/src/ATen/cuda/CublasHandlePool.cpp, `getCurrentCUDABlasHandleWithWorkspace`",
)
GROUP_NORM_TAKES_CHANNELS_LAST = Difference(
    (2, 15),
    "group norm takes and returns channels-last tensors; until 2.14 it copied them, and until 2.13 "
    "autograd saved that copy",
    "PRs #186414 (2.14) and #191945 (2.15); the kernels in libtorch_cuda.so of 2.14.1 and 2.15.0",
)

PARTIAL_NORMS_ARE_PACKED = Difference(
    (2, 15),
    "`_foreach_norm` allocates a partial norm for each chunk, and a table of where those of each "
    "tensor begin; before, as many for every tensor as the largest has",
    "PR #190549; `compute_foreach_reduction_chunks` in libtorch_cuda.so of 2.15.0",
)
MULTINOMIAL_KEEPS_NO_COPY = Difference(
    (2, 15),
    "`multinomial` with replacement copies its input once; before, twice",
    "PR #194391; aten/src/ATen/native/cuda/MultinomialKernel.cu, "
    "`multinomial_with_replacement_kernel_impl`, in libtorch_cuda.so of 2.14.1 and 2.15.0",
)
THE_LEAST_REPETITION_IS_LOOKED_AT = Difference(
    (2, 15),
    "`repeat_interleave` without `output_size` looks for negative repetitions by their minimum; "
    "before, by comparing each",
    "PR #197886; aten/src/ATen/native/Repeat.h, `repeat_interleave_common`, in libtorch_cuda.so of "
    "2.14.1 and 2.15.0",
)
