"""Which axes tensor parallelism splits.

Clauses:
  (1) products with a weight are visited in forward order: if the axis summed over is divided, the
      weight is divided by *rows*, and the result is whole; otherwise the axis summed over is whole,
      and the result is divided if possible: the weight is divided by *columns* (Shoeybi et al.
      2019, arXiv:1909.08053, section 3);
  (2) in an axis of several factors, the leading ones of a batched product or of attention are
      divided, outermost first: heads, and key-value heads before the repeats of each; otherwise the
      outermost factor that does not merely count parts, like the 3 of fused q, k and v;
  (3) the rows of the largest embedding indexed by an input are divided (VocabParallelEmbedding,
      megatron/core/tensor_parallel/layers.py);
  (4) the ranks sum the results of products divided by rows, of the embedding, and the gradients of
      the inputs of products divided by columns, one for all products of an input. What a checkpoint
      runs again they sum again. With sequence parallelism they scatter these sums; they gather the
      inputs of columns, again for the weights' gradients, and the gradients of what they scattered
      (layers.py, `LinearWithGradAccumulationAndAsyncCommunication`; mappings.py).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from graphmem.parallel.axes.axis import Axis
from graphmem.parallel.axes.rule_interface import AxisFacts


@dataclass(frozen=True)
class WeightProduct:
    """A product with a weight in the forward pass.

    Attributes:
        op: index of the operation.
        weight: the parameter's name.
        sums_over, makes: the weight's axes that it sums over and that the result has.
        reads: the storage of its input.
        input: the one that this is a cast copy of, or the same.
        results: the storages of its result.
    """

    op: int
    weight: str
    sums_over: Axis
    makes: Axis
    reads: int = -1
    input: int = -1
    results: tuple[int, ...] = ()


@dataclass(frozen=True)
class Lookup:
    """An embedding indexed by an input: the operation, the parameter, and the axis of its rows."""

    op: int
    weight: str
    rows: Axis
    results: tuple[int, ...]


@dataclass
class Differentiated:
    """Which products have been differentiated, by the index of their operations.

    Attributes:
        again: products that a checkpoint runs again.
        inputs, weights: those whose inputs, and whose weights, get gradients.
    """

    again: list[WeightProduct] = field(default_factory=list)
    inputs: set[int] = field(default_factory=set)
    weights: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Meeting:
    """A tensor that tensor-parallel ranks sum, or gather (clause 4).

    Attributes:
        op: the operation that makes or reads it.
        storage: where it is.
        sums: how often a micro-batch sums it, without sequence parallelism.
        parts: how often it gathers it, or scatters its sum, with sequence parallelism.
    """

    op: int
    storage: int
    sums: int
    parts: int


@dataclass(frozen=True)
class Column:
    """An axis that tensor parallelism divides: its divisible atoms, outermost first.

    Attributes:
        what: "heads", "features" or "vocabulary".
        atoms: if there are several, the second is divided when the first is used up.
        pads: whether an uneven share is padded (Megatron-LM pads the vocabulary).
    """

    what: str
    atoms: tuple[Axis, ...]
    weight: str
    pads: bool = False

    @property
    def size(self) -> int:
        """The largest degree by which it can be divided."""
        size = 1
        for atom in self.atoms:
            size *= atom.size
        return size


@dataclass
class Choice:
    """The axes that tensor parallelism divides, and those that it leaves whole.

    Attributes:
        columns: the divided axes.
        whole: atoms that stay whole.
    """

    columns: list[Column] = field(default_factory=list)
    whole: set[Axis] = field(default_factory=set)


def choose_split_axes(
    products: Sequence[WeightProduct],
    facts: AxisFacts,
    classes: Sequence[Axis],
    lookups: Sequence[Lookup],
    undivided: Container[int],
) -> Choice:
    """Choose what tensor parallelism divides.

    Args:
        products: with weights, in forward order.
        facts: those that the operators report.
        classes: the axes of cross entropies' classes.
        lookups: embeddings indexed by an input.
        undivided: operations whose weights are never divided, such as those of recurrent layers.
    """
    chosen = Choice(whole=_atoms(facts.whole))
    batched, of_loss = _atoms(facts.batched), _atoms(classes)
    divided: set[Axis] = set()
    if lookups:
        largest = max(lookups, key=lambda lookup: lookup.rows.size)
        rows = tuple(largest.rows.atoms())
        chosen.columns.append(Column("vocabulary", rows, largest.weight, pads=True))
        divided |= set(rows)
    for product in products:
        if product.op in undivided:
            chosen.whole |= {*product.sums_over.atoms(), *product.makes.atoms()}
            continue
        if any(atom in divided for atom in product.sums_over.atoms()):
            chosen.whole |= set(product.makes.atoms())
            continue
        chosen.whole |= set(product.sums_over.atoms())
        for what, atoms in _divisible(product.makes, batched, chosen.whole, of_loss):
            if not divided.intersection(atoms):
                pads = what == "vocabulary"
                chosen.columns.append(Column(what, tuple(atoms), product.weight, pads))
                divided |= set(atoms)
    return chosen


def meetings(
    chosen: Choice,
    products: Sequence[WeightProduct],
    lookups: Sequence[Lookup],
    backward: Differentiated,
) -> Iterator[Meeting]:
    """Yield what tensor-parallel ranks sum and gather (clause 4)."""
    divided = _atoms([atom for column in chosen.columns for atom in column.atoms])
    for lookup in lookups:
        if not divided.isdisjoint(lookup.rows.atoms()):
            yield from (Meeting(lookup.op, each, 1, 2) for each in lookup.results)
    met: dict[int, list[WeightProduct]] = {}
    for product in (*products, *backward.again):
        if not divided.isdisjoint(product.sums_over.atoms()):
            trains = product.op in backward.inputs | backward.weights
            yield from (Meeting(product.op, each, 1, 1 + trains) for each in product.results)
        elif product.makes.reaches(divided):
            met.setdefault(product.input, []).append(product)
    for readers in met.values():
        ops = {each.op for each in readers}
        summed, again = bool(ops & backward.inputs), bool(ops & backward.weights)
        yield Meeting(readers[0].op, readers[0].reads, summed, 1 + summed + again)


def _atoms(axes: Sequence[Axis]) -> set[Axis]:
    return {atom for axis in axes for atom in axis.atoms()}


def _divisible(
    axis: Axis, batched: set[Axis], whole: set[Axis], classes: set[Axis]
) -> Iterator[tuple[str, list[Axis]]]:
    """Clause (2): the divisible atoms of a weight's result axis, or of each of its parts."""
    if axis.root.parts:
        for part in axis.root.parts:
            yield from _divisible(part, batched, whole, classes)
        return
    atoms = axis.atoms()
    heads = [atom for atom in atoms if atom in batched and not atom.counts_parts]
    others = [atom for atom in atoms if not atom.counts_parts]
    chosen = heads or others[:1]
    if not chosen or any(atom in whole for atom in chosen):
        return
    what = "heads" if heads else "vocabulary" if chosen[0] in classes else "features"
    yield what, chosen
