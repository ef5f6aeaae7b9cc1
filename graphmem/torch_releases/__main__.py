"""`python -m graphmem.torch_releases`: check whether graphmem works with the installed PyTorch."""

from __future__ import annotations

import sys

import torch

from graphmem.errors import InputError
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.differences import NEWEST_TRIED
from graphmem.torch_releases.manifest import (
    MANIFEST,
    check_supported,
    missing_names,
)
from graphmem.torch_releases.release import written


def main() -> int:
    """Print what is missing and what that breaks; returns 0: nothing, 1: something, 2: too old."""
    release = installed_release()
    try:
        check_supported(release)
    except InputError as error:
        sys.stderr.write(f"error: {error}\nhint: {error.hint}\n")
        return error.exit_code
    missing = list(missing_names(release))
    for name, row in missing:
        sys.stdout.write(f"{name} is missing, which breaks {row.without}\n")
    newer = f", newer than {written(NEWEST_TRIED)}, the last one tried"
    count = sum(len(row.names.split()) for row in MANIFEST)
    sys.stdout.write(
        f"torch {torch.__version__}{newer if release > NEWEST_TRIED else ''}: "
        f"{len(missing)} of {count} names are missing\n"
    )
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
