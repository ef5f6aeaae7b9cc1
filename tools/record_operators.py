"""Record what each operator allocates on a real GPU, call by call.

    python tools/record_operators.py -o operators.jsonl [--part 0/4] [--opinfo SAMPLES]
    python tools/record_operators.py -o rules.jsonl --fixture recorded_rules

The calls are those of `fixtures/recorded_operators.py`, or of another fixture. It needs torch and
a GPU but not graphmem.
A line of the result is one call in one dtype: the events of two steps as rows [action, bytes,
ordinal, site] as in `tools/record_cuda.py`, and how many of them belong to the first step; or the
error that the call raised.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DTYPES = ("float32", "bfloat16")


def main() -> int:
    """Record every call of this part; the exit code is 2 without a GPU."""
    parser = argparse.ArgumentParser(description="Record the allocations of each operator.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--part", default="0/1", help="a part, such as 0/4 (default: 0/1)")
    parser.add_argument("--opinfo", type=int, default=0, help="samples of each OpInfo (default: 0)")
    parser.add_argument("--fixture", default="recorded_operators", help="a file of fixtures/")
    parser.add_argument("--only", default="", help="calls whose name contains this text")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "fixtures")]
    import torch

    from tools import record_cuda

    if not torch.cuda.is_available():
        print("error: torch sees no CUDA device here", file=sys.stderr)
        return 2
    record_cuda.stand_in()
    fixture = importlib.import_module(options.fixture)
    number, parts = map(int, options.part.split("/"))
    chosen = list(wanted(fixture, options))[number::parts]
    with options.output.open("w") as file:
        for name, dtype, sample in chosen:
            row = record(fixture, name, dtype, sample)
            file.write(json.dumps({"call": name, "dtype": dtype, "sample": sample, **row}) + "\n")
            file.flush()
    return 0


def wanted(fixture: Any, options: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Every call, dtype and sample number."""
    for name in fixture.CALLS:
        for dtype in DTYPES:
            if options.only in name:
                yield name, dtype, 0
    if options.opinfo:
        import torch

        for info in fixture.operators():
            for dtype in DTYPES:
                if getattr(torch, dtype) in info.supported_dtypes("cuda"):
                    name = f"opinfo:{info.name}:{info.variant_test_name}"
                    for sample in range(options.opinfo):
                        if options.only in name:
                            yield name, dtype, sample


def record(fixture: Any, name: str, dtype: str, sample: int) -> dict[str, Any]:
    """The events of one call, in two steps."""
    import torch

    try:
        step = fixture.build(call=name, dtype=dtype, sample=sample)
        gc.collect()
        torch.cuda.synchronize()
        history = torch.cuda.memory._record_memory_history
        history(enabled="all", stacks="python", clear_history=True)
        step.step()
        torch.cuda.synchronize()
        first = len(events_now())
        step.step()
        torch.cuda.synchronize()
        events = events_now()
        history(enabled=None)
    except Exception as error:  # noqa: BLE001 - whatever this call raises, the next one is recorded
        torch.cuda.memory._record_memory_history(enabled=None)
        text = "".join(traceback.format_exception_only(error)).strip()
        return {"error": text[:500]}
    return {"first": first, "events": events}


def events_now() -> list[list[Any]]:
    """The allocations and frees recorded so far."""
    import torch

    from tools import record_cuda

    ordinals: dict[int, int] = {}
    rows: list[list[Any]] = []
    count = 0
    for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
        if entry["action"] == "alloc":
            ordinals[entry["addr"]] = count
            count += 1
            where = record_cuda.site(entry.get("frames", ()))
            rows.append(["a", entry["size"], ordinals[entry["addr"]], where])
        elif entry["action"] == "free_completed":
            rows.append(["f", entry["size"], ordinals.get(entry["addr"], -1)])
    return rows


if __name__ == "__main__":
    sys.exit(main())
