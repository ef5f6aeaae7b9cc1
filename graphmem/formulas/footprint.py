"""The peak of "Memory Footprint of a Neural Net During Backpropagation".

    peak   model + 2·model (Adam) + max(gradients, activations)

The article considers two moments, after the forward pass and after the backward pass, and takes the
larger. Gradients exist for parameters that are not frozen, and count twice on several GPUs, "for
accumulation". Its model is in fp32; here a number has k bytes.
"""

from __future__ import annotations

from graphmem.formulas.estimate import Formula, FormulaMoment, FormulaPart
from graphmem.formulas.roles import Role, of
from graphmem.graph import Category

_EITHER = frozenset(
    {Role(Category.ACTIVATION), Role(Category.INPUT), Role(Category.AUTOCAST_CACHE)}
)


def peak(
    *, parameters: int, trained: int, saved: int, width: int = 4, gpus: int = 1
) -> list[FormulaPart]:
    """The memory after the forward or the backward pass, whichever is more."""
    gradients = width * trained * (2 if gpus > 1 else 1)
    wins = "gradients" if gradients > saved else "activations"
    letters = "k·N_trained" if gpus == 1 else "2·k·N_trained"
    return [
        FormulaPart("model", "k·N", width * parameters, of(Category.PARAMETER)),
        FormulaPart("Adam", "2·k·N", 2 * width * parameters, of(Category.OPTIMIZER_STATE)),
        FormulaPart(
            *(f"gradients or activations: {wins}", f"max({letters}, A)", max(gradients, saved)),
            of(Category.GRADIENT) | _EITHER,
        ),
    ]


PEAK = Formula(
    name="footprint-peak",
    title="Peak of a step with Adam",
    expression="model + 2·model + max(gradients, activations) = 3·k·N + max(k·N_trained, A)",
    source='"Memory Footprint of a Neural Net During Backpropagation"',
    moment=FormulaMoment.PEAK,
    parts=peak,
)
