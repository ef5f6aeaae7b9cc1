"""Errors in a parallel layout, a class for each message."""

from __future__ import annotations

from graphmem.errors import InputError


class WrongWorldError(InputError):
    """The degrees of parallelism do not multiply to the number of GPUs."""

    def __init__(self, degrees: str, product: int, ranks: int, nearest: str) -> None:
        super().__init__(f"{degrees} make {product} ranks, but there are {ranks}", hint=nearest)


class ExpertDegreeError(InputError):
    """Experts are split among data-parallel ranks."""

    def __init__(self, expert: int, data: int, nearest: int) -> None:
        super().__init__(
            f"expert parallelism {expert} does not divide data parallelism {data}",
            hint=f"the nearest that does is --ep {nearest}",
        )


class InterleaveWithoutPipelineError(InputError):
    """`--interleave` without `--pp`."""

    def __init__(self) -> None:
        super().__init__("--interleave needs a pipeline", hint="such as --pp 2")


class InterleavedMicroBatchesError(InputError):
    """The interleaved schedule runs micro-batches in rounds of the stages."""

    def __init__(self, pipeline: int, micro_batches: int, nearest: int) -> None:
        super().__init__(
            "the interleaved schedule needs micro-batches in multiples of the "
            f"{pipeline} stages, not {micro_batches}",
            hint=f"--micro-batches {nearest}",
        )


class SequenceWithoutTensorError(InputError):
    """`--sp` without `--tp`."""

    def __init__(self) -> None:
        super().__init__("--sp splits along the tensor-parallel ranks", hint="add --tp 2 or more")


class WholeParametersOffloadedError(InputError):
    """`--offload parameters` of weights that no replica gathers before it reads them."""

    def __init__(self) -> None:
        super().__init__(
            "--offload parameters needs weights that replicas shard; others are read in place",
            hint="--fsdp or --zero 3, with --dp or --cp of 2 or more",
        )


class DegreeBelowOneError(InputError):
    """A degree of parallelism is a positive number."""

    def __init__(self, degree: object, name: object) -> None:
        super().__init__(f"a degree of {degree} ({name}) is less than one")


class NoExpertsError(InputError):
    """Expert parallelism for a model without experts."""

    def __init__(self, expert: int) -> None:
        super().__init__(
            f"expert parallelism {expert} has no experts to split: no module is called experts",
            hint="leave --ep out",
        )


class NoBlocksError(InputError):
    """`--blocks` names no list of modules."""

    def __init__(self, name: str, known: str) -> None:
        super().__init__(f"no list of modules is called {name!r}", hint=f"there are {known}")


class SeveralForwardPassesError(InputError):
    """Micro-batches are cut from a step of one."""

    def __init__(self) -> None:
        super().__init__(
            "the traced step runs several forward passes: it cannot be cut into micro-batches",
            hint="let build() describe one micro-batch: accumulate=1",
        )


class TooManyStagesError(InputError):
    """A pipeline has more stages than the model has blocks."""

    def __init__(self, what: str, count: int, owner: str, nearest: int) -> None:
        super().__init__(
            f"{what} are too many for the {count} blocks of {owner}",
            hint=f"the nearest is --pp {nearest}",
        )


class WrongStagesError(InputError):
    """`--stages` does not name each block once."""

    def __init__(self, sizes: str, count: int, blocks: int, name: str, balanced: str) -> None:
        super().__init__(
            f"stages of {sizes} blocks are not {count} stages of the {blocks} blocks of {name}",
            hint=f"balanced by bytes they are {balanced}",
        )


class NoExpertTensorsError(InputError):
    """Expert parallelism finds nothing that it could split."""

    def __init__(self, ways: int) -> None:
        super().__init__(
            f"expert parallelism {ways} has nothing to divide: no experts were found",
            hint="leave --ep out; experts are found in lists called experts, and in tensors of "
            "modules called so where a batched product runs over their first dimension",
        )


class UnevenTensorSplitError(InputError):
    """Tensor parallelism does not divide a dimension."""

    def __init__(self, size: int, what: str, weight: str, degree: int, nearest: int) -> None:
        super().__init__(
            f"{size} {what} ({weight}) cannot be split evenly by tensor parallelism {degree}",
            hint=f"the nearest that divides all is --tp {nearest}",
        )


class UnevenExpertsError(InputError):
    """Expert parallelism does not divide the experts."""

    def __init__(self, count: int, name: str, ways: int, nearest: int) -> None:
        super().__init__(
            f"{count} experts ({name}) do not divide over {ways} ranks",
            hint=f"the nearest is --ep {nearest}",
        )


class UnevenBatchError(InputError):
    """The batch cannot be cut into micro-batches."""

    def __init__(self, size: int, micro_batches: int, nearest: int) -> None:
        super().__init__(
            f"the traced batch of {size} cannot be cut into {micro_batches} "
            "micro-batches of whole samples",
            hint=f"the nearest is --micro-batches {nearest}; build() may make a larger "
            "batch, see --set",
        )


class NoSequenceError(InputError):
    """Context or sequence parallelism without attention."""

    def __init__(self) -> None:
        super().__init__(
            "no sequence axis was found to split: the step has no attention",
            hint="leave --cp and --sp out",
        )


class UnevenSequenceError(InputError):
    """The sequence cannot be split evenly."""

    def __init__(self, size: int, ways: int, nearest: int) -> None:
        super().__init__(
            f"a sequence of {size} does not divide into {ways} shares",
            hint=f"the nearest number that does is {nearest}",
        )
