"""What passes find, by name and for mypy by type: the only passes that the engine knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from graphmem.graph import Assumption
    from graphmem.kernel_program import KernelMemory

    # mypy knows the passes by their folder; nothing is imported when this runs.
    from passes.checkpointing import Checkpointing
    from passes.output_reuse import OutputReuse
    from passes.saved_tensors import SavedTensors

Found = TypeVar("Found")


@dataclass(frozen=True)
class Key(Generic[Found]):
    """The name of an annotation; its type is what the pass returns that provides it."""

    name: str


KERNEL_MEMORY: Key[KernelMemory] = Key("kernel_memory")
SAVED_TENSORS: Key[SavedTensors] = Key("saved_tensors")
CHECKPOINTING: Key[Checkpointing] = Key("checkpointing")
OUTPUT_REUSE: Key[OutputReuse] = Key("output_reuse")
UNMODELLED: Key[Sequence[Assumption]] = Key("unmodelled")


class Annotations(dict[str, Any]):
    """What each pass found, by the name that it provides."""

    def of(self, key: Key[Found]) -> Found:
        """What one pass found."""
        found: Found = self[key.name]
        return found
