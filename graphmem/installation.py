"""What is installed: a digest of all that an analysis depends on, apart from its target."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import distributions
from pathlib import Path


@cache
def installation_digest() -> str:
    """A digest of Python's version, every installed package's, and graphmem's own code."""
    digest = hashlib.sha256(platform.python_version().encode())
    for name in sorted(f"{each.name}=={each.version}" for each in distributions()):
        digest.update(name.encode() + b"\0")
    package = Path(__file__).parent
    # An editable install keeps the passes next to the package.
    for folder in (package, package.parent / "passes"):
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.relative_to(package.parent).as_posix().encode() + b"\0")
            digest.update(file.read_bytes())
    return digest.hexdigest()
