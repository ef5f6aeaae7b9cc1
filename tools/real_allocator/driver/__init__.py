"""Builds the pretended libcudart and libnvidia-ml, and the calls of the real allocator."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_SOURCES = Path(__file__).parent
_GXX = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC"]
TOOLS = ("g++", "nm")  # nm is of binutils, which g++ needs as well
NVML = "libnvidia-ml.so.1"
CALLS = "calls.so"


def missing_tools() -> list[str]:
    """The programs that are needed and are not installed."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def build_driver(folder: Path, runtime: str) -> None:
    """Build the three libraries into a folder.

    Args:
        folder: an existing folder.
        runtime: the name of the CUDA runtime, which is also the version of its symbols.
    """
    versions = folder / "versions.map"
    versions.write_text(f"{runtime} {{ global: cuda*; }};\n")
    version_script = f"-Wl,--version-script={versions}"
    _compile("cudart.cpp", folder / runtime, f"-Wl,-soname={runtime}", version_script)
    _compile("nvml.cpp", folder / NVML, f"-Wl,-soname={NVML}")
    _compile("calls.cpp", folder / CALLS)


def _compile(source: str, library: Path, *options: str) -> None:
    subprocess.run([*_GXX, _SOURCES / source, "-o", library, *options], check=True)
