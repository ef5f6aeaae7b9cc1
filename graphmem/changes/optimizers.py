"""Make the optimizer anew for a model whose parameters have been exchanged."""

from __future__ import annotations

from typing import Any

import torch

from graphmem.changes.messages import OptimizerNotRebuiltError
from graphmem.signatures import parameters_of

_GIVEN = ("self", "params")


def for_trained_parameters(made: Any, model: torch.nn.Module) -> Any:
    """An optimizer like `made` of the parameters that a model trains now, without state.

    A function that makes optimizers stays as it is, since it is called with those parameters.

    Raises:
        InputError: the optimizer's class does not keep all of its options, or its groups differ.
    """
    if not isinstance(made, torch.optim.Optimizer):
        return made
    kind = type(made)
    if len(made.param_groups) != 1:
        raise OptimizerNotRebuiltError(kind.__name__, "it has several groups of parameters")
    (group,) = made.param_groups
    wanted = [name for name in parameters_of(kind.__init__) if name not in _GIVEN]
    lost = [name for name in wanted if name not in group]
    if lost:
        raise OptimizerNotRebuiltError(kind.__name__, f"it does not keep {', '.join(lost)}")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return kind(trained, **{name: group[name] for name in wanted})
