"""The recorder of a trace: storages, owners, phases, and the resulting graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from graphmem.graph import Op, OwnerKind, PhaseName, Source, StepGraph, Storage
from graphmem.trace.recorder import Recorder

aten = torch.ops.aten


class Notes:
    """A recorder, and operations on fake tensors recorded in it."""

    def __init__(self, device: str = "cpu") -> None:
        self.recorder = Recorder(torch.device(device))

    def run(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        tick = self.recorder.begin_op()
        result = func(*args, **kwargs)
        self.recorder.record_op(
            func,
            args,
            kwargs,
            result,
            tick=tick,
            module="",
            source=None,
            autograd_node=None,
            forward=None,
        )
        return result

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        tensor: torch.Tensor = self.run(aten.empty.memory_format, shape, dtype=dtype, device="cpu")
        return tensor

    def storage_of(self, tensor: torch.Tensor) -> Storage:
        storage = self.recorder.storage_of(tensor)
        assert storage is not None
        return storage

    @property
    def graph(self) -> StepGraph:
        return self.recorder.graph

    @property
    def last_op(self) -> Op:
        return self.graph.ops[-1]


@pytest.fixture
def notes() -> Iterator[Notes]:
    with FakeTensorMode():
        yield Notes()


class TestStorages:
    def test_a_new_tensor_is_a_new_storage_of_its_bytes(self, notes: Notes) -> None:
        tensor = notes.empty(3, 5, dtype=torch.float16)

        storage = notes.storage_of(tensor)
        assert (storage.nbytes, storage.shape, storage.dtype) == (3 * 5 * 2, (3, 5), "float16")
        assert (storage.op, storage.device, notes.last_op.births) == (0, "cpu", (storage.id,))
        assert notes.last_op.tick < storage.birth

    @pytest.mark.parametrize(
        ("view", "arguments"),
        [
            (aten.t.default, ()),
            (aten.view.default, ([20],)),
            (aten.slice.Tensor, (0, 1, 3)),
            (aten.detach.default, ()),
            (aten.mul_.Tensor, (2.0,)),
        ],
    )
    def test_views_and_in_place_operations_allocate_nothing(
        self, notes: Notes, view: Any, arguments: tuple[Any, ...]
    ) -> None:
        base = notes.empty(4, 5)
        result = notes.run(view, base, *arguments)

        assert notes.storage_of(result) is notes.storage_of(base)
        assert notes.last_op.births == ()
        assert notes.last_op.outputs[0].storage == notes.storage_of(base).id
        assert len(notes.graph.storages) == 1

    def test_a_storage_lives_until_the_last_of_its_aliases_dies(self, notes: Notes) -> None:
        base = notes.empty(4)
        storage = notes.storage_of(base)
        alias = notes.run(aten.view.default, base, [2, 2])
        del base
        assert storage.death is None

        before = notes.recorder.tick
        del alias
        assert storage.death == before + 1
        assert [owner.kind for owner in storage.owners] == [OwnerKind.VARIABLE]

    def test_new_memory_can_stand_for_a_storage_python_released(self, notes: Notes) -> None:
        tensor = notes.empty(4)
        storage = notes.storage_of(tensor)
        saved = notes.recorder.own(storage, OwnerKind.SAVED_TENSOR, "MulBackward0.self")
        del tensor
        died = storage.owners[0].end
        unpacked = torch.empty(4)
        notes.recorder.stand_for(unpacked.untyped_storage(), storage)
        saved.end = notes.recorder.next_tick()

        assert died is not None
        assert notes.storage_of(unpacked) is storage
        assert [(owner.start > died, owner.end is None) for owner in storage.owners] == [
            (False, False),  # the variable
            (False, False),  # the saved tensor
            (True, True),  # what it was unpacked to
        ]
        assert len(notes.graph.storages) == 1

    def test_a_storage_lives_while_one_of_two_memories_stands_for_it(self, notes: Notes) -> None:
        tensor = notes.empty(4)
        storage = notes.storage_of(tensor)
        unpacked = torch.empty(4)
        notes.recorder.stand_for(unpacked.untyped_storage(), storage)
        assert notes.recorder.fake_memories(storage) == 2
        del tensor
        assert storage.death is None
        del unpacked

        assert storage.death == notes.recorder.tick
        assert len(storage.owners) == 1

    def test_a_storage_that_grows_is_a_new_one_born_before_the_old_one_dies(
        self, notes: Notes
    ) -> None:
        tensor = notes.empty(4)
        old = notes.storage_of(tensor)
        notes.run(aten.resize_.default, tensor, [100])

        new = notes.storage_of(tensor)
        assert (old.nbytes, new.nbytes) == (4 * 4, 100 * 4)
        assert notes.last_op.births == (new.id,)
        assert old.death is not None
        assert old.death > new.birth

    def test_a_tensor_that_shrinks_keeps_its_storage(self, notes: Notes) -> None:
        tensor = notes.empty(4)
        storage = notes.storage_of(tensor)
        notes.run(aten.resize_.default, tensor, [2])

        assert notes.storage_of(tensor) is storage
        assert storage.nbytes == 4 * 4

    def test_an_empty_tensor_has_no_storage(self, notes: Notes) -> None:
        tensor = notes.empty(0, 7)

        assert notes.recorder.storage_of(tensor) is None
        assert notes.last_op.outputs[0].storage is None
        assert notes.graph.storages == []

    def test_tensors_on_other_devices_are_not_counted(self) -> None:
        with FakeTensorMode():
            notes = Notes(device="cuda:0")
            notes.empty(4)

        assert notes.last_op.outputs[0].storage is None
        assert notes.graph.storages == []

    def test_one_tick_orders_each_birth_and_each_death(self, notes: Notes) -> None:
        tensors = [notes.empty(4) for _ in range(3)]
        for _ in range(3):
            tensors.pop()

        storages = notes.graph.storages
        ticks = [each.birth for each in storages] + [each.death for each in reversed(storages)]
        assert ticks == sorted(set(ticks), key=lambda tick: tick or 0)


class TestReleasingInOrder:
    def test_deferred_deaths_happen_at_the_end_in_order_of_birth(self, notes: Notes) -> None:
        tensors = [notes.empty(4) for _ in range(3)]
        before = notes.recorder.tick
        with notes.recorder.releasing_in_order():
            for position in (1, 1, 0):
                tensors.pop(position)
            notes.recorder.next_tick()

        deaths = [storage.death for storage in notes.graph.storages]
        assert deaths == [before + 2, before + 3, before + 4]

    def test_later_deaths_are_reported_at_once(self, notes: Notes) -> None:
        with notes.recorder.releasing_in_order():
            pass
        tensor = notes.empty(4)
        storage = notes.storage_of(tensor)
        del tensor
        assert storage.death == notes.recorder.tick


class TestOwners:
    def test_a_storage_keeps_its_first_identity(self, notes: Notes) -> None:
        weight = notes.empty(4)
        notes.recorder.identify(weight, OwnerKind.PARAMETER, "wte.weight")
        notes.recorder.identify(weight, OwnerKind.PARAMETER, "lm_head.weight")

        owners = notes.storage_of(weight).owners
        assert [(owner.kind, owner.name) for owner in owners] == [
            (OwnerKind.VARIABLE, ""),
            (OwnerKind.PARAMETER, "wte.weight"),
        ]
        assert owners[0].end == owners[1].start
        assert notes.recorder.identity_of(weight) == "wte.weight"

    def test_a_variable_is_named_once_and_an_identity_is_not_repeated(self, notes: Notes) -> None:
        recorder, source = notes.recorder, Source("train.py", 41, "step")
        variable, weight = notes.empty(4), notes.empty(4)
        recorder.identify(weight, OwnerKind.PARAMETER, "weight")
        for name in ("logits", "y"):
            recorder.name_variable(notes.storage_of(variable), name, source)
            recorder.name_variable(notes.storage_of(weight), name, source)

        assert [
            (storage.owners[-1].name, storage.owners[-1].source) for storage in notes.graph.storages
        ] == [("logits", source), ("weight", None)]

    def test_storages_alive_when_the_trace_ends_have_no_end(self, notes: Notes) -> None:
        tensor = notes.empty(4)
        storage = notes.storage_of(tensor)
        notes.recorder.finish()
        del tensor

        assert storage.death is None

    def test_the_same_assumption_at_the_same_line_is_counted(self, notes: Notes) -> None:
        here, there = Source("train.py", 1, "step"), Source("train.py", 2, "step")
        for source in (here, here, there, here):
            notes.recorder.assume("a value", "0", "no arithmetic", source)

        found = notes.graph.assumptions
        assert [(each.source, each.times) for each in found] == [(here, 3), (there, 1)]


class TestPhases:
    def names(self, notes: Notes) -> list[PhaseName]:
        return [phase.name for phase in notes.graph.phases]

    def test_an_iteration_is_forward_backward_and_the_rest(self, notes: Notes) -> None:
        recorder = notes.recorder
        recorder.phases.begin_iteration(0)
        recorder.phases.enter_backward()
        recorder.phases.leave_backward()
        graph = recorder.finish()

        assert self.names(notes) == ["setup", "forward", "backward", "optimizer"]
        bounds = [(phase.start, phase.end) for phase in graph.phases]
        assert [start for start, _ in bounds[1:]] == [end + 1 for _, end in bounds[:-1]]
        assert bounds[-1][1] == graph.end

    def test_deaths_before_the_next_operation_are_in_the_backward_phase(self, notes: Notes) -> None:
        notes.recorder.phases.begin_iteration(0)
        tensor = notes.empty(4)
        storage = notes.storage_of(tensor)
        notes.recorder.phases.enter_backward()
        notes.recorder.phases.leave_backward()
        del tensor
        notes.empty(1)

        assert storage.death is not None
        assert notes.graph.phases[2].name is PhaseName.BACKWARD
        assert notes.graph.phases[2].start <= storage.death <= notes.graph.phases[2].end
        assert notes.graph.phases[notes.last_op.phase].name is PhaseName.OPTIMIZER

    def test_two_backward_passes_with_nothing_between_are_one_phase(self, notes: Notes) -> None:
        notes.recorder.phases.begin_iteration(0)
        for _ in range(2):
            notes.recorder.phases.enter_backward()
            notes.recorder.phases.leave_backward()

        assert self.names(notes) == ["setup", "forward", "backward"]

    def test_forward_after_backward_means_there_was_no_optimizer(self, notes: Notes) -> None:
        recorder = notes.recorder
        recorder.phases.begin_iteration(0)
        recorder.phases.enter_backward()
        recorder.phases.leave_backward()
        notes.empty(1)
        recorder.phases.enter_backward()

        assert self.names(notes) == ["setup", "forward", "backward", "forward", "backward"]

    def test_forward_again_begins_after_the_optimizer_has_stepped(self, notes: Notes) -> None:
        recorder = notes.recorder
        recorder.phases.begin_iteration(0)
        recorder.phases.enter_backward()
        recorder.phases.leave_backward()
        notes.empty(1)
        recorder.phases.optimizer_stepped()
        notes.empty(1)
        recorder.phases.enter_backward()

        assert self.names(notes)[2:] == ["backward", "optimizer", "forward", "backward"]
        phases = [notes.graph.phases[op.phase].name for op in notes.graph.ops]
        assert phases == [PhaseName.OPTIMIZER, PhaseName.FORWARD]


class TestNodes:
    def test_operations_are_nodes_in_execution_order(self, notes: Notes) -> None:
        left = notes.empty(2, 3)
        notes.run(aten.mm.default, notes.run(aten.t.default, left), left)

        graph = notes.graph
        graph.fx.lint()
        assert [op.target for op in graph.ops] == [
            "aten.empty.memory_format",
            "aten.t.default",
            "aten.mm.default",
        ]
        assert list(graph.nodes) == graph.ops
        empty, t, mm = graph.ops
        assert (mm.args, t.args) == ((t, empty), (empty,))

    def test_keyword_arguments_are_kept(self, notes: Notes) -> None:
        notes.empty(2, dtype=torch.float16)
        assert notes.last_op.kwargs == {"dtype": torch.float16, "device": "cpu"}

    def test_names_are_those_that_fx_gives(self, notes: Notes) -> None:
        for _ in range(3):
            notes.empty(2)
        names = list(notes.graph.nodes.names().values())
        assert names == ["empty_memory_format", "empty_memory_format_1", "empty_memory_format_2"]

    def test_a_tensor_that_no_operation_made_is_a_placeholder(self, notes: Notes) -> None:
        notes.empty(1)
        strangers = [torch.empty(2), torch.empty(3)]
        for tensor in (*strangers, *strangers):
            notes.run(aten.neg.default, tensor)

        first, second, *rest = notes.graph.nodes
        assert list(notes.graph.nodes.names().values())[:2] == ["input_0", "input_1"]
        tensors = [first.tensor, second.tensor]
        assert [each.shape for each in tensors if each is not None] == [(2,), (3,)]
        assert [node.args for node in rest[1:]] == [(first,), (second,), (first,), (second,)]
        assert rest == notes.graph.ops

    def test_one_of_several_outputs_is_selected_where_it_is_used(self, notes: Notes) -> None:
        parts = notes.run(aten.split.Tensor, notes.empty(4, 3), 2)
        for _ in range(2):
            notes.run(aten.neg.default, parts[1])

        split, item, neg, again = list(notes.graph.nodes)[1:]
        assert item.args == (split, 1)
        assert neg.args == again.args == (item,)
        assert item.tensor.offset == 2 * 3

    def test_an_alias_can_lead_to_the_node_that_made_the_original(self, notes: Notes) -> None:
        tensor = notes.empty(4)
        unpacked = torch.empty(4)
        notes.recorder.remember_maker(unpacked, notes.recorder.maker_of(tensor))
        notes.run(aten.neg.default, unpacked)

        assert notes.last_op.args == (notes.graph.ops[0],)
