"""A dispatch mode under which a program may be compiled (`trace/compiled`).

Dynamo skips frames that run under a mode of the user's (torch/_dynamo/convert_frame.py).
"""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

from graphmem.torch_releases import MODES_MAY_BE_COMPILED_UNDER, installed_release


class CompilableMode(TorchDispatchMode):
    """A mode that Dynamo looks through."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare each operation a wrapper that only matters under `torch.compile`."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether the program may be compiled although this mode is on."""
        return True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """The same, by the name that it has up to torch 2.8."""
        return not MODES_MAY_BE_COMPILED_UNDER.holds_in(installed_release())
