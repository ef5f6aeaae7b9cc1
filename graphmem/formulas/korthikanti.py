"""The activation formulas of Korthikanti et al., and EleutherAI's, which is their first.

"Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198), sections 4.1 to
5 and table 2: a block in 16 bits with dropout, t ranks of tensor parallelism:

    no parallelism                      s·b·h·(34 + 5·a·s/h)
    tensor                              s·b·h·(10 + 24/t + 5·a·s/(h·t))
    tensor and sequence                 s·b·h·(34/t + 5·a·s/(h·t))
    tensor, selective recomputation     s·b·h·(10 + 24/t)
    tensor, sequence, selective         s·b·h·34/t
    full recomputation                  s·b·h·2

Outside of the blocks (section 4.3): the mask of the embeddings' dropout s·b·h, the last norm and
the output layer 2·s·b·h each, the logits in fp32 4·s·b·v. With p stages the first one holds the
activations of L blocks, p micro-batches of L/p each; interleaved stages of m chunks hold
1 + (p-1)/(p·m) times as much.

EleutherAI's "Transformer Math 101" gives the first formula summed over L blocks, for t = 1, as
s·b·h·L·(34 + 5·a·s/h), and nothing outside of the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType

from graphmem.formulas.estimate import Formula, FormulaMoment, FormulaPart
from graphmem.formulas.roles import SavedRole, in_blocks, outside

SOURCE = 'Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models"'
ELEUTHERAI = 'EleutherAI, "Transformer Math 101"'


def blocks(*, batch: int, sequence: int, hidden: int, heads: int, layers: int) -> list[FormulaPart]:
    """The activations of the blocks: L·s·b·h·(34 + 5·a·s/h)."""
    sbh = layers * sequence * batch * hidden
    as2b = layers * heads * sequence**2 * batch
    return [
        FormulaPart("layer norms", "L·4·sbh", 4 * sbh, in_blocks(SavedRole.NORM_INPUT)),
        FormulaPart(
            *("inputs of linear layers", "L·14·sbh", 14 * sbh),
            in_blocks(SavedRole.NORMED_INPUT, SavedRole.LINEAR_INPUT),
        ),
        FormulaPart("queries, keys, values", "L·6·sbh", 6 * sbh, in_blocks(SavedRole.QKV)),
        FormulaPart("input of GELU", "L·8·sbh", 8 * sbh, in_blocks(SavedRole.NONLINEARITY)),
        FormulaPart("dropout masks", "L·2·sbh", 2 * sbh, in_blocks(SavedRole.DROPOUT_MASK)),
        FormulaPart("softmax", "L·2·as²b", 2 * as2b, in_blocks(SavedRole.SOFTMAX)),
        FormulaPart("mask of its dropout", "L·as²b", as2b, in_blocks(SavedRole.ATTENTION_MASK)),
        FormulaPart("its dropout", "L·2·as²b", 2 * as2b, in_blocks(SavedRole.PROBABILITIES)),
    ]


def whole(
    *, batch: int, sequence: int, hidden: int, heads: int, layers: int, vocabulary: int
) -> list[FormulaPart]:
    """The activations of the blocks, embedding, last norm, output layer and loss."""
    sbh = sequence * batch * hidden
    return [
        *blocks(batch=batch, sequence=sequence, hidden=hidden, heads=heads, layers=layers),
        FormulaPart("dropout of the embeddings", "sbh", sbh, outside(SavedRole.DROPOUT_MASK)),
        FormulaPart("last layer norm", "2·sbh", 2 * sbh, outside(SavedRole.NORM_INPUT)),
        FormulaPart(
            *("input of the output layer", "2·sbh", 2 * sbh),
            outside(SavedRole.NORMED_INPUT, SavedRole.LINEAR_INPUT),
        ),
        FormulaPart(
            *("logits in fp32", "4·sbv", 4 * sequence * batch * vocabulary),
            outside(SavedRole.LOSS),
        ),
    ]


_UNSPLIT, _SPLIT = 10, 24
"""Of the 34: layer norms 4, dropout masks 2, inputs of attention and MLP 4; and the rest."""


def per_rank(
    *, batch: int, sequence: int, hidden: int, heads: int, layers: int, tp: int = 1
) -> Mapping[str, Fraction]:
    """Table 2 of the paper, for all blocks: bytes of one of `tp` ranks."""
    sbh = layers * sequence * batch * hidden
    scores = Fraction(5 * layers * heads * sequence**2 * batch, tp)
    tensor = _UNSPLIT * sbh + Fraction(_SPLIT * sbh, tp)
    both = Fraction((_UNSPLIT + _SPLIT) * sbh, tp)
    return MappingProxyType(
        {
            "no parallelism": tp * scores + tp * both,
            "tensor": tensor + scores,
            "tensor, sequence": both + scores,
            "tensor, selective recomputation": tensor,
            "tensor, sequence, selective recomputation": both,
            "full recomputation": Fraction(2 * sbh),
        }
    )


EXPRESSION = "s·b·h·L·(34 + 5·a·s/h)"
ELEUTHERAI_ACTIVATIONS = Formula(
    name="eleutherai-activations",
    title="Activations of the blocks, all in 16 bits",
    expression=EXPRESSION,
    source=ELEUTHERAI,
    moment=FormulaMoment.FORWARD,
    parts=blocks,
)
ACTIVATIONS = Formula(
    name="korthikanti-activations",
    title="Activations in 16 bits, with embedding, output layer and loss",
    expression=f"{EXPRESSION} + 5·s·b·h + 4·s·b·v",
    source=SOURCE,
    moment=FormulaMoment.FORWARD,
    parts=whole,
)
