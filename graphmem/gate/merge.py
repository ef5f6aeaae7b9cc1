"""Merge two baselines target by target: git's merge driver for `graphmem.lock`.

Clauses:
  (1) a target that only one side changed, added or removed is as on that side;
  (2) a target that both sides changed alike is as on both;
  (3) any other is a conflict of two whole entries: the merged code has not been measured, and lines
      of two entries would not make one that was.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from graphmem.gate.git import set_up_merge_driver
from graphmem.gate.lock import FILE, Entry, Lock, read_lock

COMMAND = "merge-lock"
_ATTRIBUTE = f"{FILE} merge=graphmem"

_Sides = tuple[Entry | None, Entry | None, Entry | None]


def merge_locks(base: Path, ours: Path, theirs: Path) -> str:
    """The merged baseline as text, with conflict markers around what is still to be measured.

    Raises:
        InputError: one of the files is not a baseline.
    """
    before, mine, other = (read_lock(path).targets for path in (base, ours, theirs))
    names = sorted({*before, *mine, *other})
    sides = {name: (before.get(name), mine.get(name), other.get(name)) for name in names}
    header, _, no_targets = Lock().to_toml().partition("\n\n")
    sections = list(_sections(sides)) or [no_targets.rstrip("\n")]
    return "\n\n".join([header, *sections]) + "\n"


def _is_conflict(sides: _Sides) -> bool:
    before, mine, other = sides
    return mine != other and before not in (mine, other)


def _chosen(sides: _Sides) -> Entry | None:
    before, mine, other = sides
    return other if mine == before else mine


def _sections(sides: dict[str, _Sides]) -> Iterator[str]:
    for name, each in sides.items():
        if _is_conflict(each):
            _, mine, other = each
            ours, theirs = _section(name, mine), _section(name, other)
            yield f"<<<<<<< ours\n{ours}\n=======\n{theirs}\n>>>>>>> theirs"
        elif chosen := _chosen(each):
            yield _section(name, chosen)


def _section(name: str, entry: Entry | None) -> str:
    if entry is None:
        return f"# {name} was removed"
    return Lock(targets={name: entry}).to_toml().partition("\n\n")[2].rstrip("\n")


def install_driver(root: Path) -> None:
    """Have git merge the baseline of a folder: an attribute to commit, and this clone's driver.

    Raises:
        InputError: the folder is not in a repository.
    """
    set_up_merge_driver(root, "graphmem", f"graphmem {COMMAND} %O %A %B")
    path = root / ".gitattributes"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    if _ATTRIBUTE not in lines:
        path.write_text("".join(f"{line}\n" for line in (*lines, _ATTRIBUTE)), "utf-8")
