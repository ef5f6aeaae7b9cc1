"""Errors that prevent a change of a step, a class for each message."""

from __future__ import annotations

from graphmem.errors import InputError


class NothingToFreezeError(InputError):
    """`--freeze` matches nothing."""

    def __init__(self, pattern: str, first: str) -> None:
        super().__init__(
            f"no parameter or module is called {pattern!r}", hint=f"the first parameter is {first}"
        )


class ChangeNeedsModelError(InputError):
    """A change is made in a model, and there is none."""

    def __init__(self, option: str) -> None:
        super().__init__(
            f"{option} needs a model, and build() returned a step without one",
            hint="return TrainingStep(model=…, step=…) from build()",
        )


class UnknownActivationError(InputError):
    """`--activation` names a module that graphmem cannot exchange."""

    def __init__(self, old: str, new: str, known: str) -> None:
        super().__init__(
            f"cannot replace the activation {old!r} by {new!r}", hint=f"there are {known}"
        )


class BatchOutOfReachError(InputError):
    """`--batch` scales inputs, which a step with its own loop makes itself."""

    def __init__(self) -> None:
        super().__init__(
            "--batch cannot reach the inputs of a step that runs itself",
            hint="give build() an argument for the batch, and set it with --set",
        )


class VariedBatchOutOfReachError(InputError):
    """The same, where the batch is varied."""

    def __init__(self) -> None:
        super().__init__(
            "the batch of a step that runs itself cannot be reached",
            hint="give build() an argument for the batch, and name it with --vary",
        )


class BatchBelowOneError(InputError):
    """A factor leaves no sample."""

    def __init__(self, old: int, factor: float) -> None:
        super().__init__(f"a batch of {old} times {factor:g} is less than one")


class BatchOfNoTensorsError(InputError):
    """No input has a first dimension."""

    def __init__(self) -> None:
        super().__init__("a batch needs inputs that are tensors")


class PrecisionOutOfReachError(InputError):
    """A step with its own loop makes its weights itself."""

    def __init__(self) -> None:
        super().__init__(
            "the weights of a step that runs itself cannot be reached",
            hint="return TrainingStep(model=…, inputs=…) from build()",
        )
