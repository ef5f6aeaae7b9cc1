"""Errors in targets: a class for each, with its fields and its message."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphmem.errors import InputError, did_you_mean, did_you_mean_file

_LISTED = 5
_ACCEPTED = (
    "return model, (model, inputs), (model, inputs, loss_fn) or a graphmem.TrainingStep; "
    "the model is a torch.nn.Module"
)


class NoFileNamedError(InputError):
    """The target has nothing before its function."""

    def __init__(self, text: str) -> None:
        hint = "write it as model.py:build, or package.module:build"
        super().__init__(f"{text!r} names no file", hint=hint)


class UnreadableFileError(InputError):
    """The operating system cannot read the file."""

    def __init__(self, target: str, reason: str | None) -> None:
        super().__init__(f"cannot read {target}: {reason}")


class NoSuchFileError(InputError):
    """There is no file at a path."""

    def __init__(self, name: str, path: Path, names: Sequence[str]) -> None:
        otherwise = None if path.parent.is_dir() else f"there is no folder {path.parent}"
        super().__init__(f"no such file: {name}", hint=did_you_mean_file(path, names, otherwise))


class NoSuchModuleError(InputError):
    """A name is neither a file nor a module."""

    def __init__(self, name: str, names: Sequence[str]) -> None:
        hint = did_you_mean(f"{name}.py", names)
        super().__init__(f"there is no file and no module {name!r}", hint=hint)


class FolderError(InputError):
    """The target is a folder, or a package without a module."""

    def __init__(self, name: str, wanted: str, files: str = "") -> None:
        hint = f"name a file in it{': ' * bool(files)}{files}"
        super().__init__(f"{name} is a folder, not a {wanted}", hint=hint)


class NotPythonError(InputError):
    """The file does not have an extension of targets."""

    def __init__(self, name: str) -> None:
        hint = "a target is a .py file, a module or a .pt2"
        super().__init__(f"{name} is not a Python file", hint=hint)


class NoFunctionError(InputError):
    """The file has no function of that name; it may be a script."""

    def __init__(self, name: str, place: str, functions: Sequence[str]) -> None:
        listed = ", ".join(functions[:_LISTED]) + (", …" if len(functions) > _LISTED else "")
        has = f"it has {listed}" if functions else "it has no function at all"
        script = f"; `graphmem run {place}` runs a script as it is" * place.endswith(".py")
        hint = did_you_mean(name, functions, f"{has}{script}")
        super().__init__(f"no function {name!r} in {place}", hint=hint)


class ModelNotFunctionError(InputError):
    """The name refers to a model."""

    def __init__(self, name: str, place: str) -> None:
        hint = "name a function that returns it together with its inputs"
        super().__init__(f"{name!r} in {place} is a model, not a function", hint=hint)


class NotCallableError(InputError):
    """The name refers to something else."""

    def __init__(self, name: str, place: str, kind: str) -> None:
        super().__init__(f"{name!r} in {place} is not a function but of type {kind}")


class SavedStepNotBuiltError(InputError):
    """A saved step is given where code is needed."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text} is a saved step: it has no build() to call again",
            hint="name the code that it was saved from",
        )


class NoExportedProgramError(InputError):
    """torch.export cannot load the file."""

    def __init__(self, name: str, kind: str, reason: str) -> None:
        super().__init__(
            f"{name} cannot be read as an exported program: {kind}: {reason}",
            hint="write it with torch.export.save(torch.export.export(model, inputs), path)",
        )


class NoExampleInputsError(InputError):
    """The exported program was saved without example inputs."""

    def __init__(self, name: str) -> None:
        hint = "export the model again, with its inputs"
        super().__init__(f"{name} holds no example inputs", hint=hint)


class ExportedFunctionError(InputError):
    """A function is named in an exported program."""

    def __init__(self, location: str, function: str) -> None:
        super().__init__(f"{location} is an exported program: it has no function {function!r}")


class ExportedSettingError(InputError):
    """A setting is given for an exported program."""

    def __init__(self, location: str, key: str) -> None:
        super().__init__(
            f"{location} is an exported program: --set {key}=… cannot reach it",
            hint="name the file that it was exported from",
        )


class WrongReturnError(InputError):
    """The function returned something that is not a step."""

    def __init__(self, name: str, returned: Any) -> None:
        super().__init__(f"{name}() returned {_described(returned)}", hint=_ACCEPTED)


class EmptyStepError(InputError):
    """A training step has nothing to run."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}() returned a TrainingStep without a model or a step")


class WrongPartError(InputError):
    """A part of a training step has the wrong type."""

    def __init__(self, name: str, part: str, value: Any, expected: str) -> None:
        super().__init__(
            f"{name}() returned {_described(value)} as the {part}", hint=f"the {part} is {expected}"
        )


class WrongAccumulateError(InputError):
    """The number of micro-batches is invalid."""

    def __init__(self, name: str, accumulate: Any) -> None:
        super().__init__(f"{name}() asks for accumulate={accumulate!r}; it must be at least 1")


class ModelWithoutInputsError(InputError):
    """`graphmem.analyze(model)` of a model that needs inputs."""

    def __init__(self, name: str, needed: Sequence[str]) -> None:
        super().__init__(
            f"{name} has no inputs, and its forward needs {', '.join(needed)}",
            hint="graphmem.analyze(model, inputs, loss=…)",
        )


class WrongStepsError(InputError):
    """The number of iterations is invalid."""

    def __init__(self, steps: Any) -> None:
        super().__init__(f"steps={steps!r}: it must be an integer, at least 1")


class NoInputsError(InputError):
    """A model that needs inputs has none."""

    def __init__(self, name: str, needed: Sequence[str]) -> None:
        super().__init__(
            f"{name}() returned a model without inputs, and its forward needs {', '.join(needed)}",
            hint="return (model, inputs)",
        )


class UnknownParameterError(InputError):
    """`--set` names a parameter that the function does not have."""

    def __init__(self, name: str, key: str, known: Sequence[str]) -> None:
        listed = f"it takes {', '.join(known)}" if known else "it takes none"
        hint = did_you_mean(key, known, listed)
        super().__init__(f"{name}() has no parameter {key!r}", hint=hint)


class MissingParameterError(InputError):
    """A parameter has neither a default nor a setting."""

    def __init__(self, name: str, missing: Sequence[str]) -> None:
        super().__init__(
            f"{name}() needs a value for {', '.join(missing)}",
            hint=f"give it with --set {missing[0]}=…, or a default in the function",
        )


class WrongSettingError(InputError):
    """A setting does not match the annotation of its parameter."""

    def __init__(self, name: str, key: str, kind: str, text: str) -> None:
        super().__init__(f"parameter {key!r} of {name}() takes {kind}, not {text!r}")


class InputsWithoutModelError(InputError):
    """Inputs or a loss are given for something that has its own."""

    def __init__(self) -> None:
        super().__init__(
            "inputs and loss go with a model",
            hint="graphmem.analyze(model, inputs, loss=…); build() and TrainingStep have their own",
        )


class NoTargetError(InputError):
    """A Python value that cannot be analysed."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"cannot analyse a value of type {kind}",
            hint='give a model with inputs, a TrainingStep, or a target such as "model.py:build"; '
            "a trainer runs under `graphmem run train.py`, or in a notebook's `%%graphmem` cell",
        )


class ChangeAsArgumentError(InputError):
    """A change to the step is given as an argument of its own."""

    def __init__(self, function: str, name: str) -> None:
        hint = f"give it as changes=graphmem.Changes({name}=…)"
        super().__init__(f"{function}() has no argument {name!r}: it is a change", hint=hint)


class UnknownArgumentError(InputError):
    """A graphmem function has no argument of that name."""

    def __init__(self, function: str, name: str, known: Sequence[str]) -> None:
        hint = did_you_mean(name, known, f"it has {', '.join(known)}")
        super().__init__(f"{function}() has no argument {name!r}", hint=hint)


def _described(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, tuple):
        return f"a tuple of ({', '.join(type(part).__name__ for part in value)})"
    return f"a value of type {type(value).__name__}"
