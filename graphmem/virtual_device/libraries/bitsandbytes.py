"""bitsandbytes without its CUDA library: 4-bit and 8-bit layers, 8-bit and paged optimizers.

Its CUDA kernels are Python (bitsandbytes/backends/cuda/ops.py), which allocates results and
scratch through PyTorch and passes their addresses to functions of a C library. Its replacement has
all those functions, and they do nothing, with two exceptions:

(1) `cget_managed_ptr` is `cudaMallocManaged` (csrc/pythonInterface.cpp): memory that the driver
    moves between host and card as it is used, outside PyTorch's allocator. Here it is host memory
    that is never touched, so it takes addresses but no bytes.
(2) CPU functions, which share the library, are the real ones of the CPU library.

bitsandbytes remembers tables that it made on a card (`name2qmap` of bitsandbytes/functional.py) and
kernels that it chose for one (`functools.cache` in bitsandbytes/backends/cuda/ops.py). Each virtual
card begins without them.
"""

from __future__ import annotations

import ctypes
import functools
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

from graphmem.silenced import silenced
from graphmem.virtual_device.libraries.imports import executed_by, run_own_code
from graphmem.virtual_device.patching import replaced

_LOADER = "bitsandbytes.cextension"
_SETUP = "bitsandbytes.cuda_setup.main"
_BACKENDS = "bitsandbytes.backends"
_KERNELS = f"{_BACKENDS}.cuda.ops"
_CONTEXT = 1  # any address but null


@contextmanager
def standing_in() -> Iterator[None]:
    """Give bitsandbytes a CUDA library, whether it is imported already or later."""
    with _on_a_new_card(), ExitStack() as stack:
        loader = sys.modules.get(_LOADER)
        if loader is None:
            stack.enter_context(executed_by(_LOADER, _execute))
        elif _KERNELS not in sys.modules:
            stack.enter_context(replaced(_in_imported(loader)))
            if importlib.util.find_spec(_BACKENDS) is not None:  # else `functional` has them
                import_module(_KERNELS)
        _LIBRARY.is_on = True
        stack.callback(setattr, _LIBRARY, "is_on", False)
        yield


@contextmanager
def _on_a_new_card() -> Iterator[None]:
    """Let bitsandbytes forget the last card, and remember it again when the context closes."""
    before = dict(_tables())
    _forget()
    try:
        yield
    finally:
        _forget()
        _tables().update(before)


def _tables() -> dict[str, Any]:
    found: dict[str, Any] = getattr(sys.modules.get("bitsandbytes.functional"), "name2qmap", {})
    return found


def _forget() -> None:
    if "bitsandbytes" not in sys.modules:
        return
    _tables().clear()
    for name, module in list(sys.modules.items()):
        if name.startswith("bitsandbytes."):
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()


def _in_imported(loader: ModuleType) -> list[tuple[Any, str, Any]]:
    """List the names to replace if bitsandbytes was imported without a card."""
    _LIBRARY.find_cpu_library(loader)
    holders = [loader, sys.modules["bitsandbytes.functional"]]
    return [(holder, "lib", _LIBRARY) for holder in holders]


def _execute(module: ModuleType) -> None:
    """Run the code of the module that loads the library, which must not find one for CUDA."""
    with silenced(logging.getLogger(_LOADER)):  # it logs an error that there is none
        _set_up_before()
        with replaced([(ctypes.cdll, "LoadLibrary", _load_none)]):
            run_own_code(module)
    _LIBRARY.find_cpu_library(module)
    module.lib = _LIBRARY  # type: ignore[attr-defined]


def _set_up_before() -> None:
    """Up to 0.42, another module finds the library."""
    if importlib.util.find_spec(_SETUP.rpartition(".")[0]) is not None:
        setup = import_module(_SETUP).CUDASetup.get_instance()
        setup.lib, setup.initialized = _LIBRARY, True


def _load_none(name: str) -> ctypes.CDLL:
    raise OSError(f"{name} needs a card")


class _Function:
    """A function of the C library; callers set its types as on a ctypes function."""

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
    """Replaces `bitsandbytes.cextension.lib` on the virtual card.

    Attributes:
        is_on: whether there is a virtual card; without one, calling a CUDA function is an error.
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
        """Load the CPU library in the package."""
        suffix: str = vars(loader).get("DYNAMIC_LIBRARY_SUFFIX", ".so")
        path = Path(str(loader.__file__)).with_name(f"libbitsandbytes_cpu{suffix}")
        if path.exists():
            self._cpu = ctypes.cdll.LoadLibrary(str(path))

    def __getattr__(self, name: str) -> Any:
        """A function of the library, the same object each time."""
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
        """Allocate memory that is never freed, as with `cget_managed_ptr`; returns the address."""
        memory = mmap.mmap(-1, max(size.value, 1))
        self._managed.append(memory)
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _answer_of(name: str) -> Callable[..., Any]:
    """A function that does nothing for a kernel, and raises for a missing CPU function."""
    if "_cpu" in name and not name.startswith("has_"):
        return _missing(name)
    return lambda *args: None


def _missing(name: str) -> Callable[..., Any]:
    def call(*args: Any) -> None:
        raise RuntimeError(f"the installed bitsandbytes has no CPU library with {name}")

    return call


_LIBRARY = NativeLibrary()
