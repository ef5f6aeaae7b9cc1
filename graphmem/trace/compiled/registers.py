"""The registers that a kernel of Inductor's needs, which Triton's compiler tells without a card.

NVIDIA's tools that come with Triton, `ptxas` and `cuobjdump`, run on the host.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import KERNELS_ARE_COMPILED_BY_WORKERS

_LAUNCHERS = ("use_static_cuda_launcher", "use_static_triton_launcher")
"""Settings of `torch._inductor.config`, whose launchers leave out the compiled kernel."""
_USAGE = re.compile(r"\bREG:(?P<registers>\d+) STACK:(?P<stack>\d+) .*\bLOCAL:(?P<local>\d+)")
_WORD = 4


class Usage(NamedTuple):
    """What a thread needs.

    Attributes:
        registers: how many; None if that is unknown.
        spills: how many more are in memory, Triton's `n_spills`
            (`CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES` in words of 32 bits).
    """

    registers: int | None = None
    spills: int = 0


UNKNOWN = Usage()
"""None are assumed to spill: a configuration that does is not timed (`CachingAutotuner.bench`)."""


class NotCompiledError(Exception):
    """Triton's compiler does not run here."""


def usage_of(autotuner: Any, config: Any, compile_config: Callable[..., Any]) -> Usage:
    """Compile a kernel for its card and count the registers of a thread.

    Args:
        autotuner: the kernel, Inductor's `CachingAutotuner`.
        config: its configuration.
        compile_config: `CachingAutotuner._precompile_config`, which up to torch 2.6 asks whether
            only to compile, and returns the kernel and its launcher.

    Raises:
        NotCompiledError: Triton's compiler does not run here, as where it is not installed.
    """
    from torch._inductor import config as inductor

    settings = {name: False for name in _LAUNCHERS if hasattr(inductor, name)}
    try:
        with inductor.patch(settings):
            if KERNELS_ARE_COMPILED_BY_WORKERS.holds_in(installed_release()):
                kernel = compile_config(autotuner, config).kernel
            else:
                kernel, _ = compile_config(autotuner, config, True)
        return _counted(kernel.asm["cubin"])
    except Exception as error:
        raise NotCompiledError(str(error).partition("\n")[0]) from error


def _counted(binary: bytes) -> Usage:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = _USAGE.search(printed)
    if found is None:
        raise ValueError(f"cuobjdump printed {printed!r}")
    return Usage(int(found["registers"]), (int(found["stack"]) + int(found["local"])) // _WORD)
