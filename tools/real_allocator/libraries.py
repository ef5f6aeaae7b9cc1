"""The two libraries of torch that make up its allocator, and where its functions are in them."""

from __future__ import annotations

import re
import subprocess
import zipfile
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from graphmem.torch_releases import parse_release
from graphmem.torch_releases.differences import Release

NAMES = ("libc10.so", "libc10_cuda.so")
CAPTURES_ARE_MARKED_SINCE: Release = (2, 13)
ALLOCATOR = "_ZN3c104cuda20CUDACachingAllocator9allocatorE"
"""The exported variable `c10::cuda::CUDACachingAllocator::allocator`: the allocator in use."""
PEERS = "_ZN3c104cuda6detail21init_p2p_access_cacheEl"
"""`c10::cuda::detail::init_p2p_access_cache`, exported since 2.11; CUDA's start calls it."""

_SCOPE = "c10::cuda::CUDACachingAllocator::"
_VARIABLE = f"{_SCOPE}allocator"
_CLASS = f"{_SCOPE}Native::NativeCachingAllocator::"
_POOL = "std::pair<unsigned long long, unsigned long long>"
_METHODS = {
    "init": "(int)",
    "malloc": "(void**, signed char, unsigned long, CUstream_st*)",
    "free": "(void*)",
    "emptyCache": f"({_POOL})",
    "setMemoryFraction": "(double, signed char)",
    "beginAllocateToPool": f"(signed char, {_POOL}, std::function<bool (CUstream_st*)>)",
    "endAllocateToPool": f"(signed char, {_POOL})",
    "releasePool": f"(signed char, {_POOL})",
    "getDeviceStats": "(signed char)",
    "resetPeakStats": "(signed char)",
    "getCheckpointState": f"(signed char, {_POOL})",
    "setCheckpointPoolState": f"(signed char, std::shared_ptr<{_SCOPE}AllocatorState>)",
}
"""The methods that are called, with the parameters that driver/calls.cpp passes."""
_CAPTURE_METHODS = dict.fromkeys(("markCaptureBegin", "markCaptureEnd"), "(signed char)")


@dataclass(frozen=True)
class Libraries:
    """libc10.so and libc10_cuda.so in one folder, and the release that they are of."""

    folder: Path
    release: Release

    @property
    def c10(self) -> Path:
        """What does not depend on CUDA."""
        return self.folder / NAMES[0]

    @property
    def cuda(self) -> Path:
        """What has the allocator."""
        return self.folder / NAMES[1]

    @cached_property
    def runtime(self) -> str:
        """The CUDA runtime that it asks for, such as libcudart.so.13."""
        found = re.search(r"\bcudaMalloc@(libcudart\.so\.\d+)$", _nm("-D", self.cuda), re.MULTILINE)
        assert found is not None
        return found[1]

    @cached_property
    def symbols(self) -> dict[str, int]:
        """Where each function and variable lies; empty if the library was stripped.

        The methods are not exported, but wheels keep their names.
        """
        lines = re.findall(r"^([0-9a-f]+) \w (.+)$", _nm("-C", self.cuda), re.MULTILINE)
        return {name: int(offset, 16) for offset, name in lines}

    def missing(self) -> list[str]:
        """The methods that are called but are not there, or have other parameters."""
        called = [*_METHODS]
        if self.release >= CAPTURES_ARE_MARKED_SINCE:
            called += _CAPTURE_METHODS
        expected = _VARIABLE, *map(_full_name, called)
        return sorted(name for name in expected if name not in self.symbols)

    def distance(self, method: str) -> int:
        """How many bytes a method lies behind the variable `ALLOCATOR`."""
        return self.symbols[_full_name(method)] - self.symbols[_VARIABLE]


def _full_name(method: str) -> str:
    return f"{_CLASS}{method}{(_METHODS | _CAPTURE_METHODS)[method]}"


def installed_libraries() -> Libraries | None:
    """Those of the installed torch; None for a build without CUDA. Does not import torch."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    libraries = Libraries(Path(torch.origin).parent / "lib", parse_release(version("torch")))
    return libraries if libraries.cuda.exists() else None


def libraries_in(wheel: Path, folder: Path) -> Libraries:
    """Unpack those of a wheel of torch into a folder."""
    with zipfile.ZipFile(wheel) as archive:
        for name in NAMES:
            (folder / name).write_bytes(archive.read(f"torch/lib/{name}"))
    return Libraries(folder, parse_release(wheel.name.removeprefix("torch-")))


def _nm(option: str, library: Path) -> str:
    done = subprocess.run(["nm", option, library], capture_output=True, text=True, check=True)
    return done.stdout
