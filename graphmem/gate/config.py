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
  (2) a target's key replaces that of `[defaults]` as a whole;
  (3) an unknown key, unit or GPU is an error that names its line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec

from graphmem.analysis import Request
from graphmem.errors import InputError, did_you_mean
from graphmem.gate.limits import CATEGORY_OF, Increase, Limits, size_of
from graphmem.gate.messages import (
    CannotReadError,
    MissingKeyError,
    NoConfigurationError,
    NotTomlError,
    TomlEncodingError,
    UnknownKeyError,
    UnknownTargetError,
    WrongConfigurationError,
)
from graphmem.gate.toml_lines import line_of
from graphmem.gpus import DEFAULT_GPU, find_gpu, label_of

FILE = "graphmem.toml"
_PYPROJECT = "pyproject.toml"
_TABLE = ("tool", "graphmem")


Autocast = Literal["fp16", "bf16", "none"]
Grads = Literal["keep", "none"]
_CHOICES = {"autocast": get_args(Autocast), "grads": get_args(Grads)}


class _Options(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The keys that `[defaults]` and targets share."""

    gpu: str = DEFAULT_GPU
    torch: str | None = None
    env: dict[str, str] = {}
    autocast: Autocast | None = None
    optimizer: str | None = None
    grads: Grads = "none"
    steps: Annotated[int, msgspec.Meta(ge=1)] = 3
    inference: bool = False

    max_allocated: Limits[int] = Limits[int]()
    max_reserved: int | None = None
    fits: str | None = None
    max_increase: Limits[Increase] = Limits[Increase](allocated=Increase("0 B"))


class TargetConfig(_Options, frozen=True, kw_only=True):
    """A named target: what to analyse, how, and its limits."""

    target: str
    set: dict[str, str] = {}

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


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    defaults: dict[str, Any] = {}
    targets: dict[str, dict[str, Any]] = {}


@dataclass(frozen=True)
class Config:
    """A configuration file's content.

    Attributes:
        path: the file.
        targets: by name, in the file's order.
        gpu: the card in `[defaults]`, if any.
    """

    path: Path
    targets: Mapping[str, TargetConfig]
    gpu: str | None = None

    @property
    def root(self) -> Path:
        """The folder that paths are relative to."""
        return self.path.parent

    def chosen(self, names: Sequence[str]) -> Mapping[str, TargetConfig]:
        """The targets with these names; all targets if no name is given.

        Raises:
            InputError: there is no target with one of the names.
        """
        for name in names:
            if name not in self.targets:
                raise UnknownTargetError(self.path.name, name, _nearest(name, list(self.targets)))
        return {name: self.targets[name] for name in names} if names else self.targets


def find_config(start: Path) -> Path:
    """The configuration file that applies to a folder.

    Raises:
        InputError: there is none up to the file system's root.
    """
    for folder in (start, *start.parents):
        if (folder / FILE).is_file():
            return folder / FILE
        pyproject = folder / _PYPROJECT
        if pyproject.is_file() and b"[tool.graphmem" in pyproject.read_bytes():
            return pyproject
    raise NoConfigurationError(FILE, _PYPROJECT)


def load_config(path: Path) -> Config:
    """Read a configuration.

    Raises:
        InputError: the file cannot be read, or has an unknown key or an invalid value; the message
            names the line.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise CannotReadError(path, error.strerror) from error
    except UnicodeDecodeError as error:
        raise TomlEncodingError(path.name) from error
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise NotTomlError(path.name, error) from error
    prefix = _TABLE if path.name == _PYPROJECT else ()
    for key in prefix:
        table = table.get(key, {})
    where = path.name, text, prefix
    file = _converted(table, _File, (), *where)
    _converted(file.defaults, _Options, ("defaults",), *where)
    targets = {
        name: _converted({**file.defaults, **target}, TargetConfig, ("targets", name), *where)
        for name, target in file.targets.items()
    }
    gpu = file.defaults.get("gpu")
    return Config(path, targets, None if gpu is None else _gpu(gpu))


Kind = TypeVar("Kind")


def read_table(table: dict[str, Any], kind: type[Kind]) -> Kind:
    """Convert a table of the file to a struct.

    Raises:
        msgspec.ValidationError: it has an unknown key or an invalid value.
    """
    plain = {}
    for key, value in table.items():
        try:
            plain[key] = _READ[key](value) if key in _READ else value
        except ValueError as error:
            raise msgspec.ValidationError(f"{error} - at `$.{key}`") from error
    return msgspec.convert(plain, kind, dec_hook=lambda custom, value: custom.read(value))


def _gpu(name: Any) -> str:
    try:
        return label_of(find_gpu(str(name)))
    except InputError as error:
        raise ValueError(f"{error}; {error.hint}" if error.hint else str(error)) from error


def _texts(table: Any) -> Any:
    """Arguments in the form of `--set`; TOML lists become Python lists as text."""
    return {key: str(each) for key, each in table.items()} if isinstance(table, dict) else table


def _table(value: Any) -> Any:
    """`max_increase = "1%"` is short for `max_increase.allocated = "1%"`."""
    return value if isinstance(value, dict) else {"allocated": value}


def _sizes(value: Any) -> Any:
    return {
        key: _sizes(each) if isinstance(each, dict) else size_of(each)
        for key, each in _table(value).items()
    }


_READ: Mapping[str, Callable[[Any], Any]] = {
    "gpu": _gpu,
    "fits": _gpu,
    "env": _texts,
    "set": _texts,
    "max_allocated": _sizes,
    "max_increase": _table,
    "max_reserved": size_of,
}
"""Readers of values for which TOML has no type."""


def _converted(
    table: dict[str, Any],
    kind: type[Kind],
    keys: tuple[str, ...],
    file: str,
    text: str,
    prefix: tuple[str, ...],
) -> Kind:
    """Convert the table at these keys of the file; `prefix` leads to graphmem's part.

    Raises:
        InputError: it has an unknown key or an invalid value.
    """
    try:
        return read_table(table, kind)
    except msgspec.ValidationError as error:
        raise _explained(error, keys, file, text, prefix) from error


_AT = re.compile(r" - at `\$\.?(.*)`$")
_ANY_KEY = re.compile(r"\[\.{3}\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")


def _explained(
    error: msgspec.ValidationError,
    table: tuple[str, ...],
    file: str,
    text: str,
    prefix: tuple[str, ...],
) -> InputError:
    """Explain an error, with its line."""
    message = str(error)
    at = _AT.search(message)
    inner = _ANY_KEY.sub("", at[1]).split(".") if at else []
    keys = (*table, *inner)
    reason = _AT.sub("", message)
    if reason.startswith("Invalid enum value"):
        reason += f", known are {', '.join(_CHOICES[keys[-1]])}"
    unknown, missing = _UNKNOWN.match(reason), _MISSING.match(reason)
    if unknown:
        name = unknown[1]
        place = f"{file}:{line_of(text, (*prefix, *keys, name))}"
        return UnknownKeyError(place, name, _nearest(name, _known_keys(keys)))
    place = f"{file}:{line_of(text, (*prefix, *keys))}"
    if missing:
        return MissingKeyError(place, ".".join(keys), missing[1])
    return WrongConfigurationError(place, ".".join(keys), reason)


def _known_keys(table: Sequence[str]) -> list[str]:
    match table:
        case ():
            return list(_File.__struct_fields__)
        case (*_, "max_allocated" | "max_increase"):
            return ["allocated", *CATEGORY_OF, "modules"]
        case ("defaults",):
            return list(_Options.__struct_fields__)
        case _:
            return list(TargetConfig.__struct_fields__)


def _nearest(name: str, known: list[str]) -> str | None:
    return did_you_mean(name, known, f"known are {', '.join(known) or 'none'}")
