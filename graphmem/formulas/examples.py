"""The sources' worked examples, as terms: `graphmem published --example NAME`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from graphmem.formulas.messages import UnknownExampleError
from graphmem.formulas.terms import Term


@dataclass(frozen=True)
class Example:
    """One published example: its source, its terms, and the formulas that it uses."""

    source: str
    terms: Mapping[str, int]
    formulas: tuple[str, ...]


EXAMPLES: Mapping[str, Example] = MappingProxyType(
    {
        "t5-3b": Example(
            "DeepSpeed, Memory Requirements, the tables without a model",
            {"parameters": 2_851_000_000, "largest_layer": 32_000_000, "gpus": 8, "nodes": 1},
            ("deepspeed-zero2-table", "deepspeed-zero3-table"),
        ),
        "t5-large": Example(
            "DeepSpeed, Memory Requirements, the script for ZeRO-3; the counts are the model's "
            "(fixtures/t5.py), which print as 737.67M and 32.90M",
            {"parameters": 737_668_096, "largest_layer": 32_899_072, "gpus": 4, "nodes": 1},
            ("deepspeed-zero3-cases",),
        ),
        "t5-11b": Example(
            "DeepSpeed, Memory Requirements: a 40 GB GPU can fit a model of about 11 B parameters, "
            "whose weights take 22 GB, and other components the remaining 18 GB",
            {
                "parameters": 11_000_000_000,
                "gpus": 1,
                "nodes": 1,
                "memory": 40_000_000_000,
                "others": 18_000_000_000,
            },
            ("deepspeed-zero2-table", "deepspeed-largest-model", "deepspeed-pinned"),
        ),
        "llama-3-405b": Example(
            "hepengfei.ml, the long-context pre-training of Llama 3 405B; KVH from Llama 3, "
            "arXiv 2407.21783, table 3",
            {
                "parameters": 405_000_000_000,
                "layers": 126,
                "hidden": 16_384,
                "heads": 128,
                "kv_heads": 8,
                "sequence": 131_072,
                "batch": 16,
                "gradient": 4,
                "memory": 40_000_000_000,
                "dp": 8,
                "tp": 8,
                "pp": 16,
                "cp": 16,
            },
            (
                "parallel-llama-3",
                "parallel-checkpointing",
                "parallel-layouts",
                "parallel-all-gpus",
            ),
        ),
    }
)


def example_terms(name: str) -> dict[str, Term]:
    """The terms of an example.

    Raises:
        InputError: there is no example with this name.
    """
    if name not in EXAMPLES:
        raise UnknownExampleError(name, ", ".join(EXAMPLES))
    example = EXAMPLES[name]
    return {term: Term(term, value, f"example {name}") for term, value in example.terms.items()}
