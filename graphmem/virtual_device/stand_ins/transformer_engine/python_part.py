"""Transformer Engine's own Python code, imported over the stand-in's extension.

(1) `transformer_engine.common` loads CUDA's libraries and its own, except while the package is
    built (NVTE_PROJECT_BUILDING); it is executed as then.
(2) Its `load_framework_extension` loads `transformer_engine_torch` from a file; the stand-in's
    module is there already.
(3) It chooses a kernel of attention by the class of the queries, of which fake tensors are none.
(4) What was imported is forgotten afterwards: it keeps workspaces, and what the card can do, in
    caches.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.virtual_device.libraries.imports import executed_by, run_own_code

_BUILDING, _RELEASE = "NVTE_PROJECT_BUILDING", "NVTE_RELEASE_BUILD"
_PACKAGE, _EXTENSION = "transformer_engine", "transformer_engine_torch"
_CHOICE = f"{_PACKAGE}.pytorch.attention.dot_product_attention.utils"


@contextmanager
def importable() -> Iterator[None]:
    """Let the package's Python code be imported while the context is open."""
    before = set(_imported())
    with executed_by(f"{_PACKAGE}.common", _execute), executed_by(_CHOICE, _let_be_plain):
        try:
            yield
        finally:
            for name in set(_imported()) - before:
                del sys.modules[name]


def _imported() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]


def _execute(module: ModuleType) -> None:
    """Clauses (1) and (2)."""
    names = {each: os.environ.get(each) for each in (_BUILDING, _RELEASE)}
    if hasattr(sys.modules.get(_EXTENSION), "__graphmem_stand_in__"):
        os.environ[_BUILDING] = "1"
        os.environ.pop(_RELEASE, None)
    try:
        run_own_code(module)
    finally:
        _restore(names)
    if hasattr(sys.modules.get(_EXTENSION), "__graphmem_stand_in__"):
        vars(module)["load_framework_extension"] = _without_torch(module.load_framework_extension)


def _restore(names: dict[str, str | None]) -> None:
    for name, value in names.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _without_torch(load: Callable[[str], None]) -> Callable[[str], None]:
    def load_framework_extension(framework: str) -> None:
        if framework != "torch":
            load(framework)

    return load_framework_extension


def _let_be_plain(module: ModuleType) -> None:
    """Clause (3)."""
    run_own_code(module)
    choose = module.get_attention_backend

    def get_attention_backend(attention_params: Any = None) -> Any:
        if issubclass(attention_params.qkv_type, FakeTensor):
            attention_params = dataclasses.replace(attention_params, qkv_type=torch.Tensor)
        return choose(attention_params)

    vars(module)["get_attention_backend"] = get_attention_backend
