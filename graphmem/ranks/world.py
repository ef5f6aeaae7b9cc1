"""The number of ranks, and which one runs, from a launcher's variables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Self

from graphmem.environment import environment
from graphmem.ranks.error_messages import (
    CardsOfNodeError,
    EmptyWorldError,
    NodesWithoutRanksError,
    NoRankNamedError,
    RankOutsideError,
    RankWithoutWorldError,
    VariableNotNumberError,
)
from graphmem.virtual_device.devices import Devices


class _Launcher(NamedTuple):
    """A launcher's variables for the rank, and for the numbers of ranks, ranks per node, and nodes.

    Attributes:
        least: the fewest ranks of a job; the variables of a smaller one are ignored.
    """

    rank: str
    size: str
    per_node: str
    nodes: str = ""
    least: int = 1


_LAUNCHERS = (
    _Launcher("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
    _Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    _Launcher("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES", least=2),
)


_ELASTIC = {
    "ROLE_NAME": "default",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
}
"""What torchrun alone sets, with its defaults (torch/distributed/run.py).

By the id `torch.distributed.is_torchelastic_launched`, and with it Lightning and DINOv3, know a
job of ranks. `TORCHELASTIC_USE_AGENT_STORE` is not set, since no agent serves a store.
"""


CARDS = 8
"""The cards of a node: PyTorch's device guard without CUDA has no more.

`kFakeGuardImplMaxDevices`, c10/core/impl/FakeGuardImpl.h
"""


@dataclass(frozen=True)
class World:
    """The ranks of a launched job.

    Attributes:
        size: the number of ranks.
        rank: the one that runs here.
        per_node: the number of ranks on a node.
    """

    size: int
    rank: int
    per_node: int

    def __post_init__(self) -> None:
        if self.size < 1 or self.per_node < 1:
            raise EmptyWorldError(self.size)
        if not 0 <= self.rank < self.size:
            raise RankOutsideError(self.rank, self.size)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self | None:
        """The world that a launcher wrote into the environment, or None.

        torchrun's variables, which accelerate and DeepSpeed set as well, take precedence over those
        of Open MPI and of SLURM. A SLURM job with one task does not count.

        Raises:
            InputError: a variable is not a number, or there is no such rank.
        """
        for each in _LAUNCHERS:
            if each.rank not in environment and each.size not in environment:
                continue
            size = _number(environment, each.size, 1)
            if size >= each.least:
                per_node = -(-size // _number(environment, each.nodes, 1))
                per_node = _number(environment, each.per_node, per_node)
                return cls(size, _number(environment, each.rank, 0), per_node)
        return None

    @classmethod
    def here(cls) -> Self:
        """The world of this process; one rank if no launcher started it."""
        return cls.of(os.environ) or cls(1, 0, 1)

    @classmethod
    def chosen(
        cls, environment: Mapping[str, str], per_node: int | None, nodes: int, ranks: str | None
    ) -> list[Self]:
        """The worlds given by options, or else by the environment, one for each rank to run.

        Empty if neither gives one. `ranks` is like "3", "0,3" or "all".

        Raises:
            InputError: the options do not go together, or there is no such rank.
        """
        if per_node is None and nodes > 1:
            raise NodesWithoutRanksError()
        found = cls.of(environment) if per_node is None else cls(per_node * nodes, 0, per_node)
        if ranks is None:
            return [] if found is None else [found]
        if found is None:
            raise RankWithoutWorldError()
        worlds = [cls(found.size, rank, found.per_node) for rank in _numbers(ranks, found.size)]
        if per_node is not None:  # a launcher may give each rank a card
            for world in worlds:
                _check_card(world.rank % world.per_node)
        return worlds

    @property
    def variables(self) -> dict[str, str]:
        """The variables that torchrun sets.

        torch/distributed/elastic/agent/server/local_elastic_agent.py
        """
        node, local_rank = divmod(self.rank, self.per_node)
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(self.per_node),
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": str(-(-self.size // self.per_node)),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.size),
        }

    @contextmanager
    def launched(self, more: Mapping[str, str]) -> Iterator[None]:
        """Set this rank's variables, and some more, while the context is open."""
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        given = {name: os.environ.get(name, text) for name, text in rendezvous.items()}
        is_launched = World.of(os.environ) is not None
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        # A launcher may give each rank one card. Without one the variable names real cards, and a
        # script that reads it, as torchrun leaves it, finds those of its node.
        if visible is not None and not is_launched:
            visible = ",".join(map(str, range(self.per_node)))
        elastic = {} if is_launched else _ELASTIC
        mine = {**self.variables, **elastic, **given, "CUDA_VISIBLE_DEVICES": visible}
        with environment({**mine, **more}):
            yield


def devices_of(environment: Mapping[str, str]) -> Devices:
    """The cards of a rank: those of its node, or those named by CUDA_VISIBLE_DEVICES.

    Raises:
        InputError: the rank would work on a card that PyTorch cannot stand in for.
    """
    visible = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    count = len(visible) or _number(environment, "LOCAL_WORLD_SIZE", 1)
    own = min(_number(environment, "LOCAL_RANK", 0), count - 1)
    _check_card(own)
    return Devices(count, own)


def _check_card(number: int) -> None:
    if number >= CARDS:
        raise CardsOfNodeError(number, CARDS)


def _numbers(ranks: str, size: int) -> list[int]:
    if ranks == "all":
        return list(range(size))
    try:
        return list(dict.fromkeys(map(int, ranks.split(","))))
    except ValueError:
        raise NoRankNamedError(ranks) from None


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise VariableNotNumberError(name, text) from None
