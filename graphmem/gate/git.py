"""The gate's git queries."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graphmem.errors import InputError
from graphmem.gate.messages import GitFailedError, NoGitError, NotRevisionsError


def changed_files(root: Path, revision: str) -> frozenset[str]:
    """Files below a folder that differ from a revision, including untracked ones.

    Raises:
        InputError: the folder is not in a repository, or there is no such revision.
    """
    known = _git(root, "diff", "--name-only", "--no-renames", "--relative", "-z", revision, "--")
    unknown = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return frozenset(filter(None, f"{known}{unknown}".split("\0")))


def tracked_files(root: Path) -> list[str] | None:
    """The files below a folder that git tracks or could track; None outside a repository."""
    try:
        listed = _git(root, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    except InputError:
        return None
    return sorted(filter(None, listed.split("\0")))


def tracked_below(root: Path, folder: str) -> frozenset[str] | None:
    """Files that git tracks below `root/folder`, ignoring case, in lower case.

    None if there is a repository but git fails; without a repository nothing is tracked.
    """
    try:
        listed = _git(root, "ls-files", "-z", "--", f":(icase){folder}")
    except InputError:
        has_repository = any((each / ".git").exists() for each in (root, *root.parents))
        return None if has_repository else frozenset()
    return frozenset(filter(None, listed.lower().split("\0")))


def set_up_merge_driver(root: Path, name: str, command: str) -> None:
    """Define a merge driver in the configuration of this clone.

    Raises:
        InputError: the folder is not in a repository.
    """
    _git(root, "config", "--local", f"merge.{name}.driver", command)


@contextmanager
def worktree(root: Path, revision: str) -> Iterator[Path]:
    """Check out the folder at a revision in a temporary worktree.

    Raises:
        InputError: there is no such revision, or git cannot check it out.
    """
    prefix = _git(root, "rev-parse", "--show-prefix").strip()
    with tempfile.TemporaryDirectory(prefix="graphmem-") as folder:
        place = Path(folder).resolve() / "tree"
        _git(root, "worktree", "add", "--detach", str(place), revision)
        try:
            yield place / prefix
        finally:
            _git(root, "worktree", "remove", "--force", str(place))


def revisions_of(span: str) -> tuple[str, str]:
    """The two ends of `main..HEAD`; an omitted end is HEAD.

    Raises:
        InputError: the text does not name two revisions.
    """
    base, dots, head = span.partition("..")
    if not dots or head.startswith(".") or not (base or head):
        raise NotRevisionsError(span)
    return base or "HEAD", head or "HEAD"


def _git(root: Path, *arguments: str) -> str:
    try:
        finished = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise NoGitError(error.strerror) from error
    if finished.returncode:
        reason = finished.stderr.strip().splitlines() or ["git failed"]
        text = reason[-1].removeprefix("fatal: ")
        hint = _how_to_fetch(root) if "revision" in text else None
        raise GitFailedError(arguments[0], text, hint)
    return finished.stdout


def _how_to_fetch(root: Path) -> str:
    """A hint for a missing revision: a shallow clone has only one."""
    ask = ["git", "-C", str(root), "rev-parse", "--is-shallow-repository"]
    answer = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
    if answer == "true":
        return (
            "this clone is shallow: `git fetch --unshallow`, or fetch-depth: 0 of actions/checkout"
        )
    return "`git fetch` it, or name another revision"
