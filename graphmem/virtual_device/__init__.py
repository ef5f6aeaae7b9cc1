"""The virtual GPU: PyTorch sees one CUDA device of a named model where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from graphmem import asked_types
from graphmem.caller.tensors import Tensors
from graphmem.gpus import Gpu
from graphmem.virtual_device import assigned_types, cuda_api, parameters, subclasses
from graphmem.virtual_device.attention import attention_of
from graphmem.virtual_device.autocast_policies import autocast_of
from graphmem.virtual_device.convolution_layout import convolution_backend, convolution_layout
from graphmem.virtual_device.copies import copies
from graphmem.virtual_device.device_guard import ensure_cuda_device_guard
from graphmem.virtual_device.device_memory import DeviceMemory
from graphmem.virtual_device.device_numbers import device_numbers
from graphmem.virtual_device.fake_mode import VirtualFakeMode
from graphmem.virtual_device.fused_kernels import fused_kernels
from graphmem.virtual_device.libraries import libraries
from graphmem.virtual_device.one_hot import scattered_one_hot
from graphmem.virtual_device.operators import card_composites
from graphmem.virtual_device.patching import replaced
from graphmem.virtual_device.pinned_memory import PinnedMemory
from graphmem.virtual_device.recurrent import flatten_parameters, recurrent_layers

_CONVOLUTION_LAYOUT = "_conv_determine_backend_memory_format"


@contextmanager
def virtual_cuda(
    gpu: Gpu,
    torch_release: tuple[int, int],
    fake_mode: VirtualFakeMode,
    *,
    memory: DeviceMemory | None = None,
    is_live: bool = True,
    before: Tensors | None = None,
    pinned: PinnedMemory | None = None,
) -> Iterator[None]:
    """Make torch treat fake CUDA tensors as tensors on `gpu`, and undo it on exit.

    Args:
        gpu: the card.
        torch_release: the version whose choice of kernels applies.
        fake_mode: the mode of the fake tensors.
        memory: the device's memory. Without it CUDA graphs and pools are errors.
        is_live: whether that memory answers queries while the program runs, and CPU tensors are
            real. If not, parameters are fake on every device and memory queries are not answered.
        before: tensors that already existed; notified of what happens to them.
        pinned: counts page-locked memory.
    """
    ensure_cuda_device_guard()
    of_build = getattr(torch._C, _CONVOLUTION_LAYOUT)
    is_live = is_live and memory is not None
    of_parameters = [] if is_live else parameters.fake_from_birth(fake_mode)
    with (
        replaced(
            [
                *cuda_api.replacements(
                    gpu, memory, torch_release, pinned, known=fake_mode.known, is_live=is_live
                ),
                *parameters.moved_by_data(before or Tensors(())),
                *of_parameters,
                *subclasses.replacements(),
                *asked_types.replacements(),
                *assigned_types.replacements(),
                *copies(is_live=is_live),
                (torch.nn.RNNBase, "flatten_parameters", flatten_parameters),
                (torch._C, _CONVOLUTION_LAYOUT, convolution_layout(of_build)),
                *convolution_backend(),
            ]
        ),
        attention_of(gpu, torch_release),
        fused_kernels(torch_release),
        autocast_of(torch_release),
        recurrent_layers(gpu.multiprocessors),
        card_composites(),
        scattered_one_hot(),
        data_lifted_on_cpu(),
        device_numbers(),
        libraries(gpu, torch_release),
    ):
        yield


@contextmanager
def data_lifted_on_cpu(*, is_on: bool = True) -> Iterator[None]:
    """Make `torch.tensor(data, device="cuda")` create a CPU tensor and copy it by dispatch.

    FakeTensorMode does the same where no device may be touched (torch/csrc/utils/tensor_new.cpp).
    Each thread has a switch of its own (`kOnlyLiftCPUTensors`, which is `thread_local`).
    """
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(is_on)
    try:
        yield
    finally:
        torch._C._set_only_lift_cpu_tensors(before)


@contextmanager
def fake_cpu(fake_mode: FakeTensorMode, before: Tensors | None = None) -> Iterator[None]:
    """Trace a step on fake CPU tensors, so that tests can compare it with a real CPU run."""
    moved = parameters.moved_by_data(before or Tensors(()))
    of_parameters = parameters.fake_from_birth(fake_mode)
    replacements = [
        *moved,
        *of_parameters,
        *subclasses.replacements(),
        *copies(),
        *cuda_api.foreach_of_fake_tensors(),
    ]
    with replaced(replacements), scattered_one_hot():
        yield
