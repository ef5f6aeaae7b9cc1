"""Runs a Python program above a pretended card; tools/pretended_card/__init__.py says what."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import tools.pretended_card
from graphmem.gpus import find_gpu
from tools.pretended_card.driver import build_driver, missing_tools

_FIND_TORCH = "import importlib.util as u; print(u.find_spec('torch').origin)"


def main() -> int:
    """Build the driver, run the command; its exit code."""
    options = _parsed()
    if tools_missing := missing_tools():
        sys.exit(f"error: not installed: {', '.join(tools_missing)}")
    packages = _packages(options.python)
    with TemporaryDirectory() as name:
        driver = build_driver(Path(name), packages, find_gpu(options.gpu))
        paths = dict.fromkeys(("LD_LIBRARY_PATH", "TRITON_LIBCUDA_PATH"), name)
        environment = {**os.environ, **paths, "LD_PRELOAD": str(driver)}
        command = [options.python, *options.command]
        return subprocess.run(command, env=environment, check=False).returncode


def _packages(python: str) -> Path:
    """The folder of packages that has its torch, which must be one for CUDA."""
    done = subprocess.run([python, "-c", _FIND_TORCH], capture_output=True, text=True, check=True)
    packages = Path(done.stdout.strip()).parent.parent
    if not (packages / "torch/lib/libtorch_cuda.so").exists():
        sys.exit(f"error: the torch of {python} was built without CUDA; --python names another")
    return packages


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.pretended_card",
        description=tools.pretended_card.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gpu", default="h100-80gb", help="one that graphmem lists")
    parser.add_argument("--python", default=sys.executable, help="the one with a torch for CUDA")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a script and its arguments")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
