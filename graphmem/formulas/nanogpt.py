"""The formulas of "Transformer Memory Arithmetic: Understanding all the Bytes in nanoGPT".

For a GPT-2 as in nanoGPT, trained with AdamW under fp16 autocast, with unfused attention, and with
gradients kept from step to step. With N_e = b·s·h, N_a = b·a·s², N_l = b·s·v:

    steady state    16·N + 4·N_buf, and in its figure two cuBLAS workspaces and the inputs
    activations     L·(36·N_e + 6·N_a) + 6·N_e + 6·N_l
    peak            steady state + activations + 4·N_l
"""

from __future__ import annotations

from graphmem.formulas.estimate import Formula, FormulaMoment, FormulaPart
from graphmem.formulas.roles import SavedRole, in_blocks, of, outside
from graphmem.graph import Category

SOURCE = '"Transformer Memory Arithmetic: Understanding all the Bytes in nanoGPT"'
CUBLAS_WORKSPACE = 8_519_680
"""One thread's workspace on the article's A100, as the article measured it."""


def steady_state(
    *, parameters: int, buffers: int, batch: int | None = None, sequence: int | None = None
) -> list[FormulaPart]:
    """The memory of a training step between iterations, at 4 bytes a number.

    The workspaces, and the inputs if their size is given, are in the article's figure but not in
    its formula.
    """
    parts = [
        FormulaPart("weights", "4·N", 4 * parameters, of(Category.PARAMETER)),
        FormulaPart("buffers", "4·N_buf", 4 * buffers, of(Category.BUFFER)),
        FormulaPart("gradients", "4·N", 4 * parameters, of(Category.GRADIENT)),
        FormulaPart("two moments of Adam", "8·N", 8 * parameters, of(Category.OPTIMIZER_STATE)),
        FormulaPart(
            *("two cuBLAS workspaces", "2·8,519,680", 2 * CUBLAS_WORKSPACE),
            of(Category.WORKSPACE),
        ),
    ]
    if batch is not None and sequence is not None:
        tokens = 2 * 8 * batch * sequence
        parts.append(
            FormulaPart("tokens and targets, int64", "2·8·b·s", tokens, of(Category.INPUT))
        )
    return parts


def activations(
    *, batch: int, sequence: int, hidden: int, heads: int, layers: int, vocabulary: int
) -> list[FormulaPart]:
    """The activations that the forward pass leaves for the backward pass."""
    n_e = batch * sequence * hidden
    n_a = batch * heads * sequence**2
    n_l = batch * sequence * vocabulary
    return [
        FormulaPart("layer norms", "L·8·N_e", layers * 8 * n_e, in_blocks(SavedRole.NORM_INPUT)),
        FormulaPart(
            *("inputs of linear layers", "L·14·N_e", layers * 14 * n_e),
            in_blocks(SavedRole.NORMED_INPUT, SavedRole.LINEAR_INPUT),
        ),
        FormulaPart("queries, keys, values", "L·6·N_e", layers * 6 * n_e, in_blocks(SavedRole.QKV)),
        FormulaPart("softmax in fp32", "L·4·N_a", layers * 4 * n_a, in_blocks(SavedRole.SOFTMAX)),
        FormulaPart(
            "its fp16 copy", "L·2·N_a", layers * 2 * n_a, in_blocks(SavedRole.PROBABILITIES)
        ),
        FormulaPart(
            "input of GELU", "L·8·N_e", layers * 8 * n_e, in_blocks(SavedRole.NONLINEARITY)
        ),
        FormulaPart("final layer norm", "4·N_e", 4 * n_e, outside(SavedRole.NORM_INPUT)),
        FormulaPart(
            *("input of the head", "2·N_e", 2 * n_e),
            outside(SavedRole.NORMED_INPUT, SavedRole.LINEAR_INPUT),
        ),
        FormulaPart("cross entropy", "6·N_l", 6 * n_l, outside(SavedRole.LOSS)),
    ]


def queries_keys_values(*, batch: int, sequence: int, hidden: int) -> tuple[int, int]:
    """The fp16 input and the fp16 weight of the layer that makes queries, keys and values.

    The article budgets the first and measures the sum, 21.375 MiB per block of GPT-2 small; it
    could not explain the second.
    """
    return 2 * batch * sequence * hidden, 2 * 3 * hidden**2


def peak(
    *,
    parameters: int,
    buffers: int,
    batch: int,
    sequence: int,
    hidden: int,
    heads: int,
    layers: int,
    vocabulary: int,
) -> list[FormulaPart]:
    """The memory when the backward pass has just begun."""
    return [
        *steady_state(parameters=parameters, buffers=buffers, batch=batch, sequence=sequence),
        *activations(
            batch=batch,
            sequence=sequence,
            hidden=hidden,
            heads=heads,
            layers=layers,
            vocabulary=vocabulary,
        ),
        FormulaPart(
            *("gradient of the logits, fp32", "4·N_l", 4 * batch * sequence * vocabulary),
            of(Category.TEMPORARY),
        ),
    ]


STEADY_STATE = Formula(
    name="nanogpt-steady",
    title="Steady state of a step under autocast",
    expression="16·N + 4·N_buf, and two cuBLAS workspaces and the inputs",
    source=SOURCE,
    moment=FormulaMoment.STEADY,
    parts=steady_state,
)
ACTIVATIONS = Formula(
    name="nanogpt-activations",
    title="Activations under fp16 autocast",
    expression="L·(36·N_e + 6·N_a) + 6·N_e + 6·N_l,  N_e = b·s·h, N_a = b·a·s², N_l = b·s·v",
    source=SOURCE,
    moment=FormulaMoment.FORWARD,
    parts=activations,
)
PEAK = Formula(
    name="nanogpt-peak",
    title="Peak of a step under fp16 autocast",
    expression="steady state + activations + 4·N_l",
    source=SOURCE,
    moment=FormulaMoment.PEAK,
    parts=peak,
)
