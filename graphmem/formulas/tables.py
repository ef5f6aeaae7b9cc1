"""The sources' tables: DeepSpeed's, and ranks under every layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from graphmem.formulas import deepspeed, korthikanti, nanogpt, parallel_tables
from graphmem.formulas import parallel_training as parallel
from graphmem.formulas.exact import Traced
from graphmem.formulas.messages import UnevenNodesError
from graphmem.formulas.tabled import Printed, Table, Tabled, format_in, left_of_card


def hardware_of(numbers: Mapping[str, int]) -> deepspeed.Hardware:
    """The GPUs of each machine, from their total number.

    Raises:
        InputError: they cannot be spread evenly.
    """
    gpus, nodes = numbers.get("gpus", 1), numbers.get("nodes", 1)
    if gpus % nodes:
        nearest = max(nodes, round(gpus / nodes) * nodes)
        raise UnevenNodesError(gpus, nodes, nearest)
    return deepspeed.Hardware(gpus // nodes, nodes)


def _zero2(numbers: Mapping[str, int], traced: Traced | None) -> Printed:
    return _zero2_of(deepspeed.Release.DOCUMENTED, numbers)


def _zero2_current(numbers: Mapping[str, int], traced: Traced | None) -> Printed:
    return _zero2_of(deepspeed.Release.CURRENT, numbers)


def _zero2_of(release: deepspeed.Release, numbers: Mapping[str, int]) -> Printed:
    asked = numbers["parameters"], hardware_of(numbers)
    rows = deepspeed.zero2(*asked, release=release)
    return _printed(deepspeed.zero2_table(*asked, release=release), rows, numbers)


def _zero3(numbers: Mapping[str, int], traced: Traced | None) -> Printed:
    asked = numbers["parameters"], numbers["largest_layer"], hardware_of(numbers)
    return _printed(deepspeed.zero3_table(*asked), deepspeed.zero3(*asked), numbers)


def _zero3_cases(numbers: Mapping[str, int], traced: Traced | None) -> Printed:
    asked = numbers["parameters"], numbers["largest_layer"], hardware_of(numbers).gpus
    cases = {f"case{i}": case for i, case in enumerate(deepspeed.zero3_case_bytes(*asked), 1)}
    return Printed(deepspeed.zero3_cases(*asked), left=left_of_card(numbers, cases))


def _printed(text: str, rows: Sequence[deepspeed.Estimate], numbers: Mapping[str, int]) -> Printed:
    return Printed(text, tuple(rows), left_of_card(numbers, {row.options: row.gpu for row in rows}))


_BLOCKS = ("batch", "sequence", "hidden", "heads", "layers")


def _recomputation(numbers: Mapping[str, int], traced: Traced | None) -> Table:
    rows = korthikanti.per_rank(
        **{name: numbers[name] for name in _BLOCKS}, tp=numbers.get("tp", 1)
    )
    left = left_of_card(numbers, rows)
    return Table(("activations",), {name: (nbytes,) for name, nbytes in rows.items()}, left=left)


def _linear_layers(numbers: Mapping[str, int], traced: Traced | None) -> Table:
    layers = numbers["layers"]
    budget, weight = nanogpt.queries_keys_values(
        **{name: numbers[name] for name in ("batch", "sequence", "hidden")}
    )
    rows: dict[str, tuple[Fraction | int, ...]] = {
        "Q, K and V, as budgeted: 2·N_e": (budget, 0, layers * budget),
        "with the fp16 weight: 2·N_e + 6·h²": (budget + weight, weight, layers * (budget + weight)),
    }
    if traced is not None:
        rows |= {f"the traced step, {name}": row for name, row in traced.linear_layers().items()}
    found = {name: tuple(map(Fraction, row)) for name, row in rows.items()}
    return Table(("a block", "of it weights", "all blocks"), found, unit="MiB")


def _largest_model(numbers: Mapping[str, int], traced: Traced | None) -> Table:
    gpus, memory = hardware_of(numbers).gpus, numbers["memory"]
    others = {"largest P": 0}
    if "others" in numbers:
        others[f"beside {format_in('GB', Fraction(numbers['others']), digits=1)} GB"] = numbers[
            "others"
        ]
    layer = numbers.get("largest_layer", 0)
    rows = {
        name: tuple(
            Fraction(cost.largest(memory - other, gpus, layer)) for other in others.values()
        )
        for name, cost in deepspeed.COSTS.items()
        if layer or not cost.layer
    }
    return Table(tuple(others), rows, counts=frozenset(others))


def _pinned(numbers: Mapping[str, int], traced: Traced | None) -> Table:
    rows = {
        f"{name}: {each}·P": (Fraction(each * numbers["parameters"]),)
        for name, each in deepspeed.PINNED.items()
    }
    return Table(("pinned",), rows)


TABLES: Sequence[Tabled] = (
    Tabled(
        "deepspeed-zero2-table",
        f"ZeRO-2, as DeepSpeed {deepspeed.Release.DOCUMENTED} and its documentation print it",
        deepspeed.SOURCE,
        ("parameters",),
        _zero2,
    ),
    Tabled(
        "deepspeed-zero2-current",
        f"ZeRO-2, as DeepSpeed {deepspeed.Release.CURRENT} prints it",
        deepspeed.SOURCE,
        ("parameters",),
        _zero2_current,
    ),
    Tabled(
        "deepspeed-zero3-table",
        "ZeRO-3, as DeepSpeed prints it",
        deepspeed.SOURCE,
        ("parameters", "largest_layer"),
        _zero3,
    ),
    Tabled(
        "deepspeed-zero3-cases",
        "ZeRO-3, as the script of DeepSpeed's documentation prints it",
        deepspeed.SOURCE,
        ("parameters", "largest_layer"),
        _zero3_cases,
    ),
    Tabled(
        "deepspeed-largest-model",
        "The formulas for a GPU inverted: the most parameters on a card",
        deepspeed.SOURCE,
        ("memory",),
        _largest_model,
    ),
    Tabled(
        "deepspeed-pinned",
        "Host memory that is pinned under ZeRO-3 with offloading",
        deepspeed.SOURCE,
        ("parameters",),
        _pinned,
    ),
    Tabled(
        "nanogpt-linear-layers",
        "Memory that linear layers allocate in the forward pass and leave alive",
        nanogpt.SOURCE,
        _BLOCKS,
        _linear_layers,
    ),
    Tabled(
        "korthikanti-recomputation",
        "Activations of all blocks on one of TP ranks",
        f"{korthikanti.SOURCE}, table 2",
        _BLOCKS,
        _recomputation,
    ),
    Tabled(
        "parallel-layouts",
        "One rank in mixed precision under every parallelism",
        parallel.SOURCE,
        ("parameters", *_BLOCKS),
        parallel_tables.layouts,
        of_degrees=True,
    ),
    Tabled(
        "parallel-all-gpus",
        "All GPUs together, mixed precision",
        parallel.SOURCE,
        ("parameters", *_BLOCKS),
        parallel_tables.all_gpus,
        of_degrees=True,
    ),
    Tabled(
        "parallel-llama-3",
        f"{parallel.LLAMA_3.name}, by steps from the article's example to the traced step",
        parallel.SOURCE,
        ("parameters", *_BLOCKS),
        parallel_tables.llama_3,
        of_degrees=True,
    ),
    Tabled(
        "parallel-checkpointing",
        "The example's rank with activation checkpointing: M_a over AC as well",
        parallel.SOURCE,
        ("parameters", *_BLOCKS),
        parallel_tables.checkpointing,
        of_degrees=True,
    ),
)
