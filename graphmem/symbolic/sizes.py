"""Traces of one target at several sizes, and the choice of sizes.

A trace takes as long for large tensors as for small ones, because they hold no data. So sizes next
to the model's own are taken, where the same kernels run. Clauses:
  (1) a symbol's sizes are its own, own + step, own + 2·step, …;
  (2) steps are tried in this order: 1, one that keeps the alignment of the own size, the same two
      downwards, the own size itself;
  (3) a step is rejected if `build` or the training step fails, or the graph has another structure;
  (4) of the first two good steps, the one with fewer bytes that are not polynomials is taken; a
      storage padded to multiples of 32 is a polynomial over multiples of 64;
  (5) a padded storage may look constant next to an own size that is not aligned. Then the check
      fails, and sizes are chosen again in steps of `ALIGNMENT`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import TYPE_CHECKING, Any

from graphmem.analysis import Progress, Request, target_defaults, traced_step
from graphmem.annotations import KERNEL_MEMORY
from graphmem.compiled_code import GRAPHS_LEFT_OUT
from graphmem.errors import InputError, did_you_mean
from graphmem.symbolic.interpolation import HIGHEST, Index, interpolate
from graphmem.symbolic.messages import (
    GraphsLeftOutError,
    IdleSymbolError,
    KeywordNotWholeError,
    NothingAllocatedError,
    UnknownKeywordError,
)
from graphmem.symbolic.observation import (
    HeldStorage,
    MatchedMoment,
    Observation,
    Subject,
    observe,
    place_of,
)

if TYPE_CHECKING:
    from graphmem.graph import StepGraph, Storage
    from graphmem.kernel_program import Program
    from graphmem.simulate import Timeline

ALIGNMENT = 64
_GOOD_STEPS = 2

Sizes = tuple[int, ...]


class NoFitError(InputError):
    """Sizes that cannot be used: the step fails there, or its graph has another structure."""


class _OtherModulesError(Exception):
    """There are more or fewer modules of the same kinds: storages must be matched by kind."""


@dataclass(frozen=True)
class Own:
    """The model's own size, fully analysed.

    Attributes:
        observed: its trace.
        allocated: bytes at the moment, as in `graphmem analyze`; None if it has no such figure.
        moment: the moment in words.
    """

    sizes: Sizes
    observed: Observation
    allocated: int | None
    moment: str


@dataclass
class Traces:
    """Traces a target at any size, each size once.

    Attributes:
        keys: the keyword of `build` for each symbol.
        by_kind: whether storages are matched by kind; otherwise one by one.
        settled: whether `by_kind` is final.
        defaults: the defaults of `build`'s keywords, once started.
    """

    target: str | Callable[..., Any]
    request: Request
    keys: tuple[str, ...]
    subject: Subject
    progress: Progress
    by_kind: bool = False
    settled: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    _known: dict[Sizes, Observation] = field(default_factory=dict)
    _failed: dict[Sizes, NoFitError] = field(default_factory=dict)

    def start(self) -> Own:
        """Analyse the model's own size."""
        from graphmem.simulate import life_events, simulate

        self.defaults = target_defaults(self.target, self.request)
        sizes = own_sizes(self.defaults, self.request, self.keys)
        name, graph, programs = self._trace(sizes)
        replayed = life_events(graph, programs)
        timeline = simulate(graph, programs)
        _, born = timeline.peak()
        if born is None:
            raise NothingAllocatedError(name)
        place = place_of(graph, replayed, born)
        observed = observe(graph, replayed, self.subject, place)
        assert observed is not None
        self._own = observed
        self._place = place
        self._known[sizes] = observed
        return Own(
            sizes,
            observed,
            _allocated(timeline, self.subject),
            _in_words(graph, born, place, self.subject),
        )

    def at(self, sizes: Sizes) -> Observation:
        """The trace at `sizes`.

        Raises:
            NoFitError: `build` or the step fails there, or storages cannot be matched.
        """
        found = self._observed(sizes)
        if found.has_structure_of(self._own) or (self.by_kind and found.has_kinds_of(self._own)):
            return found
        if self.settled or not found.has_kinds_of(self._own):
            theirs, mine = found.first_difference(self._own)
            raise NoFitError(
                f"the step has another structure at {self.named(sizes)}: {theirs}, "
                f"where it has {mine} at its own size",
                hint="give sizes at which the same kernels run with --sizes KEY=N,N,…, or "
                "another own size with --set",
            )
        raise _OtherModulesError

    def differs_in_structure(self, sizes: Sizes) -> bool:
        """Whether the modules that run at `sizes` differ from those at the model's own size."""
        return not self.at(sizes).has_structure_of(self._own)

    def values(self, sizes: Sizes) -> dict[Hashable, int]:
        """The bytes of every key at `sizes`."""
        found: dict[Hashable, int] = {}
        for held in self.at(sizes).held:
            key = self.key_of(held)
            found[key] = found.get(key, 0) + held.nbytes
        return found

    def followed(self, sizes: Sizes) -> dict[Hashable, int]:
        """The bytes of every key, and for a peak those of all allocations, by kind.

        The peak at other sizes may consist of storages that are not alive at this moment.
        """
        born = self.at(sizes).born if self.subject == "peak" else {}
        return {**self.values(sizes), **born}

    def key_of(self, held: HeldStorage) -> Hashable:
        """The key by which a storage is matched."""
        return held.kind if self.by_kind else held.position

    def named(self, sizes: Sizes) -> str:
        """Sizes in words, such as `batch=13, seq=1024`."""
        return ", ".join(f"{key}={size}" for key, size in zip(self.keys, sizes, strict=True))

    def _observed(self, sizes: Sizes) -> Observation:
        if sizes not in self._known and sizes not in self._failed:
            try:
                self._known[sizes] = self._observe(sizes)
            except NoFitError as error:
                self._failed[sizes] = error
        if sizes in self._failed:
            raise self._failed[sizes]
        return self._known[sizes]

    def _observe(self, sizes: Sizes) -> Observation:
        from graphmem.simulate import life_events

        try:
            name, graph, programs = self._trace(sizes)
        except InputError as error:
            raise NoFitError(
                f"at {self.named(sizes)}: {error}",
                hint=error.hint or "give sizes that build() accepts with --sizes KEY=N,N,…",
            ) from error
        found = observe(graph, life_events(graph, programs), self.subject, self._place)
        if found is None:
            raise NoFitError(f"{name} has no moment like the peak at {self.named(sizes)}")
        return found

    def _trace(self, sizes: Sizes) -> tuple[str, StepGraph, Mapping[int, Program]]:
        from graphmem.pipeline import installed_passes, run_passes

        self.progress(f"tracing {self.named(sizes)} ({len(self._known) + 1})")
        at_sizes = {key: str(size) for key, size in zip(self.keys, sizes, strict=True)}
        request = replace(self.request, settings={**self.request.settings, **at_sizes})
        step = traced_step(self.target, request, follows=False)
        if any(each.what == GRAPHS_LEFT_OUT for each in step.graph.assumptions):
            raise GraphsLeftOutError()
        passes = [each for each in installed_passes() if each.provides == "kernel_memory"]
        memory = run_passes(step.graph, step.runtime, passes).of(KERNEL_MEMORY)
        return step.name, step.graph, memory.programs


def own_sizes(defaults: Mapping[str, Any], request: Request, keys: Sequence[str]) -> Sizes:
    """The size of each keyword: the value of `--set`, else its default.

    Raises:
        InputError: it is not a positive whole number.
    """
    sizes = []
    for key in keys:
        if key not in defaults and key not in request.settings:
            known = f"they are {', '.join(defaults)}" if defaults else f"or set it: --set {key}=N"
            raise UnknownKeywordError(key, did_you_mean(key, defaults, known))
        value = request.settings.get(key, defaults.get(key))
        try:
            size = int(value) if isinstance(value, str) else value
        except ValueError:
            size = None
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise KeywordNotWholeError(key, value)
        sizes.append(size)
    return tuple(sizes)


@dataclass(frozen=True)
class Stepping:
    """The sizes own, own + step, own + 2·step, and so on."""

    own: int
    step: int

    def at(self, place: int) -> int:
        """The size at a place in the sequence."""
        size = self.own + place * self.step
        if size < 1:
            raise NoFitError(f"there are too few sizes below {self.own}")
        return size

    def unused(self) -> Iterator[int]:
        """Sizes of the same alignment that no search uses: about half, half more, the nearest."""
        half = self.own // 2 + 1
        if half >= abs(self.step):
            steps = half // abs(self.step)
            if self.own - steps * abs(self.step) > 1:
                yield self.own - steps * abs(self.step)
            yield self.own + steps * abs(self.step)
        yield self.own + (HIGHEST + 2) * abs(self.step)


@dataclass(frozen=True)
class Listed:
    """The own size, then those given by the user."""

    sizes: tuple[int, ...]

    def at(self, place: int) -> int:
        """The size at a place in the sequence."""
        if place >= len(self.sizes):
            raise NoFitError(
                f"{len(self.sizes)} sizes ({', '.join(map(str, self.sizes))}) are too few",
                hint=f"power n needs n + 2 sizes, including its own; {HIGHEST + 2} always suffice",
            )
        return self.sizes[place]

    def unused(self) -> Iterator[int]:
        """The sizes, last first: whether one was used depends on the other symbols."""
        return reversed(self.sizes)


Nodes = Stepping | Listed


def choose_nodes(
    traces: Traces,
    own: Own,
    given: Mapping[str, Sequence[int]],
    aligned: Collection[int] = (),
) -> tuple[tuple[Nodes, ...], set[Hashable]]:
    """Choose each symbol's sequence of sizes; also returns what is not a polynomial over them.

    Args:
        traces: traces of the target.
        own: the model's own size.
        given: the sizes to trace, by keyword, if the user gave some.
        aligned: positions of symbols that use steps of `ALIGNMENT`.

    Raises:
        NoFitError: no step is good.
        InputError: a symbol changes nothing.
    """
    try:
        return _choose_all(traces, own, given, aligned)
    except _OtherModulesError:
        traces.by_kind = True
        return _choose_all(traces, own, given, aligned)


def _choose_all(
    traces: Traces, own: Own, given: Mapping[str, Sequence[int]], aligned: Collection[int]
) -> tuple[tuple[Nodes, ...], set[Hashable]]:
    chosen = []
    irregular: set[Hashable] = set()
    for axis, key in enumerate(traces.keys):
        nodes, found = _choose(
            traces, own, axis, _sequences(own.sizes[axis], given.get(key), axis in aligned)
        )
        _refuse_idle(traces, own, axis, nodes)
        chosen.append(nodes)
        irregular |= found
    return tuple(chosen), irregular


def _sequences(size: int, given: Sequence[int] | None, is_aligned: bool) -> list[Nodes]:
    if given is not None:
        return [Listed(tuple(dict.fromkeys((size, *given))))]
    alignment = gcd(size, ALIGNMENT)
    steps = (ALIGNMENT, -ALIGNMENT) if is_aligned else (1, alignment, -1, -alignment)
    return [Stepping(size, step) for step in dict.fromkeys((*steps, size))]


def moved(sizes: Sizes, axis: int, size: int) -> Sizes:
    """Replace the size of the symbol at position `axis`."""
    return (*sizes[:axis], size, *sizes[axis + 1 :])


def _choose(
    traces: Traces, own: Own, axis: int, sequences: Iterable[Nodes]
) -> tuple[Nodes, set[Hashable]]:
    good: list[tuple[int, Nodes, set[Hashable]]] = []
    errors = []
    for nodes in sequences:
        try:
            irregular = _irregular_alone(traces, own, axis, nodes)
        except NoFitError as error:
            errors.append(error)
            continue
        good.append((_bytes_of(irregular, traces, own), nodes, irregular))
        if not good[-1][0] or len(good) == _GOOD_STEPS:
            break
    if not good:
        raise errors[0]
    _, nodes, irregular = min(good, key=lambda each: each[0])
    return nodes, irregular


def _irregular_alone(traces: Traces, own: Own, axis: int, nodes: Nodes) -> set[Hashable]:
    """The keys that are not polynomials in one symbol, with the others at their own sizes."""

    def sample(index: Index) -> dict[Hashable, int]:
        return traces.followed(moved(own.sizes, axis, nodes.at(index[0])))

    return interpolate(1, lambda _, place: nodes.at(place), sample).irregular


def _bytes_of(keys: Collection[Hashable], traces: Traces, own: Own) -> int:
    values = traces.values(own.sizes)
    return sum(values.get(key, 0) for key in keys)


def _refuse_idle(traces: Traces, own: Own, axis: int, nodes: Nodes) -> None:
    other = traces.at(moved(own.sizes, axis, nodes.at(1)))
    if other.storages == own.observed.storages:
        key = traces.keys[axis]
        raise IdleSymbolError(key, own.sizes[axis], nodes.at(1))


def _allocated(timeline: Timeline, subject: Subject) -> int | None:
    if subject == "peak":
        return timeline.peak()[0].allocated
    return timeline.moments[-1].allocated if subject == "steady" else None


def _in_words(graph: StepGraph, born: Storage, place: MatchedMoment, subject: Subject) -> str:
    if subject == "saved":
        return "what autograd holds when the last forward pass ends, without parameters"
    if subject != "peak":
        return "when the last iteration is over"
    op = graph.op_of(born)
    return f"{place.kind} ({op.source})" if op is not None and op.source else str(place.kind)
