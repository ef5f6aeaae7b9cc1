"""Kernels in CUDA C++ that a program compiles itself."""

import pytest
import torch

import graphmem


def test_a_kernel_is_launched_and_takes_no_memory() -> None:
    """4 MiB of its argument; the folder of headers need not exist."""
    with graphmem.virtual_gpu("h100") as gpu:
        kernel = torch.cuda._compile_kernel(
            'extern "C" __global__ void add(float* x, int n) {}',
            "add",
            compute_capability="90",
            cuda_include_dirs=["/usr/local/no_cuda"],
        )
        kernel.set_shared_memory_config(100_000)
        x = torch.ones(1 << 20, device="cuda")
        kernel((4, 1, 1), (256, 1, 1), (x, x.numel(), 1.5), shared_mem=100_000)
        kernel((4, 1, 1), (256, 1, 1), (x, x.numel(), 1.5), 100_000)

        assert gpu.allocated == 4 << 20


def test_pytorch_checks_the_shared_memory_of_a_kernel() -> None:
    """A T4 has 64 KiB a block."""
    with graphmem.virtual_gpu("t4"):
        kernel = torch.cuda._compile_kernel('extern "C" __global__ void nothing() {}', "nothing")

        with pytest.raises(RuntimeError, match="exceeds device limit"):
            kernel.set_shared_memory_config(100_000)


def test_a_kernel_for_each_element_makes_its_results() -> None:
    """Broadcast, in the common type and the first operand's order; 20 recorded calls are equal.

    `python -m tools.verify_operators fixtures/cuda/operators.jsonl.gz --only jiterator`.
    """
    with graphmem.virtual_gpu("h100") as gpu:
        code = "template <typename T> void both(T x, T y, T& a, T& b) { a = x; b = y; }"
        both = torch.cuda.jiterator._create_multi_output_jit_fn(code, num_outputs=2)
        x = torch.ones(64, 128, device="cuda").t()
        y = torch.ones(64, dtype=torch.float16, device="cuda")
        before = gpu.allocated
        made = both(x, y)

        assert [(each.dtype, each.stride()) for each in made] == [(x.dtype, x.stride())] * 2
        assert gpu.allocated - before == 2 * x.nbytes
