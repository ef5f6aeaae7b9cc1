"""`python -m graphmem.torch_releases`: whether graphmem works with the installed PyTorch."""

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
    written,
)


def main() -> int:
    """Print what is missing and what does not work without it; 0 fine, 1 not, 2 too old."""
    release = installed_release()
    try:
        check_supported(release)
    except InputError as error:
        sys.stderr.write(f"error: {error}\nhint: {error.hint}\n")
        return error.exit_code
    missing = list(missing_names(release))
    for name, row in missing:
        sys.stdout.write(f"{name} is missing, without which there is not: {row.without}\n")
    newer = f", newer than {written(NEWEST_TRIED)}, the last that was tried"
    count = sum(len(row.names.split()) for row in MANIFEST)
    sys.stdout.write(
        f"torch {torch.__version__}{newer if release > NEWEST_TRIED else ''}: "
        f"{len(missing)} of {count} names are missing\n"
    )
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
