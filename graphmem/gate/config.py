"""The configuration: `graphmem.toml`, or `[tool.graphmem]` of `pyproject.toml`.

    [defaults]                      # for every target
    gpu = "a100-80gb"
    max_increase = "1%"

    [targets.small]
    target = "models/gpt.py:build"
    set = { layers = 12 }
    max_allocated = "22 GiB"
    fits = "a100-40gb"

Clauses:
  (1) the file is the first found from the working directory upwards, `graphmem.toml` before
      `pyproject.toml`; paths in it are relative to its folder;
  (2) a target's own key replaces that of `[defaults]`, whole;
  (3) an unknown key, a unit or a GPU that does not exist is an error with its line.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from graphmem.analysis import Request
from graphmem.errors import InputError
from graphmem.gate.limits import CATEGORY_OF, Growth, Increase, Limits, Size
from graphmem.gate.toml_lines import line_of
from graphmem.gpus import DEFAULT_GPU, find_gpu, label_of

FILE = "graphmem.toml"
_PYPROJECT = "pyproject.toml"
_TABLE = ("tool", "graphmem")


def _gpu(name: str) -> str:
    try:
        return label_of(find_gpu(name))
    except InputError as error:
        raise ValueError(f"{error}; {error.hint}" if error.hint else str(error)) from error


def _text(value: Any) -> str:
    """An argument as `--set` gives it; lists of TOML are written as Python's."""
    return value if isinstance(value, str) else str(value)


GpuName = Annotated[str, AfterValidator(_gpu)]
Text = Annotated[str, BeforeValidator(_text)]


class _Options(BaseModel):
    """What a target may say, and `[defaults]` for all of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu: GpuName = DEFAULT_GPU
    torch: str | None = None
    env: dict[str, Text] = Field(default_factory=dict)
    autocast: Literal["fp16", "bf16", "none"] | None = None
    optimizer: str | None = None
    grads: Literal["keep", "none"] = "none"
    steps: int = Field(default=3, ge=1)
    inference: bool = False

    max_allocated: Limits[Size] = Limits[Size]()
    max_reserved: Size | None = None
    fits: GpuName | None = None
    max_increase: Limits[Growth] = Limits[Growth](allocated=Increase("0 B"))


class TargetConfig(_Options):
    """One named target: what is analysed, how, and its limits."""

    target: str
    set: dict[str, Text] = Field(default_factory=dict)

    def request(self) -> Request:
        """The options of `graphmem analyze`."""
        return Request(
            gpu=self.gpu,
            torch=self.torch,
            env=self.env,
            autocast=self.autocast,
            optimizer=self.optimizer,
            grads=self.grads,
            steps=self.steps,
            inference=self.inference,
            settings=self.set,
        )


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    defaults: _Options = _Options()
    targets: dict[str, TargetConfig] = Field(default_factory=dict)


@dataclass(frozen=True)
class Config:
    """A configuration that was read.

    Attributes:
        path: the file.
        targets: by name, in the file's order.
        gpu: the card that it names for all of them.
    """

    path: Path
    targets: Mapping[str, TargetConfig]
    gpu: str | None = None

    @property
    def root(self) -> Path:
        """The folder that everything is relative to."""
        return self.path.parent

    def chosen(self, names: Sequence[str]) -> Mapping[str, TargetConfig]:
        """The targets of these names; all of them where none is named.

        Raises:
            InputError: there is no target of a name.
        """
        for name in names:
            if name not in self.targets:
                raise InputError(
                    f"{self.path.name} has no target {name!r}",
                    hint=_nearest(name, list(self.targets)),
                )
        return {name: self.targets[name] for name in names} if names else self.targets


def find_config(start: Path) -> Path:
    """The configuration file that holds for a folder.

    Raises:
        InputError: there is none up to the root.
    """
    for folder in (start, *start.parents):
        if (folder / FILE).is_file():
            return folder / FILE
        pyproject = folder / _PYPROJECT
        if pyproject.is_file() and b"[tool.graphmem" in pyproject.read_bytes():
            return pyproject
    raise InputError(
        f"there is no {FILE} here or above, and no [tool.graphmem] in a {_PYPROJECT}",
        hint="`graphmem init` writes one",
    )


def load_config(path: Path) -> Config:
    """Read a configuration.

    Raises:
        InputError: the file cannot be read, or something in it is unknown or unfit; the message
            names the line.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} is not TOML: it is not UTF-8") from error
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path.name} is not TOML: {error}") from error
    prefix = _TABLE if path.name == _PYPROJECT else ()
    for key in prefix:
        table = table.get(key, {})
    defaults = table.get("defaults")
    merged = dict(table)
    try:
        if isinstance(defaults, dict):
            _Options.model_validate(defaults)
            merged["targets"] = _with_defaults(table.get("targets", {}), defaults)
        file = _File.model_validate(merged)
    except ValidationError as error:
        in_defaults = ("defaults",) if error.title == _Options.__name__ else ()
        raise _explained(error, path.name, text, prefix, in_defaults) from error
    named = "gpu" in file.defaults.model_fields_set
    return Config(path, file.targets, file.defaults.gpu if named else None)


def _with_defaults(targets: Any, defaults: dict[str, Any]) -> Any:
    if not isinstance(targets, dict):
        return targets
    return {
        name: {**defaults, **target} if isinstance(target, dict) else target
        for name, target in targets.items()
    }


def _explained(
    error: ValidationError,
    file: str,
    text: str,
    prefix: tuple[str, ...],
    table: tuple[str, ...],
) -> InputError:
    """The first thing that is wrong, by line."""
    problems = []
    for each in error.errors():
        keys = (*table, *(str(key) for key in each["loc"]))
        problems.append((line_of(text, (*prefix, *keys)), keys, each))
    line, keys, problem = min(problems, key=lambda found: found[0])
    place = f"{file}:{line}"
    if problem["type"] == "extra_forbidden":
        known = _known_keys(keys[:-1])
        return InputError(f"{place}: unknown key {keys[-1]!r}", hint=_nearest(keys[-1], known))
    if problem["type"] == "missing":
        return InputError(f"{place}: {'.'.join(keys[:-1])} has no {keys[-1]!r}")
    reason = problem["msg"].removeprefix("Value error, ")
    return InputError(f"{place}: {'.'.join(keys)}: {reason[:1].lower()}{reason[1:]}")


def _known_keys(table: Sequence[str]) -> list[str]:
    match table:
        case ():
            return list(_File.model_fields)
        case (*_, "max_allocated" | "max_increase"):
            return ["allocated", *CATEGORY_OF, "modules"]
        case ("defaults",):
            return list(_Options.model_fields)
        case _:
            return list(TargetConfig.model_fields)


def _nearest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known) or 'none'}"
