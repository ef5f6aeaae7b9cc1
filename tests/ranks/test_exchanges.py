"""Values that ranks give into collectives: copies of their own alone, and each other's together.

Expected are the sums of rank + 1 over the ranks and their like, and for the experts the allocations
of real ranks on H100s (fixtures/cuda/ranks).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome
from tests.ranks.test_ranks import RANKS, RECORDED, allocations
from tests.support.places import ROOT

HEAD = """import torch, torch.distributed as dist
dist.init_process_group('cpu:gloo,cuda:nccl')
rank = dist.get_rank()
torch.cuda.set_device(rank)
"""
ALONE = """for device in 'cpu', 'cuda':
    for name in 'SUM', 'PRODUCT', 'MIN', 'MAX', 'BXOR':
        value = torch.tensor([3], device=device)
        dist.all_reduce(value, getattr(dist.ReduceOp, name))
        print(value.item(), end=' ')
average, is_any = torch.tensor([3.0], device='cuda'), torch.tensor([True], device='cuda')
dist.all_reduce(average, dist.ReduceOp.AVG)
dist.all_reduce(is_any)
print(average.item(), is_any.item())
"""
EACH = """def own(): return torch.tensor([rank + 1], device='cuda')
for name in 'SUM', 'PRODUCT', 'MIN', 'MAX', 'BOR', 'BAND', 'BXOR':
    value = own()
    dist.all_reduce(value, getattr(dist.ReduceOp, name))
    print(value.item(), end=' ')
sent, listed, single, turned = own(), [own(), own()], own().repeat(2), own().repeat(2)
dist.broadcast(sent, 1)
dist.all_gather(listed, own())
dist.all_gather_into_tensor(single, own())
dist.all_to_all_single(turned, own().repeat(2))
print(sent.item(), [each.item() for each in listed], single.tolist(), turned.tolist())
gathered, part, share = [own(), own()], own(), own()
dist.gather(own(), None if rank else gathered)
dist.scatter(part, None if rank else [own() + 6, own() + 7])
dist.reduce_scatter_tensor(share, own().repeat(2))
print([each.item() for each in gathered], part.item(), share.item())
mine, theirs = 1 + rank, 2 - rank  # rank 0 sends two to rank 1, which sends it two
uneven = torch.zeros(3, dtype=torch.int64, device='cuda')
sent = torch.arange(3, device='cuda') + 10 * rank
dist.all_to_all_single(uneven, sent, [1, 2] if rank == 0 else [2, 1], [mine, theirs])
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
whole = DTensor.from_local(own(), init_device_mesh('cuda', (2,)), [Shard(0)]).full_tensor()
print(uneven.tolist(), whole.tolist())
"""
# Numbers that are no integers, too.
COPIED = """def own(): return torch.tensor([2.5], device='cuda')
def zeros(count=1): return torch.zeros(count, device='cuda')
gathered, listed, single = [zeros(), zeros()], [zeros(), zeros()], zeros(2)
parted, share, scattered, turned = zeros(), zeros(), zeros(), zeros(2)
dist.gather(own(), gathered if rank == 0 else None)
dist.all_gather(listed, own())
dist.all_gather_into_tensor(single, own())
dist.reduce_scatter(parted, [own(), own()])
dist.reduce_scatter_tensor(share, own().repeat(2))
dist.all_to_all_single(turned, own().repeat(2))
print([each.item() for each in gathered + listed], single.tolist(), turned.tolist())
print(parted.item(), share.item())
dist.scatter(scattered, [own(), own()] if rank == 0 else None)
print(scattered.item())
"""
# The last rank has three batches, and in the loop after them all are done.
AGREED = """left, loops = 2 + rank, 0
while True:
    done = torch.tensor([int(left <= 0)], device='cuda')
    dist.all_reduce(done)
    if done.item() == dist.get_world_size(): break
    left, loops = left - 1, loops + 1
print(loops)
"""
# Rank 1 begins its own only after a message, which rank 0 sends before it waits.
LATER = """count = torch.tensor([rank + 1])
if rank: dist.recv_object_list([None], 0)
work = dist.all_reduce(count, async_op=True)
if not rank: dist.send_object_list(['first'], 1)
work.wait()
print(count.item())
"""
# A rank without data makes the others' collectives until they have none left, so none differs.
JOINED = """from torch.distributed.algorithms.join import Join
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda(), [rank])
done = 0
with Join([model]):
    for _ in range(1 + 2 * rank):
        model(torch.ones(4, 8, device='cuda')).sum().backward()
        done += 1
print(done)
"""
Together = Callable[..., Outcome]


@pytest.fixture
def together(
    run_graphmem: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Together:
    """Run ranks of a script: all of two, or those that are named."""
    monkeypatch.chdir(tmp_path)

    def together(body: str, rank: str = "all") -> Outcome:
        Path("s.py").write_text(HEAD + body)
        chosen = "--nproc-per-node", "2", "--rank", rank
        return run_graphmem("run", "--gpu", "h100", *chosen, "s.py")

    return together


def test_a_rank_alone_counts_each_rank_once(together: Together) -> None:
    """3 + 3, 3 * 3, min(3, 3), max(3, 3) and 3 ^ 3, on the CPU and on the card."""
    done = together(ALONE, "1")

    assert done.stdout == "6 9 3 3 0 6 9 3 3 0 3.0 True\n"


def test_a_rank_alone_takes_copies_of_what_it_gives(together: Together) -> None:
    """Two copies of 2.5 are gathered, and add up to 5."""
    done = together(COPIED, "0")

    assert done.stdout == "[2.5, 2.5, 2.5, 2.5] [2.5, 2.5] [2.5, 2.5]\n5.0 5.0\n2.5\n"
    assert "assuming" not in done.stderr


def test_what_another_rank_scatters_is_not_known(together: Together) -> None:
    done = together(
        "part = torch.zeros(1, device='cuda')\ndist.scatter(part, src=1)\nprint(part.item())", "0"
    )

    assert done.stdout == "1.0\n"  # as of any float that is not known
    assert "part: 1.0; the card does no arithmetic" in done.stderr


@pytest.mark.slow
def test_ranks_that_run_together_have_each_others_values(together: Together) -> None:
    """One program does what four would, each of which would start two processes."""
    done = together(EACH + AGREED + LATER + JOINED)

    reduced = "3 2 1 2 3 0 3"  # of 1 and 2
    each, loops, awaited = f"{reduced} 2 [1, 2] [1, 2] [1, 2]", "3", "3"
    parts = "[1, 2] 7 3", "[2, 2] 8 3"  # rank 1 gathers nothing
    rest = "[0, 10, 11] [1, 2]", "[1, 2, 12] [1, 2]"
    first, second = (
        "\n".join([each, parts[n], rest[n], loops, awaited, "13"[n]]) for n in range(2)
    )
    assert (done.exit_code, done.stdout) == (0, f"{first}\n{second}\n")
    assert "perhaps only because" not in done.stderr


LISTED = """def row(*numbers): return torch.tensor(numbers, device='cuda')
sent = [row(*[10 * rank + to] * (rank + to + 1)) for to in range(2)]
received = [torch.empty_like(row(*range(rank + of + 1))) for of in range(2)]
dist.all_to_all(received, sent)
part, uneven = row(0), row(*range(rank + 1))
dist.reduce_scatter(part, [row(rank), row(rank + 10)])
dist.reduce_scatter(uneven, [row(rank), row(rank + 20, rank + 21)], dist.ReduceOp.MAX)
print([each.tolist() for each in received], part.item(), uneven.tolist())
"""


@pytest.mark.slow
def test_ranks_that_run_together_exchange_lists(together: Together) -> None:
    """Rank a sends a + b + 1 times 10 a + b to rank b; the sums are 0 + 1 and 10 + 11."""
    done = together(LISTED)

    assert done.stdout == "[[0], [10, 10]] 1 [1]\n[[1, 1], [11, 11, 11]] 21 [21, 22]\n"


@pytest.mark.slow
def test_a_rank_that_ends_early_keeps_nobody_waiting(together: Together) -> None:
    done = together("for _ in range(1 + rank): dist.all_reduce(torch.ones(1))")

    assert done.exit_code == 2
    assert "fullest: rank" in done.stderr
    assert "the collectives of ranks 0 and 1 do not match" in done.stderr
    assert "rank 1: all_reduce of float32[1] at " in done.stderr


@pytest.mark.slow
def test_a_rank_that_is_killed_is_told_by_its_signal(together: Together) -> None:
    """The others go on without it; a shell's exit code for SIGKILL, 9, is 128 + 9."""
    done = together(
        "import os, signal\n"
        "if rank: os.kill(os.getpid(), signal.SIGKILL)\n"
        "dist.all_gather_object([None, None], rank)"
    )

    assert done.exit_code == 137
    assert "killed by SIGKILL" in done.stderr
    assert "this machine's memory runs out" in done.stderr


UNEQUAL = """sent = torch.tensor([1, 3] if rank == 0 else [2, 4], device='cuda')
received = torch.empty_like(sent)
dist.all_to_all_single(received, sent)
sizes = received.cpu().numpy(), sent.tolist()  # Megatron's are NumPy's
parts = torch.empty(sum(sizes[0]), device='cuda')
dist.all_to_all_single(parts, torch.ones(sum(sizes[1]), device='cuda'), *sizes)
print(len(parts))
"""


@pytest.mark.parametrize(
    ("rank", "elements"),
    [("0", [4]), pytest.param("all", [1 + 2, 3 + 4], marks=pytest.mark.slow)],
)
def test_a_rank_alone_does_not_know_how_much_others_send(
    run_graphmem: Callable[..., Outcome],
    tmp_path: Path,
    rank: str,
    elements: list[int],
) -> None:
    script = tmp_path / "unequal.py"
    script.write_text(HEAD + UNEQUAL)

    done = run_graphmem("run", "--nproc-per-node", "2", "--rank", rank, str(script))

    assert done.exit_code == 0, done.stderr
    assert done.stdout.split() == [str(each) for each in elements]
    assert ("unequal parts from other ranks: as large as" in done.stderr) == (rank == "0")
    assert ("not all of them run" in done.stderr) == (rank == "0")


def test_experts_receive_what_other_ranks_send(
    run_graphmem: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Each rank sends other numbers of tokens, and is told how many it receives."""
    record = ROOT / "tools" / "record_cuda.py", "-o", tmp_path / "experts"
    script = RANKS / "expert_parallel.py", "--functional", "--fixed-splits", "--steps", "2"
    options = "--gpu", "h100-80gb", "--torch", "2.11", "--nproc-per-node", "2", "--rank", "all"

    done = run_graphmem("run", *map(str, (*options, *record, *script)))

    assert done.exit_code == 0, done.stderr
    for rank in (0, 1):
        made = tmp_path / f"experts.rank{rank}.events.json"
        recorded = RECORDED / f"experts_functional_fixed.rank{rank}.events.json.gz"
        found = allocations(json.loads(made.read_text()))
        assert (
            found == allocations(json.loads(gzip.decompress(recorded.read_bytes())))[: len(found)]
        )
        assert len(found) > 700


BROADCAST = """count = torch.tensor([5 if rank == 0 else -1], device="cuda")
dist.broadcast(count, src=0)
torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(4).cuda())
name = ["of rank 0" if rank == 0 else None]
dist.broadcast_object_list(name, src=0)
print(count.item(), *name)
"""


@pytest.mark.parametrize(("rank", "count"), [("0", "5"), ("1", "-1")])
def test_a_rank_alone_says_that_it_keeps_what_another_would_broadcast(
    run_graphmem: Callable[..., Outcome],
    tmp_path: Path,
    rank: str,
    count: str,
) -> None:
    """Neither what DDP compares nor an object, which really comes, is such a number."""
    script = tmp_path / "broadcast.py"
    script.write_text(HEAD + BROADCAST)

    done = run_graphmem("run", "--nproc-per-node", "2", "--rank", rank, str(script))

    assert done.stdout.split() == [count, "of", "rank", "0"]
    told = " ".join(done.stderr.split()).count(
        "numbers that another rank broadcasts: this rank's own"
    )
    assert told == (rank == "1")


ROTATED = """from torch.distributed._functional_collectives import permute_tensor
print(len(permute_tensor(torch.ones(8, device='cuda'), [1, 0], dist.group.WORLD)))
"""


def test_a_ring_turns_parts_that_are_as_large_on_all_ranks(
    run_graphmem: Callable[..., Outcome], tmp_path: Path
) -> None:
    """A recorded `context_parallel.py --rotate alltoall` has every allocation as predicted."""
    script = tmp_path / "ring.py"
    script.write_text(HEAD + ROTATED)

    done = run_graphmem("run", "--nproc-per-node", "2", "--rank", "0", str(script))

    assert (done.exit_code, done.stdout) == (0, "8\n"), done.stderr
    assert "unequal parts" not in done.stderr
