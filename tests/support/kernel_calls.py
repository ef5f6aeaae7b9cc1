"""Calls of ATen operators on meta tensors, and the kernel programs found for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from graphmem.gpus import find_gpu
from graphmem.graph import (
    Assumption,
    Op,
    Owner,
    OwnerKind,
    Phase,
    PhaseName,
    StepGraph,
    Storage,
    TensorOut,
)
from graphmem.kernel_program import Output, Program, Take
from graphmem.op_states import Determinism
from graphmem.passes.kernel_memory import find_kernel_memory
from graphmem.runtime import Runtime

aten = torch.ops.aten
DEVICE = "cuda:0"


def tensor(
    *shape: int,
    dtype: torch.dtype = torch.float32,
    stride: Sequence[int] | None = None,
    offset: int = 0,
) -> torch.Tensor:
    """A meta tensor, which stands for one on the card; other tensors are on the host."""
    made = (
        torch.empty_strided(shape, stride, device="meta", dtype=dtype)
        if stride
        else (torch.empty(shape, device="meta", dtype=dtype))
    )
    return made if not offset else made.as_strided(made.shape, made.stride(), offset)


class Calls:
    """Successive operations on one card; `determinism` is what the next ones are asked for."""

    def __init__(
        self, gpu: str = "a100", version: str = "2.13", env: Mapping[str, str] | None = None
    ) -> None:
        self.runtime = Runtime(find_gpu(gpu), version, env or {})
        self.graph = StepGraph(device=DEVICE)
        self.determinism = Determinism.NONE
        self.begin(PhaseName.FORWARD)

    def begin(self, phase: PhaseName) -> Calls:
        """Begin a phase."""
        self.graph.phases.append(Phase(phase, 0, 0, 0))
        return self

    def call(self, func: Any, *args: Any, **kwargs: Any) -> list[str | int]:
        """Add a call and return its program: `out0` for an output, bytes taken and -bytes freed."""
        result = func(*args, **kwargs)
        op = Op(
            args=self._nodes(args),
            operator=func,
            kwargs=self._nodes(kwargs),
            target=str(func),
            index=len(self.graph.ops),
            tick=10 * len(self.graph.ops),
            phase=len(self.graph.phases) - 1,
            determinism=self.determinism,
        )
        self.graph.nodes.append(op)
        self.graph.ops.append(op)
        results = result if isinstance(result, (tuple, list)) else [result]
        for each in results:
            if isinstance(each, torch.Tensor):
                self._add_output(op, each, is_new=all(each is not arg for arg in args))
        return readable(self.programs().get(op.index, tuple(map(Output, range(len(op.births))))))

    def programs(self) -> Mapping[int, Program]:
        """What the pass found for all calls so far."""
        return find_kernel_memory(self.graph, self.runtime, {}).programs

    def assumptions(self) -> tuple[Assumption, ...]:
        """What the rules left out so far."""
        return find_kernel_memory(self.graph, self.runtime, {}).assumptions

    def _add_output(self, op: Op, result: torch.Tensor, *, is_new: bool) -> None:
        number = len(self.graph.storages)
        nbytes = result.untyped_storage().nbytes()
        if is_new and nbytes:
            birth = op.tick + 1 + len(op.births)
            owners = [Owner(OwnerKind.VARIABLE, "", birth)]
            shape, dtype = tuple(result.shape), str(result.dtype).removeprefix("torch.")
            self.graph.storages.append(
                Storage(number, nbytes, birth, op.index, shape, dtype, DEVICE, owners)
            )
            op.births += (number,)
        op.outputs += (described(result, number if nbytes else None),)

    def _nodes(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            node = self.graph.nodes.input()
            node.tensor = described(value, 0 if value.is_meta else None)
            return node
        if isinstance(value, (tuple, list)):
            return type(value)(self._nodes(item) for item in value)
        if isinstance(value, dict):
            return {key: self._nodes(item) for key, item in value.items()}
        return value


def described(value: torch.Tensor, storage: int | None) -> TensorOut:
    """A tensor as the trace describes it."""
    return TensorOut(
        tuple(value.shape),
        str(value.dtype).removeprefix("torch."),
        storage,
        value.stride(),
        value.storage_offset(),
    )


def readable(program: Program) -> list[str | int]:
    """A program in readable form."""
    return [
        f"out{step.birth}"
        if isinstance(step, Output)
        else step.scratch.nbytes * (1 if isinstance(step, Take) else -1)
        for step in program
    ]
