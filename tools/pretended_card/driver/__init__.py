"""Builds the library that stands in for CUDA's."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from graphmem.gpus.card import Gpu
from graphmem.virtual_device.device_properties import L2_CACHE_BYTES, largest_l2_cache

TOOLS = ("gcc", "nm")  # nm is of binutils, which gcc needs as well
LIBRARY = "libcuda.so.1"
"""Named after the driver's, so that whoever opens that gets this one, which is loaded already."""

_SOURCES = Path(__file__).parent
_GCC = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden"]
_IMPORTED = re.compile(r"\bU ((cu[A-Z]|cuda[A-Z]|cublas|cudnn|cufft|cusolver|cusparse|curand)\w*)")
_HEADERS = ("nvidia/cu*/include", "triton/backends/nvidia/include")
"""The runtime's, in the wheels of its own release; Triton's, perhaps of another, has the rest."""
_NAMED = re.compile(r"\bcu[A-Z]\w+")
_WRITTEN = re.compile(r"^(?:EXPORT|#define cudaGet).*?(\w+)(?:\(|$)", re.MULTILINE)
_EXPORT = '__attribute__((visibility("default")))'
_ANSWERED = ("cuda", "cublas")
_FACTS = (
    "GetVersion",
    "GetProperty",
    "String",
    "GetErrorName",
)  # which the libraries know without a card
_DRIVER = re.compile(r"cu[A-Z]")
_FAILED = 1  # not initialised, in each library's own numbers

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": the maximum amount
# of shared memory per thread block, in KiB.
_SHARED_KIB = {(7, 0): 96, (7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 9): 99, (12, 0): 99}
_SHARED_KIB_SINCE_HOPPER = 227


def missing_tools() -> list[str]:
    """The programs that are needed and are not installed."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def build_driver(folder: Path, packages: Path, card: Gpu) -> Path:
    """Build the library into a folder, and return its path.

    Args:
        folder: an existing folder.
        packages: the site-packages with torch, CUDA's headers and Triton.
        card: what it pretends to be.
    """
    sources = [_SOURCES / name for name in ("card.c", "properties.c", "triton.c")]
    written = set(_WRITTEN.findall("".join(source.read_text() for source in sources)))
    rest = folder / "rest.c"
    names = sorted((_imported(packages / "torch/lib") | _asked_by_triton(packages)) - written)
    rest.write_text("".join(map(_answer, names)))
    library = folder / LIBRARY
    headers = [f"-I{folder}" for place in _HEADERS for folder in packages.glob(place)]
    linked = [f"-Wl,-soname={LIBRARY}", "-o", str(library), "-ldl"]
    compiled = map(str, [*sources, rest])
    subprocess.run([*_GCC, *headers, *_figures(card), *compiled, *linked], check=True)
    (folder / "libcuda.so").symlink_to(LIBRARY)  # by which Triton 3.4 and earlier link
    return library


def _imported(libraries: Path) -> set[str]:
    """The functions of CUDA that torch's libraries ask for, apart from facts."""
    found: set[str] = set()
    for library in libraries.glob("*.so"):
        done = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True)
        found |= {match[1] for match in _IMPORTED.finditer(done.stdout)}
    return {name for name in found if not name.endswith(_FACTS)}


def _asked_by_triton(packages: Path) -> set[str]:
    """The driver's functions in the C code that Triton compiles; none without Triton."""
    code = packages / "triton/backends/nvidia/driver.c"
    return set(_NAMED.findall(code.read_text())) if code.exists() else set()


def _answer(name: str) -> str:
    """Success for a call whose effect nobody sees; failure where the library would decide."""
    status = 0 if name.startswith(_ANSWERED) or _DRIVER.match(name) else _FAILED
    return f"{_EXPORT} int {name}(void) {{ return {status}; }}\n"


def _figures(card: Gpu) -> list[str]:
    major, minor = card.compute_capability
    shared_kib = _SHARED_KIB.get((major, minor), _SHARED_KIB_SINCE_HOPPER)
    l2_bytes = L2_CACHE_BYTES.get(card.name) or largest_l2_cache((major, minor))
    return [
        f'-DCARD_TITLE="{card.title}"',
        f"-DCARD_BYTES={card.memory_bytes}ull",
        f"-DCARD_MAJOR={major}",
        f"-DCARD_MINOR={minor}",
        f"-DCARD_MULTIPROCESSORS={card.multiprocessors}",
        f"-DCARD_THREADS={card.max_threads_per_multiprocessor}",
        f"-DCARD_SHARED_BYTES={shared_kib << 10}",
        f"-DCARD_L2_BYTES={l2_bytes}",
    ]
