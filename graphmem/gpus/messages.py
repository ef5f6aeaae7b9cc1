"""Errors in the name or the description of a card, one class per message."""

from __future__ import annotations

from graphmem.errors import InputError

_EXAMPLE = "name=my-card,memory=24GiB,sm=75,multiprocessors=72"


class UnknownCapabilityError(InputError):
    """A described card has a compute capability that graphmem has no rules for."""

    def __init__(self, text: str, known: str) -> None:
        super().__init__(
            f"sm={text} is not a known compute capability", hint=f"choose from {known}"
        )


class MissingGpuFieldError(InputError):
    """A description of a card lacks a field."""

    def __init__(self, missing: str) -> None:
        super().__init__(f"the GPU's description lacks {missing}", hint=f"write {_EXAMPLE}")


class WrongGpuMemoryError(InputError):
    """The memory of a described card is malformed or implausible."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"memory={text} is not a card's memory", hint="write it like 24GiB or 24220MiB"
        )


class WrongMultiprocessorsError(InputError):
    """The number of multiprocessors of a described card is malformed or implausible."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"multiprocessors={text} is not a number of multiprocessors", hint=f"write {_EXAMPLE}"
        )


class UnknownGpuFieldError(InputError):
    """A description of a card has an unknown or repeated field."""

    def __init__(self, part: str) -> None:
        super().__init__(
            f"unknown or repeated field in a GPU's description: {part!r}", hint=f"write {_EXAMPLE}"
        )


class UnknownPlatformError(InputError):
    """The platform of a card is neither Linux nor Windows."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"driver={name} is not a platform", hint="write linux, or wddm (Windows, WSL 2)"
        )


class UnknownGpuError(InputError):
    """There is no card of this name."""

    def __init__(self, name: str, hint: str) -> None:
        super().__init__(f"unknown GPU {name!r}", hint=hint)
