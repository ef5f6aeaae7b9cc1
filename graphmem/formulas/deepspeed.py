"""DeepSpeed's estimates of model states under ZeRO-2 and ZeRO-3, printed as DeepSpeed prints them.

Read in DeepSpeed (deepspeedai/DeepSpeed, edaa7221, August 2026): `deepspeed/runtime/zero/
stage_1_and_2.py` and `stage3.py`, `estimate_zero2_model_states_mem_needs*` and
`estimate_zero3_model_states_mem_needs*`. With P parameters, P_l in the largest layer, G GPUs in
total, n in each of m machines, and a buffer factor f = 1.5:

    ZeRO-2               GPU                    CPU
      optimizer on CPU   2·P                    P·max(4·G, 16)·f
      nothing off        2·P + 18·P/G           P·4·n·f
    ZeRO-3
      both on CPU        4·P_l                  P·18/m·f, or without zero.Init max(4·n, 18/m)
      optimizer on CPU   4·P_l + 2·P/G          P·16/m·f, or without zero.Init max(4·n, 16/m)
      nothing off        4·P_l + 18·P/G         P_l·4·n·f, or without zero.Init P·4·n·f

Up to 0.14.2 the second row of ZeRO-2 was 4·P + 16·P/G (changed by #5099, commit f4cb866c); the
documentation's tables still use that one. Its text says max(4·n, 16) for the first row's CPU, where
the code has G instead of n: with one machine they agree.

Fractions are truncated where DeepSpeed truncates them, in the same floating-point arithmetic.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from graphmem.formulas.estimate import Formula, FormulaMoment, FormulaPart
from graphmem.formulas.roles import Role, SavedRole, in_blocks, of
from graphmem.graph import Category
from graphmem.parallel import Sharding
from graphmem.report.categories import COMMUNICATION

SOURCE = "DeepSpeed, Memory Requirements (deepspeed/runtime/zero/stage_1_and_2.py, stage3.py)"
BUFFER_FACTOR = 1.5
_GIB = 2**30


class Release(enum.StrEnum):
    """The releases of DeepSpeed, by their formula for ZeRO-2 without offloading."""

    DOCUMENTED = "up to 0.14.2"
    CURRENT = "from 0.14.3"


@dataclass(frozen=True)
class Estimate:
    """One row of a table: bytes of one machine's memory, bytes of one GPU, and the options."""

    cpu: int
    gpu: int
    options: str

    def __str__(self) -> str:
        return f" {self.cpu / _GIB:7.2f}GB | {self.gpu / _GIB:6.2f}GB | {self.options}"


@dataclass(frozen=True)
class Hardware:
    """`gpus_per_node` GPUs in each of `nodes` machines."""

    gpus_per_node: int = 1
    nodes: int = 1

    @property
    def gpus(self) -> int:
        """The total number of GPUs."""
        return self.nodes * self.gpus_per_node

    def __str__(self) -> str:
        nodes = "nodes" if self.nodes > 1 else "node"
        gpus = "GPUs" if self.gpus_per_node > 1 else "GPU"
        return f"HW: Setup with {self.nodes} {nodes}, {self.gpus_per_node} {gpus} per node."


def zero2(
    parameters: float,
    hardware: Hardware,
    buffer_factor: float = BUFFER_FACTOR,
    release: Release = Release.DOCUMENTED,
) -> list[Estimate]:
    """The rows of ZeRO-2, in DeepSpeed's order."""
    gpus, per_node = hardware.gpus, hardware.gpus_per_node
    everywhere, divided = (4, 16) if release is Release.DOCUMENTED else (2, 18)
    return [
        Estimate(
            cpu=int(parameters * max(4 * gpus, 16) * buffer_factor),
            gpu=int(2 * parameters),
            options="offload_optimizer=cpu ",
        ),
        Estimate(
            cpu=int(parameters * 4 * per_node * buffer_factor),
            gpu=int(everywhere * parameters + int(divided * parameters / gpus)),
            options="offload_optimizer=none",
        ),
    ]


def zero3(
    parameters: float,
    largest_layer: float,
    hardware: Hardware,
    buffer_factor: float = BUFFER_FACTOR,
) -> list[Estimate]:
    """The rows of ZeRO-3, in DeepSpeed's order."""
    return [
        *_zero3_offloaded(parameters, largest_layer, hardware, buffer_factor, params="cpu "),
        *_zero3_offloaded(parameters, largest_layer, hardware, buffer_factor, params="none"),
        *_zero3_on_gpu(parameters, largest_layer, hardware, buffer_factor),
    ]


def _zero3_offloaded(
    parameters: float, largest_layer: float, hardware: Hardware, factor: float, params: str
) -> Iterator[Estimate]:
    share = 1 / hardware.nodes
    on_cpu = params == "cpu "
    held = (18 if on_cpu else 16) * share
    shard = 0 if on_cpu else int(2 * parameters / hardware.gpus)
    for zero_init in (1, 0):
        most = held if zero_init else max(4 * hardware.gpus_per_node, held)
        yield Estimate(
            cpu=int(parameters * most * factor),
            gpu=int(4 * largest_layer + shard),
            options=f"offload_param={params}, offload_optimizer=cpu , zero_init={zero_init}",
        )


def _zero3_on_gpu(
    parameters: float, largest_layer: float, hardware: Hardware, factor: float
) -> Iterator[Estimate]:
    for zero_init in (1, 0):
        made_at_once = largest_layer if zero_init else parameters
        yield Estimate(
            cpu=int(made_at_once * 4 * hardware.gpus_per_node * factor),
            gpu=int(4 * largest_layer + int(18 * parameters / hardware.gpus)),
            options=f"offload_param=none, offload_optimizer=none, zero_init={zero_init}",
        )


def zero2_table(
    parameters: float,
    hardware: Hardware,
    buffer_factor: float = BUFFER_FACTOR,
    release: Release = Release.DOCUMENTED,
) -> str:
    """The output of `estimate_zero2_model_states_mem_needs_all_cold`."""
    model = f"SW: Model with {int(parameters / 1e6)}M total params."
    return _table(hardware, model, zero2(parameters, hardware, buffer_factor, release))


def zero3_table(
    parameters: float,
    largest_layer: float,
    hardware: Hardware,
    buffer_factor: float = BUFFER_FACTOR,
) -> str:
    """The output of `estimate_zero3_model_states_mem_needs_all_cold`."""
    model = (
        f"SW: Model with {int(parameters / 1e6)}M total params, "
        f"{int(largest_layer / 1e6)}M largest layer params."
    )
    return _table(hardware, model, zero3(parameters, largest_layer, hardware, buffer_factor))


def zero3_case_bytes(parameters: float, largest_layer: float, gpus: int) -> tuple[int, ...]:
    """Bytes of a GPU in the three cases of `zero3_cases`."""
    largest = int(4 * largest_layer)
    return (
        largest + int(18 * parameters / gpus),
        largest,
        largest + int(2 * parameters / gpus),
    )


def zero3_cases(parameters: float, largest_layer: float, gpus: int) -> str:
    """The output of the script in DeepSpeed's documentation for ZeRO-3: a GPU in three cases.

    Case 1 keeps everything on the GPUs, case 2 nothing, case 3 the 16-bit parameters.
    """
    cases = zero3_case_bytes(parameters, largest_layer, gpus)
    return "\n".join(
        [
            f"total params:         {parameters / 1e6:6.2f}M",
            f"largest layer params: {largest_layer / 1e6:6.2f}M",
            f"largest layer memory: {int(4 * largest_layer) >> 20:6}MB",
            *(f"case{i} gpu memory: {case >> 20:6}MB" for i, case in enumerate(cases, 1)),
        ]
    )


PINNED: Mapping[str, int] = MappingProxyType(
    {
        "parameters offloaded": 2 + 4,
        "the same, gradients accumulated": 2 + 4 + 2,
        "parameters not offloaded": 4,
    }
)
"""Bytes of pinned host memory per parameter: 2 for 16-bit parameters, 4 for fp32 gradients, and 2
for 16-bit gradients if they are accumulated."""


@dataclass(frozen=True)
class Cost:
    """The bytes that one GPU holds: everywhere·P + divided·P/G + layer·P_l."""

    everywhere: int = 0
    divided: int = 0
    layer: int = 0

    def largest(self, memory: int, gpus: int, largest_layer: int) -> int:
        """Invert the formula: the most parameters that fit in `memory` bytes."""
        room = max(0, memory - self.layer * largest_layer)
        return room * gpus // (self.everywhere * gpus + self.divided)


COSTS: Mapping[str, Cost] = MappingProxyType(
    {
        "ZeRO-2, optimizer on CPU: 2·P": Cost(2),
        f"ZeRO-2 {Release.DOCUMENTED}: 4·P + 16·P/G": Cost(4, 16),
        f"ZeRO-2 {Release.CURRENT}: 2·P + 18·P/G": Cost(2, 18),
        "ZeRO-3, optimizer on CPU: 4·P_l + 2·P/G": Cost(0, 2, 4),
        "ZeRO-3, nothing off: 4·P_l + 18·P/G": Cost(0, 18, 4),
    }
)
"""The formulas that grow with P; with everything on the CPU, ZeRO-3 has no largest model."""


def activations(*, batch: int, sequence: int, hidden: int, heads: int) -> list[FormulaPart]:
    """The sketch under "Activation Memory": (2·s·a + 16·h)·s·b, as written for one block."""
    scores = (SavedRole.SOFTMAX, SavedRole.PROBABILITIES, SavedRole.ATTENTION_MASK)
    others = (SavedRole.NORM_INPUT, SavedRole.NORMED_INPUT, SavedRole.LINEAR_INPUT, SavedRole.QKV)
    return [
        FormulaPart(
            *("scores of attention", "2·a·s²·b", 2 * heads * sequence**2 * batch),
            in_blocks(*scores),
        ),
        FormulaPart(
            *("tensors of the blocks' width", "16·s·b·h", 16 * hidden * sequence * batch),
            in_blocks(*others, SavedRole.NONLINEARITY, SavedRole.DROPOUT_MASK),
        ),
    ]


def _table(hardware: Hardware, model: str, rows: Sequence[Estimate]) -> str:
    return "\n".join(
        [
            "Estimated memory needed for params, optim states and gradients for a:",
            str(hardware),
            model,
            "  per CPU  |  per GPU |   Options",
            *map(str, rows),
        ]
    )


def zero2_parts(*, parameters: int, gpus: int = 1) -> list[FormulaPart]:
    """One of `gpus` under ZeRO-2 from 0.14.3 without offloading: 2·P + 18·P/G."""
    everywhere = FormulaPart(
        "16-bit parameters", "2·P", 2 * parameters, of(Category.AUTOCAST_CACHE)
    )
    shared = (
        ("fp32 parameters", 4, of(Category.PARAMETER)),
        ("16-bit and fp32 gradients", 6, of(Category.GRADIENT)),
        ("two moments of Adam", 8, of(Category.OPTIMIZER_STATE)),
    )
    return [everywhere, *_shares(shared, parameters, gpus)]


def zero3_parts(*, parameters: int, largest_layer: int, gpus: int = 1) -> list[FormulaPart]:
    """One of `gpus` under ZeRO-3 without offloading: 4·P_l + 18·P/G."""
    gathered = frozenset({Role(COMMUNICATION)})
    largest = FormulaPart("the largest layer, gathered", "4·P_l", 4 * largest_layer, gathered)
    shared = (
        ("16-bit parameters", 2, of(Category.AUTOCAST_CACHE)),
        ("fp32 parameters", 4, of(Category.PARAMETER)),
        ("fp32 gradients", 4, of(Category.GRADIENT)),
        ("two moments of Adam", 8, of(Category.OPTIMIZER_STATE)),
    )
    return [largest, *_shares(shared, parameters, gpus)]


def _shares(
    parts: Sequence[tuple[str, int, frozenset[Role]]], parameters: int, gpus: int
) -> Iterator[FormulaPart]:
    """Parts by their bytes per parameter; DeepSpeed truncates the fraction of their sum."""
    multiple = before = 0
    for name, each, roles in parts:
        multiple += each
        up_to = multiple * parameters // gpus
        yield FormulaPart(name, f"{each}·P/G", up_to - before, roles)
        before = up_to


ZERO2 = Formula(
    name="deepspeed-zero2",
    title="Model states under ZeRO-2, nothing offloaded",
    expression="2·P + 18·P/G",
    source=SOURCE,
    moment=FormulaMoment.STATES,
    parts=zero2_parts,
    sharding=Sharding.ZERO_2,
)
ZERO3 = Formula(
    name="deepspeed-zero3",
    title="Model states under ZeRO-3, nothing offloaded",
    expression="4·P_l + 18·P/G",
    source=SOURCE,
    moment=FormulaMoment.STATES,
    parts=zero3_parts,
    sharding=Sharding.ZERO_3,
)
ACTIVATIONS = Formula(
    name="deepspeed-activations",
    title='Activations, "probably around"; as it stands, of one block',
    expression="(2·s·a + 16·h)·s·b",
    source="DeepSpeed, Memory Requirements, Activation Memory",
    moment=FormulaMoment.FORWARD,
    parts=activations,
)
