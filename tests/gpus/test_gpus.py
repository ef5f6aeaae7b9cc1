from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
import torch

from graphmem.errors import InputError
from graphmem.gpus import DEFAULT_GPU, GPUS, Gpu, find_gpu, label_of
from graphmem.gpus.context import READINGS, Reading, context_of
from graphmem.gpus.messages import (
    MissingGpuFieldError,
    UnknownCapabilityError,
    UnknownGpuFieldError,
    UnknownPlatformError,
    WrongGpuMemoryError,
    WrongMultiprocessorsError,
)
from graphmem.gpus.nccl import nccl_of
from graphmem.torch_releases.release import NotReleaseError
from tests.conftest import Outcome
from tests.support.kernel_calls import Calls, aten, tensor
from tests.support.places import ROOT
from tests.support.sizes import GIB, MIB

SMALL_WORKSPACE = 8_519_680
LARGE_WORKSPACE = 33_554_432


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_a_gpu_is_found_by_its_name_title_and_aliases(gpu: Gpu) -> None:
    for label in (gpu.name, gpu.title, *gpu.aliases):
        assert find_gpu(label) is gpu


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("A100-80GB", "a100-80gb"),
        ("a100 80gb", "a100-80gb"),
        ("A100_40GB", "a100-40gb"),
        ("RTX4090", "rtx-4090"),
        ("GeForce RTX 3090", "rtx-3090"),
        ("nvidia h200", "h200"),
        ("V100", "v100-16gb"),
        ("a100", "a100-80gb"),
        ("H100", "h100-80gb"),
    ],
)
def test_case_spaces_and_hyphens_are_ignored(written: str, name: str) -> None:
    assert find_gpu(written).name == name


@pytest.mark.parametrize(
    ("written", "nearest"),
    [("a100-88gb", "a100-80gb"), ("h10", "h100-80gb"), ("rtx 4900", "rtx-4090"), ("t5", "t4")],
)
def test_an_unknown_gpu_suggests_the_nearest_names(written: str, nearest: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"unknown GPU {written!r}")) as refusal:
        find_gpu(written)

    assert nearest in str(refusal.value.hint)


@pytest.mark.parametrize("written", ["abacus", "", "nvidia"])
def test_a_gpu_like_no_other_gets_the_list(written: str) -> None:
    with pytest.raises(InputError) as refusal:
        find_gpu(written)

    assert (
        refusal.value.hint
        == "`graphmem gpus` lists the known ones, and explains how to describe another"
    )


def test_no_two_gpus_answer_to_one_name() -> None:
    labels = [
        re.sub("[^a-z0-9]", "", label.lower()) for gpu in GPUS for label in {gpu.name, *gpu.aliases}
    ]

    assert len(set(labels)) == len(labels)


def test_the_default_gpu_exists() -> None:
    assert find_gpu(DEFAULT_GPU).name == DEFAULT_GPU


@pytest.mark.parametrize("gpu", [gpu for gpu in GPUS if "gb" in gpu.name], ids=lambda gpu: gpu.name)
def test_total_memory_is_a_little_less_than_the_name_says(gpu: Gpu) -> None:
    """ECC and the driver take up to 2 % of the nominal size (39.4 of 40 GiB, 79.2 of 80)."""
    nominal_bytes = int(gpu.name.split("-")[1].removesuffix("gb")) * GIB

    assert 0.98 * nominal_bytes < gpu.memory_bytes < nominal_bytes


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_row_is_complete(gpu: Gpu) -> None:
    assert gpu.max_threads_per_multiprocessor in {1024, 1536, 2048}
    assert 0 < gpu.context_bytes < GIB


@pytest.mark.parametrize(
    ("name", "multiprocessors", "threads"),
    [
        # docs/sources.md, "Multiprocessors"
        ("v100-32gb", 80, 2048),
        ("t4", 40, 1024),
        ("a100-40gb", 108, 2048),
        ("a10", 72, 1536),
        ("l4", 58, 1536),
        ("rtx-4090", 128, 1536),
        ("h100", 132, 2048),
        ("h200", 132, 2048),
        ("b200", 148, 2048),
    ],
)
def test_multiprocessors_and_their_threads_are_those_of_the_data_sheets(
    name: str, multiprocessors: int, threads: int
) -> None:
    gpu = find_gpu(name)

    assert gpu.multiprocessors == multiprocessors
    assert gpu.max_threads_per_multiprocessor == threads


@pytest.mark.parametrize(
    ("name", "torch_version", "workspace_bytes"),
    [
        # docs/sources.md, "cuBLAS workspaces"
        ("t4", "2.13.0", SMALL_WORKSPACE),
        ("a100", "2.13.0+cpu", SMALL_WORKSPACE),
        ("rtx-4090", "2.3", SMALL_WORKSPACE),
        ("h100", "2.3.1", LARGE_WORKSPACE),
        ("h200", "2.13", LARGE_WORKSPACE),
        ("b200", "2.11.0", SMALL_WORKSPACE),
        ("b200", "2.12.1", LARGE_WORKSPACE),
        ("rtx-5090", "2.9.1+cu130", SMALL_WORKSPACE),
        ("rtx-5090", "2.13.0+cu130", LARGE_WORKSPACE),
        ("rtx-5090", "3.0", LARGE_WORKSPACE),
    ],
)
def test_the_cublas_workspace_depends_on_capability_and_torch(
    name: str, torch_version: str, workspace_bytes: int
) -> None:
    assert find_gpu(name).cublas_workspace_bytes(torch_version) == workspace_bytes


def test_a_card_has_what_its_newest_driver_leaves_within_the_range_of_others() -> None:
    """Public logs: a T4 of 2026 with driver 580.82.07, and A100s with CUDA 13.0 and 12.2."""
    t4, a100 = find_gpu("t4"), find_gpu("a100-40gb")

    assert (t4.memory_bytes, t4.memory_spread_bytes) == (15_637_086_208, 0)
    assert t4.memory_surplus_bytes == 15_835_398_144 - 15_637_086_208
    assert (a100.memory_bytes, a100.memory_surplus_bytes) == (42_405_855_232, 0)
    assert a100.memory_spread_bytes == 42_405_855_232 - 42_298_834_944


def test_an_invalid_torch_version_is_rejected() -> None:
    with pytest.raises(NotReleaseError):
        find_gpu("a100").cublas_workspace_bytes("newest")


def test_the_context_has_the_bounds_of_the_readings() -> None:
    """A100s: 491 to 543 MiB by PyTorch's messages, 863 by nvidia-smi with one empty tensor. On
    Hopper 599 to 680, 751 by NVML around a recorded step, and 1,185 with NCCL's communicator."""
    a100, h100 = find_gpu("a100"), find_gpu("h100")

    assert a100.context_bytes == 543 * MIB
    assert a100.context_bytes + a100.context_surplus_bytes == 863 * MIB
    assert h100.context_bytes == 751 * MIB
    assert h100.context_bytes + h100.context_surplus_bytes == 1185 * MIB
    assert h100.context_bytes - h100.context_spread_bytes == (599 - 15) * MIB


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: reading.card)
def test_every_reading_of_one_process_lies_within_its_cards_bounds(reading: Reading) -> None:
    context = context_of(reading.compute_capability)
    within = [context.least_bytes <= mib * MIB <= context.most_bytes for mib in reading.mib]

    assert reading.source
    assert all(within) or reading.has_nccl


def test_an_unlisted_card_can_be_described() -> None:
    """A recorded `any` of 1,966,080 elements had 144 blocks of 512 threads: 72 multiprocessors of
    1,024 threads, as a Quadro RTX 6000 has."""
    described = find_gpu("name=rtx-6000, memory=24GiB, sm=75, multiprocessors=72")

    assert (described.name, described.memory_bytes) == ("rtx-6000", 24 * GIB)
    assert described.compute_capability == (7, 5)
    assert described.multiprocessors * described.max_threads_per_multiprocessor // 512 == 144
    assert find_gpu(label_of(described)) == described


@pytest.mark.parametrize(
    "written",
    [
        "a100-80gb,driver=linux",
        "NVIDIA H100 , driver=wddm",
        "memory=24GiB,driver=linux,sm=75,multiprocessors=72",
    ],
)
def test_a_card_says_its_platform_and_is_found_again_by_its_label(written: str) -> None:
    gpu = find_gpu(written)

    assert f"driver={gpu.driver}" in written
    assert find_gpu(label_of(gpu)) == gpu


def test_an_unknown_platform_is_refused() -> None:
    with pytest.raises(UnknownPlatformError):
        find_gpu("a100,driver=macos")


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_a_listed_card_is_found_by_its_label(gpu: Gpu) -> None:
    assert find_gpu(label_of(gpu)) is gpu


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ("memory=24GiB,sm=75", MissingGpuFieldError),
        ("memory=24GiB,sm=75,multiprocessors=72,colour=green", UnknownGpuFieldError),
        ("memory=24GiB,sm=75,multiprocessors=many", WrongMultiprocessorsError),
        ("memory=much,sm=75,multiprocessors=72", WrongGpuMemoryError),
        ("memory=24GiB,sm=35,multiprocessors=72", UnknownCapabilityError),
    ],
)
def test_a_description_that_cannot_be_used_says_why(written: str, error: type[InputError]) -> None:
    with pytest.raises(error):
        find_gpu(written)


@pytest.mark.parametrize("name", ["quadro-rtx-6000", "titan-rtx", "quadro-rtx-8000"])
def test_the_turing_workstation_cards_have_72_multiprocessors(name: str) -> None:
    """A recorded `any` over 1,966,080 elements on one of them took 144 and 4 bytes."""
    program = Calls(name).call(aten.any.default, tensor(1_966_080, dtype=torch.bool))

    assert program == ["out0", 144, 4, -4, -144]


def test_nccl_takes_what_the_readings_bound() -> None:
    """Two ranks that share a card take half each; the eight ranks used NVLink."""
    recorded = json.loads((ROOT / "fixtures" / "cuda" / "contexts.json").read_text())

    def outside(program: str, stage: str) -> int:
        (found,) = (s["outside"] for s in recorded[program]["stages"] if s["stage"] == stage)
        return int(found)

    one, two = nccl_of(1), nccl_of(2)
    sockets = outside("ranks 2", "all_reduce") - outside("ranks 2", "tensors")
    assert one.least_bytes == sockets // 2
    nvlink = next(each.mib for each in READINGS if each.has_nccl)
    with_a_kernel = round(outside("nccl LAZY", "context") / MIB)
    assert one.most_bytes == (max(nvlink) - with_a_kernel) * MIB
    further = outside("ranks 2", "second group") - outside("ranks 2", "send and receive")
    assert two.least_bytes - one.least_bytes == further // 2
    alone = outside("nccl LAZY", "second group") - outside("nccl LAZY", "barrier")
    assert two.most_bytes - one.most_bytes == alone
    assert nccl_of(0).most_bytes == 0


def test_80_columns_cut_no_name(
    run_graphmem: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run_graphmem("gpus").stdout.partition("\n\n")[0].splitlines()

    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    assert "…" not in "".join(lines)
    assert {each.name for each in GPUS} <= {line.partition(" ")[0] for line in lines}
