"""Known values of tensors without data, followed through operations.

Clauses:
(1) Values belong to storages (`values/held.py`).
(2) If all operands of an operation are known, it also runs on the CPU, and its results are known.
    A real tensor on the host is always known. `ones_like` and the other operators in `SHAPED` need
    only their operand's shape; so the 1.0 that `loss.backward()` begins with is known.
(3) An operation that writes into a storage also writes into its values, if its operands are known.
    Otherwise the whole storage is forgotten. A storage that is overwritten entirely need not have
    been known before.
(4) Tensors that require grad have no values: weights are the result of training. So whatever a
    model computes from its weights costs nothing here.
(5) Integers and bools are carried up to `INTEGERS` elements, other numbers up to `FLOATS`: programs
    decide by indices, counts and masks, and by boxes that anchors are matched with. Random numbers
    other than integers are carried up to `DRAWN` elements: most of them are noise. Products are
    computed up to `PRODUCT`, so that a frozen network does not run here.
(6) Values from a rule in `rules` are *assumed*, and so is everything computed from them.
(7) A small table of integers that a program creates by `empty`, to write its entries one by one,
    begins as zeros: entries read before they are written are meaningless on a card, too.

(8) Large results of an elementwise operation are computed when something asks for them, or before
    an operand changes: most masks are never read.
(9) What cancels out need not be known (`values/straight_through.py`).
(10) What a CUDA graph captures does not run until it is replayed: nothing is known of what it
    writes, neither after the capture nor after a replay.

Not covered: sparse, nested and quantised tensors, and other libraries' operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.graph import Source
from graphmem.values.arguments import (
    ON_HOST,
    argument,
    constant,
    pairs,
    read,
    requires_grad,
    tensors,
)
from graphmem.values.card_draws import CardDraws, DeviceGenerators, Draw
from graphmem.values.drawn_scores import COMPARED, CONTINUOUS, WHY, DrawnScores
from graphmem.values.held import (
    KNOWN,
    Assumed,
    Basis,
    HeldValues,
    KnownTensor,
    Operand,
    UnknownError,
    Written,
)
from graphmem.values.host_kernels import HOST_KERNELS
from graphmem.values.layouts import is_dense
from graphmem.values.limits import (
    DEEPEST,
    DRAWN,
    is_computed,
    is_drawn,
    is_large_product,
    is_postponed,
    is_small,
    is_table,
)
from graphmem.values.memory import RealMemory, geometry_of, laid_out
from graphmem.values.plans import EMPTY, SHAPED, ValuePlan, own_draws, plan_of
from graphmem.values.rules import RULED, Rule, Rules
from graphmem.values.straight_through import SUMMED, StraightThrough, are_summed

aten = torch.ops.aten

_OF_UNKNOWNS = RULED | COMPARED | SUMMED | SHAPED | {aten.where.self}
_RANDOM = Rule("random numbers", "those of one draw", "a card draws its own")
_SEEDED = Rule("random numbers", "what the card draws from the seed", WHY)


class KnownValues(HeldValues):
    """Follows operations, and keeps the values of their results where they can be known."""

    def __init__(
        self,
        rules: Rules,
        where: Callable[[], Source | None],
        generators: DeviceGenerators | None = None,
    ) -> None:
        """Start without values.

        Args:
            rules: assumptions about results that only a real run would know.
            where: returns the line that runs.
            generators: those of the card, if they are followed.
        """
        super().__init__()
        self._rules = rules
        self._where = where
        self._plans: dict[Any, ValuePlan | None] = {}
        self._draws = 0
        self._card = CardDraws(generators)
        self._draw: Draw | None = None
        self._scores = DrawnScores()
        self._sums = StraightThrough(rules.finite)

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Follow an operation on fake tensors: note its results, or forget what it wrote into."""
        self._draw = self._card.follow(func, args, kwargs, result)
        self._follow(func, args, kwargs, result)
        if self._draw is not None or func in CONTINUOUS:
            self._scores.note(result, self._draw)

    def _follow(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        try:
            plan = self._plans[func]
        except KeyError:
            plan = self._plans[func] = plan_of(func)
        if plan is None:
            self._begin_table(func, result)
            return
        if self.is_capturing:
            places = (argument(args, kwargs, place) for place in plan.writes)
            for written in tensors(places if plan.writes else [result]):
                self.forget(written)
            return
        if plan.writes:
            self._write(plan, func, args, kwargs)
            return
        is_carried_here = is_computed(plan, result) and not is_large_product(
            func, args, kwargs, result
        )
        if is_carried_here and self._postpone(plan, func, args, kwargs, result):
            return
        known = self._real(args, kwargs) if is_carried_here else None
        if known is None:
            self._follow_unknown(plan, func, args, kwargs, result)
            return
        real_args, real_kwargs, basis = known
        real = self._run(plan, func, real_args, real_kwargs)
        if plan.is_random:
            basis |= self._of_draw()
        for output, value in pairs(result, real):
            self.note_output(output, value, basis)

    def capture(self) -> None:
        """Clause (10); a graph's kernels draw by a state of its own (CUDAGeneratorImpl.cpp)."""
        self._card.lose()
        super().capture()

    def replayed(self, captured: Iterable[Written]) -> None:
        """Clause (10)."""
        self._card.lose()
        super().replayed(captured)

    def _begin_table(self, func: Any, result: Any) -> None:
        """Clause (7)."""
        if func in EMPTY and is_table(result):
            self._make_room(result, zeroed=True)

    def _postpone(
        self, plan: ValuePlan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> bool:
        """Note results that are computed when they are asked for; False if they cannot wait."""
        if not is_postponed(func, result) or not self.is_new(result):
            return False
        try:
            operands = [self._unread(arg) for arg in args]
            on_host = {name: ON_HOST.get(name, constant(each)) for name, each in kwargs.items()}
        except UnknownError:
            return False
        known = [each for each in operands if isinstance(each, Operand)]
        depth = 1 + max((each.memory.depth for each in known), default=0)
        if depth > DEEPEST:
            return False
        nbytes, geometry = result.untyped_storage().nbytes(), geometry_of(result)

        def compute() -> torch.UntypedStorage | None:
            try:
                with torch._C._DisableAutocast():
                    real = self._run(plan, func, [read(each) for each in operands], on_host)
            except UnknownError:
                return None
            is_right = real is not _FAILED and geometry.fits(real)
            return laid_out(real, nbytes, geometry) if is_right else None

        basis = KNOWN.union(*(each.basis for each in known))
        self.postpone(result, RealMemory(nbytes, compute=compute, depth=depth), basis)
        return True

    def _unread(self, arg: Any) -> Any:
        if not isinstance(arg, FakeTensor):
            return constant(arg)
        if requires_grad(arg):
            raise UnknownError
        return self.unread(arg)

    def _follow_unknown(
        self, plan: ValuePlan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Note what is known of results although an operand is not."""
        if func not in _OF_UNKNOWNS:
            return
        if is_computed(plan, result):
            if func is aten.where.self:
                self._select(args, result)
            elif func in SHAPED and is_drawn(result) and args[0].layout is torch.strided:
                self._fill(plan, func, args, kwargs, result)
            elif are_summed(func, args, kwargs, result) and is_drawn(result):
                self._cancel(func, args, result)
        self._assume(func, args, kwargs, result)

    def _fill(
        self, plan: ValuePlan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Note the result of an operator that needs only its first operand's shape."""
        shape, stride, dtype = args[0].shape, args[0].stride(), args[0].dtype
        with torch._C._DisableTorchDispatch():
            operand = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        on_host = {name: ON_HOST.get(name, value) for name, value in kwargs.items()}
        real = self._run(plan, func, (operand, *args[1:]), on_host | {"device": ON_HOST["device"]})
        self.note_output(result, real, KNOWN)

    def compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation on known operands; returns result and basis, or None if not known."""
        known = self._real(args, kwargs)
        if known is None:
            return None
        real_args, real_kwargs, basis = known
        real = self._run(ValuePlan((), False, False), func, real_args, real_kwargs)
        return None if real is _FAILED else (real, basis)

    def note_output(self, output: Any, value: Any, basis: Basis) -> None:
        """Note a result, unless it has values or no memory of its own."""
        if not isinstance(value, torch.Tensor) or not self.is_new(output):
            return
        if output.dtype == value.dtype and output.shape == value.shape:
            self.note(output, value, basis)

    def _select(self, args: tuple[Any, ...], result: Any) -> None:
        """Note the result of `where`; a uniform condition needs only one of its operands."""
        condition = self.of(args[0]) if 0 < args[0].numel() <= DRAWN else None
        if condition is None:
            return
        chosen = args[1] if condition.tensor.all() else args[2]
        known = None if condition.tensor.any() and chosen is args[2] else self._operand(chosen)
        if known is not None:
            with torch._C._DisableTorchDispatch():
                value = known.tensor.to(result.dtype).expand(result.shape)
            self.note_output(result, value, condition.basis | known.basis)

    def _cancel(self, func: Any, args: tuple[Any, ...], result: torch.Tensor) -> None:
        """Note a sum in which an unknown cancels out, or remember it until it does."""
        first, second = (self._operand(each) for each in args)
        if first is not None and args[1].dtype == result.dtype:
            self._sums.note(func, result, first, args[1])
        elif second is not None and func is aten.add.Tensor and args[0].dtype == result.dtype:
            self._sums.note(func, result, second, args[0])
        elif (left := self._sums.left(func, args)) is not None:
            rule, value, basis = left
            self.note_output(result, value, basis | {self._assumed(rule)})

    def _forget(self, memory: torch.UntypedStorage) -> None:
        self._sums.forget(memory)
        self._scores.forget(memory)
        super()._forget(memory)

    def _operand(self, tensor: torch.Tensor) -> KnownTensor | None:
        return None if requires_grad(tensor) else self.of(tensor)

    def _assume(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Note values from a rule, if there is one for the operation."""
        made = (
            self._scores.compared(func, args, result, self.of)
            or self._rules.results(func, args, kwargs, result)
            or self._rules.compared(func, args, result, self.of)
        )
        if made is None:
            return
        if self._rules.chooses(func):
            made = self._scores.chosen(func, args, kwargs, made) or made
        rule, outputs = made
        basis = frozenset({self._assumed(rule)})
        for output, value in outputs:
            self.note_output(output, value, basis)

    def assume(self, tensor: torch.Tensor, values: torch.Tensor, rule: Rule) -> None:
        """Give a tensor with its own memory the values of a rule, unless it has some."""
        if isinstance(tensor, FakeTensor) and self.saved(tensor) is None:
            self.note_output(tensor, values.to(tensor.dtype), frozenset({self._assumed(rule)}))

    def _assumed(self, rule: Rule) -> Assumed:
        return Assumed(rule.what, rule.value, rule.why, self._where())

    def _of_draw(self) -> Basis:
        """What random numbers depend on."""
        return frozenset({self._assumed(_RANDOM if self._draw is None else _SEEDED)})

    def _run(self, plan: ValuePlan, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation on real tensors; `_FAILED` if the CPU cannot."""
        if plan.is_random and self._draw is not None:
            values = self._draw()
            with torch._C._DisableTorchDispatch():
                return args[0].copy_(values) if plan.writes else values
        func = HOST_KERNELS.get(func, func)
        with torch._C._DisableTorchDispatch():
            try:
                if not plan.is_random:
                    return func(*args, **kwargs)
                with own_draws(self._draws):
                    self._draws += 1
                    return func(*args, **kwargs)
            except (RuntimeError, IndexError, TypeError):
                return _FAILED

    def _real(
        self, args: Iterable[Any], kwargs: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any], Basis] | None:
        """Replace fake tensors among arguments by known ones; None if one is not known."""
        bases: list[Basis] = []
        try:
            real_args = [self._real_argument(arg, bases) for arg in args]
            real_kwargs = {
                name: self._real_argument(ON_HOST.get(name, arg), bases)
                for name, arg in kwargs.items()
            }
        except UnknownError:
            return None
        return real_args, real_kwargs, KNOWN.union(*bases)

    def _real_argument(self, arg: Any, bases: list[Basis]) -> Any:
        if isinstance(arg, torch.Tensor):
            known = self._operand(arg)
            if known is None:
                raise UnknownError
            bases.append(known.basis)
            return known.tensor
        if isinstance(arg, (list, tuple)):
            return [self._real_argument(each, bases) for each in arg]
        return arg

    # Writing ------------------------------------------------------------------------------------

    def _write(self, plan: ValuePlan, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        targets = list(tensors(argument(args, kwargs, place) for place in plan.writes))
        self._sums.forget_written(targets)
        self._scores.forget_written(targets)
        was_known = any(self.saved(target) is not None for target in targets)
        if not was_known and not (plan.overwrites and isinstance(targets[0], FakeTensor)):
            for target in targets:  # nothing is known of it, nor will be
                self.drop_parts(target)
            return
        if self._rules.leaves_untouched(func):
            self._mark(targets, frozenset({self._assumed(self._rules.finite)}))
            return
        if plan.overwrites and (not plan.is_random or is_drawn(targets[0])):
            self._make_room(targets[0])
        known = self._real(args, kwargs) if plan.is_known else None
        if was_known and known is not None:
            self.compute_postponed()
        if known is None or self._run(plan, func, known[0], known[1]) is _FAILED:
            for target in targets:
                self.forget(target)
            return
        basis = known[2] | (self._of_draw() if plan.is_random else KNOWN)
        self._mark(targets, basis)

    def _make_room(self, target: torch.Tensor, *, zeroed: bool = False) -> None:
        """Make room for the values of a storage that is about to be overwritten entirely."""
        if not isinstance(target, FakeTensor) or self.saved(target) is not None:
            return
        memory = target.untyped_storage()
        covers = target.numel() * target.element_size() == memory.nbytes()
        if covers and is_small(target) and not target.requires_grad and is_dense(target):
            shape, stride, dtype = target.shape, target.stride(), target.dtype
            with torch._C._DisableTorchDispatch():
                real = torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
                if zeroed:
                    real.zero_()
            self.note(target, real, KNOWN)

    def _mark(self, targets: Iterable[torch.Tensor], basis: Basis) -> None:
        for target in targets:
            held = self.saved(target)
            if held is not None:
                held.basis = held.basis | basis


_FAILED = object()
