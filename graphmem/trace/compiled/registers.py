"""How many registers a kernel of Inductor's needs, which Triton's compiler tells without a card.

NVIDIA's tools that come with Triton, `ptxas` and `cuobjdump`, run on the host.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

_LAUNCHERS = ("use_static_cuda_launcher", "use_static_triton_launcher")
"""Settings of `torch._inductor.config`, whose launchers leave out the compiled kernel."""
_COUNT = re.compile(r"\bREG:(\d+)")


class NotCompiledError(Exception):
    """Triton's compiler does not run here."""


def registers_of(autotuner: Any, config: Any, compile_config: Callable[..., Any]) -> int:
    """Compile a kernel for its card and count the registers of a thread.

    Args:
        autotuner: the kernel, Inductor's `CachingAutotuner`.
        config: its configuration.
        compile_config: `CachingAutotuner._precompile_config`.

    Raises:
        NotCompiledError: Triton's compiler does not run here, as where it is not installed.
    """
    from torch._inductor import config as inductor

    settings = {name: False for name in _LAUNCHERS if hasattr(inductor, name)}
    try:
        with inductor.patch(settings):
            binary = compile_config(autotuner, config).kernel.asm["cubin"]
        return _counted(binary)
    except Exception as error:
        raise NotCompiledError(str(error).partition("\n")[0]) from error


def _counted(binary: bytes) -> int:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return max(int(count) for count in _COUNT.findall(printed))
