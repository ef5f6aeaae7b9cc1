"""The terms of published formulas: their letters, their meanings, and values given by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from types import MappingProxyType

from graphmem.formulas.messages import TermNotWholeError, UnknownTermError
from graphmem.gpus import find_gpu
from graphmem.units import format_bytes

LETTERS: Mapping[str, str] = MappingProxyType(
    {
        "batch": "b",
        "sequence": "s",
        "hidden": "h",
        "heads": "a",
        "kv_heads": "KVH",
        "layers": "L",
        "vocabulary": "v",
        "parameters": "N",
        "trained": "N_trained",
        "saved": "A",
        "largest_layer": "N_largest",
        "buffers": "N_buf",
        "width": "k",
        "low": "k_l",
        "high": "k_h",
        "gradient": "k_g",
        "gpus": "GPUs",
        "nodes": "nodes",
        "dp": "DP",
        "tp": "TP",
        "sp": "SP",
        "pp": "PP",
        "cp": "CP",
        "micro_batches": "MB",
        "memory": "M_gpu",
        "others": "M_other",
    }
)

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "batch": "samples of one forward pass",
        "sequence": "tokens of a sample",
        "hidden": "width of the blocks",
        "heads": "attention heads",
        "kv_heads": "heads of keys and values",
        "layers": "blocks",
        "vocabulary": "classes of the loss",
        "parameters": "parameters, shared ones once",
        "trained": "parameters that are not frozen",
        "saved": "bytes that autograd holds after a forward pass",
        "largest_layer": "parameters that one module holds itself, at most",
        "buffers": "elements of buffers",
        "width": "bytes of a number",
        "low": "bytes of a number in low precision",
        "high": "bytes of a number in high precision",
        "gradient": "bytes of a gradient's number",
        "gpus": "GPUs in all",
        "nodes": "machines that these GPUs are in",
        "dp": "ranks of data parallelism",
        "tp": "ranks of tensor parallelism",
        "sp": "ranks of sequence parallelism",
        "pp": "stages of pipeline parallelism",
        "cp": "ranks of context parallelism",
        "micro_batches": "micro-batches of a batch",
        "memory": "bytes of a card for tensors",
        "others": "bytes of the card that other components take",
    }
)

DEGREES = ("dp", "tp", "sp", "pp", "cp", "micro_batches")
GIVEN = "given"


@dataclass(frozen=True)
class Term:
    """One term: its name, its value, and the value's origin."""

    name: str
    value: int
    source: str

    @property
    def letter(self) -> str:
        """Its letter in formulas."""
        return LETTERS[self.name]


def given_terms(texts: Mapping[str, str]) -> dict[str, Term]:
    """Parse terms given by name or letter, such as `{"h": "768", "parameters": "2851e6"}`.

    Raises:
        InputError: a name is not in `LETTERS`, or a value is not a whole number above 0.
    """
    terms = (Term(_name_of(key), _whole(key, text), GIVEN) for key, text in texts.items())
    return {term.name: term for term in terms}


def _name_of(key: str) -> str:
    by_letter = {letter: name for name, letter in LETTERS.items()}
    name = by_letter.get(key, key.replace("-", "_"))
    if name not in LETTERS:
        known = ", ".join(f"{letter} ({name})" for name, letter in LETTERS.items())
        raise UnknownTermError(key, known)
    return name


def _whole(key: str, text: str) -> int:
    try:
        value = Decimal(text.replace("_", "").replace(",", ""))
    except InvalidOperation:
        value = Decimal(0)
    if not value.is_finite() or value <= 0 or value != int(value):
        raise TermNotWholeError(key, text)
    return int(value)


def card_term(name: str) -> Term:
    """The memory that a card has for tensors, so that formulas have a verdict.

    Raises:
        InputError: there is no such card.
    """
    gpu = find_gpu(name)
    context = format_bytes(gpu.context_bytes)
    room = gpu.memory_bytes - gpu.context_bytes
    return Term("memory", room, f"{gpu.title}, less {context} of CUDA context")


def values(terms: Iterable[Term]) -> dict[str, int]:
    """The values by name."""
    return {term.name: term.value for term in terms}
