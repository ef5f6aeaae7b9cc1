"""Compares the two allocators step by step, in a process that has done nothing else.

    python -m tools.real_allocator.comparison FOLDER DRIVER RELEASE RULES MODE SEED

prints the first difference. cases.py starts it, with the mode's settings in its environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

from graphmem.allocator import Device
from graphmem.torch_releases import parse_release
from graphmem.torch_releases.differences import Release
from tools.real_allocator.allocator import Allocator, Restored
from tools.real_allocator.card import Card
from tools.real_allocator.libraries import CAPTURES_ARE_MARKED_SINCE, Libraries
from tools.real_allocator.model import ModelledAllocator
from tools.real_allocator.modes import MODES, Mode
from tools.real_allocator.real import RealAllocator
from tools.real_allocator.steps import Answer, Step, Steps

_SHOWN = 8
_ANSWER = "answer"
_TAKEN = "taken from the card"

Figures = dict[str, Answer]


class Comparison:
    """Both allocators, each on a card of its own."""

    def __init__(self, libraries: Libraries, driver: Path, rules: Release, mode: Mode) -> None:
        """Start both; the arguments are those of `cases.difference`."""
        self._mode = mode
        self._captures = libraries.release >= CAPTURES_ARE_MARKED_SINCE
        self._devices = mode.device(), mode.device()
        self._real = RealAllocator(libraries, driver, Card(self._devices[0]))
        if mode.fraction is not None:
            self._real.set_fraction(mode.fraction)
        self._model = ModelledAllocator(mode.settings(rules), self._devices[1], rules)

    def first_difference(self, seed: int) -> str:
        """The first step after which a figure differs, and those that do; "" if none does."""
        live: list[int] = []
        for number, step in enumerate(Steps(seed, live, self._mode, self._captures)):
            real = _figures(step, self._real, self._devices[0])
            predicted = _figures(step, self._model, self._devices[1])
            if real != predicted:
                return f"step {number}: {step}\n{_lines(real, predicted)}"
            if _TAKEN not in real:
                break
            _note(step, real[_ANSWER], live)
        return ""


def _figures(step: Step, allocator: Allocator, device: Device) -> Figures:
    """What a step answers, and all that can be seen after it.

    If a pool's state cannot be set again, that ends the case: some of its segments have it, in an
    order of PyTorch's own.
    """
    answer = step.take(allocator)
    if step.method == "restore" and isinstance(answer, str):
        return {_ANSWER: answer}
    return {_ANSWER: answer, _TAKEN: device.reserved_bytes, **allocator.stats()}


def _note(step: Step, answer: Answer, live: list[int]) -> None:
    """Keep the list of blocks in use."""
    if step.method == "free":
        live.remove(step.arguments[0])
    elif isinstance(answer, int):
        live.append(answer)
    elif isinstance(answer, Restored):
        live[:] = sorted(set(live).difference(answer.freed).union(answer.in_use))


def _lines(real: Figures, predicted: Figures) -> str:
    names = [name for name in real | predicted if real.get(name) != predicted.get(name)]
    lines = [
        f"  {name}: real {_shown(name, real)}, predicted {_shown(name, predicted)}\n"
        for name in names[:_SHOWN]
    ]
    more = len(names) - _SHOWN
    return "".join(lines) + (f"  and {more} more figures\n" if more > 0 else "")


def _shown(name: str, figures: Figures) -> str:
    figure = figures.get(name)
    if not isinstance(figure, int):
        return repr(figure)
    return f"{figure:#x}" if name == _ANSWER else f"{figure:,}"


def main(folder: str, driver: str, release: str, rules: str, mode: str, seed: str) -> None:
    """Print the first difference."""
    libraries = Libraries(Path(folder), parse_release(release))
    comparison = Comparison(libraries, Path(driver), parse_release(rules), MODES[mode])
    if found := comparison.first_difference(int(seed)):
        sys.stdout.write(f"{mode}, seed {seed}, {found}")


if __name__ == "__main__":
    main(*sys.argv[1:])
