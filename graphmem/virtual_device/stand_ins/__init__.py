"""Modules that replace compiled packages which are not installed.

A package whose kernels are compiled for a card, such as flash-attn, often cannot be installed where
there is none. `graphmem run --stand-in NAME` gives the program modules with the same names and
signatures, whose functions allocate through PyTorch what the package's allocate, and compute
nothing.

(1) A stand-in is a `StandIn` object named by an entry point of the group `graphmem.stand_ins`, so
    any package can provide one.
(2) Installed modules stay: only those that cannot be found are replaced. If flash-attn's Python
    part is installed without its extension, that part runs over the stand-in's kernels.
(3) `kernels.get_kernel` is an exception: what it would download is for a card (hub_kernels.py).
"""

from __future__ import annotations

import dis
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import Distribution, DistributionFinder, EntryPoint, entry_points
from pathlib import Path
from traceback import walk_tb
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from graphmem.gpus import Gpu
from graphmem.virtual_device.messages import NoStandInPartError, UnknownStandInError
from graphmem.virtual_device.package_releases import check_release
from graphmem.virtual_device.stand_ins.hub_kernels import plain, serving
from graphmem.virtual_device.stand_ins.modules import is_made, made

GROUP = "graphmem.stand_ins"


@dataclass(frozen=True)
class StandIn:
    """A replacement for a package.

    Attributes:
        distribution: the package's name, as `pip` knows it.
        version: the version it claims to be.
        source: the sources that its allocations were read from.
        modules: called with the card; returns each module's contents by name, by its full name.
        oldest: the first release whose Python part calls the stand-in's kernels as they are.
        install: the command that installs the package's Python part without its kernels.
        around: a context that is open while the modules can be imported.
        others: modules outside the package that it stands in for as well.
        gone: modules of earlier releases that `version` has not.
        hub: the module that replaces a kernel of Hugging Face's hub, by the kernel's plain name
            (`hub_kernels.plain`).
    """

    distribution: str
    version: str
    source: str
    modules: Callable[[Gpu], Mapping[str, Mapping[str, Any]]]
    oldest: str = "0"
    install: str | None = None
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    others: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    hub: Mapping[str, str] = field(default_factory=dict)


def find(names: Iterable[str]) -> list[StandIn]:
    """Load the stand-ins with these names.

    Raises:
        InputError: one does not exist, or an older release of its package is installed.
    """
    wanted = list(dict.fromkeys(names))
    known = _known() if wanted else {}
    for name in wanted:
        if name not in known:
            raise UnknownStandInError(name, ", ".join(sorted(known)) or "none", GROUP)
    found: list[StandIn] = [known[name].load() for name in wanted]
    for each in found:
        check_release(each.distribution, each.oldest, each.install)
    return found


def stand_in_for(error: BaseException) -> StandIn | None:
    """The stand-in for a package that is absent, or whose own import failed, if there is one."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    known = _known()
    for name in (missing or "", *_importing(error)):
        package = name.partition(".")[0]
        if package in known:
            return known[package].load()  # type: ignore[no-any-return]
    stand_ins: Iterator[StandIn] = (point.load() for point in known.values())
    return next((each for each in stand_ins if missing in each.others), None)


def stand_in_named(text: str) -> StandIn | None:
    """The stand-in for a package or a kernel of Hugging Face's hub that a text names, if any."""
    words = {plain(word) for word in re.findall(r"[\w-]+", text)}
    stand_ins: Iterator[StandIn] = (point.load() for point in _known().values())
    names = ((each, {plain(each.distribution), *each.hub}) for each in stand_ins)
    return next((each for each, called in names if called & words), None)


def asks_for_what_is_gone(error: BaseException, stand_in: StandIn) -> bool:
    """Whether the module that was missing is one that later releases of the package have not."""
    if not isinstance(error, ModuleNotFoundError):
        return False
    asked = (error.name or "", *_import_statements(error.__traceback__))
    return any(f"{each}.".startswith(f"{gone}.") for each in asked for gone in stand_in.gone)


def _import_statements(trace: TracebackType | None) -> Iterator[str]:
    """The modules that import statements of a traceback name: a missing parent's error does not."""
    while trace is not None:
        for each in dis.get_instructions(trace.tb_frame.f_code):
            if each.offset == trace.tb_lasti and each.opname == "IMPORT_NAME":
                yield each.argval
        trace = trace.tb_next


def _importing(error: BaseException) -> Iterator[str]:
    """The modules that were being imported when an error was raised."""
    for frame, _ in walk_tb(error.__traceback__):
        if frame.f_code.co_name == "<module>":
            yield frame.f_globals.get("__name__", "")


def _known() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


@contextmanager
def standing_in(stand_ins: Iterable[StandIn], gpu: Gpu) -> Iterator[None]:
    """Make the modules of stand-ins importable while the context is open."""
    with ExitStack() as stack:
        for each in stand_ins:
            modules = each.modules(gpu)
            given = {
                name: made(name, held) for name, held in modules.items() if not is_installed(name)
            }
            stack.callback(_forget, given)
            sys.modules.update(given)
            stack.enter_context(each.around())
            for name, module in given.items():
                parent, _, last = name.rpartition(".")
                if parent:
                    setattr(given[parent], last, module)
            if each.distribution in given:
                finder = _Metadata(each, {name.partition(".")[0] for name in given})
                sys.meta_path.append(finder)
                stack.callback(sys.meta_path.remove, finder)
            functions = {kernel: modules[name] for kernel, name in each.hub.items()}
            stack.enter_context(serving(each.distribution, functions))
        yield


def lacking(
    package: str, names: Iterable[str], install: str | None = None
) -> dict[str, Callable[..., NoReturn]]:
    """What a stand-in lacks, by name: calling it is an error that names it, and so is a subclass.

    Args:
        package: the stand-in.
        names: the functions, and the classes, whose names begin with a capital letter.
        install: the command that installs the package's Python part without its kernels.
    """

    def refusing(name: str) -> Callable[..., NoReturn]:
        def call(*args: Any, **options: Any) -> NoReturn:
            raise NoStandInPartError(package, name, install)

        if not name[0].isupper():
            return call
        held = {"__new__": call, "__init_subclass__": classmethod(call), "_refuse": call}
        return _Refused(name, (), held)

    return {name: refusing(name) for name in names}


class _Refused(type):
    """A class that a stand-in lacks: asking for its method, such as a factory, is refused too."""

    _refuse: Callable[[], NoReturn]

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("_"):  # Python and libraries look for these where they may be missing
            raise AttributeError(name)
        cls._refuse()


def is_installed(name: str) -> bool:
    """Whether Python finds a module's package without a stand-in."""
    top = name.partition(".")[0]
    module = sys.modules.get(top)
    if module is not None:
        return not is_made(module)
    return importlib.util.find_spec(top) is not None


def _forget(given: Mapping[str, ModuleType]) -> None:
    for name, module in given.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


class _Metadata(DistributionFinder):
    """Claims that a package is installed: libraries check its version before they import it."""

    def __init__(self, stand_in: StandIn, packages: Iterable[str]) -> None:
        self._stand_in, self._packages = stand_in, sorted(packages)

    def find_spec(self, *args: Any) -> None:
        """Find no module."""

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterator[Distribution]:
        """Yield the package, if it or every package is asked for."""
        name = None if context is None else context.name
        if name is None or _same(name, self._stand_in.distribution):
            yield _Distribution(self._stand_in, self._packages)


class _Distribution(Distribution):
    def __init__(self, stand_in: StandIn, packages: Sequence[str]) -> None:
        self._texts = {
            "METADATA": "Metadata-Version: 2.1\n"
            f"Name: {stand_in.distribution}\nVersion: {stand_in.version}\n",
            "top_level.txt": "\n".join(packages),  # for `packages_distributions`
        }

    def read_text(self, filename: str) -> str | None:
        """The package's name and version, or its modules."""
        return self._texts.get(filename)

    def locate_file(self, path: Any) -> Any:
        """The path itself: there are no files."""
        return Path(path)


def _same(name: str, other: str) -> bool:
    return name.lower().replace("-", "_") == other.lower().replace("-", "_")
