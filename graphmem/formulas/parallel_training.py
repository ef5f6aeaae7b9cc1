"""The formulas of "Training memory formulas" (hepengfei.ml): one rank under every parallelism.

With k bytes per number, k_l in low and k_h in high precision, and N parameters:

    regular   M_m = k·N, M_o = 2·k·N, M_g = k·N
    mixed     M_m = k_l·N, M_o = 3·k_h·N (with the master weights), M_g = k_l·N
    both      M_a = L·(16·k·b·s·h + 2·b·s·h + 2·k·b·a·s² + b·a·s²)

M_a1, in attention and MLP, is divided by tensor parallelism; M_a2, in norms and dropout, only by
sequence parallelism. The article gives M_a as a whole; of its summands the two inputs of norms,
k·b·s·h each, and the two dropout masks outside of attention, b·s·h each, are M_a2 here.

The article states two errors of its Llama 3 example: M_a2 is divided by TP as well
(`Divisors.approximate`), and keys and values are counted as if each query head had its own
(`without_shared_heads` corrects it). There is a third that it does not state: the
147,366,233,505,792 bytes of M_a that it prints are L·(34·b·s·h + 5·b·a·s), with s where formula and
calculation say s² (`as_printed`). With s² they are 22,313,351,535,132,672, which a step with
unfused attention holds; with fused attention it holds neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, prod
from types import MappingProxyType

from graphmem.formulas.estimate import Formula, FormulaMoment, FormulaPart, total
from graphmem.formulas.roles import Role, SavedRole, in_blocks, of
from graphmem.graph import Category

SOURCE = "hepengfei.ml, training memory formulas for parallelism"


@dataclass(frozen=True)
class ModelMemory:
    """The bytes of one whole model, and of the activations of one data-parallel rank.

    Attributes:
        model: M_m.
        optimizer: M_o.
        gradients: M_g.
        inner: M_a1, activations that tensor parallelism divides.
        outer: M_a2, activations of norms and dropout.
    """

    model: int
    optimizer: int
    gradients: int
    inner: int
    outer: int

    @property
    def activations(self) -> int:
        """M_a."""
        return self.inner + self.outer


@dataclass(frozen=True)
class Divisors:
    """The degrees that divide each summand; degrees are terms, such as `tp`."""

    name: str
    model: tuple[str, ...] = ()
    optimizer: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    outer: tuple[str, ...] = ()

    @property
    def degrees(self) -> frozenset[str]:
        """All of its degrees."""
        return frozenset((*self.model, *self.optimizer, *self.gradients, *self.inner, *self.outer))

    def per_rank(self, memory: ModelMemory, degrees: Mapping[str, int]) -> Mapping[str, Fraction]:
        """The bytes of one rank by summand.

        Args:
            memory: the whole model's.
            degrees: ranks by name; default: 1.
        """
        return MappingProxyType(
            {
                name: Fraction(
                    getattr(memory, name),
                    prod(degrees.get(degree, 1) for degree in getattr(self, name)),
                )
                for name in SUMMANDS
            }
        )

    def gpus(self, degrees: Mapping[str, int]) -> int:
        """The number of GPUs; sequence parallelism uses those of tensor parallelism."""
        named = (self.degrees or {"dp"}) - {"micro_batches", "sp"}
        return prod(degrees.get(degree, 1) for degree in named)

    def approximate(
        self, memory: ModelMemory, degrees: Mapping[str, int]
    ) -> Mapping[str, Fraction]:
        """Compute as the article's Llama 3 example: M_a2 is divided like M_a1."""
        merged = ModelMemory(
            memory.model, memory.optimizer, memory.gradients, memory.activations, outer=0
        )
        return self.per_rank(merged, degrees)


SUMMANDS = ("model", "optimizer", "gradients", "inner", "outer")
SUMMAND_LETTERS: Mapping[str, str] = MappingProxyType(
    dict(zip(SUMMANDS, ("M_m", "M_o", "M_g", "M_a1", "M_a2"), strict=True))
)


def _layout(
    name: str, weights: Sequence[str], inner: Sequence[str] = (), outer: Sequence[str] = ()
) -> Divisors:
    degrees = tuple(weights)
    return Divisors(name, degrees, degrees, degrees, tuple(inner), tuple(outer))


OUTER = in_blocks(SavedRole.NORM_INPUT, SavedRole.DROPOUT_MASK)
"""The activations that tensor parallelism does not divide, in the article's view."""

_MODEL = ("tp", "pp")
_INNER = ("tp", "pp", "micro_batches", "cp")
_OUTER = ("pp", "micro_batches", "cp")
LAYOUTS: Sequence[Divisors] = (
    Divisors("DP"),
    Divisors("DP-ZeRO 1", optimizer=("dp",)),
    Divisors("DP-ZeRO 2", optimizer=("dp",), gradients=("dp",)),
    Divisors("DP-ZeRO 3 / FSDP", model=("dp",), optimizer=("dp",), gradients=("dp",)),
    _layout("TP", ("tp",), ("tp",)),
    _layout("TP + SP", ("tp",), ("tp",), ("sp",)),
    _layout("PP", ("pp",), ("pp", "micro_batches"), ("pp", "micro_batches")),
    _layout("TP + PP", _MODEL, ("tp", "pp", "micro_batches"), ("pp", "micro_batches")),
    _layout("TP + PP + SP", _MODEL, ("tp", "pp", "micro_batches"), ("pp", "micro_batches", "sp")),
    _layout("TP + PP + CP", _MODEL, _INNER, _OUTER),
    Divisors("DP-ZeRO 1 + TP + PP + CP", _MODEL, (*_MODEL, "dp"), _MODEL, _INNER, _OUTER),
    Divisors(
        "DP-ZeRO 2 + TP + PP + CP (Llama 3)",
        *(_MODEL, (*_MODEL, "dp"), (*_MODEL, "dp"), _INNER, _OUTER),
    ),
)
LLAMA_3 = LAYOUTS[-1]


def memory_of(parts: Sequence[FormulaPart]) -> ModelMemory:
    """The five summands of `regular` or `mixed`."""
    model, optimizer, gradients, *activations = parts
    outer = sum(part.bytes for part in activations if part.roles & OUTER)
    inner = total(activations) - outer
    return ModelMemory(model.bytes, optimizer.bytes, gradients.bytes, inner, outer)


def memory_of_states(
    states: Mapping[Role, int], forward: Mapping[Role, int], *, inner: int, outer: int
) -> ModelMemory:
    """The five summands of a traced step on one device.

    Args:
        states: parameters, gradients and optimizer state by role.
        forward: what the forward pass leaves alive, by role; autocast's copies in it are M_m.
        inner: activations of the blocks that tensor parallelism divides.
        outer: those that it does not divide.
    """
    copies = forward.get(Role(Category.AUTOCAST_CACHE), 0)
    weights = states.get(Role(Category.PARAMETER), 0)
    optimizer = states.get(Role(Category.OPTIMIZER_STATE), 0)
    return ModelMemory(
        model=copies or weights,
        optimizer=optimizer + (weights if copies else 0),
        gradients=states.get(Role(Category.GRADIENT), 0),
        inner=inner,
        outer=outer,
    )


def as_printed(memory: ModelMemory, terms: Mapping[str, int]) -> ModelMemory:
    """M_a as the Llama 3 example prints it: attention's logits with s instead of s²."""
    logits = (2 * terms.get("low", 2) + 1) * terms["layers"] * terms["batch"] * terms["heads"]
    sequence = terms["sequence"]
    return replace(memory, inner=memory.inner - logits * (sequence**2 - sequence))


def without_shared_heads(memory: ModelMemory, terms: Mapping[str, int]) -> ModelMemory:
    """Subtract the a - KVH heads of keys and of values that do not exist (the second error)."""
    heads, shared = terms["heads"], terms["heads"] - terms["kv_heads"]
    bsh = terms["layers"] * terms["batch"] * terms["sequence"] * terms["hidden"]
    missing = 2 * terms.get("low", 2) * bsh * shared // heads
    return replace(memory, inner=memory.inner - missing)


def with_one_optimizer(memory: ModelMemory, gpus: int) -> Mapping[str, Fraction]:
    """All GPUs under plain data parallelism, if one has the optimizer: M_o + d·(the rest)."""
    return {
        name: Fraction(getattr(memory, name) * (1 if name == "optimizer" else gpus))
        for name in SUMMANDS
    }


def least_micro_batches(rank: Mapping[str, Fraction], room: int, times: int) -> int | None:
    """The fewest micro-batches with which a rank fits; None if its states alone do not.

    Args:
        rank: its bytes by summand, with `times` micro-batches.
        room: bytes of the card.
        times: micro-batches by which the activations are already divided.
    """
    activations = (rank["inner"] + rank["outer"]) * times
    rest = room - sum(rank.values(), Fraction()) + rank["inner"] + rank["outer"]
    return max(1, ceil(activations / rest)) if rest > 0 else None


def checkpoints(memory: ModelMemory, terms: Mapping[str, int]) -> Mapping[str, tuple[int, int]]:
    """Bytes of activations without and with checkpointing; their ratio is the factor AC.

    The article has "about 9" where "we only keep pre-LN activations for MLP with LN": an MLP's
    9·k·b·s·h to the norm's input k·b·s·h. With that input and the dropout mask it is 10·k + 1 to k;
    attention, which is not checkpointed then, keeps all of its activations.
    """
    low = terms.get("low", 2)
    bsh = terms["layers"] * terms["batch"] * terms["sequence"] * terms["hidden"]
    mlp, kept, everything = (10 * low + 1) * bsh, low * bsh, memory.activations
    return {
        "nothing is checkpointed": (everything, everything),
        "the MLP alone, 9·k to k": (9 * low * bsh, kept),
        "the MLP with its norm, 10·k + 1 to k": (mlp, kept),
        "blocks whose MLP and norm keep k": (everything, everything - mlp + kept),
        "blocks that keep their input, k": (everything, kept),
    }


def regular(
    *,
    parameters: int,
    batch: int,
    sequence: int,
    hidden: int,
    heads: int,
    layers: int,
    width: int = 4,
) -> list[FormulaPart]:
    """M_m + M_o + M_g + M_a, all with `width` bytes per number."""
    return [
        FormulaPart("model", "k·N", width * parameters, of(Category.PARAMETER)),
        FormulaPart("optimizer", "2·k·N", 2 * width * parameters, of(Category.OPTIMIZER_STATE)),
        FormulaPart("gradients", "k·N", width * parameters, of(Category.GRADIENT)),
        *_activation_parts("k", width, batch, sequence, hidden, heads, layers),
    ]


def mixed(
    *,
    parameters: int,
    batch: int,
    sequence: int,
    hidden: int,
    heads: int,
    layers: int,
    low: int = 2,
    high: int = 4,
    gradient: int | None = None,
) -> list[FormulaPart]:
    """M_m + M_o + M_g + M_a with weights in two precisions.

    `gradient` is the bytes per number of a gradient, if not `low`: the Llama 3 example accumulates
    gradients in fp32.

    Under autocast the parameters are the master weights, and M_m is autocast's copies of them.
    """
    letter = "k_l" if gradient is None else "k_g"
    return [
        FormulaPart("model", "k_l·N", low * parameters, of(Category.AUTOCAST_CACHE)),
        FormulaPart(
            *("optimizer and master weights", "3·k_h·N", 3 * high * parameters),
            of(Category.OPTIMIZER_STATE, Category.PARAMETER),
        ),
        FormulaPart(
            "gradients", f"{letter}·N", (gradient or low) * parameters, of(Category.GRADIENT)
        ),
        *_activation_parts("k_l", low, batch, sequence, hidden, heads, layers),
    ]


def _activation_parts(
    letter: str, width: int, batch: int, sequence: int, hidden: int, heads: int, layers: int
) -> list[FormulaPart]:
    bsh = layers * batch * sequence * hidden
    bas2 = layers * batch * heads * sequence**2
    return [
        FormulaPart(
            "layer norms", f"L·2·{letter}·bsh", 2 * width * bsh, in_blocks(SavedRole.NORM_INPUT)
        ),
        FormulaPart(
            *("inputs of linear layers", f"L·7·{letter}·bsh", 7 * width * bsh),
            in_blocks(SavedRole.NORMED_INPUT, SavedRole.LINEAR_INPUT),
        ),
        FormulaPart(
            "queries, keys, values", f"L·3·{letter}·bsh", 3 * width * bsh, in_blocks(SavedRole.QKV)
        ),
        FormulaPart(
            "activation", f"L·4·{letter}·bsh", 4 * width * bsh, in_blocks(SavedRole.NONLINEARITY)
        ),
        FormulaPart("dropout masks", "L·2·bsh", 2 * bsh, in_blocks(SavedRole.DROPOUT_MASK)),
        FormulaPart(
            "attention logits", f"L·{letter}·bas²", width * bas2, in_blocks(SavedRole.SOFTMAX)
        ),
        FormulaPart(
            "their dropout", f"L·{letter}·bas²", width * bas2, in_blocks(SavedRole.PROBABILITIES)
        ),
        FormulaPart("its mask", "L·bas²", bas2, in_blocks(SavedRole.ATTENTION_MASK)),
    ]


_ACTIVATIONS = "L·(16·{k}·bsh + 2·bsh + 2·{k}·bas² + bas²)"
REGULAR = Formula(
    name="parallel-regular",
    title="One device, regular training",
    expression=f"M_m + M_o + M_g + M_a = 4·k·N + {_ACTIVATIONS.format(k='k')}",
    source=SOURCE,
    moment=FormulaMoment.PEAK,
    parts=regular,
)
MIXED = Formula(
    name="parallel-mixed",
    title="One device, mixed precision",
    expression=f"M_m + M_o + M_g + M_a = (2·k_l + 3·k_h)·N + {_ACTIVATIONS.format(k='k_l')}",
    source=SOURCE,
    moment=FormulaMoment.PEAK,
    parts=mixed,
)
