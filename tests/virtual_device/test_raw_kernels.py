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
