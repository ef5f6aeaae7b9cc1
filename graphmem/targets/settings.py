"""`--set key=value`: keyword arguments of `build`, parsed by its annotations.

Clauses, by the annotation of the parameter:
  (1) int, float, str, None: as Python reads them; bool: true, false, yes, no, on, off, 1, 0;
  (2) Literal: the choice with that text; torch.dtype: its name;
  (3) a union: the first member that accepts the text, in the order None, int, float, bool, others,
      str;
  (4) list, tuple, Sequence and similar: items separated by commas, with or without brackets;
  (5) no annotation: true and false, else a Python literal, else the text itself;
  (6) any other class: a Python literal of that class.

Not covered: sequences of sequences.
"""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections import abc
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Annotated, Any, Literal, Union

from graphmem.signatures import parameters_of
from graphmem.targets import messages

_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_ANY = (Parameter.empty, Any, object)
_UNIONS = (Union, types.UnionType)
_UNION_ORDER = {types.NoneType: 0, int: 1, float: 2, bool: 3, str: 5}
_OTHERS_IN_UNION = 4
_LISTS = (list, abc.Sequence, abc.MutableSequence)
_TUPLES = (tuple, abc.Iterable, abc.Collection)


def arguments_for(
    build: Callable[..., Any], name: str, settings: Mapping[str, str]
) -> dict[str, Any]:
    """Convert settings to keyword arguments.

    Args:
        build: the function to call with them.
        name: the user's name for it.
        settings: texts by parameter.

    Raises:
        InputError: a key is unknown, a value does not match its parameter, or a parameter without a
            default is missing.
    """
    parameters = _parameters(build)
    takes = {
        key: parameter
        for key, parameter in parameters.items()
        if parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    }
    others = next((p for p in parameters.values() if p.kind is Parameter.VAR_KEYWORD), None)
    arguments = {}
    for key, text in settings.items():
        parameter = takes.get(key, others)
        if parameter is None:
            raise messages.UnknownParameterError(name, key, list(takes))
        arguments[key] = _read(key, text, parameter.annotation, name)
    _refuse_missing(parameters, arguments, name)
    return arguments


def defaults_of(build: Callable[..., Any]) -> dict[str, Any]:
    """The default of each parameter that has one."""
    parameters = _parameters(build)
    return {
        key: parameter.default
        for key, parameter in parameters.items()
        if parameter.default is not Parameter.empty
    }


def _parameters(build: Callable[..., Any]) -> Mapping[str, Parameter]:
    """The parameters, with their annotations evaluated if possible."""
    try:
        return inspect.signature(build, eval_str=True).parameters
    except Exception:  # noqa: BLE001 - an annotation may be any expression and raise anything
        try:
            return parameters_of(build)
        except (TypeError, ValueError):  # some builtins have no signature
            return {}


def _refuse_missing(
    parameters: Mapping[str, Parameter], arguments: Mapping[str, Any], name: str
) -> None:
    missing = [
        key
        for key, parameter in parameters.items()
        if parameter.default is Parameter.empty
        and parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        and key not in arguments
    ]
    if missing:
        raise messages.MissingParameterError(name, missing)


def _read(key: str, text: str, annotation: Any, name: str) -> Any:
    try:
        return _parse(text.strip(), annotation)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        kind = inspect.formatannotation(annotation)
        raise messages.WrongSettingError(name, key, kind, text) from error


def _parse(text: str, annotation: Any) -> Any:
    """Parse a text according to an annotation; raises ValueError if it does not match."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _parse(text, typing.get_args(annotation)[0])
    if annotation in _ANY or isinstance(annotation, str):  # str: it could not be evaluated
        return _parse_freely(text)
    if origin in _UNIONS:
        return _parse_union(text, typing.get_args(annotation))
    if origin is Literal:
        return _choice(text, typing.get_args(annotation))
    if (origin or annotation) in (*_LISTS, *_TUPLES):
        return _parse_items(text, origin or annotation, typing.get_args(annotation))
    if annotation in _SCALARS:
        return _SCALARS[annotation](text)
    return _parse_instance(text, origin or annotation)


def _parse_freely(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _parse_union(text: str, members: tuple[Any, ...]) -> Any:
    for member in sorted(members, key=lambda kind: _UNION_ORDER.get(kind, _OTHERS_IN_UNION)):
        try:
            return _parse(text, member)
        except (ValueError, SyntaxError):
            continue
    raise ValueError(text)


def _choice(text: str, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if str(choice) == text:
            return choice
    raise ValueError(text)


def _parse_items(text: str, kind: Any, members: tuple[Any, ...]) -> Any:
    """Parse comma-separated items for `list[int]`, `tuple[int, ...]` or `tuple[int, str]`."""
    if text[:1] + text[-1:] in ("()", "[]"):
        text = text[1:-1]
    if any(bracket in text for bracket in "()[]"):
        raise ValueError(text)
    items = [item.strip().strip("'\"") for item in text.split(",")]
    if not items[-1]:  # nothing at all, or a comma at the end
        items.pop()
    if kind is tuple and members and members[-1] is not Ellipsis:
        return tuple(_parse(item, member) for item, member in zip(items, members, strict=True))
    member = members[0] if members else Any
    parsed = [_parse(item, member) for item in items]
    return parsed if kind in _LISTS else tuple(parsed)


def _parse_bool(text: str) -> bool:
    if text.lower() not in _WORDS:
        raise ValueError(text)
    return _WORDS[text.lower()]


def _parse_none(text: str) -> None:
    if text.lower() != "none":
        raise ValueError(text)


def _parse_instance(text: str, kind: Any) -> Any:
    import torch

    if kind is torch.dtype:
        value = getattr(torch, text.removeprefix("torch."), None)
    else:
        value = ast.literal_eval(text)
    if not isinstance(kind, type) or not isinstance(value, kind):
        raise ValueError(text)
    return value


_SCALARS: dict[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    str: str,
    bool: _parse_bool,
    None: _parse_none,
    types.NoneType: _parse_none,
}
