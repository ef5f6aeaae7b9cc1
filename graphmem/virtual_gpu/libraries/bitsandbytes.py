"""bitsandbytes without its CUDA library: 4-bit and 8-bit layers, 8-bit and paged optimizers.

Its kernels for CUDA are Python (bitsandbytes/backends/cuda/ops.py), which allocates results and
scratch by PyTorch and calls functions of a C library with their addresses. The library that stands
in has all those functions, and they do nothing. Two give something back:

(1) `cget_managed_ptr` is `cudaMallocManaged` (csrc/pythonInterface.cpp): memory that the driver
    moves between host and card as it is used, and that PyTorch's allocator does not know of. Here
    it is memory of the host that nobody touches, so it takes addresses and no bytes.
(2) Functions of the CPU, which share the library, are the real ones of the CPU's library.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import mmap
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from graphmem.virtual_gpu.libraries.imports import executed_by
from graphmem.virtual_gpu.patching import replaced

_LOADER = "bitsandbytes.cextension"
_SETUP = "bitsandbytes.cuda_setup.main"
_KERNELS = "bitsandbytes.backends.cuda.ops"
_CONTEXT = 1  # any address but null


@contextmanager
def standing_in() -> Iterator[None]:
    """Give bitsandbytes a library for CUDA, if the program imports it or has imported it."""
    with ExitStack() as stack:
        loader = sys.modules.get(_LOADER)
        if loader is None:
            stack.enter_context(executed_by(_LOADER, _execute))
        elif _KERNELS not in sys.modules:
            stack.enter_context(replaced(_in_imported(loader)))
            import_module(_KERNELS)
        _LIBRARY.is_on = True
        stack.callback(setattr, _LIBRARY, "is_on", False)
        yield


def _in_imported(loader: ModuleType) -> list[tuple[Any, str, Any]]:
    """The library's names to replace where bitsandbytes was imported without a card."""
    _LIBRARY.find_cpu_library(loader)
    holders = [loader, sys.modules["bitsandbytes.functional"]]
    return [(holder, "lib", _LIBRARY) for holder in holders]


def _execute(module: ModuleType) -> None:
    """Run the code of the module that loads the library, and let it find no library of CUDA."""
    loader: Any = module.__loader__
    logger = logging.getLogger(_LOADER)  # an error there says that there is none
    was_silent, logger.disabled = logger.disabled, True
    try:
        _set_up_before()
        with replaced([(ctypes.cdll, "LoadLibrary", _load_none)]):
            loader.exec_module(module)
    finally:
        logger.disabled = was_silent
    _LIBRARY.find_cpu_library(module)
    module.lib = _LIBRARY  # type: ignore[attr-defined]


def _set_up_before() -> None:
    """Up to 0.42, the module takes a library that another one has found."""
    if importlib.util.find_spec(_SETUP.rpartition(".")[0]) is not None:
        setup = import_module(_SETUP).CUDASetup.get_instance()
        setup.lib, setup.initialized = _LIBRARY, True


def _load_none(name: str) -> ctypes.CDLL:
    raise OSError(f"{name} needs a card")


class _Function:
    """A function of the C library, whose types the caller sets as those of ctypes'."""

    argtypes: Any = None
    restype: Any = None

    def __init__(self, name: str, library: NativeLibrary, answer: Callable[..., Any]) -> None:
        self.__name__ = name
        self._library = library
        self._answer = answer

    def __call__(self, *args: Any) -> Any:
        if not self._library.is_on:
            raise RuntimeError(f"{self.__name__} of bitsandbytes was called without a card")
        return self._answer(*args)


class NativeLibrary:
    """What `bitsandbytes.cextension.lib` is on the virtual card.

    Attributes:
        is_on: whether there is a virtual card; without, a function of CUDA is an error.
    """

    compiled_with_cuda = True

    def __init__(self) -> None:
        self.is_on = False
        self._cpu: ctypes.CDLL | None = None
        self._managed: list[mmap.mmap] = []
        self._answers: dict[str, Callable[..., Any]] = {
            "get_context": lambda: _CONTEXT,
            "cget_managed_ptr": self._managed_memory,
        }

    def find_cpu_library(self, loader: ModuleType) -> None:
        """Load the library of the CPU that lies in the package."""
        suffix: str = vars(loader).get("DYNAMIC_LIBRARY_SUFFIX", ".so")
        path = Path(str(loader.__file__)).with_name(f"libbitsandbytes_cpu{suffix}")
        if path.exists():
            self._cpu = ctypes.cdll.LoadLibrary(str(path))

    def __getattr__(self, name: str) -> Any:
        """A function of the library, the same one each time."""
        if name.startswith("__"):
            raise AttributeError(name)
        found: Any = getattr(self._cpu, name, None)
        if found is None:
            found = _Function(name, self, self._answers.get(name, _answer_of(name)))
        setattr(self, name, found)
        return found

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def _managed_memory(self, size: ctypes.c_size_t) -> int:
        """The address of memory that is never given back, as `cget_managed_ptr` gives none back."""
        memory = mmap.mmap(-1, max(size.value, 1))
        self._managed.append(memory)
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _answer_of(name: str) -> Callable[..., Any]:
    """A kernel does nothing; a function of the CPU is missed."""
    if "_cpu" in name and not name.startswith("has_"):
        return _missing(name)
    return lambda *args: None


def _missing(name: str) -> Callable[..., Any]:
    def call(*args: Any) -> None:
        raise RuntimeError(f"the installed bitsandbytes has no library of the CPU with {name}")

    return call


_LIBRARY = NativeLibrary()
