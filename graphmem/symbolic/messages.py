"""Errors that prevent a closed form, one class per message."""

from __future__ import annotations

from graphmem.errors import InputError


class NoSymbolError(InputError):
    """`--symbols` is empty."""

    def __init__(self) -> None:
        super().__init__(
            "--symbols names no symbol", hint="name keywords of build(): --symbols batch=B,seq=T"
        )


class NotPolynomialError(InputError):
    """A formula with parts that are not polynomials has no value at other sizes."""

    def __init__(self) -> None:
        super().__init__(
            "part of the formula is not a polynomial, so it has no value at other sizes"
        )


class WrongSymbolsError(InputError):
    """A formula is evaluated for symbols other than its own."""

    def __init__(self, symbols: str) -> None:
        super().__init__(f"the symbols of the formula are {symbols}")


class WrongLetterError(InputError):
    """The name of a symbol is not an identifier."""

    def __init__(self, letter: str) -> None:
        super().__init__(f"{letter!r} is not a name for a symbol", hint="use a letter")


class SameLetterError(InputError):
    """Two symbols have the same letter."""

    def __init__(self, letter: str) -> None:
        super().__init__(f"{letter} stands for two things")


class UnknownSymbolError(InputError):
    """An option names a size that is not a symbol."""

    def __init__(self, option: str, key: str, hint: str | None) -> None:
        super().__init__(f"{option} names {key!r}, which is not a symbol", hint=hint)


class CheckIsSampleError(InputError):
    """The size for the check was used to find the formula."""

    def __init__(self, sizes: str) -> None:
        super().__init__(
            f"{sizes} was used to find the formula", hint="give another size for the check"
        )


class IdleSymbolError(InputError):
    """No storage depends on a symbol."""

    def __init__(self, key: str, size: int, other: int) -> None:
        super().__init__(
            f"{key} changes nothing: every storage is the same at {key}={size} and at {key}={other}"
        )


class GraphsLeftOutError(InputError):
    """Compiled code runs in CUDA graphs, whose pools keep what a polynomial would leave out."""

    def __init__(self) -> None:
        super().__init__(
            "the compiled code runs in a CUDA graph, whose memory this command does not follow",
            hint="compile it without, as by mode='default'; `graphmem analyze` follows it",
        )


class NothingAllocatedError(InputError):
    """The step allocates nothing, so there is no formula."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} allocates nothing on the device")


class UnknownKeywordError(InputError):
    """A symbol is not a keyword of build()."""

    def __init__(self, key: str, hint: str | None) -> None:
        super().__init__(f"the function has no keyword {key!r} with a default", hint=hint)


class KeywordNotWholeError(InputError):
    """The value of a symbol is not a positive whole number."""

    def __init__(self, key: str, value: object) -> None:
        super().__init__(
            f"{key} is {value!r}: a symbol stands for a positive whole number",
            hint=f"set its size with --set {key}=N",
        )
