"""The annotations that the engine itself reads, with their types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from graphmem.graph import Assumption
    from graphmem.kernel_program import KernelMemory

    # mypy finds the passes in their folder; nothing is imported at run time.
    from passes.checkpointing import Checkpointing
    from passes.output_reuse import OutputReuse
    from passes.saved_tensors import SavedTensors

Found = TypeVar("Found")


@dataclass(frozen=True)
class Key(Generic[Found]):
    """The name of an annotation; the type parameter is the result of the pass that provides it."""

    name: str


KERNEL_MEMORY: Key[KernelMemory] = Key("kernel_memory")
SAVED_TENSORS: Key[SavedTensors] = Key("saved_tensors")
FULLEST_FORWARD: Key[int | None] = Key("fullest_forward")
CHECKPOINTING: Key[Checkpointing] = Key("checkpointing")
OUTPUT_REUSE: Key[OutputReuse] = Key("output_reuse")
UNMODELLED: Key[Sequence[Assumption]] = Key("unmodelled")


class Annotations(dict[str, Any]):
    """The results of passes, by the name that each provides."""

    def of(self, key: Key[Found]) -> Found:
        """The result of one pass."""
        found: Found = self[key.name]
        return found
