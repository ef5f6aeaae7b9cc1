"""Read the terms of published formulas from a traced step.

Clauses, each with the source of a term:
  (1) batch, heads, sequence: the shape of the queries of every attention operation, which must
      agree; if a softmax joins batch and heads, the rows of the linear layers' inputs in the blocks
      separate them;
  (2) layers: the blocks of the only stack (blocks.py);
  (3) hidden: the one dimension that all weight matrices of the blocks share, else the length of
      the blocks' norm weights;
  (4) kv_heads: the weights of the attention modules are (a + KVH + KVH + a) x d x h in total, for
      heads of d = columns of the queries;
  (5) vocabulary: the classes of the log-softmax outside of the blocks, else the rows of the
      largest embedding;
  (6) parameters, trained parameters, largest layer, buffers, bytes of a number: the storages of
      parameters and buffers;
  (7) saved: "saved for backward" in the report.

A term that cannot be read has a reason instead.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from graphmem.formulas.blocks import Attention, ModelBlocks, last_forward, operand
from graphmem.formulas.terms import Term
from graphmem.forward_passes import fullest_forward
from graphmem.graph import OwnerKind, StepGraph
from graphmem.report.build import saved_for_backward

_PRODUCTS = ("aten.mm", "aten.addmm", "aten._addmm_activation")


_NO_TRANSFORMER = "the step has no attention operation, so it is not a transformer"


class _UnknownError(Exception):
    """The reason why a term cannot be read from the trace."""


@dataclass(frozen=True)
class FoundTerms:
    """The terms found in a trace.

    Attributes:
        terms: the terms, by name.
        unknown: why a term cannot be read, by name.
    """

    terms: dict[str, Term]
    unknown: dict[str, str]


def find_terms(graph: StepGraph, blocks: ModelBlocks) -> FoundTerms:
    """Find every term that can be read from a step graph."""
    finder = _Finder(graph, blocks)
    found = FoundTerms({}, {})
    for find in (
        *(finder.parameters, finder.trained, finder.largest_layer, finder.buffers, finder.width),
        finder.saved,
        *(finder.attention_terms, finder.layers, finder.hidden, finder.kv_heads),
        finder.vocabulary,
    ):
        _take(find, found)
    return found


def _take(find: Callable[[], Iterator[Term]], found: FoundTerms) -> None:
    try:
        found.terms.update({term.name: term for term in find()})
    except _UnknownError as reason:
        for name in _NAMES.get(find.__name__, (find.__name__,)):
            found.unknown[name] = str(reason)


_NAMES = {"attention_terms": ("batch", "sequence", "heads")}


class _Finder:
    def __init__(self, graph: StepGraph, blocks: ModelBlocks) -> None:
        self._graph = graph
        self._blocks = blocks
        self._parameters = {
            owner.name: storage
            for storage in graph.storages
            if storage.death is None and storage.device == graph.device
            for owner in storage.owners
            if owner.kind is OwnerKind.PARAMETER
            and owner.name in (graph.parameters or {owner.name})  # no average of the weights
        }
        self._distinct = {storage.id: storage for storage in self._parameters.values()}.values()

    def parameters(self) -> Iterator[Term]:
        count = sum(prod(storage.shape) for storage in self._distinct)
        yield Term("parameters", count, f"{len(self._distinct)} storages of parameters")

    def largest_layer(self) -> Iterator[Term]:
        layers = defaultdict[str, int](int)
        tied = {name: self._parameters[first] for name, first in self._graph.tied.items()}
        for name, storage in (self._parameters | tied).items():
            layers[name.rpartition(".")[0]] += prod(storage.shape)
        if not layers:
            raise _UnknownError("the step has no parameters")
        name, count = max(layers.items(), key=lambda item: item[1])
        yield Term("largest_layer", count, f"module {name or '(the model)'}")

    def trained(self) -> Iterator[Term]:
        trained = {
            storage.id: storage
            for name, storage in self._parameters.items()
            if self._graph.parameters.get(name)
        }
        count = sum(prod(storage.shape) for storage in trained.values())
        yield Term("trained", count, f"{len(trained)} storages of parameters")

    def saved(self) -> Iterator[Term]:
        saved = saved_for_backward(fullest_forward(self._graph), self._graph)
        yield Term("saved", saved, "saved by the forward pass")

    def buffers(self) -> Iterator[Term]:
        held = [
            storage
            for storage in self._graph.storages
            if storage.death is None
            and storage.device == self._graph.device
            and storage.owned_as(OwnerKind.BUFFER)
        ]
        count = sum(prod(storage.shape) for storage in held)
        yield Term("buffers", count, f"{len(held)} storages of buffers")

    def width(self) -> Iterator[Term]:
        widths = Counter[tuple[str, int]]()
        for storage in self._distinct:
            count = prod(storage.shape)
            widths[storage.dtype, storage.nbytes // max(1, count)] += count
        if not widths:
            raise _UnknownError("the step has no parameters")
        (dtype, width), _ = widths.most_common(1)[0]
        yield Term("width", width, f"parameters in {dtype}")

    def attention_terms(self) -> Iterator[Term]:
        if not self._blocks.attention:
            raise _UnknownError(_NO_TRANSFORMER)
        shapes = {self._four_dimensions(each) for each in self._blocks.attention}
        if len(shapes) > 1:
            listed = ", ".join(" x ".join(map(str, shape)) for shape in sorted(shapes))
            raise _UnknownError(f"attention operations differ in batch x heads x queries: {listed}")
        (shape,) = shapes
        op = self._blocks.attention[0].op
        where = f"queries of {op.target.removesuffix('.default')} in {op.module or 'the model'}"
        for name, value in zip(("batch", "heads", "sequence"), shape, strict=True):
            yield Term(name, value, where)

    def layers(self) -> Iterator[Term]:
        stacks = self._blocks.stacks
        if not stacks:
            raise _UnknownError(_NO_TRANSFORMER)
        if len(stacks) > 1:
            listed = ", ".join(f"{stack} ({count})" for stack, count in stacks.items())
            raise _UnknownError(f"several stacks of blocks, where formulas know one: {listed}")
        first, count = self._blocks.paths[0], len(self._blocks.attention)
        if not first and count > 1:
            raise _UnknownError(
                f"{count} attention operations, and no numbered modules around them"
            )
        where = (
            f"modules {first} to {self._blocks.paths[-1]}" if first else "the model is one block"
        )
        yield Term("layers", len(self._blocks.paths), where)

    def hidden(self) -> Iterator[Term]:
        if not self._blocks.attention:
            raise _UnknownError(_NO_TRANSFORMER)
        matrices = {
            name: storage.shape
            for name, storage in self._parameters.items()
            if len(storage.shape) == 2 and self._blocks.contain(name.rpartition(".")[0])
        }
        shared = set.intersection(*map(set, matrices.values())) if matrices else set[int]()
        if len(shared) == 1:
            where = f"dimension that all {len(matrices)} weight matrices of the blocks share"
            yield Term("hidden", shared.pop(), where)
            return
        norms = {
            storage.shape[0]
            for name, storage in self._parameters.items()
            if len(storage.shape) == 1 and self._is_norm_of_block(name.rpartition(".")[0])
        }
        if len(norms) != 1:
            raise _UnknownError("weights of blocks share no one dimension")
        yield Term("hidden", norms.pop(), "length of the blocks' norm weights")

    def kv_heads(self) -> Iterator[Term]:
        (hidden,) = self.hidden()
        heads = next(term.value for term in self.attention_terms() if term.name == "heads")
        attention = self._blocks.attention[0]
        columns = self._columns(attention)
        module = attention.op.module
        own = sum(
            prod(storage.shape)
            for name, storage in self._parameters.items()
            if len(storage.shape) == 2 and name.startswith(f"{module}." if module else "")
        )
        twice, rest = divmod(own, columns * hidden.value)
        count = (twice - 2 * heads) // 2
        if rest or twice % 2 or not 1 <= count <= heads or heads % count:
            raise _UnknownError(f"the weights of {module} are not those of heads that share keys")
        yield Term("kv_heads", count, f"weight matrices of {module}, heads of {columns} columns")

    def vocabulary(self) -> Iterator[Term]:
        ops = last_forward(self._graph)
        losses = [
            op
            for op in ops
            if op.target.startswith("aten._log_softmax") and not self._blocks.contain(op.module)
        ]
        if losses:
            yield Term("vocabulary", losses[-1].outputs[0].shape[-1], "classes of the log-softmax")
            return
        tables = [operand(op, 0) for op in ops if op.target.startswith("aten.embedding.")]
        rows = [table.shape[0] for table in tables if table is not None]
        if not rows:
            raise _UnknownError("the step has neither a log-softmax nor an embedding")
        yield Term("vocabulary", max(rows), "rows of the largest embedding")

    def _four_dimensions(self, attention: Attention) -> tuple[int, int, int]:
        """Batch, heads and queries of an attention operation (clause 1)."""
        if len(attention.shape) == 4:
            batch, heads, queries, _ = attention.shape
            return batch, heads, queries
        joined, queries, _ = attention.shape
        rows = Counter(
            op.outputs[0].shape[0]
            for op in last_forward(self._graph)
            if op.target.startswith(_PRODUCTS) and self._blocks.contain(op.module)
        )
        batch, rest = divmod(rows.most_common(1)[0][0] if rows else 0, queries)
        if rest or not batch or joined % batch:
            raise _UnknownError("a softmax joins batch and heads, and nothing tells them apart")
        return batch, joined // batch, queries

    def _columns(self, attention: Attention) -> int:
        """The columns of a head."""
        if attention.fused:
            queries = operand(attention.op, 0)
            if queries is not None:
                return queries.shape[-1]
        before = [
            op
            for op in last_forward(self._graph)
            if op.target.startswith(("aten.bmm", "aten.baddbmm"))
            and op.module == attention.op.module
            and op.outputs[0].shape[-2:] == attention.shape[-2:]
        ]
        position = 1 if before and before[0].target.startswith("aten.baddbmm") else 0
        queries = operand(before[0], position) if before else None
        if queries is None:
            raise _UnknownError("no product of queries and keys was found")
        return queries.shape[-1]

    def _is_norm_of_block(self, module: str) -> bool:
        kind = self._graph.modules.get(module, "")
        return "norm" in kind.lower() and self._blocks.contain(module)
