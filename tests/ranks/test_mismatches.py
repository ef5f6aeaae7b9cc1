"""Collectives that do not match between ranks, which hang or fail on real cards.

The rules are those of PyTorch's own check (torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from graphmem.ranks.journal import FOLDER, Collectives, Journal
from graphmem.ranks.mismatches import Mismatch, first_mismatch
from graphmem.values.known import KnownValues
from graphmem.values.rules import Rules
from tests.conftest import Outcome

HEAD = """import torch, torch.distributed as dist
dist.init_process_group('cpu:gloo,cuda:nccl')
rank = dist.get_rank()
torch.cuda.set_device(rank)
def card(*sizes, dtype=None): return torch.ones(*sizes, dtype=dtype, device='cuda')
group, x, y = dist.new_group([0, 1]), card(4), card(8)
held = torch.nn.Parameter(card(4))
"""
Compare = Callable[..., Mismatch | None]


@pytest.fixture
def compare(
    run_graphmem: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Compare:
    """Run two ranks of a script one after the other, and compare what they noted."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def compare(body: str, *options: str) -> Mismatch | None:
        Path("s.py").write_text(HEAD + body)
        found = {}
        for rank in (0, 1):
            chosen = "--nproc-per-node", "2", "--rank", str(rank)
            done = run_graphmem("run", "--gpu", "h100", *chosen, *options, "s.py")
            assert done.exit_code == 0, done.stderr
            found[rank] = Collectives.read(tmp_path, rank) or Collectives(False, [], [])
        return first_mismatch(found)

    return compare


FIRST = 1 + HEAD.count("\n")
DDP = "torch.nn.parallel.DistributedDataParallel"
WEIGHTS_SENT = f"""torch.manual_seed(rank)
{DDP}(torch.nn.Linear(4, 4).cuda(), [rank])
dist.broadcast(torch.nn.Parameter(x + rank), 0)"""
BATCHES = """for _ in range(2 - rank):
    kind = dist.irecv if rank else dist.isend
    dist.batch_isend_irecv([dist.P2POp(kind, x, 1 - rank)])"""
RECEIVED = "batch_isend_irecv of float32[4] from rank 0"
NO_MORE = "no further collective of this group on cuda; its last is "


@pytest.mark.parametrize(
    ("body", "first", "second"),
    [
        (
            "if rank: dist.broadcast(x, 0)\nelse: dist.all_reduce(x)",
            f"all_reduce of float32[4] at s.py:{FIRST + 1}",
            f"broadcast of float32[4] at s.py:{FIRST}",
        ),
        (
            "dist.all_reduce(y if rank else x)",
            f"all_reduce of float32[4] at s.py:{FIRST}",
            f"all_reduce of float32[8] at s.py:{FIRST}",
        ),
        (
            "if rank: x = x.bfloat16()\ndist.reduce_scatter_tensor(x[:2], x)",
            f"reduce_scatter_tensor of float32[4], float32[2] at s.py:{FIRST + 1}",
            f"reduce_scatter_tensor of bfloat16[4], bfloat16[2] at s.py:{FIRST + 1}",
        ),
        (
            "if rank: dist.barrier(group)",
            "no collective of this group on cuda",
            f"barrier at s.py:{FIRST}",
        ),
        (
            "dist.all_reduce(x)\nif not rank: dist.all_gather_object([None, None], 'one')",
            f"all_gather_object of int64[1] at s.py:{FIRST + 1}",
            "no collective of this group on cpu",
        ),
        (
            "for _ in range(3 + rank): dist.all_reduce(x)",
            f"{NO_MORE}all_reduce of float32[4] at s.py:{FIRST}",
            f"all_reduce of float32[4] at s.py:{FIRST}",
        ),
        (
            f"model = torch.nn.Linear(4, 4, bias=rank == 0).cuda()\n{DDP}(model, [rank])",
            f"DistributedDataParallel of 2 parameters at s.py:{FIRST + 1}",
            f"DistributedDataParallel of 1 parameter at s.py:{FIRST + 1}",
        ),
        (  # as many numbers in each
            f"n = (4, 2) if rank else (2, 4)\n{DDP}(torch.nn.Bilinear(*n, 3).cuda(), [rank])",
            f"DistributedDataParallel of parameter 0, [3, 2, 4] at s.py:{FIRST + 1}",
            f"DistributedDataParallel of parameter 0, [3, 4, 2] at s.py:{FIRST + 1}",
        ),
        (  # no program goes by the weights that rank 0 sends
            f"{WEIGHTS_SENT}\ndist.all_reduce(y if rank else x)",
            f"all_reduce of float32[4] at s.py:{FIRST + 3}",
            f"all_reduce of float32[8] at s.py:{FIRST + 3}",
        ),
    ],
)
def test_the_first_difference_has_both_lines(
    compare: Compare, body: str, first: str, second: str
) -> None:
    assert compare(body) == Mismatch((0, 1), (first, second), None)


@pytest.mark.parametrize(
    ("body", "first", "second"),
    [
        (
            "if rank: dist.recv(x, 0)",
            "no message to rank 1",
            f"recv of float32[4] from rank 0 at s.py:{FIRST}",
        ),
        (
            "if rank: dist.send(x, 0)\nelse: dist.recv(y, 1)",
            f"recv of float32[8] from rank 1 at s.py:{FIRST + 1}",
            f"send of float32[4] to rank 0 at s.py:{FIRST}",
        ),
        (
            BATCHES,
            f"batch_isend_irecv of float32[4] to rank 1 at s.py:{FIRST + 2}",
            f"no further message from rank 0; its last is {RECEIVED} at s.py:{FIRST + 2}",
        ),
        (  # gloo's messages have tags
            "if rank: dist.recv(torch.ones(2), 0, tag=5)\nelse: dist.send(torch.ones(2), 1, tag=4)",
            f"send of float32[2] to rank 1 at s.py:{FIRST + 1}",
            "no message from rank 0",
        ),
    ],
)
def test_messages_that_nobody_receives_or_sends_have_both_lines(
    compare: Compare, body: str, first: str, second: str
) -> None:
    assert compare(body) == Mismatch((0, 1), (first, second), None, are_messages=True)


def test_what_may_differ_between_ranks_does(compare: Compare) -> None:
    """Splits, types of messages, who gathers, uneven lists, another order of groups, shapes."""
    body = """
dist.all_to_all_single(card(3), card(2 + 2 * rank), [1, 2], [1 + rank] * 2)
if rank: dist.recv(x, 0); dist.recv(torch.ones(8), 0, tag=2)
else: dist.send(card(2, 2, dtype=torch.int32), 1, tag=1); dist.send(torch.ones(8), 1, tag=2)
dist.gather(x, None if rank else [card(4), card(4)], 0)
dist.scatter(x, None if rank else [card(4), card(4)], 0)
dist.all_gather([card(4), card(5)], card(4 + rank))
works = [(x, group), (y, None)]
for tensor, where in works[::-1] if rank else works: dist.all_reduce(tensor, group=where)
dist.broadcast(x, 0)
dist.all_reduce(card(2, 2) if rank else x)
dist.all_gather_into_tensor(y, card(1, 4) if rank else x)
"""
    assert compare(body) is None


def test_values_that_are_not_exchanged_may_be_the_cause(compare: Compare) -> None:
    """Real ranks gather 3 and 4 and pad both to 4; here each finds its own size twice."""
    mismatch = compare(
        "size = torch.tensor([3 + rank], device='cuda')\n"
        "sizes = [torch.empty_like(size) for _ in range(2)]\n"
        "dist.all_gather(sizes, size)\n"
        "dist.all_reduce(card(max(sizes)))"
    )

    assert mismatch is not None
    assert mismatch.doubt == f"s.py:{FIRST + 2}"
    assert mismatch.did[1] == f"all_reduce of float32[4] at s.py:{FIRST + 3}"


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_known_float_may_be_the_cause(compare: Compare, device: str) -> None:
    """Real ranks both have 1.0, the greatest; here each has its own, and `.item()` returns it."""
    mismatch = compare(
        f"flag = torch.tensor(float(rank), device='{device}')\n"
        "dist.all_reduce(flag, op=dist.ReduceOp.MAX)\n"
        "if flag.item() > 0: dist.all_reduce(x)"
    )

    assert mismatch is not None
    assert mismatch.doubt == f"s.py:{FIRST + 1}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.ones(4), torch.tensor([1.0, 1.0, 1.0, 2.0])),
        (torch.tensor(1.5), torch.tensor(2.5)),
        (torch.tensor([True, False]), torch.tensor([False, True])),
        (torch.tensor([1j]).conj(), torch.tensor([1j])),
        (torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
        (torch.arange(6).view(2, 3).t(), torch.arange(6).view(3, 2)),
        (torch.ones(0), None),
    ],
)
def test_values_of_any_type_are_compared(
    one: torch.Tensor,
    other: torch.Tensor | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "2")

    def noted(rank: int, tensor: torch.Tensor) -> Collectives:
        monkeypatch.setenv("RANK", str(rank))
        journal = Journal(KnownValues(Rules(), lambda: None), lambda: None, lambda: False)
        group = journal.group([0, 1])
        journal.note(group, "cpu", "broadcast", [tensor], [tensor])
        journal.note(group, "cpu", "reduce" if rank else "allreduce", [])
        journal.write()
        found = Collectives.read(tmp_path, rank)
        assert found is not None
        return found

    alike = first_mismatch({0: noted(0, one), 1: noted(1, one.clone())})
    assert alike is not None
    assert alike.doubt is None
    if other is not None:
        different = first_mismatch({0: noted(0, one), 1: noted(1, other)})
        assert different is not None
        assert different.doubt is not None


def test_ranks_may_be_numbers_of_numpy(compare: Compare) -> None:
    """nanotron makes its groups from arrays of ranks."""
    made = (
        "import numpy\n"
        "pair = dist.new_group(numpy.arange(2))\n"
        "dist.all_reduce(x, group=pair)\n"
        "dist.recv(x, 0, pair) if rank else dist.send(y, 1, pair)"
    )

    found = compare(made)

    assert found is not None
    assert [str(each) for each in found.did] == [
        f"send of float32[8] to rank 1 at s.py:{FIRST + 3}",
        f"recv of float32[4] from rank 0 at s.py:{FIRST + 3}",
    ]


def test_a_later_exchange_is_not_the_cause(compare: Compare) -> None:
    mismatch = compare("dist.all_reduce(y if rank else x)\ndist.all_reduce(torch.tensor(rank))")

    assert mismatch is not None
    assert mismatch.doubt is None


def test_ranks_stopped_at_different_places_are_compared_up_to_there(compare: Compare) -> None:
    """The second iteration begins after the first collective or after the second."""
    body = """
optimizer = torch.optim.SGD([held])
try:
    for _ in range(2):
        if rank: dist.all_reduce(x)
        held.sum().backward()
        if not rank: dist.all_reduce(x)
        optimizer.step()
finally:
    if rank: dist.broadcast(x, 0)  # cleans up
"""
    assert compare(body, "--max-steps", "1") is None


@pytest.mark.slow  # as test_exchanges.py's rank that ends early
def test_several_ranks_that_do_not_match_are_an_error(
    run_graphmem: Callable[..., Outcome], tmp_path: Path
) -> None:
    script = tmp_path / "s.py"
    script.write_text(HEAD + "dist.all_reduce(y if rank else x)")

    done = run_graphmem("run", "--nproc-per-node", "2", "--rank", "all", str(script))

    assert done.exit_code == 2
    assert "fullest: rank" in done.stderr
    assert "the collectives of ranks 0 and 1 do not match" in done.stderr
    assert f"rank 1: all_reduce of float32[8] at {script}:{FIRST}" in done.stderr


BOTH_WAYS = """kinds = dist.isend, dist.irecv
dist.batch_isend_irecv([dist.P2POp(kind, x, 1 - rank) for kind in kinds])"""
CROSSED = "first, second = (dist.{0}, dist.{1}){2}\nfirst(x, 1 - rank)\nsecond(y[:4], 1 - rank)"


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        (CROSSED.format("send", "recv", ""), 0, "both send to each other before either receives"),
        pytest.param(
            *(CROSSED.format("isend", "irecv", ""), 0, "rank 1: isend of float32[4] to rank 0 at "),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(CROSSED.format("recv", "send", ""), 2, "rank 0: recv of float32[4] from rank 1 at "),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            CROSSED.format("send", "recv", "[::1 - 2 * rank]"), 0, "", marks=pytest.mark.slow
        ),
        pytest.param(BOTH_WAYS, 0, "", marks=pytest.mark.slow),
    ],
)
def test_ranks_that_wait_for_each_other_are_told(
    run_graphmem: Callable[..., Outcome],
    tmp_path: Path,
    body: str,
    code: int,
    told: str,
) -> None:
    script = tmp_path / "s.py"
    script.write_text(HEAD + body)

    done = run_graphmem("run", "--nproc-per-node", "2", "--rank", "all", str(script))

    assert done.exit_code == code, done.stderr
    assert told in done.stderr
    assert ("rank 0: " in done.stderr) == bool(told)
