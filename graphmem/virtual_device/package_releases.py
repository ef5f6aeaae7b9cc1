"""Which releases of a package call kernels that have rules."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from graphmem.virtual_device.messages import UnsupportedReleaseError


def check_release(package: str, oldest: str, install: str | None = None) -> None:
    """Refuse an installed release that is too old; a package that is not installed is fine.

    Args:
        package: its name, as `pip` knows it.
        oldest: the first release that calls these kernels.
        install: the command that installs a newer one; by default pip's.

    Raises:
        InputError: the installed release is older.
    """
    try:
        found = version(package)
    except PackageNotFoundError:
        return
    if _numbers(found) < _numbers(oldest):
        raise UnsupportedReleaseError(package, found, oldest, install)


def _numbers(release: str) -> list[int]:
    """The first three numbers: of 1.5.0.post8, 1, 5 and 0; of 2.7, as in PEP 440, 2, 7 and 0."""
    return [int(number) for number in [*re.findall(r"\d+", release), 0, 0][:3]]
