"""Find the passes, order them by what each requires and provides, and run them.

A pass reads the step graph and returns one annotation; it changes nothing. Built-in and third-party
passes are found in the same way, through the entry-point group `graphmem.passes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

from graphmem.annotations import Annotations
from graphmem.errors import InputError
from graphmem.graph import StepGraph
from graphmem.runtime import Runtime

__all__ = [
    "Annotations",
    "HasReportLines",
    "KnowsReasons",
    "Pass",
    "installed_passes",
    "online_pass",
    "ordered",
    "passes_for",
    "run_passes",
]

GROUP = "graphmem.passes"


class NoOnlinePassError(InputError):
    """A live run needs a pass that is not installed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no pass provides {name!r} while a program runs")


class TwoPassesError(InputError):
    """Two passes provide the same annotation."""

    def __init__(self, provides: str) -> None:
        super().__init__(f"two passes provide {provides!r}")


class CircularPassesError(InputError):
    """Passes wait for each other."""

    def __init__(self, circle: str) -> None:
        super().__init__(f"passes require each other: {circle}")


class MissingPassError(InputError):
    """A pass needs an annotation that none provides."""

    def __init__(self, provides: str, name: str) -> None:
        super().__init__(
            f"pass {provides!r} requires {name!r}, which no pass provides",
            hint="install the package that has it; after an update of a clone, install it again",
        )


@runtime_checkable
class HasReportLines(Protocol):
    """An annotation that the report shows under the pass's name, unless it has no lines."""

    def report_lines(self) -> Iterable[str]:
        """The lines of its section in the report."""


@runtime_checkable
class KnowsReasons(Protocol):
    """An annotation that explains why autograd holds a storage."""

    def reasons_for(self, storage: int, tick: int) -> Sequence[str]:
        """The reasons at a tick, in words that follow "saved for the backward pass by"."""


@dataclass(frozen=True)
class Pass:
    """One pass.

    Attributes:
        provides: the name of the annotation that `run` returns.
        run: called with the step graph, the runtime and the annotations required.
        requires: the names of the annotations that it reads.
        online: makes an object that finds the same while a program runs, operation by operation;
            None if the pass needs the whole graph.
    """

    provides: str
    run: Callable[[StepGraph, Runtime, Annotations], Any]
    requires: tuple[str, ...] = ()
    online: Callable[[Runtime], Any] | None = None


@cache
def installed_passes() -> tuple[Pass, ...]:
    """Every pass of the entry-point group, in an order that respects their requirements.

    They are searched for once: that reads the metadata of every installed package. A program asks
    for them before it runs, so that it is not run in vain.

    Raises:
        InputError: see `run_passes`.
    """
    return tuple(ordered(point.load() for point in entry_points(group=GROUP)))


def online_pass(name: str, runtime: Runtime) -> Any:
    """The object that finds the annotation `name` while a program runs.

    Raises:
        InputError: no installed pass has one.
    """
    for each in installed_passes():
        if each.provides == name and each.online is not None:
            return each.online(runtime)
    raise NoOnlinePassError(name)


def passes_for(name: str, passes: Iterable[Pass] | None = None) -> list[Pass]:
    """The passes that one annotation takes, its own and those required; by default of all."""
    known = {each.provides: each for each in (installed_passes() if passes is None else passes)}
    wanted, found = [name], dict[str, Pass]()
    while wanted:
        each = wanted.pop()
        if each in known and each not in found:
            found[each] = known[each]
            wanted += known[each].requires
    return list(found.values())


def run_passes(
    graph: StepGraph, runtime: Runtime, passes: Iterable[Pass] | None = None
) -> Annotations:
    """Run passes in an order that respects their requirements; by default all installed ones.

    Returns:
        The annotations by name.

    Raises:
        InputError: two passes provide the same annotation, one requires an annotation that no pass
            provides, or they require each other.
    """
    annotations = Annotations()
    for each in installed_passes() if passes is None else ordered(passes):
        required = Annotations({name: annotations[name] for name in each.requires})
        annotations[each.provides] = each.run(graph, runtime, required)
    return annotations


def ordered(passes: Iterable[Pass]) -> list[Pass]:
    """Passes in topological order, independent of the order in which they are given."""
    providers: dict[str, Pass] = {}
    for each in passes:
        if each.provides in providers:
            raise TwoPassesError(each.provides)
        providers[each.provides] = each
    for each in providers.values():
        for name in each.requires:
            if name not in providers:
                raise MissingPassError(each.provides, name)
    needs = TopologicalSorter({name: providers[name].requires for name in sorted(providers)})
    try:
        return [providers[name] for name in needs.static_order()]
    except CycleError as error:
        raise CircularPassesError(" -> ".join(error.args[1])) from None
