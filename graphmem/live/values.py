"""What a program learns from values on the device: assumptions, each told once and listed.

No arithmetic is done on the virtual GPU, so what a program reads off it is assumed:

(1) what `--assume` says for that variable or that line;
(2) one number: 1.0, the integer 0, False; but True for what `all()` and `isfinite()` say, so
    that checks pass, and 0.0 for GradScaler's `found_inf`, so that its steps are taken;
(3) several numbers at once, as in `.cpu()` or `print`: zeros;
(4) how many elements a mask selects: all of them, the bound.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.errors import InputError
from graphmem.graph import Source
from graphmem.trace.location import Location
from graphmem.trace.naming import tensors_held, variables_of
from graphmem.trace.recorder import Recorder

WHY = "the device does no arithmetic"
_LINE = re.compile(r"(?P<file>.+):(?P<line>\d+)")
_WORDS = {"true": 1.0, "false": 0.0}
_GRAMMAR = "write NAME=NUMBER or FILE:LINE=NUMBER, such as loss=2.5 or train.py:120=0"
_PASSING = frozenset({"aten.all", "aten.isfinite"})
_ITEM = re.compile(r"\[['\"](\w+)['\"]\]")


@dataclass(frozen=True)
class Choices:
    """What the user wants assumed.

    Attributes:
        by_name: by a variable, such as `loss` or `outputs.loss`.
        by_line: by file, as the user wrote it, and line.
    """

    by_name: Mapping[str, float]
    by_line: Mapping[tuple[str, int], float]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Choices:
        """Read the texts of `--assume`.

        Raises:
            InputError: one is not of the form.
        """
        by_name: dict[str, float] = {}
        by_line: dict[tuple[str, int], float] = {}
        for text in texts:
            where, equals, number = text.rpartition("=")
            if not equals or not where:
                raise InputError(f"cannot assume {text!r}", hint=_GRAMMAR)
            value = _number(number, text)
            line = _LINE.fullmatch(where)
            if line is None:
                by_name[where] = value
            else:
                by_line[line["file"], int(line["line"])] = value
        return cls(by_name, by_line)

    def find(self, name: str | None, source: Source | None) -> float | None:
        """What was chosen for a variable read at a line."""
        if source is not None:
            for (file, line), value in self.by_line.items():
                if line == source.line and f"/{source.file}".endswith(f"/{file.lstrip('./')}"):
                    return value
        return None if name is None else self.by_name.get(name)


def _number(text: str, whole: str) -> float:
    try:
        return _WORDS[text.lower()] if text.lower() in _WORDS else float(text)
    except ValueError:
        raise InputError(f"cannot assume {whole!r}: {text!r} is no number", hint=_GRAMMAR) from None


class Values:
    """Answers what a program reads off the device."""

    def __init__(
        self,
        recorder: Recorder,
        location: Location,
        choices: Choices,
        tell: Callable[[str], None],
    ) -> None:
        """Answers nothing yet.

        Args:
            recorder: lists each assumption in the step graph.
            location: knows the line.
            choices: what the user wants assumed.
            tell: called with a line of text when something is assumed for the first time.
        """
        self._recorder = recorder
        self._location = location
        self._choices = choices
        self._tell = tell
        self._told: set[tuple[str, Source | None]] = set()

    def scalar(self, tensor: FakeTensor) -> bool | int | float:
        """The only element of a tensor."""
        source, name = self._location.source(), self._name(tensor)
        chosen = self._choices.find(name, source)
        value = self._default(tensor) if chosen is None else chosen
        number = _as(tensor.dtype, value)
        self._assume(name or "a value", str(number), name, source)
        return number

    def on_host(self, tensor: torch.Tensor, copied: torch.Tensor) -> torch.Tensor:
        """A tensor of the host with the looks of `tensor`, a copy of `copied`."""
        source, name = self._location.source(), self._name(copied)
        chosen = self._choices.find(name, source)
        value = chosen
        if value is None:
            value = self._default(copied) if tensor.numel() == 1 else 0.0
        real = torch.zeros(0, dtype=tensor.dtype, device="cpu")
        real = real.new_zeros(_span(tensor)).as_strided(tensor.shape, tensor.stride())
        if value:
            real.fill_(value)
        if tensor.numel() and not self._is_autograd():
            shown = str(_as(tensor.dtype, value))
            many = "" if tensor.numel() == 1 else "every element of "
            self._assume(f"{many}{name or 'a value'}", shown, name, source)
        return real

    def saved(self) -> None:
        """Note that data of the device goes into a file."""
        source = self._location.source()
        self._assume("what is saved of tensors on the device", "zeros", None, source)

    def eager(self) -> None:
        """Note that a program was to be compiled."""
        self._replace("torch.compile", "run eagerly", "what the compiled program takes")

    def scripted(self) -> None:
        """Note that TorchScript runs, whose operations a card would fuse."""
        self._replace("TorchScript", "run without fusion", "what the fused program takes")

    def _replace(self, what: str, value: str, unknown: str) -> None:
        source = self._location.source()
        self._recorder.assume(what, value, f"{unknown} is not known", source)
        self._say((what, source), f"{what} is {value}: {unknown} is not known")

    def fraction(self) -> float:
        """The share of elements that a mask selects, from 0 to 1; chosen by line or `nonzero`."""
        source = self._location.source()
        chosen = self._choices.find("nonzero", source)
        share = 1.0 if chosen is None else min(max(chosen, 0.0), 1.0)
        text = f"a size that depends on data is taken as {share:g} of its bound"
        self._say((text, source), f"{text}; choose with --assume {source or 'nonzero'}=…")
        return share

    def _is_autograd(self) -> bool:
        """Whether autograd moves a gradient, which the program does not see."""
        return torch._C._current_graph_task_id() >= 0

    def _default(self, tensor: torch.Tensor) -> float:
        if tensor.dtype == torch.bool:
            return float(self._made_by(tensor) in _PASSING)
        if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            return 0.0
        return 0.0 if _asks_for_infinities(sys._getframe(1)) else 1.0

    def _made_by(self, tensor: torch.Tensor) -> str:
        maker = self._recorder.maker_of(tensor)
        node = maker[0] if isinstance(maker, tuple) else maker
        return str(node.target).rpartition(".")[0]

    def _name(self, tensor: torch.Tensor) -> str | None:
        """The variable of the innermost function of the user that holds a tensor, or its data."""
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
        choose = "" if by is None else f"; choose with --assume {by}=…"
        self._say((what, source), f"{what} is taken as {value}{choose}")

    def _say(self, key: tuple[str, Source | None], text: str) -> None:
        if key not in self._told:
            self._told.add(key)
            source = key[1]
            self._tell(text if source is None else f"{source}: {text}")


def _as(dtype: torch.dtype, value: float) -> bool | int | float:
    if dtype == torch.bool:
        return bool(value)
    return value if dtype.is_floating_point or dtype.is_complex else int(value)


def _span(tensor: torch.Tensor) -> int:
    if not tensor.numel():
        return 0
    dims = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in dims)


def _asks_for_infinities(frame: FrameType | None) -> bool:
    """Whether GradScaler reads `found_inf` (torch/amp/grad_scaler.py, `_maybe_opt_step`)."""
    while frame is not None:
        code: Any = frame.f_code
        if code.co_qualname.startswith("GradScaler._maybe_opt_step"):
            return True
        frame = frame.f_back
    return False
