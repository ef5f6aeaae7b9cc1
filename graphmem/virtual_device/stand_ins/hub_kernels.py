"""Kernels that programs fetch from Hugging Face's hub, where a stand-in has them.

`kernels.get_kernel("kernels-community/flash-attn3")` downloads a build for a card. While that
package's stand-in is in use it returns the stand-in's functions, whether or not `kernels` is
installed; kernels that no stand-in has are fetched as before.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from graphmem.virtual_device.messages import NoStandInPartError
from graphmem.virtual_device.stand_ins.modules import made


def plain(repository: str) -> str:
    """A kernel's name as one word, `flashattention3` of `varunneal/flash-attention-3`."""
    return repository.rpartition("/")[2].lower().replace("-", "").replace("_", "")


@contextmanager
def serving(package: str, functions: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Let `kernels.get_kernel` return a stand-in's functions, given by a kernel's `plain` name."""
    if not functions:
        yield
        return
    with _library(package) as library:
        if library is None:
            yield
            return
        fetch = library.get_kernel

        def get_kernel(repo_id: str, *args: Any, **options: Any) -> Any:
            found = functions.get(plain(repo_id))
            return fetch(repo_id, *args, **options) if found is None else made(repo_id, found)

        library.get_kernel = get_kernel
        try:
            yield
        finally:
            library.get_kernel = fetch


@contextmanager
def _library(package: str) -> Iterator[Any]:
    """The installed `kernels`, None if it does not import, or a module in its place."""
    if "kernels" in sys.modules or importlib.util.find_spec("kernels") is not None:
        found = None
        with suppress(Exception):  # the program's error, if it imports `kernels` too
            found = importlib.import_module("kernels")
        yield found
        return

    def get_kernel(repo_id: str, *args: Any, **options: Any) -> Any:
        raise NoStandInPartError(package, f"kernel {repo_id}")

    library = sys.modules["kernels"] = made("kernels", {"get_kernel": get_kernel})
    try:
        yield library
    finally:
        del sys.modules["kernels"]
