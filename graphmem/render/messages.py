"""Errors that prevent a picture, a class for each message."""

from __future__ import annotations

from graphmem.errors import InputError


class NoGraphvizError(InputError):
    """The drawing needs a program that is not there."""

    def __init__(self) -> None:
        super().__init__(
            "the drawing needs graphviz, whose program `dot` is not installed",
            hint="apt-get install graphviz, brew install graphviz, or "
            "https://graphviz.org/download; a .html page needs no graphviz",
        )


class UnknownEndingError(InputError):
    """The ending of a file's name says what to draw."""

    def __init__(self, name: str, known: str) -> None:
        super().__init__(f"no picture format for {name!r}", hint=f"the extensions are {known}")


class DotHasNoTimelineError(InputError):
    """A .dot file is a graph."""

    def __init__(self) -> None:
        super().__init__("a .dot file has no timeline", hint="write it as .svg, .png or .pdf")


class NothingDrawnError(InputError):
    """The options leave no operation."""

    def __init__(self) -> None:
        super().__init__("nothing to draw: no operation matches --phase, --around and --expand")


class UnknownAroundError(InputError):
    """`--around` names nothing in the step."""

    def __init__(self, around: str) -> None:
        super().__init__(
            f"--around {around!r} is neither an operation nor a module of the step",
            hint="`graphmem graph TARGET` lists both; `--around peak` is the peak",
        )


class NoMatplotlibError(InputError):
    """A plot needs a package that is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "a plot of the timeline needs matplotlib, which is not installed",
            hint="pip install 'graphmem[plot]', or render a .html page",
        )


class NoPyarrowError(InputError):
    """A .parquet file needs a package that is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "a .parquet file needs pyarrow, which is not installed",
            hint="pip install 'graphmem[parquet]', or write a .csv",
        )
