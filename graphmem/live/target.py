"""Train what a target such as `model.py:build` returns, as a script would.

Unlike in `analyze`, memory is followed while the steps run, so that CUDA graphs and private pools
do what they do on a card; tensors on the CPU are real.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from graphmem.live.messages import ArgumentsForTargetError
from graphmem.live.script import ProgramDevice
from graphmem.targets import load_target
from graphmem.trace.loop import TrainingLoop
from graphmem.training_step import TrainingStep

STEPS = 3
"""As many as `graphmem analyze` traces."""


def is_target(name: str) -> bool:
    """Whether a program's name is a file and a function of it, as in `model.py:build`."""
    file, colon, function = name.rpartition(":")
    return bool(colon) and function.isidentifier() and Path(file).is_file()


@dataclass(frozen=True)
class TargetProgram:
    """A target to train.

    Attributes:
        name: the target.
        arguments: what follows it on the command line, which must be nothing.
        steps: how many iterations to run.
    """

    name: str
    arguments: tuple[str, ...] = ()
    steps: int = STEPS

    def run(self, device: ProgramDevice) -> None:
        """Build it and train it.

        Args:
            device: is told of the step, and when it has ended, while the model exists.

        Raises:
            InputError: the target cannot be built, or there are arguments.
        """
        if self.arguments:
            raise ArgumentsForTargetError(self.name, self.arguments[0])
        with load_target(self.name, {}).imported() as build:
            try:
                step = build()
                device.follow(step)
                iterate = step.step or _loop(step).iterate
                for _ in range(self.steps):
                    iterate()
            finally:
                device.finish()


def _loop(step: TrainingStep) -> TrainingLoop:
    loop = TrainingLoop(step, torch.device("cuda:0"))  # its phases begin where a script's do
    loop.prepare()
    return loop
