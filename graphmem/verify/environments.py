"""Environments of other releases of torch, which trace the cases recorded on those releases.

    python -m graphmem.verify.environments RESULT < CASE

is what such an environment runs: it reads a pickled case and writes its pickled rows.
"""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from graphmem.errors import InputError
from graphmem.torch_releases import Release, installed_release, parse_release
from graphmem.verify.cases import Case
from graphmem.verify.messages import EnvironmentFailedError
from graphmem.verify.suite import Rows, rows_of

_NAME = re.compile(r"\.venv-torch-(\d+\.\d+\.\d+)")


def find_environments(folder: Path) -> dict[Release, Path]:
    """The interpreter of each environment that `make test TORCH=X.Y.Z` has made in a folder."""
    found: dict[Release, Path] = {}
    for place in sorted(folder.glob(".venv-torch-*")):
        name, python = _NAME.fullmatch(place.name), place / "bin" / "python"
        if name and python.exists():
            found[parse_release(name[1])] = python
    return found


def rows_of_own_release(case: Case, recordings: Path, environments: Mapping[Release, Path]) -> Rows:
    """The rows of a case, traced by its own release if that has an environment.

    Raises:
        InputError: the case cannot be predicted, or the interpreter failed.
    """
    release = parse_release(case.request.torch) if case.request.torch else installed_release()
    if release == installed_release() or release not in environments:
        return rows_of(case, recordings)
    return _rows_by(environments[release], case, recordings)


def _rows_by(python: Path, case: Case, recordings: Path) -> Rows:
    with TemporaryDirectory(prefix="graphmem-") as folder:
        result = Path(folder) / "rows"
        command = [str(python), "-m", "graphmem.verify.environments", str(result)]
        given = pickle.dumps((case, recordings))
        done = subprocess.run(command, input=given, capture_output=True, check=False)
        if not result.exists():
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise EnvironmentFailedError(case.name, python, *last)
        rows: Rows | InputError = pickle.loads(result.read_bytes())
    if isinstance(rows, InputError):
        raise rows
    return rows


def main() -> None:
    """Read a case from stdin, and write its rows, or the error, to the named file."""
    case, recordings = pickle.load(sys.stdin.buffer)
    rows: Rows | InputError
    try:
        rows = rows_of(case, recordings)
    except InputError as error:
        rows = InputError(str(error), hint=error.hint)
    Path(sys.argv[1]).write_bytes(pickle.dumps(rows))


if __name__ == "__main__":
    main()
