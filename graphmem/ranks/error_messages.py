"""Errors in a run of several ranks, one class per message."""

from __future__ import annotations

from graphmem.errors import InputError

_HINT = "ranks count from 0; torchrun sets RANK and WORLD_SIZE, or give --nproc-per-node and --rank"


class NeverSentError(InputError):
    """A rank waits for a message that another one does not send."""

    def __init__(self, destination: int, source: int) -> None:
        super().__init__(
            f"rank {destination} waits for a message that rank {source} does not send",
            hint=f"--rank {source} runs that rank: see how it ends",
        )


class AnySourceError(InputError):
    """A rank receives from whichever rank sends first."""

    def __init__(self) -> None:
        super().__init__(
            "which rank sends first is not known: a message without a source is not modelled",
            hint="name the rank: recv(tensor, src)",
        )


class MismatchedCollectivesError(InputError):
    """Ranks of a group differ in a collective."""

    def __init__(self, ranks: tuple[int, int], details: object) -> None:
        super().__init__(
            f"the collectives of ranks {ranks[0]} and {ranks[1]} do not match, "
            f"so real ones would hang or fail{details}",
            hint="all ranks of a group must make the same collectives in the same order, with "
            "tensors of the same types and sizes",
        )


class MismatchedMessagesError(InputError):
    """A rank sends a message that another does not receive, or the other way round."""

    def __init__(self, ranks: tuple[int, int], details: object) -> None:
        super().__init__(
            f"the messages between ranks {ranks[0]} and {ranks[1]} do not match, "
            f"so real ones would hang or fail{details}",
            hint="each message that a rank sends must be received by the other, in the same order "
            "and with as many elements",
        )


class RankDoesNotRunError(InputError):
    """A rank waits for an object from one that is not running."""

    def __init__(self, rank: object, source: int) -> None:
        super().__init__(
            f"rank {rank} waits for an object from rank {source}, which is not running",
            hint="`graphmem run --nproc-per-node N script.py` runs it beside this one",
        )


class NoReducerModelError(InputError):
    """DistributedDataParallel uses a part of its reducer that graphmem does not model."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"graphmem run does not model Reducer.{name} of DistributedDataParallel",
            hint="docs/ranks.md lists what works",
        )


class RemoteCallsError(InputError):
    """A script starts `torch.distributed.rpc`."""

    def __init__(self) -> None:
        super().__init__(
            "torch.distributed.rpc does not work under graphmem run: no other process would answer",
            hint="docs/ranks.md lists what works",
        )


class SparseGradientsError(InputError):
    """DistributedDataParallel reduces sparse gradients."""

    def __init__(self) -> None:
        super().__init__(
            "DistributedDataParallel with sparse gradients does not work under graphmem run",
            hint="build the embedding with sparse=False",
        )


class TooManyProcessesError(InputError):
    """A script starts more processes than the node has ranks."""

    def __init__(self, nprocs: int, per_node: int) -> None:
        super().__init__(
            f"the script starts {nprocs} processes, and this node has {per_node} "
            f"rank{'s' * (per_node > 1)}",
            hint=f"graphmem run --nproc-per-node {nprocs} --rank 0 runs the first of them",
        )


class EmptyWorldError(InputError):
    """There is no rank to run."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a world of {size} ranks has no rank to run", hint=_HINT)


class RankOutsideError(InputError):
    """A rank is not in the world."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(
            f"rank {rank} is not in a world of {size}: 0 to {size - 1} are", hint=_HINT
        )


class NodesWithoutRanksError(InputError):
    """`--nnodes` without `--nproc-per-node`."""

    def __init__(self) -> None:
        super().__init__("--nnodes needs --nproc-per-node", hint=_HINT)


class CardsOfNodeError(InputError):
    """A rank would work on a card that PyTorch's stand-in for CUDA does not have."""

    def __init__(self, card: int, cards: int) -> None:
        super().__init__(
            f"a rank would work on card {card} of its node: PyTorch without CUDA has {cards}, "
            f"0 to {cards - 1}",
            hint=f"--nproc-per-node {cards} --nnodes N, or one in CUDA_VISIBLE_DEVICES",
        )


class RankWithoutWorldError(InputError):
    """`--rank` without a number of ranks."""

    def __init__(self) -> None:
        super().__init__("--rank needs --nproc-per-node, or WORLD_SIZE", hint=_HINT)


class NoRankNamedError(InputError):
    """`--rank` is not a list of ranks."""

    def __init__(self, ranks: str) -> None:
        super().__init__(f"--rank {ranks} names no rank", hint="--rank 3, --rank 0,3 or --rank all")


class VariableNotNumberError(InputError):
    """A launcher's variable is not a number."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}={text} is not a number", hint=_HINT)
