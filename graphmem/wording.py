"""Lists of names as sentences have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

GATHERED = "(all-gathered)"
FROM_THE_HOST = "(copied from the host)"
"""What marks the name of a parameter that a rank has for a while, beside its own shard."""
NOT_REDUCED = ".grad (not reduced yet)"
"""What the name of a rank's own gradient ends with, after the parameter's."""


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def fields_in_words(names: Iterable[str]) -> list[str]:
    """The fields of one node together: `Node.key, .query and .value`; others as they are."""
    fields: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        node, dot, field = name.partition(".")
        fields.setdefault(node, []).append(dot + field)
    return [node + listed(of_node) for node, of_node in fields.items()]
