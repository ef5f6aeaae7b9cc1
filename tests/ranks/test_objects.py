"""Objects that ranks gather: of all that run, and copies where a rank runs alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

SAVE = """
import pathlib, sys, time
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = fully_shard(torch.nn.Linear(8, 8).cuda())
dcp.save({"model": model.state_dict(), "note": rank}, checkpoint_id="saved")
"""
MEET = """
if rank == 0:
    time.sleep(0.5)
    pathlib.Path("written").touch()
dist.barrier()
there, found = [None, None], [None, None] if rank else None
dist.all_gather_object(there, "x" * (3000 + rank))
dist.gather_object({"rank": rank}, found, dst=1)
print(pathlib.Path("written").exists(), [len(each) for each in there], found)
"""


@pytest.fixture
def run(
    run_graphmem: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Outcome]:
    monkeypatch.chdir(tmp_path)

    def run_it(rank: str, program: str) -> Outcome:
        Path("s.py").write_text(program)
        options = "--gpu", "h100", "--nproc-per-node", "2", "--rank", rank
        return run_graphmem("run", *options, "s.py")

    return run_it


def test_ranks_that_run_meet(run: Callable[..., Outcome]) -> None:
    done = run("all", SAVE + MEET)

    assert done.exit_code == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "True [3000, 3001] None"
    assert second == "True [3000, 3001] [{'rank': 0}, {'rank': 1}]"
    assert sorted(each.name for each in Path("saved").iterdir()) == [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
    ]


SCATTERED = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
found = [None]
dist.scatter_object_list(found, ["a" * 500, "b"] if rank == 0 else None, src=0)
print(found[0][:2], len(found[0]))
"""


IN_THREADS = """
import threading, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank, aside = dist.get_rank(), dist.new_group()
torch.cuda.set_device(rank)
found, sent = {}, threading.Event()

def receive(name, group):
    torch.cuda.set_device(rank)
    objects = [None]
    dist.broadcast_object_list(objects, src=0, group=group)
    found[name] = objects[0]

if rank == 0:
    dist.recv_object_list(objects := [None], src=1)
    dist.broadcast_object_list(["aside"], src=0, group=aside)
    dist.broadcast_object_list(["main"], src=0)
else:
    thread = threading.Thread(target=receive, args=("aside", aside))
    thread.start()
    thread.join(0.5)  # it waits for rank 0, which waits for what follows
    dist.send_object_list(["ready"], dst=0)
    receive("main", None)
    thread.join()
    print(sorted(found.items()))
"""


@pytest.mark.slow
def test_groups_have_messages_of_their_own(run: Callable[..., Outcome]) -> None:
    """As OLMo-core's pipeline stages exchange shapes while a thread plans a checkpoint."""
    done = run("all", IN_THREADS)

    assert done.exit_code == 0, done.stderr
    assert done.stdout == "[('aside', 'aside'), ('main', 'main')]\n"


@pytest.mark.slow
def test_a_scattered_object_may_be_shorter_than_the_longest(run: Callable[..., Outcome]) -> None:
    """All are sent in tensors as long as the longest, such as the plans of a checkpoint."""
    done = run("all", SCATTERED)

    assert (done.exit_code, done.stdout) == (0, "aa 500\nb 1\n"), done.stderr


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_alone_saves_its_part(run: Callable[..., Outcome], rank: int) -> None:
    """Rank 1 is sent its plan by rank 0, which runs beside it; PyTorch caches layouts by size."""
    done = run(str(rank), SAVE.replace("Linear(8, 8)", f"Linear(8, {4 + 2 * rank})"))

    assert done.exit_code == 0, done.stderr
    assert Path(f"saved/__{rank}_0.distcp").exists()


LOAD = """
before = {name: part.to_local().shape for name, part in model.state_dict().items()}
read = {"model": model.state_dict()}
dcp.load(read, checkpoint_id="saved")
print(before == {name: part.to_local().shape for name, part in read["model"].items()})
"""


def test_a_rank_alone_finds_again_what_it_saved(run: Callable[..., Outcome]) -> None:
    """The three that do not run have copies of its plan, and would write a part of what it has."""
    done = run("0", SAVE + LOAD)

    assert (done.exit_code, done.stdout) == (0, "True\n"), done.stderr
