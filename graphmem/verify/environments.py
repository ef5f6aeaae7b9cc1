"""Environments of other releases of torch, which trace the cases recorded on those releases.

    python -m graphmem.verify.environments RESULT < CASE

is what such an environment runs: it reads a pickled case and writes its pickled rows.
"""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from graphmem.errors import InputError
from graphmem.torch_releases import Release, parse_release
from graphmem.verify.cases import Case
from graphmem.verify.messages import EnvironmentFailedError

_NAME = re.compile(r"\.venv-torch-(\d+\.\d+\.\d+)")


def find_environments(folder: Path) -> dict[Release, Path]:
    """The interpreter of each environment that `make test TORCH=X.Y.Z` has made in a folder."""
    found: dict[Release, Path] = {}
    for place in sorted(folder.glob(".venv-torch-*")):
        name, python = _NAME.fullmatch(place.name), place / "bin" / "python"
        if name and python.exists():
            found[parse_release(name[1])] = python
    return found


def rows_by(python: Path, case: Case, recordings: Path) -> list[Any]:
    """The rows of a case, traced by the torch of an interpreter's environment.

    Raises:
        InputError: the case cannot be predicted there, or the interpreter failed.
    """
    with TemporaryDirectory(prefix="graphmem-") as folder:
        result = Path(folder) / "rows"
        command = [str(python), "-m", "graphmem.verify.environments", str(result)]
        given = pickle.dumps((case, recordings))
        done = subprocess.run(command, input=given, capture_output=True, check=False)
        if not result.exists():
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise EnvironmentFailedError(case.name, python, *last)
        rows: list[Any] | InputError = pickle.loads(result.read_bytes())
    if isinstance(rows, InputError):
        raise rows
    return rows


def main() -> None:
    """Read a case from stdin, and write its rows, or the error, to the named file."""
    from graphmem.verify.suite import rows_of

    case, recordings = pickle.load(sys.stdin.buffer)
    rows: list[Any] | InputError
    try:
        rows = rows_of(case, recordings)
    except InputError as error:
        rows = InputError(str(error), hint=error.hint)
    Path(sys.argv[1]).write_bytes(pickle.dumps(rows))


if __name__ == "__main__":
    main()
