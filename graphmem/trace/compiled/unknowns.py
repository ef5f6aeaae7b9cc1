"""Questions about a compilation that only a card can answer; the report lists the answers used."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from graphmem.compiled_code import GRAPHS_LEFT_OUT, PADDING
from graphmem.graph import Source
from graphmem.trace.compiled.padding import Product, is_faster_padded
from graphmem.trace.location import Location
from graphmem.trace.recorder import Recorder


class Unknowns:
    """Answers such questions, and notes what was assumed.

    Attributes:
        unseen: a context whose copies to the host the program does not read.
    """

    def __init__(
        self,
        recorder: Recorder,
        location: Location,
        chosen: Callable[[str, Source | None], float | None],
        replace: Callable[[str, str, str], None],
        unseen: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Start without assumptions.

        Args:
            recorder: lists each assumption in the step graph.
            location: knows the line.
            chosen: the user's own assumption, by name and line.
            replace: notes what runs in place of something, and what is unknown therefore.
            unseen: a context whose copies to the host the program does not read.
        """
        self._recorder = recorder
        self._location = location
        self._chosen = chosen
        self._replace = replace
        self.unseen = unseen

    def pads(self, product: Product) -> bool:
        """Whether Inductor pads a matrix product, which a benchmark decides on a card.

        What an H200 measured decides if it can; otherwise none is padded.
        """
        source = self._location.place()
        chosen = self._chosen("padding", source)
        measured = is_faster_padded(product) if chosen is None else None
        is_padded = bool(chosen if measured is None else measured)
        answer = "yes" if is_padded else "no"
        self._recorder.assume(
            PADDING,
            answer if measured is None else f"{answer}, as timed on an H200",
            "a benchmark on the card decides; --assume padding=true or padding=false",
            source,
        )
        return is_padded

    def tuned(self) -> bool:
        """Whether Inductor finds the configurations that an earlier run chose: not in a first run.

        This is no assumption, since a first run is what graphmem predicts; the finding
        `compilation` names the option.
        """
        return bool(self._chosen("tuned", None))

    def counts_registers(self) -> bool:
        """Whether Triton compiles kernels whose registers decide if they are timed."""
        return self._chosen("registers", None) != 0

    def compiles_no_kernel(self, reason: str) -> None:
        """Note that Triton's compiler does not run here, so that such kernels are not timed."""
        self._recorder.assume(
            "whether the registers that a reduction needs have it timed",
            "no",
            f"Triton has to compile it to tell, and does not here: {reason}",
            self._location.place(),
        )

    def tunes(self) -> None:
        """Note what only a card knows about max-autotune.

        On an H100 the step that compiled two layers peaked 18 % higher than predicted: a candidate
        that needs too much shared memory raises an error, whose cycle of frames
        (`CompiledKernel._init_handles`, triton/compiler/compiler.py) keeps its arguments. Every
        later step was as predicted (fixtures/cuda/scripts/mlp_autotune).
        """
        self._recorder.assume(
            "which kernels max-autotune chooses",
            "the first of each, and none fails",
            "the card decides; one that fails leaves its arguments to Python's cycle collector, so "
            "the step that compiles may peak higher; others may differ by a kernel's workspace",
            self._location.place(),
        )

    def flushes(self, nbytes: int) -> None:
        """Note the size assumed for the L2 cache of a described card, which a benchmark flushes."""
        self._recorder.assume(
            "the card's L2 cache, which Inductor's benchmarks flush",
            f"{nbytes / 2**20:g} MiB, the largest of the listed cards of its compute capability",
            "a description does not say; while code is compiled, a buffer of that size is there",
            None,
        )

    def graphs_left_out(self) -> None:
        """Note that compiled code runs outside the CUDA graph that would capture it."""
        self._replace(
            GRAPHS_LEFT_OUT,
            "left out (`graphmem analyze` follows it)",
            "what its private pool keeps",
        )

    def broke(self) -> None:
        """Note that a compiled graph breaks at one of graphmem's stand-ins for PyTorch."""
        self._recorder.assume(
            "whether compiled code goes on where graphmem stands in for PyTorch",
            "no, it breaks in two",
            "Dynamo cannot trace what stands there; on a card it would go on",
            self._location.place(),
        )
