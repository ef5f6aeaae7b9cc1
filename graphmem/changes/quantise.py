"""Quantise a model's linear layers, by bitsandbytes' own layers, as `from_pretrained` does.

Clauses:
  (1) `nn.Linear`, and `Conv1D` of transformers with its weight transposed, become `Linear4bit` or
      `Linear8bitLt`, and are frozen (`_replace_with_bnb_linear`,
      transformers/integrations/bitsandbytes.py);
  (2) the output layer and layers with tied weights stay, or, of a model of transformers that has
      neither, the last layer (`get_keys_to_not_convert` there);
  (3) the weights are quantised while the model moves to the card, one at a time;
  (4) 4-bit layers compute in autocast's dtype, else in that of their weights. `from_pretrained`
      leaves this to `bnb_4bit_compute_dtype`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphmem.changes.linear_layers import is_conv1d, is_linear
from graphmem.changes.lora import is_adapted
from graphmem.changes.messages import (
    NoDoubleQuantisationError,
    NothingToQuantiseError,
    QuantiseFirstError,
    UnknownQuantisationError,
)
from graphmem.changes.packages import import_package

if TYPE_CHECKING:
    import torch

_FOUR_BITS = ("nf4", "fp4")
_EIGHT_BITS = "int8"
_DOUBLE = "double"
_OUTLIERS_FROM = 6.0
"""`llm_int8_threshold` of `BitsAndBytesConfig`."""


@dataclass(frozen=True)
class Quantisation:
    """How to quantise.

    Attributes:
        kind: "nf4", "fp4" or "int8".
        double: quantise the statistics as well (`bnb_4bit_use_double_quant`).
    """

    kind: str
    double: bool = False

    @classmethod
    def parse(cls, text: str) -> Quantisation:
        """Read `nf4`, `fp4` or `int8`, the first two also with `,double`.

        Raises:
            InputError: it is none of them.
        """
        kind, comma, option = text.partition(",")
        kinds = (*_FOUR_BITS, _EIGHT_BITS)
        if kind not in kinds or (comma and option != _DOUBLE):
            raise UnknownQuantisationError(text, [*kinds, *(f"{k},double" for k in _FOUR_BITS)])
        if comma and kind == _EIGHT_BITS:
            raise NoDoubleQuantisationError()
        return cls(kind, bool(comma))

    def __str__(self) -> str:
        """The text that `parse` reads."""
        return f"{self.kind},{_DOUBLE}" if self.double else self.kind


def quantise(model: torch.nn.Module, how: Quantisation, autocast: torch.dtype | None) -> None:
    """Quantise the linear layers of a model in place, and move it to the card.

    Raises:
        InputError: bitsandbytes is not installed, or there is no layer to quantise.
    """
    bnb: Any = import_package("bitsandbytes", "--quantise")
    if is_adapted(model):
        raise QuantiseFirstError()
    kept = _kept(model)
    found = [
        (name, module)
        for name, module in model.named_modules()
        if name and is_linear(module) and not _is_quantised(module) and module not in kept
    ]
    if not found:
        raise NothingToQuantiseError(type(model).__name__)
    for name, module in found:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, _replacement(bnb, module, how, autocast))
    is_4bit = how.kind != _EIGHT_BITS  # PEFT asks the model which of its layers to use
    setattr(model, "is_loaded_in_4bit" if is_4bit else "is_loaded_in_8bit", True)
    model.to("cuda")


def prepared_for_training(model: torch.nn.Module) -> torch.nn.Module:
    """What PEFT asks for before it adapts a quantised model; other models stay as they are.

    Weights that are not quantised become 32-bit. Checkpointing, the function's other half, is an
    option of its own.
    """
    if not is_quantised(model):
        return model
    peft: Any = import_package("peft", "--lora")
    made: torch.nn.Module = peft.prepare_model_for_kbit_training(
        model, use_gradient_checkpointing=False
    )
    return made


def is_quantised(model: torch.nn.Module) -> bool:
    """Whether a model has layers of bitsandbytes."""
    return any(_is_quantised(each) for each in model.modules())


def _is_quantised(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("bitsandbytes.")


def _kept(model: Any) -> set[torch.nn.Module]:
    """The layers that stay, by clause (2)."""
    named = list(model.named_parameters(remove_duplicate=False))
    times = Counter(id(parameter) for _, parameter in named)
    kept = {_holder(model, name) for name, parameter in named if times[id(parameter)] > 1}
    if not hasattr(model, "get_output_embeddings"):
        return kept | {each for name, each in model.named_modules() if name == "lm_head"}
    output = model.get_output_embeddings()
    if kept or output is None:
        return kept | {_holder(model, name) for name, _ in list(model.named_parameters())[-1:]}
    return {output}


def _holder(model: torch.nn.Module, parameter: str) -> torch.nn.Module:
    return model.get_submodule(parameter.rpartition(".")[0])


def _replacement(
    bnb: Any, layer: torch.nn.Module, how: Quantisation, autocast: torch.dtype | None
) -> torch.nn.Module:
    """The frozen layer of bitsandbytes with a layer's weight and bias, not yet quantised."""
    weight: Any = layer.weight.data.cpu()
    weight = weight.T if is_conv1d(layer) else weight
    sizes = (weight.shape[1], weight.shape[0], layer.bias is not None)
    if how.kind == _EIGHT_BITS:
        made = bnb.nn.Linear8bitLt(
            *sizes, has_fp16_weights=False, threshold=_OUTLIERS_FROM, device="meta"
        )
        made.weight = bnb.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    else:
        options = {"compress_statistics": how.double, "quant_type": how.kind}
        compute = autocast or weight.dtype
        made = bnb.nn.Linear4bit(*sizes, compute_dtype=compute, device="meta", **options)
        made.weight = bnb.nn.Params4bit(weight, requires_grad=False, module=made, **options)
    made.bias = layer.bias
    made.train(layer.training)
    frozen: torch.nn.Module = made.requires_grad_(False)
    return frozen
