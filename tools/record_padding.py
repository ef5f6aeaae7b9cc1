"""Time products of unaligned matrices on a GPU, padded and not, as Inductor does to choose.

    python tools/record_padding.py -o padding.jsonl [--until SECONDS]

The products are those of a language model's last layer whose vocabulary is not a multiple of 8:
its result, and the gradients of its input and of its weight. Inductor's own `_should_pad`
(torch/_inductor/fx_passes/pad_mm.py) times each. A line of the result has the product's sizes and
dtype, which operands the compiler could have padded for nothing, and both times in milliseconds.
It needs torch and a GPU that nothing else uses, but not graphmem.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

VOCABULARIES = (50257, 30522, 32001, 151669, 99, 1001, 10001)
WIDTHS = (768, 2048, 4096, 128, 1024)
ROWS = (8192, 2048, 32768, 512, 120)
DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Product:
    """One product: `kind` is result, input or weight; the sizes are those of the last layer."""

    kind: str
    dtype: str
    rows: int
    width: int
    vocabulary: int

    def operands(self) -> tuple[tuple[Any, bool], tuple[Any, bool]]:
        """Two matrices on the meta device, and whether each is computed by the graph."""

        def meta(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=getattr(torch, self.dtype), device="meta")

        hidden, gradient = meta(self.rows, self.width), meta(self.rows, self.vocabulary)
        weight = meta(self.vocabulary, self.width)
        if self.kind == "result":
            return (hidden, True), (weight.t(), False)
        if self.kind == "input":
            return (gradient, True), (weight, False)
        return (gradient.t(), True), (hidden, True)


def main() -> int:
    """Time every product until the time is up; the exit code is 2 without a GPU."""
    parser = argparse.ArgumentParser(description="Time padded and unpadded products.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--until", type=float, default=1e9, help="time limit, in seconds")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: torch sees no CUDA device here", file=sys.stderr)
        return 2
    end = time.monotonic() + options.until
    with options.output.open("w") as file:
        for each in products():
            if time.monotonic() > end:
                break
            file.write(json.dumps({**asdict(each), **timed(each)}) + "\n")
            file.flush()
    return 0


def products() -> Iterator[Product]:
    """The products, the most common first."""
    sizes = list(product(enumerate(VOCABULARIES), enumerate(WIDTHS), enumerate(ROWS)))
    sizes.sort(key=lambda size: sum(rank for rank, _ in size))
    for (_, vocabulary), (_, width), (_, rows) in sizes:
        for dtype, kind in product(DTYPES, ("result", "input", "weight")):
            if rows * vocabulary < 1 << 31:
                yield Product(kind, dtype, rows, width, vocabulary)


def timed(each: Product) -> dict[str, Any]:
    """What Inductor measures and decides; nothing if it decides without measuring."""
    from torch._inductor.fx_passes import pad_mm

    taken: dict[str, Any] = {}

    def faster(key: str, plain: float, padded: float) -> bool:
        taken.update(plain=round(plain, 5), padded=round(padded, 5))
        return plain > padded * 1.1

    replaced: dict[str, Callable[..., Any]] = {
        "is_padded_faster": faster,
        "get_cached_should_pad": lambda key: None,
        "get_cached_base_mm_benchmark_time": lambda key: None,
        "set_cached_base_mm_benchmark_time": lambda key, value: None,
    }
    for name, function in replaced.items():
        setattr(pad_mm, name, function)
    try:
        taken["pads"] = inspect.unwrap(pad_mm._should_pad)(*matched(each), torch.ops.aten.mm)
    except Exception as error:  # noqa: BLE001 - recorded, as out of memory is
        taken["error"] = f"{type(error).__name__}: {error}"[:200]
    torch.cuda.empty_cache()
    return taken


def matched(each: Product) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A stand-in for the matched pattern, and its operands on the card."""
    graph = torch.fx.Graph()
    nodes, made = {}, []
    for name, (meta, is_computed) in zip(("mat1", "mat2"), each.operands(), strict=True):
        node = graph.placeholder(name)
        if is_computed:
            node = graph.call_function(torch.ops.aten.relu.default, (node,))
        node.meta["val"] = meta
        nodes[name] = node
        made.append(torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device="cuda"))
    return type("Match", (), {"kwargs": nodes}), made[0], made[1]


if __name__ == "__main__":
    sys.exit(main())
