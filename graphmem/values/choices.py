"""The user's assumptions: `--assume WHERE=NUMBER`, and `TrainingStep.assume`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from graphmem.errors import InputError
from graphmem.graph import Source

_LINE = re.compile(r"(?P<file>.+):(?P<line>\d+)")
_WORDS = {"true": 1.0, "false": 0.0}
_GRAMMAR = (
    "write NAME=NUMBER or FILE:LINE=NUMBER, such as loss=2.5 or train.py:120=0; "
    "nonzero=0..1 is the fraction that masks select, routing=0..1 the largest expert's share"
)
_SHARES = ("nonzero", "routing")
_OWN_NAMES = (*_SHARES, "padding", "registers", "tuned")  # of what no program has a variable for


class AssumedNotNumberError(InputError):
    """The value in `--assume` is not a number."""

    def __init__(self, whole: str, text: str) -> None:
        super().__init__(f"cannot assume {whole!r}: {text!r} is not a number", hint=_GRAMMAR)


class NotAssumptionError(InputError):
    """`--assume` cannot be parsed."""

    def __init__(self, text: str) -> None:
        super().__init__(f"cannot assume {text!r}", hint=_GRAMMAR)


class NotShareError(InputError):
    """A share in `--assume` is not between 0 and 1."""

    def __init__(self, where: str, value: float) -> None:
        super().__init__(
            f"cannot assume {where}={value:g}: it is a share, from 0 to 1", hint=_GRAMMAR
        )


@dataclass(frozen=True)
class Choices:
    """The values that the user wants assumed.

    Attributes:
        by_name: by variable, such as `loss` or `outputs.loss`; or `nonzero`, `routing`.
        by_line: by file, as the user wrote it, and line.
    """

    by_name: Mapping[str, float] = field(default_factory=dict)
    by_line: Mapping[tuple[str, int], float] = field(default_factory=dict)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Choices:
        """Parse the arguments of `--assume`.

        Raises:
            InputError: one is malformed.
        """
        pairs = []
        for text in texts:
            where, equals, number = text.rpartition("=")
            if not equals or not where:
                raise NotAssumptionError(text)
            pairs.append((where, _number(number, text)))
        return cls.of(dict(pairs))

    @classmethod
    def of(cls, values: Mapping[str, float]) -> Choices:
        """Take the values of `TrainingStep.assume`.

        Raises:
            InputError: a share is not between 0 and 1.
        """
        by_name: dict[str, float] = {}
        by_line: dict[tuple[str, int], float] = {}
        for where, value in values.items():
            if where in _SHARES and not 0 <= value <= 1:
                raise NotShareError(where, value)
            line = _LINE.fullmatch(where)
            if line is None:
                by_name[where] = float(value)
            else:
                by_line[line["file"], int(line["line"])] = float(value)
        return cls(by_name, by_line)

    def over(self, other: Choices) -> Choices:
        """Combine these with others, which yield to these."""
        return Choices({**other.by_name, **self.by_name}, {**other.by_line, **self.by_line})

    def find(self, name: str | None, source: Source | None) -> tuple[str, float] | None:
        """What is chosen, by variable or by line, for a variable that is read at a line."""
        if source is not None:
            for (file, line), value in self.by_line.items():
                if line == source.line and f"/{source.file}".endswith(f"/{file.lstrip('./')}"):
                    return f"{file}:{line}", value
        if name is None or name not in self.by_name:
            return None
        return name, self.by_name[name]

    def of_the_program(self) -> dict[str, float]:
        """The values of variables and lines, without names of graphmem's own."""
        lines = {f"{file}:{line}": value for (file, line), value in self.by_line.items()}
        return lines | {name: self.by_name[name] for name in self.by_name if name not in _OWN_NAMES}


def _number(text: str, whole: str) -> float:
    try:
        return _WORDS[text.lower()] if text.lower() in _WORDS else float(text)
    except ValueError:
        raise AssumedNotNumberError(whole, text) from None
