"""`graphmem gpus`: the GPUs that graphmem knows by name."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from graphmem.gpus import CONTEXT_NOTE, DEFAULT_GPU, GPUS, Gpu
from graphmem.gpus.context import READINGS
from graphmem.plain_text import Console, width_for
from graphmem.units import format_bytes

SCHEMA = "graphmem.gpus/1"
_WIDTH_WITHOUT_TERMINAL = 160


def gpus(
    *,
    format: Annotated[
        Literal["text", "json"],
        typer.Option("--format", help="Output format."),
    ] = "text",
) -> None:
    """List the GPUs that --gpu accepts, with their memory and compute capability."""
    if format == "json":
        print(json.dumps(_as_json(), indent=2))
    else:
        _print_table()


def _as_json() -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "default": DEFAULT_GPU,
        "context_note": CONTEXT_NOTE,
        "gpus": [_row_as_json(gpu) for gpu in GPUS],
        "context_readings": [asdict(reading) for reading in READINGS],
    }


def _row_as_json(gpu: Gpu) -> dict[str, Any]:
    return {
        "name": gpu.name,
        "title": gpu.title,
        "aliases": list(gpu.aliases),
        "memory_bytes": gpu.memory_bytes,
        "memory_note": gpu.memory_note,
        "memory_spread_bytes": gpu.memory_spread_bytes,
        "memory_surplus_bytes": gpu.memory_surplus_bytes,
        "context_bytes": gpu.context_bytes,
        "context_spread_bytes": gpu.context_spread_bytes,
        "context_surplus_bytes": gpu.context_surplus_bytes,
        "compute_capability": list(gpu.compute_capability),
        "multiprocessors": gpu.multiprocessors,
        "max_threads_per_multiprocessor": gpu.max_threads_per_multiprocessor,
    }


def _print_table() -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("name", no_wrap=True)
    for heading in ("also", "GPU"):
        table.add_column(heading, overflow="fold")
    for heading in ("memory", "context", "sm", "SMs"):
        table.add_column(heading, justify="right", no_wrap=True)
    for gpu in GPUS:
        major, minor = gpu.compute_capability
        table.add_row(
            gpu.name,
            ", ".join(gpu.aliases),
            gpu.title,
            format_bytes(gpu.memory_bytes),
            format_bytes(gpu.context_bytes),
            f"{major}.{minor}",
            str(gpu.multiprocessors),
        )
    # Without a terminal rich would squeeze the table into 80 columns.
    console = Console(width=width_for(sys.stdout, _WIDTH_WITHOUT_TERMINAL))
    console.print(table)
    console.print(f"\ndefault: {DEFAULT_GPU}", highlight=False)
    console.print(
        "another card: --gpu name=my-card,memory=24GiB,sm=75,multiprocessors=72", highlight=False
    )
    console.print(
        "the platform: ,driver=linux or ,driver=wddm (Windows, WSL 2) after either", highlight=False
    )
    console.print("memory: torch.cuda.get_device_properties().total_memory", highlight=False)
    console.print(f"context: {CONTEXT_NOTE}", highlight=False, soft_wrap=True)
