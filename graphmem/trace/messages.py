"""Errors that stop a trace, a class for each message."""

from __future__ import annotations

from collections.abc import Sequence

from graphmem.errors import InputError, did_you_mean


class StrictError(InputError):
    """`--strict`, and something would be assumed."""

    def __init__(self, what: str, where: str, value: str, why: str) -> None:
        super().__init__(
            f"{what} would be assumed{where} ({value}): {why}",
            hint="leave out --strict, or decide it from what is known",
        )


class NoTritonError(InputError):
    """The compiler's language is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "torch.compile writes its kernels in Triton, which is not installed",
            hint="pip install 'graphmem[compile]' (no GPU is needed), or --no-compile, which "
            "runs the program eagerly",
        )


class NoKernelOnCardError(InputError):
    """A higher-order operator has no kernel for the device."""

    def __init__(self, operator: object, place: str) -> None:
        super().__init__(
            f"operator {operator} has no kernel for a card{place}", hint="leave it out of the step"
        )


class UnknownOptimizerError(InputError):
    """graphmem knows no optimizer of that name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(
            f"unknown optimizer {name!r}",
            hint=did_you_mean(
                name,
                known,
                f"choose none, or one of {', '.join(known)}, each also with -foreach, -fused or "
                "-single",
            ),
        )


class NoLossError(InputError):
    """Nothing in a model's output could be a loss."""

    def __init__(self) -> None:
        super().__init__(
            "the model's output contains no tensor to compute a loss from",
            hint="return (model, inputs, loss_fn) from build()",
        )


class InputsElsewhereError(InputError):
    """A model and its inputs are on different devices."""

    def __init__(self, device: object) -> None:
        super().__init__(
            f"the model is on the CPU and its inputs are on {device}",
            hint="put the model on the device in build() as well, or leave both on the CPU",
        )


class NothingToRunError(InputError):
    """A training step has nothing to run."""

    def __init__(self) -> None:
        super().__init__("the training step has neither a model nor a step to run")


class ClosureNeededError(InputError):
    """LBFGS needs a hand-written loop, with a closure."""

    def __init__(self) -> None:
        super().__init__(
            "LBFGS evaluates the model several times in a step, for which it needs a closure",
            hint="write the loop's body: TrainingStep(model=…, step=…), where `step` calls "
            "optimizer.step(closure)",
        )


class NothingTrainsError(InputError):
    """The loss depends on no parameter."""

    def __init__(self) -> None:
        super().__init__(
            "nothing trains: the loss depends on no parameter that requires grad",
            hint="leave some parameter unfrozen, or ask for --inference",
        )


class UnknownAutocastError(InputError):
    """Autocast takes two precisions."""

    def __init__(self, autocast: str) -> None:
        super().__init__(f"unknown autocast {autocast!r}", hint="choose fp16, bf16 or none")


class EndlessLoopError(InputError):
    """A loop waits for a value that the device would compute."""

    def __init__(self, where: str, asked: str, why: str, answer: str = "") -> None:
        called = "" if asked == where else f", called from {asked},"
        answer = answer or f"{asked}={'0' if asked == where else 'true'}"
        super().__init__(
            f"the loop around {where}{called} does not end: {why}",
            hint=f"say what ends it, such as --assume {answer}, or bound it by a count",
        )


class BranchOnValueError(InputError):
    """The program goes one of two ways by a value of the device."""

    def __init__(self, line: str, where: object) -> None:
        super().__init__(
            f"the step branches on the value of a tensor{line}: only a real run knows which way",
            hint=f"say which way with --assume {where}=true or --assume {where}=false",
        )


class DataDependentValueError(InputError):
    """An operator reads a value of the device."""

    def __init__(self, func: object, where: str) -> None:
        super().__init__(
            f"the value that {func} reads depends on data{where}",
            hint="decide it from sizes or settings, or give build() an argument that does",
        )


_OF_PARTS = (
    "make it dense first, with to_dense(): how many values each part of it has is known to the "
    "card alone"
)
_OF_GRADIENTS = (
    "make it dense first, with to_dense(); if it is an embedding's gradient, train with "
    "torch.optim.SparseAdam, Adagrad or SGD without momentum, or leave out sparse=True"
)
_PARTS = frozenset({"unbind", "select", "slice", "narrow", "index_select", "split", "chunk"})


def _takes_a_part(func: object) -> bool:
    """Whether an operator takes rows or other parts of a tensor, by its name, `aten.unbind.int`."""
    return not _PARTS.isdisjoint(str(func).split("."))


class SparseOperatorError(InputError):
    """An operator has no rule for sparse tensors."""

    def __init__(self, func: object, where: str) -> None:
        super().__init__(
            f"operator {func} of a sparse tensor is not supported{where}",
            hint=_OF_PARTS if _takes_a_part(func) else _OF_GRADIENTS,
        )


class NestedTensorError(InputError):
    """Strided nested tensors have no rule."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"strided nested tensors are not supported{where}",
            hint="pad the sequences, or nest them with layout=torch.jagged",
        )


class NoMetaKernelError(InputError):
    """An operator does not say what shape it returns."""

    def __init__(self, func: object, where: str) -> None:
        super().__init__(
            f"operator {func} has no meta kernel{where}",
            hint="register one with torch.library.register_fake, which says what shape comes "
            "out, or leave the operator out of the step",
        )


class DataDependentShapeError(InputError):
    """The shape of a result depends on values of the device."""

    def __init__(self, func: object, where: str) -> None:
        super().__init__(
            f"the shape that {func} returns depends on data{where}",
            hint="give it a static size, or compute it before the step",
        )


class NestedLayoutError(InputError):
    """The same, where one is made."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"strided nested tensors are not supported{place}",
            hint="give layout=torch.jagged, or pad the sequences",
        )


class InferenceOfOwnLoopError(InputError):
    """`--inference` for a step with its own loop."""

    def __init__(self) -> None:
        super().__init__(
            "--inference needs a model and inputs, not a step function",
            hint="return (model, inputs) from build(), or leave out --inference",
        )


class OldCompiledAutogradError(InputError):
    """A backward pass is compiled as a whole by a release that cannot do so under a mode."""

    def __init__(self) -> None:
        super().__init__(
            "backward passes that torch before 2.8 compiles as a whole are not followed",
            hint="leave `torch._dynamo.config.compiled_autograd` off, or use a newer torch",
        )
