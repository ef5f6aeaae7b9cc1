"""Adapt a model with LoRA, by PEFT's own `get_peft_model`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from graphmem.changes.linear_layers import is_linear
from graphmem.changes.messages import (
    AdaptedAlreadyError,
    NoLoraRankError,
    NoTargetModulesError,
    PeftRefusesError,
    UnknownLoraOptionError,
    UnknownTargetModuleError,
    WrongLoraValueError,
)
from graphmem.changes.packages import import_package

if TYPE_CHECKING:
    import torch

ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class Lora:
    """The fields of PEFT's `LoraConfig` that change bytes, and `alpha`.

    Attributes:
        r: the rank.
        alpha: `lora_alpha`, which scales the result; None leaves it to PEFT.
        dropout: `lora_dropout`, of the adapters' inputs; None leaves it to PEFT.
        targets: `target_modules`, by the ends of their names, or `ALL_LINEAR`; empty means those
            that PEFT knows for the architecture.
    """

    r: int
    alpha: float | None = None
    dropout: float | None = None
    targets: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Lora:
        """Read `r=16,alpha=32,dropout=0.05,targets=q_proj+v_proj`.

        Raises:
            InputError: an option is unknown, has a wrong value, or `r` is missing.
        """
        given = dict(_pair(each) for each in text.split(","))
        unknown = next((key for key in given if key not in _OPTIONS), None)
        if unknown is not None:
            raise UnknownLoraOptionError(unknown, _OPTIONS)
        return cls(
            r=_rank(given.get("r")),
            alpha=_number("alpha", given.get("alpha"), float("inf")),
            dropout=_number("dropout", given.get("dropout"), 1),
            targets=tuple(filter(None, given.get("targets", "").split("+"))),
        )

    def __str__(self) -> str:
        """The text that `parse` reads."""
        values = {"r": self.r, "alpha": self.alpha, "dropout": self.dropout}
        parts = [f"{key}={value:g}" for key, value in values.items() if value is not None]
        return ",".join([*parts, *([f"targets={'+'.join(self.targets)}"] if self.targets else [])])


_OPTIONS = tuple(each.name for each in fields(Lora))


def _pair(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key.strip(), value.strip()


def _rank(text: str | None) -> int:
    if text is None:
        raise NoLoraRankError()
    if not text.isdecimal() or not int(text):
        raise WrongLoraValueError("r", text, "a whole number above 0")
    return int(text)


def _number(key: str, text: str | None, limit: float) -> float | None:
    """A number from 0, below the limit; None if it is not given."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 <= number < limit:
        to = "at least 0" if limit == float("inf") else f"from 0 to below {limit:g}"
        raise WrongLoraValueError(key, text, f"a number, {to}")
    return number


def adapted(model: torch.nn.Module, lora: Lora) -> torch.nn.Module:
    """Add adapters to a model in place, and return it wrapped in a `PeftModel`.

    Raises:
        InputError: PEFT is not installed, has adapted the model already, or refuses to.
    """
    peft: Any = import_package("peft", "--lora")
    if is_adapted(model):
        raise AdaptedAlreadyError("--lora")
    _check_targets(model, lora.targets)
    options = {"lora_alpha": lora.alpha, "lora_dropout": lora.dropout}
    targets = ALL_LINEAR if ALL_LINEAR in lora.targets else list(lora.targets) or None
    config = peft.LoraConfig(
        r=lora.r,
        target_modules=targets,
        **{key: value for key, value in options.items() if value is not None},
    )
    try:
        with warnings.catch_warnings():  # of Conv1D, whose `fan_in_fan_out` PEFT sets itself
            warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False")
            made: torch.nn.Module = peft.get_peft_model(model, config)
    except ValueError as error:
        if targets is None and "target_modules" in str(error):
            raise NoTargetModulesError(type(model).__name__, lora.r, _leaves(model)) from error
        raise PeftRefusesError(str(error)) from error
    return made


def is_adapted(model: torch.nn.Module) -> bool:
    """Whether PEFT has adapted a model."""
    return any(type(each).__module__.startswith("peft.") for each in model.modules())


def _check_targets(model: torch.nn.Module, targets: tuple[str, ...]) -> None:
    """Check each: PEFT refuses only if it finds none of them."""
    names = [f".{name}" for name, _ in model.named_modules()]
    for target in targets:
        if target != ALL_LINEAR and not any(name.endswith(f".{target}") for name in names):
            raise UnknownTargetModuleError(target, _leaves(model))


def _leaves(model: torch.nn.Module) -> list[str]:
    """The last parts of the names of linear layers, each once."""
    named = [name for name, module in model.named_modules() if name and is_linear(module)]
    return list(dict.fromkeys(name.rpartition(".")[2] for name in named))
