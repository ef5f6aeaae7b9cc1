"""NVML's library as pynvml loads and calls it: `ctypes.CDLL`, `byref`, return codes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from ctypes import byref, c_char_p, c_uint, c_ulonglong, create_string_buffer
from typing import Any

import pytest
import torch

import graphmem
from tests.support.sizes import MIB

NOT_SUPPORTED, INSUFFICIENT_SIZE = 3, 7


class Memory(ctypes.Structure):
    """`c_nvmlMemory_t` of nvidia-ml-py 13."""

    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class Process(ctypes.Structure):
    """`c_nvmlProcessInfo_v3_t`."""

    _fields_ = (
        ("pid", c_uint),
        ("usedGpuMemory", c_ulonglong),
        ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    )


@pytest.fixture
def library() -> Iterator[Any]:
    with graphmem.virtual_gpu("a100-80gb"):
        loaded = ctypes.CDLL("libnvidia-ml.so.1")
        assert loaded.nvmlInitWithFlags(0) == 0
        yield loaded


def first_card(library: Any) -> Any:
    handle = ctypes.POINTER(Memory)()
    assert library.nvmlDeviceGetHandleByIndex_v2(c_uint(0), byref(handle)) == 0
    return handle


def test_the_memory_in_use_is_that_of_torch(library: Any) -> None:
    handle, memory = first_card(library), Memory()
    kept = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")

    assert library.nvmlDeviceGetMemoryInfo(handle, byref(memory)) == 0
    assert (memory.free, memory.total) == torch.cuda.mem_get_info()
    assert memory.used == memory.total - memory.free > kept.nbytes


def test_the_program_is_the_only_process(library: Any) -> None:
    ask, count = library.nvmlDeviceGetComputeRunningProcesses_v3, c_uint(0)
    assert ask(first_card(library), byref(count), None) == INSUFFICIENT_SIZE
    found = (Process * 5)()
    count.value = 5

    assert ask(first_card(library), byref(count), found) == 0
    assert (count.value, found[0].pid) == (1, os.getpid())


def test_names_and_what_it_does_not_know(library: Any) -> None:
    handle, name, count = first_card(library), create_string_buffer(96), c_uint()
    assert library.nvmlDeviceGetName(handle, name, c_uint(96)) == 0
    assert name.value.decode() == torch.cuda.get_device_name()
    assert library.nvmlDeviceGetCount_v2(byref(count)) == 0
    assert count.value == 1
    assert library.nvmlDeviceGetFanSpeed(handle, byref(count)) == NOT_SUPPORTED
    told = library.nvmlErrorString
    told.restype = c_char_p
    assert told(NOT_SUPPORTED) == b"Not Supported"
    with pytest.raises(OSError, match="no such library"):
        ctypes.CDLL("no such library")
