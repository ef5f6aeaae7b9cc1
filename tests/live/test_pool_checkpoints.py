"""Graphs are recorded behind replayed ones, and overwritten outputs cannot be read.

The cases are those of test/test_cuda.py (`TestBlockStateAbsorption`) and of
test/inductor/test_cudagraph_trees.py in PyTorch, with the figures that those tests expect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

import graphmem
from tests.conftest import Outcome
from tests.support.sizes import MIB

HALF_KIB = 512


@pytest.fixture
def gpu() -> Iterator[None]:
    with graphmem.virtual_gpu("h100"):
        yield


def recorded(*sizes: int, pool: Any = None) -> tuple[Any, list[torch.Tensor]]:
    """A graph that makes tensors of these sizes, and the tensors."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        outputs = [torch.ones(size, dtype=torch.uint8, device="cuda") for size in sizes]
    return graph, outputs


def layout(pool: Any) -> dict[int, list[tuple[int, str]]]:
    """The sizes and states of the blocks in each of a pool's segments."""
    return {
        segment["address"]: [(block["size"], block["state"]) for block in segment["blocks"]]
        for segment in torch.cuda.memory_snapshot()
        if segment["segment_pool_id"] == pool
    }


def in_use(pool: Any) -> int:
    """The number of a pool's blocks in use."""
    return sum(state == "active_allocated" for each in layout(pool).values() for _, state in each)


def noted(pool: Any) -> Any:
    return torch._C._cuda_getCheckpointState(0, pool)


def restore(state: Any, stale: Sequence[Any] = (), owners: Sequence[Any] = ()) -> None:
    keys = ([each.untyped_storage()._cdata for each in tensors] for tensors in (stale, owners))
    torch._C._cuda_setCheckpointPoolState(0, state, *keys)


@pytest.mark.usefixtures("gpu")
class TestStates:
    def test_a_state_set_at_once_changes_nothing(self) -> None:
        graph, outputs = recorded(MIB, 2 * MIB, 20 * MIB, HALF_KIB, HALF_KIB, HALF_KIB)
        del outputs[4]
        before = layout(graph.pool())
        restore(noted(graph.pool()))

        assert before == layout(graph.pool())
        assert in_use(graph.pool()) == 5
        outputs.clear()
        assert in_use(graph.pool()) == 0

    def test_the_block_of_a_tensor_that_died_is_freed_by_its_address(self) -> None:
        graph, outputs = recorded(HALF_KIB, HALF_KIB)
        state, address = noted(graph.pool()), outputs[0].data_ptr()
        del outputs[0]
        counts = [in_use(graph.pool())]
        restore(state)
        counts.append(in_use(graph.pool()))
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)
        counts.append(in_use(graph.pool()))
        outputs.clear()
        counts.append(in_use(graph.pool()))

        assert counts == [1, 2, 1, 0]

    def test_a_later_tensor_loses_its_block(self) -> None:
        graph, outputs = recorded(HALF_KIB)
        state, before = noted(graph.pool()), layout(graph.pool())
        later, others = recorded(HALF_KIB, pool=graph.pool())
        address = others[0].data_ptr()
        restore(state, stale=others)

        assert before.items() <= layout(graph.pool()).items()
        assert others[0].data_ptr() == address
        others.clear()
        assert in_use(graph.pool()) == len(outputs)
        del later

    def test_a_later_tensor_must_be_named(self) -> None:
        graph, outputs = recorded(HALF_KIB)
        state = noted(graph.pool())
        later, others = recorded(HALF_KIB, pool=graph.pool())

        with pytest.raises(RuntimeError, match="Any stale tensors which are being manually freed"):
            restore(state)
        del later, others, outputs

    def test_tensors_that_point_to_blocks_own_them_again(self) -> None:
        graph, outputs = recorded(2 * MIB, 2 * MIB, 20 * MIB)
        state = noted(graph.pool())
        metadata = [
            {
                "data_ptr": each.data_ptr(),
                "nbytes": each.nbytes,
                "device": each.device,
                "dtype": each.dtype,
                "size": each.shape,
                "stride": each.stride(),
                "storage_offset": 0,
            }
            for each in outputs
        ]
        outputs.clear()
        pointing = [
            torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(
                each,
                torch._C._construct_storage_from_data_pointer(
                    each["data_ptr"], each["device"], each["nbytes"]
                ),
            )
            for each in metadata
        ]
        counts = [in_use(graph.pool())]
        restore(state, owners=pointing)
        counts.append(in_use(graph.pool()))
        with pytest.raises(RuntimeError, match=" Not expecting deleter function"):
            restore(state, owners=pointing)
        pointing.clear()
        counts.append(in_use(graph.pool()))

        assert counts == [0, 3, 0]


HEAD = """
import torch
import torch._inductor.config as config
config.triton.slow_path_cudagraph_asserts = config.triton.fast_path_cudagraph_asserts = True

def in_pools():
    return [
        block["size"]
        for segment in torch.cuda.memory_snapshot() if segment["segment_pool_id"] != (0, 0)
        for block in segment["blocks"] if block["state"] == "active_allocated"
    ]

def checkpoints():
    from torch._inductor.cudagraph_trees import get_container
    return get_container(0).tree_manager.debug_checkpointing_counter

def graphed(function):
    return torch.compile(function, mode="reduce-overhead")

def refused(read):
    try:
        read()
    except RuntimeError as error:
        return "CUDAGraphs that has been overwritten by a subsequent run" in str(error)
    return False
"""


@pytest.fixture
def lines(tmp_path: Path, run_graphmem: Callable[..., Outcome]) -> Callable[[str], list[Any]]:
    """Run a script after `HEAD` on a virtual card; gives what it printed as JSON behind a ">"."""
    pytest.importorskip("triton")

    def run(text: str) -> list[Any]:
        script = tmp_path / "script.py"
        script.write_text(HEAD + dedent(text))
        done = run_graphmem("run", str(script))
        assert done.exit_code == 0, done.stderr
        return [json.loads(each[1:]) for each in done.stdout.splitlines() if each[:1] == ">"]

    return run


class TestTrees:
    """PyTorch compares the pool with its own account at each call (`slow_path_…_asserts`)."""

    def test_a_graph_is_recorded_behind_a_replayed_one(
        self, lines: Callable[[str], list[Any]]
    ) -> None:
        """From the third step on a second function runs on an output of the first.

        That output is in use while the second is warmed up, and while it is recorded: one
        checkpoint each (`apply_checkpoint_execution_state_in_allocator`). All fits in one segment
        of 20 MiB: the copy of the input and two outputs of 4 MiB; later an output, what the second
        function makes of it, and the result. Another segment has the buffer with which kernels are
        timed where they first run: as large as the cache of an A100, 40 MiB. A replay allocates
        nothing.
        """
        printed = lines("""
            first = graphed(lambda x: (x * 2, x + 1))
            second = graphed(lambda a: a.sin() @ a)
            x = torch.ones(1024, 1024, device="cuda")
            for step in range(6):
                torch.compiler.cudagraph_mark_step_begin()
                a, b = first(x)
                del b
                before = torch.cuda.memory_stats()["allocation.all.allocated"]
                c = second(a) if step >= 2 else None
                is_same = before == torch.cuda.memory_stats()["allocation.all.allocated"]
                held = in_pools()
                del a, c
                print(">", [held, in_pools(), checkpoints(), int(is_same)])
            segments = torch.cuda.memory_snapshot()
            sizes = [each["total_size"] for each in segments if any(each["segment_pool_id"])]
            print(">", sorted(sizes))
        """)

        block = 4 * MIB
        assert printed == [
            [[block], [], 0, True],
            [[block], [], 0, True],
            [[block, block], [], 1, False],
            [[block, block], [], 2, False],
            [[], [], 2, True],
            [[], [], 2, True],
            [20 * MIB, 40 * MIB],
        ]

    def test_a_branch_taken_late(self, lines: Callable[[str], list[Any]]) -> None:
        """`test_live_outputs_multiple_graphs`: one checkpoint to warm up, another to record."""
        printed = lines("""
            late = False
            is_late = torch._dynamo.disable(lambda: late)

            def f(x):
                y = x + x + x
                return y + 1 if is_late() else y * 3

            f = graphed(f)
            for _ in range(2):
                out = f(torch.zeros(5, device="cuda"))
            print(">", checkpoints())
            late = True
            for _ in range(2):
                out = f(torch.ones(5, device="cuda"))
            print(">", [checkpoints(), in_pools()])
            del out
            print(">", in_pools())
        """)

        assert printed == [0, [2, [HALF_KIB]], []]

    def test_cached_outputs_are_given_up(self, lines: Callable[[str], list[Any]]) -> None:
        """`test_checkpointing_resets_persistent_refs`: the second function returns an alias."""
        printed = lines("""
            import weakref
            from torch._dynamo.mutation_guard import GenerationTracker
            square = graphed(lambda x: x @ x)
            both = graphed(lambda x: (x[0], x @ x))
            new = lambda: torch.rand([20, 20], device="cuda")
            for _ in range(3):
                square(new())
            cached = weakref.ref(square(new()))  # an id may be used again
            print(">", [checkpoints(), int(square(new()) is cached())])
            for _ in range(2):
                out = square(new())
                GenerationTracker.generation -= 1
                alias, result = both(out)
                del alias
                counts = [len(in_pools())]
                del out
                counts.append(len(in_pools()))
                del result
                counts.append(len(in_pools()))
                print(">", [counts, checkpoints()])
            again = square(new())
            print(">", int(again is cached()))
        """)

        assert printed == [[0, True], [[2, 1, 0], 1], [[2, 1, 0], 2], False]

    def test_an_overwritten_output_cannot_be_read(self, lines: Callable[[str], list[Any]]) -> None:
        """`test_error_on_dealloc_use`, also with aliases."""
        printed = lines("""
            f = graphed(lambda x: x * x * x)
            x = torch.rand(4, device="cuda")
            first = f(x)
            aliases = [first[1:]]
            second = f(x)
            aliases += [second[1:], second.detach()]
            print(">", [int(refused(lambda: each + each)) for each in (first, second)])
            f(x)
            print(">", [int(refused(lambda: each + 1)) for each in (second, *aliases)])
            print(">", [int(refused(lambda: (each.shape, each.device))) for each in aliases])
        """)

        assert printed == [[True, False], [True] * 4, [False] * 3]

    def test_a_replay_overwrites_in_silence(self, lines: Callable[[str], list[Any]]) -> None:
        """Only what a warm-up or a recording returned is given up with a message."""
        printed = lines("""
            f = graphed(lambda x: x * x * x)
            x = torch.rand(4, device="cuda")
            outputs = [f(x)[1:] for _ in range(4)]
            print(">", [int(refused(lambda: each + 1)) for each in outputs])
        """)

        assert printed == [[True, True, False, False]]

    def test_gradients_do_not_accumulate_in_a_pool(self, lines: Callable[[str], list[Any]]) -> None:
        """The warm-up's gradient lies in the pool, and is given up before the next step."""
        printed = lines("""
            layer = torch.nn.Linear(4, 4).cuda()
            f = graphed(layer)
            x = torch.rand(4, 4, device="cuda")
            step = lambda: f(x).sum().backward()
            print(">", [int(refused(step)) for _ in range(2)])
        """)

        assert printed == [[False, True]]
