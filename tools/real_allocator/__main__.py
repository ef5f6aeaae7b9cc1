"""Compares over many seeds; tools/real_allocator/__init__.py says what."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import tools.real_allocator
from graphmem.torch_releases import parse_release
from graphmem.torch_releases.differences import Release
from tools.real_allocator.cases import difference
from tools.real_allocator.driver import build_driver, missing_tools
from tools.real_allocator.libraries import Libraries, installed_libraries, libraries_in
from tools.real_allocator.modes import MODES


def main() -> int:
    """Compare, with a line for each mode; returns 1 if anything differs."""
    options = _parsed()
    if tools_missing := missing_tools():
        sys.exit(f"error: not installed: {', '.join(tools_missing)}")
    with TemporaryDirectory() as name:
        folder = Path(name)
        libraries = _libraries(options.wheel, folder)
        if symbols_missing := libraries.missing():
            sys.exit(f"error: {libraries.cuda} lacks {', '.join(symbols_missing)}")
        build_driver(folder, libraries.runtime)
        seeds = range(options.seed, options.seed + options.seeds)
        modes = options.modes or [name for name, mode in MODES.items() if mode.suits(libraries)]
        return max([_compared(libraries, folder, mode, seeds, options.rules) for mode in modes])


def _compared(
    libraries: Libraries, driver: Path, mode: str, seeds: range, rules: Release | None
) -> int:
    found = list(filter(None, (difference(libraries, driver, mode, seed, rules) for seed in seeds)))
    print(*found, sep="", end="")
    release = "torch {}.{}".format(*libraries.release)
    print(f"{release}, {mode}: {len(found)} of {len(seeds)} cases differ", flush=True)
    return int(bool(found))


def _libraries(wheel: Path | None, folder: Path) -> Libraries:
    if wheel is not None:
        return libraries_in(wheel, folder)
    return installed_libraries() or sys.exit(
        "error: the installed torch was built without CUDA; --wheel takes one that was not"
    )


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.real_allocator",
        description=tools.real_allocator.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("modes", nargs="*", metavar="MODE", help=f"of {', '.join(MODES)}")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="a wheel of torch for CUDA")
    parser.add_argument(
        "--rules",
        type=parse_release,
        metavar="RELEASE",
        help="what graphmem follows; the allocator's own release unless given",
    )
    parser.add_argument("--seeds", type=int, default=12, metavar="N", help="cases of each mode")
    parser.add_argument("--seed", type=int, default=0, metavar="FIRST", help="that of the first")
    options = parser.parse_args()
    if unknown := set(options.modes) - MODES.keys():
        parser.error(f"no such mode: {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    sys.exit(main())
