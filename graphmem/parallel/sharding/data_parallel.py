"""Data-parallel sharding of a rank's allocations: DDP, ZeRO 1 to 3, FSDP, offload.

Clauses:
  (1) *DDP* adds its buckets (`buckets`); with `gradient_as_bucket_view` a gradient dies when it has
      been copied into its bucket;
  (2) *ZeRO-1* keeps the optimizer state for this rank's share of the parameters. With weights as
      traced it is `ZeroRedundancyOptimizer` on DDP: whole parameters, largest first, each to the
      emptiest rank (torch/distributed/optim/zero_redundancy_optimizer.py, `_partition_parameters`);
      the fullest rank is reported. With bf16 weights it is Megatron-LM's distributed optimizer: an
      even share of every parameter, padded;
  (3) *ZeRO-2* is DeepSpeed's stage 2: from the backward pass's first gradient on a buffer of 5e8
      elements (`reduce_bucket_size`, `setup_buckets`, deepspeed/runtime/zero/stage_1_and_2.py)
      collects the gradients, and an even share of each is kept; each kind of optimizer state is one
      tensor for all parameters;
  (4) *ZeRO-3* and *FSDP* also keep only a share of the parameters and gather them by units
      (`fsdp`); ZeRO-3 has such a buffer from the beginning on (`ipg_buckets`, stage3.py);
  (5) *bf16 weights with master copies* (DeepSpeed, Megatron-LM): the optimizer has fp32 copies of
      its parameters and fp32 moments, and gradients accumulate in permanent fp32 buffers
      (`accumulate_allreduce_grads_in_fp32`), unless they are sharded;
  (6) offloaded data is on the host, in pinned memory if it is transferred in each step.

Shares are those of the first rank, which has the largest: `ceil(n / ranks)` of each parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from graphmem.graph import Category, OwnerKind, PhaseName
from graphmem.parallel.layout import Layout, Precision, Sharding
from graphmem.parallel.rank.allocations import Allocation
from graphmem.parallel.rank.rank import Rank, RankMoment
from graphmem.parallel.sharding.buckets import first_buckets, rebuilt_buckets
from graphmem.parallel.sharding.fsdp import padding, shard_fully, share_rows
from graphmem.parallel.sharding.parameters import BYTES_OF, FP32_BYTES, ParameterOnRank, fullest
from graphmem.report.categories import COMMUNICATION

REDUCE_BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's default `reduce_bucket_size`."""


@dataclass
class Host:
    """Bytes on the host for each rank, including pinned ones."""

    optimizer_state: int = 0
    parameters: int = 0
    gradients: int = 0
    pinned: int = 0

    @property
    def total(self) -> int:
        """All bytes on the host."""
        return self.optimizer_state + self.parameters + self.gradients


@dataclass
class HeldByRank:
    """The memory of a rank: its allocations, and its bytes on the host.

    Attributes:
        padding: unused bytes in its shares.
    """

    allocations: list[Allocation]
    host: Host = field(default_factory=Host)
    padding: int = 0


class DataParallel:
    """Applies a layout's data parallelism, precision and offload to a rank's allocations.

    Args:
        rank: the rank that allocates.
        allocations: those after the other kinds of parallelism.
        shapes: each parameter's shape on this rank, by name.
    """

    def __init__(
        self, rank: Rank, allocations: Iterable[Allocation], shapes: dict[str, tuple[int, ...]]
    ):
        self._rank = rank
        self._layout: Layout = rank.layout
        self._pieces = list(allocations)
        self._host = Host()
        self._padding = 0
        self.parameters = self._find_parameters(shapes)

    def _find_parameters(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, ParameterOnRank]:
        found = {}
        for allocation in self._pieces:
            if allocation.kind is OwnerKind.PARAMETER:
                name = allocation.what
                ranks = self._rank.replicas(name)
                found[name] = ParameterOnRank(name, allocation, shapes[name], ranks)
        for allocation in self._pieces:
            name = self.parameter_of(allocation)
            if allocation.kind is OwnerKind.GRADIENT and name in found:
                found[name].gradients.append(allocation)
        return found

    def parameter_of(self, allocation: Allocation) -> str:
        """The parameter that an allocation belongs to, or ""."""
        return (
            ""
            if allocation.storage is None
            else self._rank.of_parameter.get(allocation.storage.id, "")
        )

    def apply(self) -> HeldByRank:
        """Compute what the rank holds."""
        layout = self._layout
        if layout.precision is Precision.BF16_MASTER:
            self._keep_masters()
        if layout.sharding_ranks > 1:  # one rank has nothing to share
            if layout.sharding.shares_parameters:
                self._padding += padding(self.parameters.values(), layout)
                self._pieces = shard_fully(self._rank, self._pieces, self.parameters)
                if layout.sharding is Sharding.ZERO_3:
                    self._pieces += self._buffers(self._before_training, None)
            elif layout.sharding is Sharding.ZERO_2:
                self._reduce_in_one_buffer()
            elif layout.has_buckets:
                self._add_ddp_buckets()
            if layout.sharding.shares_optimizer:
                self._shard_optimizer()
        if layout.offload:
            self._offload()
        return HeldByRank(self._pieces, self._host, self._padding)

    # Clause (5) ---------------------------------------------------------------------------------

    def _keep_masters(self) -> None:
        born = self._before_training
        for allocation in self._pieces:
            if allocation.kind is OwnerKind.OPTIMIZER_STATE or self._is_optimizers(allocation):
                allocation.nbytes = self._widened(allocation)
        for each in self.parameters.values():
            if each.gradients:
                self._pieces.append(
                    Allocation(
                        each.numel * FP32_BYTES,
                        born,
                        None,
                        each.name,
                        category=Category.OPTIMIZER_STATE,
                    )
                )
        if self._layout.sharding.shares_gradients:
            return
        for each in self.parameters.values():
            if each.gradients:
                buffer = Allocation(
                    each.numel * FP32_BYTES, born, None, each.name, category=Category.GRADIENT
                )
                self._pieces.append(buffer)
            self._end_when_ready(each.gradients)

    def _widened(self, allocation: Allocation) -> int:
        assert allocation.storage is not None
        return allocation.nbytes * FP32_BYTES // BYTES_OF.get(allocation.storage.dtype, FP32_BYTES)

    def _is_optimizers(self, allocation: Allocation) -> bool:
        """Whether an allocation is a temporary of the optimizer, as large as a parameter."""
        if (
            allocation.storage is None
            or allocation.storage.op is None
            or allocation.kind is not None
        ):
            return False
        phase = self._rank.graph.phases[self._rank.graph.ops[allocation.storage.op].phase].name
        return phase is PhaseName.OPTIMIZER and bool(self.parameter_of(allocation))

    # Clause (1) ---------------------------------------------------------------------------------

    def _add_ddp_buckets(self) -> None:
        trained = [each for each in self.parameters.values() if each.gradients]
        ready = sorted(trained, key=self._turn)
        sizes = [(each.gradient.dtype, each.allocation.nbytes) for each in ready]
        forwards = self._first_forwards()
        if not forwards:
            return
        second = forwards[1] if len(forwards) > 1 else None
        category = Category.GRADIENT if self._layout.bucket_view else COMMUNICATION
        what = "the first iteration's bucket"
        for nbytes in first_buckets(sizes):
            self._pieces.append(Allocation(nbytes, forwards[0], second, what, category=category))
        if second is not None:
            born, what = _after(second), "bucket of gradients"
            for nbytes in rebuilt_buckets(sizes):
                self._pieces.append(Allocation(nbytes, born, None, what, category=category))
        if self._layout.bucket_view:
            for each in trained:
                self._end_when_ready(each.gradients)

    def _first_forwards(self) -> list[RankMoment]:
        """The moment when each step's first forward pass begins."""
        found: dict[int, RankMoment] = {}
        for i, slot in enumerate(self._rank.slots):
            traced = self._rank.traced.phases[slot.traced]
            if traced.phase is PhaseName.FORWARD:
                found.setdefault(traced.step, (i, traced.start - 0.75))
        return list(found.values())

    @property
    def _before_training(self) -> RankMoment:
        return _before(self._first_forwards()[0])

    def ready(self, gradient: Allocation) -> RankMoment:
        """The moment when a finished gradient is handed to its parameter."""
        assert gradient.storage is not None
        return gradient.born[0], self._rank.handed_over(gradient.storage) - 0.5

    def _turn(self, each: ParameterOnRank) -> tuple[RankMoment, int]:
        """Its gradient's place in the order: nothing may live or die between two of them."""
        return self.ready(each.gradients[0]), self._rank.taken_by(each.gradient)

    def _end_when_ready(self, gradients: Iterable[Allocation]) -> None:
        for gradient in gradients:
            gradient.dies = max(_after(gradient.born), self.ready(gradient))

    # Clauses (2), (3) ---------------------------------------------------------------------------

    def _shard_optimizer(self) -> None:
        by_whole_parameters = (
            self._layout.sharding is Sharding.ZERO_1 and self._layout.precision is Precision.TRACED
        )
        own = self._fullest_rank() if by_whole_parameters else set()
        kept = []
        for allocation in self._pieces:
            name = allocation.what if allocation.storage is None else self.parameter_of(allocation)
            parameter = self.parameters.get(name)
            is_state = (
                allocation.category == Category.OPTIMIZER_STATE
                or allocation.kind is OwnerKind.OPTIMIZER_STATE
                or self._is_optimizers(allocation)
            )
            if parameter is None or not is_state:
                kept.append(allocation)
            elif not by_whole_parameters:
                stays = not self._is_optimizers(allocation)
                allocation.nbytes = self._shared(allocation.nbytes, parameter, stays=stays)
                kept.append(allocation)
            elif name in own:
                kept.append(allocation)
        flat = self._layout.sharding is Sharding.ZERO_2
        self._pieces = list(self._flattened(kept)) if flat else kept

    def _flattened(self, pieces: Iterable[Allocation]) -> Iterator[Allocation]:
        """Clause (3): each kind of state that stays is one tensor for all parameters."""
        whole: dict[str, Allocation] = {}
        for each in pieces:
            is_master = each.category == Category.OPTIMIZER_STATE
            is_state = is_master or each.kind is OwnerKind.OPTIMIZER_STATE
            key = "" if is_master else each.what.rpartition(".")[2]
            if not is_state or each.dies is not None or each.nbytes <= FP32_BYTES:
                yield each
            elif key in whole:
                whole[key].nbytes += each.nbytes
            else:
                whole[key] = each
        yield from whole.values()

    def _fullest_rank(self) -> set[str]:
        """The parameters of the fullest rank (clause 2).

        Experts are sharded over fewer ranks than other parameters, and so separately.
        """
        trained = [each for each in self.parameters.values() if each.gradients]
        found: set[str] = set()
        for count in {each.ranks for each in trained}:
            found |= fullest([each for each in trained if each.ranks == count], count)
        return found

    def _shared(self, nbytes: int, parameter: ParameterOnRank, *, stays: bool) -> int:
        """This rank's share of a tensor with a parameter's number of elements; scalars stay whole.

        Args:
            nbytes: bytes of the whole tensor.
            parameter: the parameter it belongs to.
            stays: whether it is kept between steps, so that its padding counts.
        """
        if not parameter.numel or nbytes % parameter.numel:
            return nbytes
        element = nbytes // parameter.numel
        share = self._share(parameter)
        if stays:
            self._padding += element * (share * parameter.ranks - parameter.numel)
        return element * share

    def _share(self, parameter: ParameterOnRank) -> int:
        """Elements of a padded share: of rows under FSDP, else of the flat parameter."""
        if self._layout.sharding.shares_parameters:
            return share_rows(parameter.shape, parameter.ranks)
        return -(-parameter.numel // parameter.ranks)

    def _buffers(self, born: RankMoment, dies: RankMoment | None) -> Iterator[Allocation]:
        """DeepSpeed's buffers of gradients, one for each type."""
        dtypes = {
            each.gradient.dtype: each.element_bytes
            for each in self.parameters.values()
            if each.gradients
        }
        for dtype, element in dtypes.items():
            what, nbytes = f"buffer of {dtype} gradients", REDUCE_BUCKET_ELEMENTS * element
            yield Allocation(nbytes, born, dies, what, category=COMMUNICATION)

    def _reduce_in_one_buffer(self) -> None:
        for i, slot in enumerate(self._rank.slots):
            gradients = (each for one in self.parameters.values() for each in one.gradients)
            ready = [self.ready(each) for each in gradients if each.born[0] == i]
            ends = i, self._rank.traced.phases[slot.traced].end - 0.25
            if ready:
                self._pieces += self._buffers(_before(min(ready)), ends)
        self._pieces.extend(self._gradient_shares())
        for each in self.parameters.values():
            self._end_when_ready(each.gradients)

    def _gradient_shares(self) -> Iterator[Allocation]:
        for each in self.parameters.values():
            for gradient in each.gradients:
                if gradient.micro:
                    continue
                wide = self._layout.precision is Precision.BF16_MASTER
                element = FP32_BYTES if wide else each.element_bytes
                yield Allocation(
                    self._shared(each.numel * element, each, stays=gradient is each.gradients[0]),
                    self.ready(gradient),
                    gradient.dies,
                    each.name,
                    category=Category.GRADIENT,
                )

    # Clause (6) ---------------------------------------------------------------------------------

    def _offload(self) -> None:
        layout = self._layout
        kept = []
        for allocation in self._pieces:
            kind = allocation.kind
            category = allocation.category or kind
            if "optimizer" in layout.offload and (
                category in (Category.OPTIMIZER_STATE, OwnerKind.OPTIMIZER_STATE)
                or self._is_optimizers(allocation)
            ):
                if not self._is_optimizers(allocation) and allocation.dies is None:
                    self._host.optimizer_state += allocation.nbytes
                continue
            if "parameters" in layout.offload and kind is OwnerKind.PARAMETER:
                self._host.parameters += allocation.nbytes
                self._host.pinned += allocation.nbytes
                continue
            kept.append(allocation)
        if "optimizer" in layout.offload:
            self._offload_gradients(kept)
        self._pieces = kept

    def _offload_gradients(self, kept: list[Allocation]) -> None:
        """Move complete gradients to the host, where the offloaded optimizer reads them."""
        on_host: dict[str, int] = {}
        for allocation in kept:
            name = allocation.what if allocation.storage is None else self.parameter_of(allocation)
            is_gradient = Category.GRADIENT in (allocation.category, allocation.kind)
            is_bucket = self._layout.has_buckets and name not in self.parameters
            if not is_gradient or is_bucket:  # DDP's buckets stay
                continue
            if allocation.dies is None or self._lives_into_optimizer(allocation):
                on_host[name] = max(on_host.get(name, 0), allocation.nbytes)
                moved = (
                    self.ready(allocation)
                    if allocation.storage is not None
                    else _after(allocation.born)
                )
                allocation.dies = max(_after(allocation.born), moved)
        self._host.gradients = sum(on_host.values())
        self._host.pinned += self._host.gradients

    def _lives_into_optimizer(self, allocation: Allocation) -> bool:
        assert allocation.dies is not None
        slot = self._rank.slots[allocation.dies[0]]
        return self._rank.traced.phases[slot.traced].phase is PhaseName.OPTIMIZER


def _after(moment: RankMoment) -> RankMoment:
    return moment[0], moment[1] + 0.01


def _before(moment: RankMoment) -> RankMoment:
    return moment[0], moment[1] - 0.01
