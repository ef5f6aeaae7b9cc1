"""Errors in the terms of a published formula, one class per message."""

from __future__ import annotations

from graphmem.errors import InputError


class NoPhaseError(InputError):
    """The step does not train, and published formulas are for training steps."""

    def __init__(self, name: object) -> None:
        super().__init__(
            f"the step has no {name} phase, and published formulas are for training steps",
            hint="without a target, `--term` gives the values that they need",
        )


class UnknownExampleError(InputError):
    """`--example` names an unknown example."""

    def __init__(self, name: str, known: str) -> None:
        super().__init__(f"no example is called {name!r}", hint=f"there are {known}")


class MissingTermsError(InputError):
    """No published formula can be computed, since each lacks terms."""

    def __init__(self, name: str, needed: str) -> None:
        super().__init__(
            f"no formula has all its terms: {name} lacks {needed}",
            hint="give a target, `--term h=768` for each, or `--example llama-3-405b`",
        )


class UnknownFormulaError(InputError):
    """There is no published formula of this name."""

    def __init__(self, name: str, known: str) -> None:
        super().__init__(f"no formula is called {name!r}", hint=f"there are {known}")


class UnevenNodesError(InputError):
    """The GPUs cannot be spread evenly over the machines."""

    def __init__(self, gpus: int, nodes: int, nearest: int) -> None:
        super().__init__(
            f"{gpus} GPUs cannot be spread evenly over {nodes} machines",
            hint=f"the nearest number that can is {nearest}",
        )


class UnknownTermError(InputError):
    """`--term` names a term that no formula has."""

    def __init__(self, key: str, known: str) -> None:
        super().__init__(f"no formula has a term {key!r}", hint=f"the terms are {known}")


class TermNotWholeError(InputError):
    """The value in `--term` is not a positive whole number."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(
            f"the term {key}={text} is not a whole number above 0",
            hint="write it as 768, 2_851_000_000 or 2851e6",
        )
