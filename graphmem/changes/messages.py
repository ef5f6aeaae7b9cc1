"""Errors that prevent a change of a step, a class for each message."""

from __future__ import annotations

from collections.abc import Sequence

from graphmem.errors import InputError, did_you_mean


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
            f"cannot replace the activation {old!r} with {new!r}", hint=f"there are {known}"
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
        super().__init__("changing the batch needs inputs that are tensors")


class PrecisionOutOfReachError(InputError):
    """A step with its own loop makes its weights itself."""

    def __init__(self) -> None:
        super().__init__(
            "the weights of a step that runs itself cannot be reached",
            hint="return TrainingStep(model=…, inputs=…) from build()",
        )


class PackageNeededError(InputError):
    """A change is made by a library that is not installed."""

    def __init__(self, option: str, package: str) -> None:
        super().__init__(
            f"{option} needs {package}, which is not installed", hint=f"pip install {package}"
        )


class UnknownLoraOptionError(InputError):
    """`--lora` has no such option."""

    def __init__(self, option: str, known: Sequence[str]) -> None:
        super().__init__(
            f"--lora has no option {option!r}",
            hint=did_you_mean(option, known, f"there are {', '.join(known)}, as in r=16,alpha=32"),
        )


class NoLoraRankError(InputError):
    """`--lora` does not say how many rows an adapter has."""

    def __init__(self) -> None:
        super().__init__("--lora needs a rank", hint="an example is --lora r=16,alpha=32")


class WrongLoraValueError(InputError):
    """An option of `--lora` has a value out of its range."""

    def __init__(self, option: str, text: str, wanted: str) -> None:
        super().__init__(f"--lora: {option} must be {wanted}, not {text!r}")


class UnknownTargetModuleError(InputError):
    """`--lora` names a layer to adapt that the model does not have."""

    def __init__(self, target: str, known: Sequence[str]) -> None:
        super().__init__(
            f"--lora: no layer to adapt is called {target!r}",
            hint=did_you_mean(target, known, f"the linear layers are {', '.join(known) or 'none'}"),
        )


class NoTargetModulesError(InputError):
    """PEFT has no default for which layers to adapt."""

    def __init__(self, model: str, r: int, known: Sequence[str]) -> None:
        layers = f"; the linear ones are {', '.join(known)}" if known else ""
        super().__init__(
            f"--lora: PEFT does not know which layers of {model} to adapt",
            hint=f"name them, as in r={r},targets={'+'.join(known[:2]) or 'all-linear'}{layers}",
        )


class PeftRefusesError(InputError):
    """PEFT cannot adapt the model; the words are its own."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"--lora: {' '.join(reason.split())}", hint="PEFT says so")


class AdaptedAlreadyError(InputError):
    """The model that `build()` made has adapters."""

    def __init__(self, option: str) -> None:
        super().__init__(
            f"{option}: PEFT has adapted the model already",
            hint="leave its adapters out of build()",
        )


class QuantiseFirstError(InputError):
    """Adapters of layers that are not quantised yet cannot be kept."""

    def __init__(self) -> None:
        super().__init__(
            "--quantise: PEFT has adapted the model already, and quantised layers come first",
            hint="leave the adapters out of build(), and add --lora r=16",
        )


class UnknownQuantisationError(InputError):
    """`--quantise` names no quantisation of bitsandbytes."""

    def __init__(self, text: str, known: Sequence[str]) -> None:
        super().__init__(
            f"cannot quantise to {text!r}",
            hint=did_you_mean(text, known, f"there are {'; '.join(known)}"),
        )


class NoDoubleQuantisationError(InputError):
    """Only 4-bit layers have statistics that can be quantised."""

    def __init__(self) -> None:
        super().__init__(
            "--quantise: int8 has no double quantisation", hint="use nf4,double or fp4,double"
        )


class NothingToQuantiseError(InputError):
    """The model has no linear layer but the output layer."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"--quantise: {model} has no linear layer to quantise",
            hint="output layers, tied layers and layers of bitsandbytes stay as they are",
        )


class OptimizerNotRebuiltError(InputError):
    """An optimizer of parameters that are exchanged cannot be made anew."""

    def __init__(self, optimizer: str, reason: str) -> None:
        super().__init__(
            f"{optimizer} cannot be recreated for the parameters that are trained now: {reason}",
            hint=f"give a function: TrainingStep(optimizer=lambda params: {optimizer}(params, …))",
        )
