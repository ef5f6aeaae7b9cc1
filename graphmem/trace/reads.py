"""The values that a program gets when it reads from the card, by the first clause that applies.

(1) A known value is returned as it is; this is not an assumption.
(2) Otherwise `--assume` may give a value for the variable or the line.
(3) Otherwise a rule may assume a value, and the report lists it. A bool is what the program needs
    to go on, if it raises an error or warns otherwise (`checks`).
(4) Otherwise a single number is 1.0 or the integer 0, and several numbers are zeros, or the nearest
    within the bounds that the program has set. A bool that nothing covers is an error, because the
    program would branch on it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem import constructors
from graphmem.graph import Source
from graphmem.trace.bounds import within_bounds
from graphmem.trace.checks import passing_value
from graphmem.trace.compiled.unknowns import Unknowns
from graphmem.trace.extremes import taken_extreme
from graphmem.trace.location import Location
from graphmem.trace.loops import Loops
from graphmem.trace.messages import BranchOnValueError
from graphmem.trace.naming import tensors_held, variables_of
from graphmem.trace.operands import span_of
from graphmem.trace.recorder import Recorder
from graphmem.values.choices import Choices
from graphmem.values.held import Assumed, Basis, KnownTensor
from graphmem.values.known import KnownValues
from graphmem.values.rules import Rules
from graphmem.virtual_device.random import CardGenerators

WHY = "the card does no arithmetic"
_NO_WEIGHTS = "no other run should start from them"
_ITEM = re.compile(r"\[['\"](\w+)['\"]\]")
_TOLD_PER_LINE = 3
"""How many assumptions at one line of the program are told while it runs."""


class Reads:
    """Answers the program's reads from the card.

    Attributes:
        known: the values that are known.
        compiler: answers what only a card knows about a compilation.
        zeros: makes a tensor on the host, like another, for numbers that nobody knows.
    """

    def __init__(
        self,
        recorder: Recorder,
        location: Location,
        *,
        answer: Callable[[torch.Tensor], bool | None],
        tell: Callable[[str], None],
    ) -> None:
        """Start without assumptions.

        Args:
            recorder: lists each assumption in the step graph.
            location: knows the line.
            answer: says what is assumed of a truth value by who knows the library that reads it.
            tell: called with a line of text when something is assumed for the first time.
        """
        self._recorder = recorder
        self._location = location
        self._rules = Rules()
        self.known = KnownValues(self._rules, location.place, CardGenerators())
        self._answer = answer
        self._tell = tell
        self._choices = Choices()
        self._used: set[str] = set()
        self._loops = Loops(self.known)
        self._sizes_assumed = False
        self._compiled_at: Source | None = None
        self._told: set[tuple[str, Source | None]] = set()
        self._told_at: Counter[Source] = Counter()
        self._newest = ""
        self._is_aside = False
        self.compiler = Unknowns(recorder, location, self._chosen, self._replace, self.unseen)
        self.zeros: Callable[[torch.Tensor], torch.Tensor] = _real_like

    def choose(self, choices: Choices) -> None:
        """Apply the user's assumptions from now on."""
        self._choices = self._choices.over(choices)
        self._rules.routing = self._choices.by_name.get("routing", self._rules.routing)
        self._rules.selected = self._choices.by_name.get("nonzero", self._rules.selected)

    def name_unused(self) -> None:
        """List the user's assumptions that nothing asked for: a name may be misspelt."""
        for where, value in self._choices.of_the_program().items():
            if where not in self._used and not self._recorder.assumptions.is_strict:
                self._recorder.assume(
                    f"{where}={value:g}", "not used", "the program asks for no such value", None
                )

    def _chosen(self, name: str | None, source: Source | None) -> float | None:
        found = self._choices.find(name, source)
        if found is None:
            return None
        where, value = found
        self._used.add(where)
        return value

    @property
    def is_routed(self) -> bool:
        """Whether sizes depended on an assumed spread of more choices than there are targets."""
        return self._sizes_assumed and self._rules.has_routed

    def scalar(self, tensor: FakeTensor) -> bool | int | float | complex:
        """The only element of a tensor.

        Raises:
            InputError: the program would branch on it, and its value is unknown.
        """
        self._loops.check(self._location.frames())
        known = self.known.of(tensor)
        if known is not None and not known.basis:
            return _item(known.tensor)
        source, name = self._location.place(), self._name(tensor)
        chosen = self._chosen(name, source)
        if chosen is None and tensor.dtype == torch.bool:
            return self._truth(tensor, known, source)
        if chosen is None and known is not None:
            self.use(known.basis)
            return _item(known.tensor)
        value = self._bounded(tensor, _default(tensor.dtype)) if chosen is None else chosen
        number = _as(tensor.dtype, value)
        self._assume(name or "a value", str(number), name, source)
        return number

    def _truth(
        self, tensor: FakeTensor, known: KnownTensor | None, source: Source | None
    ) -> bool | int | float | complex:
        passing = passing_value(self._location.frames())
        if known is not None and passing in (None, _item(known.tensor)):
            self.use(known.basis)
            return _item(known.tensor)
        if passing is not None:
            self._recorder.assume("a check", "it passes", WHY, source)
            self._say(("a check", source), "assuming that a check passes")
            return passing
        answer = self._answer(tensor)
        return self._extreme(tensor, source) if answer is None else answer

    def _extreme(self, tensor: FakeTensor, source: Source | None) -> bool:
        maker = getattr(self._recorder.maker_of(tensor), "operator", None)
        rule, answer = taken_extreme(self._location.frames(), maker) or self._refuse_branch(source)
        self.use(frozenset({Assumed(*rule, source)}))
        return answer

    def on_host(self, tensor: torch.Tensor, copied: torch.Tensor) -> torch.Tensor:
        """A real tensor with the shape and dtype of `tensor`, holding the values of `copied`."""
        known = self.known.of(copied)
        if known is not None and known.tensor.dtype == tensor.dtype:
            return self._copied(tensor, known)
        source, name = self._location.place(), self._name(copied)
        value = self._chosen(name, source)
        if value is None:
            value = _default(copied.dtype) if tensor.numel() == 1 else 0.0
            value = self._bounded(copied, value)
        real = _real_like(tensor).fill_(value) if value else self.zeros(tensor)
        if tensor.numel() and not self._is_unseen():
            self._loops.check(self._location.frames())
            shown = str(_as(tensor.dtype, value))
            many = "" if tensor.numel() == 1 else "every element of "
            self._assume(f"{many}{name or 'a value'}", shown, name, source)
        return real

    def _copied(self, tensor: torch.Tensor, known: KnownTensor) -> torch.Tensor:
        if not self._is_unseen():
            self.use(known.basis)
            self._loops.check(self._location.frames())
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            real = _real_like(tensor)
            _unexpanded(real, real).copy_(_unexpanded(known.tensor, real))
            return real

    def use(self, basis: Basis) -> None:
        """List assumptions, now that the program has used values based on them."""
        self._sizes_assumed = self._sizes_assumed or bool(basis)
        for what, value, why, source in sorted(basis, key=str):
            self._recorder.assume(what, value, why, source)
            self._say((what, source), f"assuming {what}: {value}")

    def excuse(self) -> str:
        """A hint on the newest unknown number that was read, which may explain the next error."""
        return self._newest

    def saved(self) -> None:
        """Note that data on the card is being saved to a file."""
        source, what = self._location.place(), "what is saved of tensors on the device"
        self._recorder.assume(what, "zeros", f"{WHY}; {_NO_WEIGHTS}", source)
        self._say((what, source), f"assuming zeros for {what}; {_NO_WEIGHTS}")

    def eager(self) -> None:
        """Note that a program runs eagerly, once, at the line that first asks for compilation."""
        self._compiled_at = self._compiled_at or self._location.place()
        self._replace(
            "torch.compile", "run eagerly", "what the compiled program takes", self._compiled_at
        )

    def scripted(self) -> None:
        """Note that TorchScript runs, whose operations a card would fuse."""
        self._replace("TorchScript", "run without fusion", "what the fused program takes")

    def _replace(self, what: str, value: str, unknown: str, source: Source | None = None) -> None:
        source = source or self._location.place()
        self._recorder.assume(what, value, f"{unknown} is not known", source)
        self._say((what, source), f"{what} is {value}: {unknown} is not known")

    def count(self, what: str, numel: int) -> int:
        """How many of `numel` elements a result has whose size depends on data.

        All of them, or the fraction chosen by line or as `nonzero`, from 0 to 1.
        """
        source = self._location.place()
        chosen = self._chosen("nonzero", source)
        share = 1.0 if chosen is None else min(max(chosen, 0.0), 1.0)
        value = "all (the bound)" if share == 1.0 else f"{share:g} of them (at most {numel:,})"
        self._recorder.assume(what, value, "the route depends on data", source)
        part = "" if share == 1.0 else f"{share:g} of "
        text = f"assuming {part}the most for a size that depends on data"
        override = f"override with --assume {source or 'nonzero'}=FRACTION"
        self._say((text, source), f"{text}; {override}")
        return round(share * numel)

    def _bounded(self, tensor: torch.Tensor, number: float) -> float:
        return within_bounds(number, self._recorder.maker_of(tensor))

    def _refuse_branch(self, source: Source | None) -> NoReturn:
        line = "" if source is None else f" at {source.in_words}"
        where = source or "NAME"
        raise BranchOnValueError(line, where)

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """A context whose copies to the host nobody looks at, as of what a timed kernel changes."""
        self._is_aside = True
        try:
            yield
        finally:
            self._is_aside = False

    def _is_unseen(self) -> bool:
        """Whether values move unseen by the program: autograd also moves gradients."""
        return self._is_aside or torch._C._current_graph_task_id() >= 0

    def _name(self, tensor: torch.Tensor) -> str | None:
        """The variable, in the innermost user function, that holds a tensor or its data."""
        frame = next(self._location.user_frames(), None)
        if frame is None:
            return None
        storage = self._recorder.storage_of(tensor)
        shared: str | None = None
        for variable, value in variables_of(frame).items():
            for suffix, known in tensors_held(value):
                name = variable + _ITEM.sub(r".\1", suffix)
                if known is tensor:
                    return name
                if shared is None and storage is not None:
                    is_same = self._recorder.storage_of(known) is storage
                    shared = name if is_same else None
        return shared

    def _assume(self, what: str, value: str, name: str | None, source: Source | None) -> None:
        self._recorder.assume(what, value, WHY, source)
        by = name or (str(source) if source is not None else None)
        override = "" if by is None else f"; override with --assume {by}=VALUE"
        at = "" if source is None else f" at {source.in_words}"
        self._newest = f"{what}{at} was taken as {value}, which may be why{override}"
        assumed = f"{value} for {what}" if name is None else f"{what} = {value}"
        self._say((what, source), f"assuming {assumed} (nothing is computed){override}")

    def _say(self, key: tuple[str, Source | None], text: str) -> None:
        if key in self._told:
            return
        self._told.add(key)
        source = key[1]
        if source is None:
            self._tell(text)
            return
        self._told_at[source] += 1
        if self._told_at[source] <= _TOLD_PER_LINE:
            self._tell(f"{source.in_words}: {text}")
        elif self._told_at[source] == _TOLD_PER_LINE + 1:
            self._tell(f"{source.in_words}: others read there are assumed likewise; see the report")


def _default(dtype: torch.dtype) -> float:
    """A single number that no rule covers; dividing by a float one does not fail."""
    return 1.0 if dtype.is_floating_point or dtype.is_complex else 0.0


def _as(dtype: torch.dtype, value: float) -> bool | int | float:
    if dtype == torch.bool:
        return bool(value)
    return value if dtype.is_floating_point or dtype.is_complex else int(value)


def _item(tensor: torch.Tensor) -> bool | int | float | complex:
    with torch._C._DisableTorchDispatch():
        number: bool | int | float | complex = tensor.item()
    return number


def _real_like(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros on the host with the shape, strides and dtype of a tensor."""
    with torch._C._DisableTorchDispatch():
        real = constructors.zeros(0, dtype=tensor.dtype, device="cpu")
        return real.new_zeros(span_of(tensor)).as_strided(tensor.shape, tensor.stride())


def _unexpanded(tensor: torch.Tensor, expanded: torch.Tensor) -> torch.Tensor:
    """One of each element that `expanded` repeats; `copy_` does not write to repeated ones."""
    for dim, stride in enumerate(expanded.stride()):
        if not stride and expanded.shape[dim]:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor
