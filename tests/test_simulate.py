"""The liveness simulator: storages die with their last owner; blocks are as in the allocator."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmem.graph import Op, Owner, OwnerKind, StepGraph, Storage, TensorOut
from graphmem.kernel_program import Free, Output, Scratch, Take
from graphmem.report.reasons import reason_for
from graphmem.simulate import simulate
from tests.support.sizes import MIB


def graph_of(*storages: Storage) -> StepGraph:
    return StepGraph(device="cuda:0", storages=list(storages))


def storage(
    number: int, nbytes: int, birth: int, *ends: int | None, device: str = "cuda:0"
) -> Storage:
    owners = [Owner(OwnerKind.VARIABLE, "", birth, end) for end in ends]
    return Storage(number, nbytes, birth, None, (nbytes,), "uint8", device, owners)


def test_a_storage_lives_until_its_last_owner_lets_go() -> None:
    timeline = simulate(graph_of(storage(0, 1024, 1, 3, 7, 5)))

    assert [timeline.at(tick).allocated for tick in (0, 1, 3, 6, 7)] == [0, 1024, 1024, 1024, 0]


def test_an_owner_without_an_end_keeps_it_alive() -> None:
    timeline = simulate(graph_of(storage(0, 1024, 1, 3, None)))

    assert timeline.at(100).allocated == 1024


def test_blocks_are_rounded_to_512_bytes() -> None:
    timeline = simulate(graph_of(storage(0, 1, 1, None), storage(1, 513, 2, None)))

    assert timeline.at(2).allocated == 512 + 1024
    assert timeline.at(2).requested == 1 + 513


def test_a_large_block_keeps_its_unsplit_tail() -> None:
    """11 MiB come from a segment of 12 MiB; the remaining 1 MiB is not split off."""
    timeline = simulate(graph_of(storage(0, 11 * MIB, 1, None)))

    assert timeline.at(1).allocated == 12 * MIB
    assert timeline.block_bytes[0] == 12 * MIB


def test_reserved_stays_when_blocks_are_freed() -> None:
    timeline = simulate(graph_of(storage(0, 5 * MIB, 1, 2)))

    assert timeline.at(2).allocated == 0
    assert timeline.at(2).reserved == 20 * MIB


def test_an_emptied_cache_gives_free_segments_back() -> None:
    """20 MiB are free at tick 3; the small segment of 2 MiB holds a storage and stays."""
    graph = graph_of(storage(0, 5 * MIB, 1, 3), storage(1, 512, 2, None), storage(2, MIB, 7, None))
    graph.emptied.append(5)
    timeline = simulate(graph)

    assert [timeline.at(tick).reserved // MIB for tick in (2, 3, 5)] == [22, 22, 2]
    assert timeline.at(5).allocated == 512
    assert [timeline.index_at(tick) for tick in (3, 4, 5, 7)] == [3, 3, 4, 5]


def test_host_storages_do_not_count() -> None:
    timeline = simulate(graph_of(storage(0, 1024, 1, None, device="cpu")))

    assert timeline.at(1).allocated == 0


class TestPrograms:
    """The steps of a kernel's program, with two outputs of 1 MiB born at ticks 2 and 3."""

    FIRST = storage(0, MIB, 2, None)
    SECOND = storage(1, MIB, 3, None)

    def graph(self) -> StepGraph:
        graph = graph_of(self.FIRST, self.SECOND)
        func = torch.ops.aten.sum.default
        out = tuple(TensorOut((MIB,), "uint8", each.id) for each in graph.storages)
        graph.ops.append(
            Op((), func, {}, str(func), index=0, tick=1, phase=0, outputs=out, births=(0, 1))
        )
        return graph

    def test_scratch_lies_between_outputs_as_the_program_says(self) -> None:
        scratch = Scratch("staging", 5 * MIB)
        program = (Output(0), Take(scratch), Output(1), Free(scratch))
        timeline = simulate(self.graph(), {0: program})

        assert [moment.allocated // MIB for moment in timeline.moments] == [0, 1, 6, 7, 2]

    def test_outputs_may_come_in_another_order(self) -> None:
        timeline = simulate(self.graph(), {0: (Output(1), Output(0))})

        assert [each.born.id for each in timeline.moments if each.born is not None] == [1, 0]

    def test_a_peak_inside_a_kernel_names_its_scratch_and_operation(self) -> None:
        graph, scratch = self.graph(), Scratch("staging", 5 * MIB)
        timeline = simulate(graph, {0: (Output(0), Output(1), Take(scratch), Free(scratch))})
        moment, born = timeline.peak()

        assert moment.allocated == 7 * MIB
        assert born is not None
        assert graph.op_of(born) is graph.ops[0]
        assert reason_for(born, moment.tick, graph) == "scratch of aten.sum: staging"
        assert [each.id for each in timeline.alive_at(moment)] == [0, 1, born.id]

    def test_scratch_that_is_not_freed_is_a_workspace_until_the_end(self) -> None:
        graph = self.graph()
        timeline = simulate(graph, {0: (Output(0), Output(1), Take(Scratch("cuBLAS", MIB)))})
        workspace = timeline.moments[-1].born

        assert timeline.moments[-1].allocated == 3 * MIB
        assert workspace is not None
        assert workspace.death is None
        assert reason_for(workspace, 3, graph) == "cuBLAS, kept until the process ends"

    def test_scratch_of_no_bytes_is_not_allocated(self) -> None:
        timeline = simulate(self.graph(), {0: (Output(0), Output(1), Take(Scratch("none", 0)))})

        assert len(timeline.moments) == 3


def test_the_peak_is_the_first_of_equal_ones() -> None:
    timeline = simulate(graph_of(storage(0, 512, 1, 2), storage(1, 512, 3, None)))
    moment, born = timeline.peak()

    assert (moment.tick, born) == (1, timeline.moments[1].born)


def test_the_peak_of_a_stretch_may_be_its_beginning() -> None:
    timeline = simulate(graph_of(storage(0, 512, 1, 5)))
    moment, _ = timeline.peak(2, 9)

    assert moment.allocated == 512


@st.composite
def lives(draw: st.DrawFn) -> list[Storage]:
    """Storages of whole 512-byte blocks in the small pool, all at different ticks."""
    count = draw(st.integers(1, 20))
    ticks = draw(st.permutations(range(1, 2 * count + 1)))
    pairs = [sorted(ticks[2 * i : 2 * i + 2]) for i in range(count)]
    blocks = draw(st.lists(st.integers(1, 64), min_size=count, max_size=count))
    return [storage(i, blocks[i] * 512, *pairs[i]) for i in range(count)]


@given(lives())
def test_requested_bytes_are_those_of_live_storages(storages: list[Storage]) -> None:
    """The definition, evaluated from scratch at every tick."""
    timeline = simulate(graph_of(*storages))

    for tick in range(2 * len(storages) + 2):
        living = [s for s in storages if s.birth <= tick < (s.death or 0)]
        assert timeline.at(tick).requested == sum(s.nbytes for s in living)
        assert timeline.at(tick).allocated >= timeline.at(tick).requested
    assert timeline.moments[-1].allocated == 0


@given(lives(), st.integers(0, 19))
def test_another_owner_never_shortens_a_life(storages: list[Storage], which: int) -> None:
    before, _ = simulate(graph_of(*storages)).peak()
    chosen = storages[which % len(storages)]
    chosen.owners.append(Owner(OwnerKind.SAVED_TENSOR, "", chosen.birth, None))
    after, _ = simulate(graph_of(*storages)).peak()

    assert after.allocated >= before.allocated
