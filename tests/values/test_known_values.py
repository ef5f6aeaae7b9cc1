"""Values known on the card: each program also runs for real, and both must agree."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import graphmem
from graphmem.errors import InputError
from graphmem.trace.loop_tests import while_loop_around
from graphmem.trace.messages import BranchOnValueError, EndlessLoopError, StrictError
from tests.support.card_programs import Program, on_card


def of_masks(device: torch.device) -> Any:
    ids = torch.tensor([[5, 6, 0], [7, 0, 0]], device=device)
    mask = ids != 0
    return [
        mask.all().item(),
        bool(mask.any()),
        mask.sum(1).tolist(),
        mask.nonzero().tolist(),
        ids[mask].tolist(),
        torch.masked_select(ids, mask).tolist(),
        0 in ids,
        torch.equal(ids, ids.clone()),
    ]


def of_views(device: torch.device) -> Any:
    base = torch.arange(12, device=device).view(3, 4)
    row, column = base[1], base[:, 2]
    row[2] = 100
    column += 1
    base.t()[0].zero_()
    wide = base.expand(2, 3, 4)
    return [base.tolist(), row.tolist(), column.tolist(), wide[1, 1].tolist(), wide.tolist()]


def of_writes(device: torch.device) -> Any:
    counts = torch.zeros(4, dtype=torch.long, device=device)
    counts.index_add_(0, torch.tensor([1, 1, 3], device=device), torch.ones_like(counts)[:3])
    filled = torch.empty(3, device=device).copy_(torch.tensor([1.0, 2.0, 4.0]))
    filled.mul_(filled)
    counts[counts == 2] = 7
    shapes = torch.empty((2, 2), dtype=torch.long, device=device)
    for level, (height, width) in enumerate([(2, 3), (1, 2)]):
        shapes[level, 0], shapes[level, 1] = height, width
    if shapes.prod(1).sum() != 8:
        raise ValueError("shapes and positions do not match")
    return [counts.tolist(), filled.tolist(), torch.full((2,), True, device=device).all().item()]


def of_sizes(device: torch.device) -> Any:
    lengths = torch.tensor([2, 0, 3], device=device)
    rows = torch.arange(5, device=device)
    return [
        [part.tolist() for part in rows.split(lengths.tolist())],
        torch.bincount(lengths).tolist(),
        torch.repeat_interleave(rows[:3], lengths).tolist(),
        F.one_hot(lengths).shape,
        torch.unique(lengths, return_counts=True)[1].tolist(),
        torch.cumsum(lengths, 0)[-1].item(),
    ]


def of_copies(device: torch.device) -> Any:
    table = torch.tensor([[1.5, -2.0]], device=device)
    return [
        table.cpu().numpy().tolist(),
        f"{table[0, 1]:.3f}",
        int(table.argmin()),
        table.to(torch.int64).tolist(),
        torch.tensor([table[0, 0].item(), 2.0]).tolist(),
    ]


def of_saved_masks(device: torch.device) -> Any:
    """A mask held only by autograd is known again when it is unpacked."""
    seen = []

    class Masked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(torch.tensor([True, False], device=x.device))
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (mask,) = ctx.saved_tensors
            seen.append(mask.tolist())
            return grad

    Masked.apply(torch.ones(2, device=device, requires_grad=True)).sum().backward()
    return seen


def of_saved_columns(device: torch.device) -> Any:
    """The gradient of a selection by a mask's column has as many rows: an expert's tokens."""
    chosen = F.one_hot(torch.tensor([0, 1, 1, 2], device=device)).bool()
    rows = torch.ones(4, 3, device=device, requires_grad=True)
    out, shapes = torch.zeros(4, 3, device=device), []
    for expert in range(3):
        found = rows[chosen[:, expert]] * 2
        found.register_hook(lambda grad: shapes.append(list(grad.shape)))
        out[chosen[:, expert]] = found
    out.sum().backward()
    return shapes


def of_tangents(device: torch.device) -> Any:
    """The bias has no tangent: PyTorch takes zeros without memory for it."""
    x, weight = torch.arange(4.0, device=device).view(2, 2), torch.eye(2, device=device)
    results = torch.func.jvp(lambda x: F.linear(x, weight, weight[0]), (x,), (x + 1,))
    return [each.tolist() for each in results]


def of_filled_shapes(device: torch.device) -> Any:
    """`ones_like` and its kin need no values; a loss's own gradient is 1, as Liger's losses ask."""
    seen = []

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.sum()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            seen.append(bool(torch.ne(grad, torch.tensor(1.0, device=grad.device))))
            return grad.expand(2, 3)

    weight = torch.randn(2, 3, device=device, requires_grad=True)
    Scaled.apply(weight).backward()
    (Scaled.apply(weight) * 0.5).backward()
    filled = [torch.full_like(weight.t(), 2), weight.new_ones(2), weight.new_zeros(2, 1)]
    return [seen, [each.tolist() for each in filled]]


def of_large_masks(device: torch.device) -> Any:
    """Masks that nobody reads at once: what they were made of changes, or dies, before."""
    numbers = torch.arange(6400, device=device).view(80, 80)
    small, transposed = numbers < 100, numbers.t() * 2 + 1
    halves = (numbers[:, ::2] / 2).expand(2, 80, 40) - 0.5
    both = small & (transposed > 9000)
    del transposed
    numbers += 50
    later = numbers < 100
    numbers[:, 0] = 0
    small.logical_not_()
    with torch.autocast(device.type, dtype=torch.bfloat16):
        power = torch.pow(halves[0], 2)
    total = torch.zeros(5000, device=device)
    for _ in range(1500):  # Python nests fewer calls
        total = total + 1
    return [
        [int(each.sum()) for each in (small, both, later, numbers)],
        [halves.sum().item(), power.max().item(), power.stride(), total.max().item()],
        (numbers.float().t() @ numbers.float()).shape,
    ]


@pytest.mark.parametrize(
    "program",
    [
        of_masks,
        of_large_masks,
        of_views,
        of_writes,
        of_sizes,
        of_copies,
        of_saved_masks,
        of_saved_columns,
        of_tangents,
        of_filled_shapes,
    ],
)
def test_values_a_program_made_itself_read_as_on_a_card(program: Program) -> None:
    read, graph = on_card(program)
    assert read == program(torch.device("cpu"))
    assert not graph.assumptions


def test_both_coordinates_that_a_known_mask_selects_are_known() -> None:
    def program(device: torch.device) -> Any:
        mask = torch.tensor([[True, False], [False, True]], device=device)
        table = torch.tensor([[1, 2], [3, 4]], device=device)
        table[mask] = torch.tensor([5, 6], device=device)
        return table.tolist()

    assert on_card(program)[0] == program(torch.device("cpu")) == [[5, 2], [3, 6]]


def test_what_a_mask_selects_is_spread_evenly() -> None:
    def program(device: torch.device) -> Any:
        scores = torch.nn.Linear(1, 8, device=device).weight.flatten()
        levels = torch.arange(8, device=device) // 2
        return levels[scores > 0].unique().tolist()

    read, graph = on_card(program)
    assert read == [0, 1, 2, 3]
    assert {each.what for each in graph.assumptions} >= {"which elements a mask selects"}


ROOM = {
    "unique": (lambda x: x.unique(return_counts=True), [8 * 100, 8 * 100]),
    "unique_consecutive": (lambda x: x.unique_consecutive(return_counts=True), [8 * 100, 8 * 100]),
    "unique of truth values": (lambda x: (x > 1).unique(), [1 * 2, 8 * 2]),
}


@pytest.mark.parametrize("name", ROOM)
def test_unique_keeps_room_for_all_values(name: str) -> None:
    """`resize_` of `compute_unique` (native/cuda/UniqueCub.cu) keeps the storage."""
    find, nbytes = ROOM[name]
    _, graph = on_card(lambda device: find(torch.arange(100, device=device) // 50))
    (op,) = [each for each in graph.ops if "unique" in each.target]

    assert [graph.storages[born].nbytes for born in op.births] == nbytes


def test_an_assumed_number_is_named_if_it_makes_the_step_fail(tmp_path: Path) -> None:
    target = tmp_path / "model.py"
    target.write_text(
        "import torch\nfrom graphmem import TrainingStep\n"
        "def step():\n"
        "    x = torch.nn.Linear(4, 4, device='cuda')(torch.ones(4, device='cuda'))\n"
        "    length = x.sum().long().max().item()\n"
        "    return 7 // length\n"
        "def build():\n    return TrainingStep(step=step)\n"
    )
    with pytest.raises(InputError, match="ZeroDivisionError") as raised:
        graphmem.analyze(f"{target}:build")
    assert raised.value.hint is not None
    assert "model.py:5 was taken as 0" in raised.value.hint
    assert "--assume" in raised.value.hint

    assert graphmem.analyze(f"{target}:build", assume=[f"{target}:5=3"]).operations


def test_a_write_of_unknown_numbers_discards_known_values() -> None:
    def program(device: torch.device) -> bool:
        x = torch.zeros(4, device=device)
        x[1:].add_(torch.randn(3, device=device))
        return bool(x.sum() > 0)

    with pytest.raises(BranchOnValueError):
        on_card(program)


def test_running_statistics_become_unknown_once_updated() -> None:
    def program(device: torch.device) -> bool:
        norm = torch.nn.BatchNorm1d(4).to(device)
        norm(torch.randn(8, 4, device=device))
        return bool(norm.running_mean.sum() > 0)

    with pytest.raises(BranchOnValueError):
        on_card(program)


@pytest.mark.parametrize(
    ("bins", "least", "most"), [(4, 0, 8), (3, 0, 0), (5, 2, 7), (2, 9, 9), (7, -3, 11)]
)
def test_integers_are_in_the_bins_of_equal_numbers(bins: int, least: int, most: int) -> None:
    values = [0, 1, 5, 7, 7, 8, 9]

    def program(device: torch.device) -> Any:
        counted = torch.tensor(values, device=device)
        return torch.histc(counted, bins=bins, min=least, max=most).tolist()

    read, _ = on_card(program)
    assert read == torch.histc(torch.tensor(values).double(), bins, least, most).tolist()


class TestRules:
    def test_choices_are_spread_evenly(self) -> None:
        def program(device: torch.device) -> Any:
            scores = torch.randn(6, 4, device=device)
            return torch.bincount(scores.topk(2).indices.flatten(), minlength=4).tolist()

        read, graph = on_card(program)
        assert read == [6 * 2 // 4] * 4
        (assumed,) = graph.assumptions
        assert assumed.what == "which of 4 topk chooses"
        assert assumed.source is not None
        assert assumed.source.file.endswith("test_known_values.py")

    def test_tokens_of_each_expert_are_counted_by_histc(self) -> None:
        """torchtitan counts them so; the CPU counts no integers by `histc`."""

        def program(device: torch.device) -> Any:
            chosen = torch.randn(6, 4, device=device).topk(2).indices.flatten()
            return torch.histc(chosen, bins=4, min=0, max=4).tolist()

        read, _ = on_card(program)
        assert read == [6 * 2 // 4] * 4

    def test_routing_sets_the_fraction_of_the_first_expert(self) -> None:
        def program(device: torch.device) -> Any:
            chosen = torch.randn(100, 4, device=device).topk(2).indices
            assert bool((chosen[:, 0] != chosen[:, 1]).all())
            return torch.bincount(chosen.flatten(), minlength=4).tolist()

        skewed, _ = on_card(program, assume=("routing=0.4",))
        assert skewed[0] == 0.4 * 100

    def test_in_the_worst_routing_all_choose_alike_yet_each_expert_is_chosen(self) -> None:
        def program(device: torch.device) -> Any:
            chosen = torch.randn(100, 4, device=device).topk(2).indices
            assert bool((chosen[:, 0] != chosen[:, 1]).all())
            return torch.bincount(chosen.flatten(), minlength=4).tolist()

        worst, _ = on_card(program, assume=("routing=1",))
        assert worst == [100, 98, 1, 1]

    def test_scores_are_above_the_placeholder_for_none(self) -> None:
        """A beam search continues while a beam may beat the worst finished one."""

        def program(device: torch.device) -> Any:
            finished = torch.zeros(2, 1, dtype=torch.bool, device=device)
            scores = torch.randn(2, 1, device=device)
            worst = torch.where(finished, torch.randn(2, 1, device=device), -1e9)
            return [(scores > worst).any().item(), (scores <= -1e9).any().item()]

        assert on_card(program)[0] == [True, False]

    def test_a_single_choice_lies_in_the_middle(self) -> None:
        """A token chosen from a vocabulary is none of the special ones at its ends."""
        read, _ = on_card(lambda device: torch.randn(1, 1000, device=device).argmax(-1).item())
        assert read == 500

    def test_checks_of_unknown_numbers_pass(self) -> None:
        def program(device: torch.device) -> Any:
            x = torch.randn(1 << 20, device=device)
            finite = torch.isfinite(x).all(), torch.isnan(x).any(), torch.isinf(x.sum())
            return [bool(each) for each in finite]

        read, graph = on_card(program)
        assert read == [True, False, False]
        assert graph.assumptions

    def test_a_single_unknown_number_is_finite(self) -> None:
        """`if not torch.isfinite(loss)`; DeepSpeed reduces gradients before it asks."""

        def program(device: torch.device) -> Any:
            x = torch.randn(1 << 20, device=device)
            loss, half = x.mean(), x.bfloat16()
            finite = torch.isfinite(half.amax()).logical_and(torch.isfinite(half.amin()))
            return [bool(each) for each in (torch.isfinite(loss), loss.isinf(), ~finite)]

        read, graph = on_card(program)
        assert read == [True, False, False]
        assert {each.what for each in graph.assumptions} == {"whether numbers are finite"}

    def test_unknown_numbers_keep_to_the_programs_bounds(self) -> None:
        """YOLOX takes at least one anchor for a box: `clamp(ious.sum(1).int(), min=1)[box]`."""

        def program(device: torch.device) -> Any:
            x = torch.randn(4, 3, device=device)
            counts = torch.clamp(x.sum(1).int(), min=1)
            few = x.sum().clamp(max=0.5)
            many = x.sum(1).clamp_min(2.0).long()
            return [int(counts[2]), counts.tolist(), few.item(), many[None, 0].item()]

        assert on_card(program)[0] == [1, [1, 1, 1, 1], 0.5, 2]

    def test_the_largest_of_unknown_numbers_keeps_to_their_bounds(self) -> None:
        """Matcha-TTS: `mu[:, :, : lengths.max()]`, of lengths that are at least 1."""

        def program(device: torch.device) -> Any:
            lengths = torch.randn(4, 3, device=device).sum(1).clamp_min(1).long()
            longest = torch.empty(4, 9)[:, : lengths.max()].shape[1]
            return [longest, lengths.amax().item(), lengths.min().item(), lengths.amin(0).item()]

        assert on_card(program)[0] == [1, 1, 1, 1]

    def test_a_single_unknown_number_is_not_zero(self) -> None:
        """`if loss == 0: continue`, which goes on as `if loss:` does."""

        def program(device: torch.device) -> Any:
            loss = torch.randn(4, device=device).sum()
            return [bool(loss == 0), bool(loss != 0.0), bool(loss)]

        read, graph = on_card(program)
        assert read == [False, True, True]
        assert "whether numbers are zero" in {each.what for each in graph.assumptions}

    def test_a_loop_that_rejects_what_is_out_of_bounds_ends(self) -> None:
        def program(device: torch.device) -> Any:
            return torch.nn.init.trunc_normal_(torch.empty(300, 300, device=device)).shape

        assert on_card(program)[0] == (300, 300)

    def test_random_integers_keep_their_range(self) -> None:
        def program(device: torch.device) -> Any:
            return torch.randint(3, 9, (50,), device=device).tolist()

        assert set(on_card(program)[0]) <= set(range(3, 9))

    def test_drawing_leaves_the_programs_own_generator_alone(self) -> None:
        def program(device: torch.device) -> float:
            torch.manual_seed(7)
            torch.rand(4, device=device)
            return torch.rand(()).item()

        read, _ = on_card(program)
        torch.manual_seed(7)
        assert read == torch.rand(()).item()

    def test_strict_makes_an_assumption_an_error(self) -> None:
        with pytest.raises(StrictError):
            on_card(lambda device: torch.randn((), device=device).item(), strict=True)


LOOPS = {
    "a loss": "while self(x).square().mean().item() > 0.01: pass",
    "a token": "while self(x).argmax(-1)[0].item() != 7: pass",
    "a list": "while True:\n            if max(self(x).mean(0).tolist()) < 0: break",
    "a token of a text that grows": """while True:
            token = self(x)[-1].argmax()
            x = torch.cat([x, x[:1]])
            if token.item() == 2: break""",
    "flags of texts that grow": """done = torch.zeros(4, dtype=torch.bool, device=x.device)
        while not done.all():
            done = done | (self(x).argmax(-1)[:4] == 2)
            x = torch.cat([x, x[:1]])""",
    "a list of tokens": """tokens = [1]
        while tokens[-1] != 2: tokens.append(int(self(x)[0].argmax()))""",
    "a loss beside a count": """rounds, losses = 0, []
        while True:
            rounds += 1
            losses.append(self(x).mean().item())
            if losses[-1] < 0.01: break""",
    "a loss that a generator yields": """def losses():
            while True: yield self(x).mean().item()
        found = losses()
        while True:
            if next(found) < 0.01: break""",
}


TEN_THOUSAND_ROUNDS = {"flags of texts that grow", "a list of tokens"}


def marked(name: str) -> Any:
    is_slow = name in TEN_THOUSAND_ROUNDS
    return pytest.param(LOOPS[name], marks=[pytest.mark.slow] * is_slow, id=name)


def test_a_long_for_loop_is_not_a_while_loop() -> None:
    """A jump over more than 255 instructions is extended: its target precedes the loop's head."""
    lines = "".join(f"    total = total + {number} * number\n" for number in range(60))
    code = compile(f"for number in range(9):\n    total = 0\n{lines}", "long.py", "exec")
    offsets = [each.offset for each in dis.get_instructions(code)]

    assert all(while_loop_around(code, offset) is None for offset in offsets)


@pytest.mark.parametrize("loop", map(marked, LOOPS))
def test_a_loop_that_cannot_end_names_its_line(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(
        f"""
import torch, graphmem

class Net(torch.nn.Linear):
    def loop(self, x):
        {loop}

def build():
    net, x = Net(8, 8).cuda(), torch.randn(4, 8, device="cuda")
    return graphmem.TrainingStep(model=net, step=lambda: net.loop(x))
"""
    )
    with pytest.raises(EndlessLoopError):
        graphmem.analyze("model.py")


SOLVER = """
import torch

def solve(x, step=1.0):
    while True:
        y, error = x + step, (x * step).abs().max().item()
        step = step * torch.ones((), device=x.device)
        if error < 1.0:
            return y
"""


def test_a_solver_of_a_library_that_never_accepts_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "solver_of_a_library.py").write_text(SOLVER)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(
        """
import torch, graphmem
from solver_of_a_library import solve

def build():
    net = torch.nn.Linear(8, 8).cuda()
    return graphmem.TrainingStep(model=net, step=lambda: solve(net(torch.ones(4, 8).cuda())))
"""
    )
    with pytest.raises(EndlessLoopError, match=r"solver_of_a_library.py:\d+, called from") as told:
        graphmem.analyze("model.py", steps=1)
    assume = ("solver_of_a_library.py:6=0",)
    assert f"--assume {assume[0]}," in (told.value.hint or "")
    assert graphmem.analyze("model.py", steps=1, assume=assume).peak.allocated


def test_a_distribution_that_draws_without_end_names_the_users_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a draw is accepted depends on a weight."""
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(
        """
import torch, graphmem
from torch.distributions import VonMises

def build():
    weight = (net := torch.nn.Linear(8, 1).cuda()).bias
    return graphmem.TrainingStep(model=net, step=lambda: VonMises(weight, weight.exp()).sample())
"""
    )
    with pytest.raises(EndlessLoopError, match=r"von_mises.py:\d+, called from model.py:7, does"):
        graphmem.analyze("model.py")

    assert graphmem.analyze("model.py", assume=("model.py:7=true",)).peak.allocated


def by_a_count(device: torch.device) -> int:
    rounds = 0
    while rounds < 300:
        torch.randn((), device=device).item()
        rounds += 1
    return rounds


def after_an_evaluation(device: torch.device) -> int:
    """The loop of nanoGPT's train.py: a single call in it reads hundreds of losses."""

    def evaluate() -> int:
        return len([torch.randn((), device=device).item() for _ in range(300)])

    step = read = 0
    while True:
        if step == 0:
            read = evaluate()
        step += 1
        if step > 3:
            break
    return read


def by_a_length(device: torch.device) -> int:
    tokens = [1]
    while len(tokens) < 300:
        tokens.append(int(torch.randn(8, device=device).argmax()))
        if tokens[-1] == 2:
            break
    return len(tokens)


def by_a_helper(device: torch.device) -> int:
    def is_finished(ids: torch.Tensor) -> bool:
        return ids.shape[0] >= 300

    ids, done = torch.ones(1, device=device), False
    while not done:
        ids = torch.cat([ids, ids[:1]])
        ids[-1].item()
        done = is_finished(ids)
    return len(ids)


def by_what_it_catches(device: torch.device) -> int:
    rounds, batches = 0, iter(range(300))
    while True:
        try:
            next(batches)
        except StopIteration:
            return rounds
        rounds += 1
        torch.randn((), device=device).item()


class Environment:
    """As Gym's: it knows itself how long an episode has lasted."""

    elapsed = 0

    def step(self, action: object) -> bool:
        self.elapsed += 1
        return action is not None and self.elapsed >= 300


def by_an_environment(device: torch.device) -> int:
    environment, done = Environment(), False
    environment.elapsed = 0
    while not done:
        action = torch.randn(2, device=device).argmax().item()
        done = environment.step(action)
    return environment.elapsed


def by_observations(device: torch.device) -> int:
    elapsed = np.zeros(1)

    def step(action: object) -> tuple[Any, Any]:
        elapsed[:] += action is not None
        return elapsed.copy(), elapsed[0] >= 300

    observation, done = np.zeros(1), np.bool_(0)
    while not done:
        action = torch.randn(2, device=device).argmax().item()
        observation, terminated = step(action)
        done = terminated | np.bool_(0)
    return int(observation[0])


def by_a_count_in_a_list(device: torch.device) -> int:
    rounds = [0]

    def step() -> None:
        torch.randn((), device=device).item()
        rounds[0] += 1

    def is_short_of(most: int) -> bool:
        return rounds[0] < most

    while rounds[0] < 300 and is_short_of(300):
        step()
    return rounds[0]


def by_a_clock(device: torch.device) -> int:
    ticks, read = iter(range(300)), []

    def perf_counter() -> int:
        return next(ticks)

    while perf_counter() < 299:
        read.append(torch.randn((), device=device).item())
    return len(read) + 1


def by_a_loop_around_it(device: torch.device) -> int:
    found = []
    for _ in range(300):
        done = False
        while not done:
            found.append(torch.randn((), device=device).item())
            done = True
    return len(found)


def by_what_resumes_it(device: torch.device) -> int:
    """As DIAMOND collects: a generator acts, another one counts, and a third party asks both."""

    def acting() -> Iterator[float]:
        while True:
            left = 1
            while left:
                action = torch.randn((), device=device).item()
                left -= 1
            yield action

    def collected(wanted: int) -> Iterator[int]:
        steps, actions = 0, acting()
        while True:
            next(actions)
            steps += 1
            if steps % wanted == 0:
                yield steps

    found = collected(150)
    while True:
        if (steps := next(found)) >= 300:
            return steps


@pytest.mark.parametrize(
    "loop",
    [
        by_a_count,
        by_a_length,
        by_a_helper,
        by_what_it_catches,
        after_an_evaluation,
        by_an_environment,
        by_observations,
        by_a_count_in_a_list,
        by_a_clock,
        by_a_loop_around_it,
        by_what_resumes_it,
    ],
)
def test_a_loop_that_ends_by_known_values_runs_to_its_end(loop: Any) -> None:
    assert on_card(loop)[0] == 300
