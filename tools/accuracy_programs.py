"""Write docs/accuracy_programs.md: recorded scripts and ranks, with their predictions.

    python -m tools.accuracy_programs [real] [ranks] [--jobs 2] [--only PATTERN]

The recorder runs under `graphmem run` as it ran on the card, with the arguments that are in the
recording. Use the release of the recordings, torch 2.11, with transformers 5.17, timm 1.0.29 and
torch_geometric. Rows that were not asked for stay as they are on the page.

Frees between two allocations count as a set: their order is that of a hash table (autocast's) or of
another thread. Compiled programs time kernels, as often as the clock allows, so what is predicted
of them must occur in the recording in order.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CUDA = ROOT / "fixtures" / "cuda"
PAGE = ROOT / "docs" / "accuracy_programs.md"
ENDING = ".events.json.gz"
SECTIONS = {
    "real": "Programs (`fixtures/real`)",
    "ranks": "Ranks (`fixtures/ranks`)",
}
HEAD = "| recording | card | allocations | predicted | peak | error | reserved: error |"
RULE = "| --- | --- | ---: | --- | ---: | ---: | ---: |"
PREFACE = """# Accuracy of whole programs

This page is written by `python -m tools.accuracy_programs`.

Scripts that ran on an NVIDIA H200 (`h200`) or H100 80GB HBM3 (`h100-80gb`) under
`tools/record_cuda.py`, on torch 2.11.0+cu130; what graphmem predicts of them, on the same releases
without a card. *Equal*: every allocation, in order, and which memory was freed between one and the
next; *frees late*: that memory was freed N times at another moment, as it is when another stream or
a thread of NCCL uses it. Otherwise the first allocation that differs. *In order*: all of what was
predicted occurs in the recording of a compiled program, which times kernels as well. Errors are
predicted minus recorded, in bytes. In reserved bytes they are the speed of the card: the verdict of
a run says how many bytes other streams may keep ([cuda_api](cuda_api.md)).
"""
_NEEDS_ALL = re.compile("join|grouped_experts|collectives_more|experts_functional_fixed")


class Moment(NamedTuple):
    """An allocation, where it was made, and which earlier ones were freed since the last one."""

    freed: tuple[int, ...]
    nbytes: int
    site: str


@dataclass(frozen=True)
class Recording:
    """A recorded program.

    Attributes:
        path: its file.
        content: what is in it.
    """

    path: Path
    content: dict[str, Any]

    @property
    def name(self) -> str:
        """What its file is named after."""
        return self.path.name.removesuffix(ENDING)

    @property
    def gpu(self) -> str:
        """The card, as `--gpu` names it."""
        return "h200" if "H200" in self.content["gpu"] else "h100-80gb"

    def predicted(self, folder: Path) -> dict[str, Any]:
        """What the recorder writes under graphmem."""
        rank, made = self.content["rank"], folder / "predicted"
        options = ["--gpu", self.gpu, "--torch", "2.11"]
        for name, value in self.content["environment"].items():
            if "ALLOC_CONF" in name:
                options += ["--env", f"{name}={value}"]
        if rank is not None:
            asked = "all" if _NEEDS_ALL.search(self.name) else rank
            options += ["--nproc-per-node", self.content["world_size"], "--rank", asked]
            made = folder / f"predicted.rank{rank}"
        recorder = ["tools/record_cuda.py", "--no-snapshot", "-o", str(folder / "predicted")]
        command = [sys.executable, "-m", "graphmem", "run", *options, *recorder]
        subprocess.run(
            [*command, self.content["target"], *self.content["arguments"]],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        text = made.with_name(f"{made.name}.events.json").read_text()
        content: dict[str, Any] = json.loads(text)
        return content


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; the exit code is 0."""
    parser = argparse.ArgumentParser(description="Write the page of recorded programs.")
    parser.add_argument("sections", nargs="*", default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="*", help="names of recordings (default: all)")
    options = parser.parse_args(arguments)
    known = dict(re.findall(r"^\| (\S+) (\|.*)$", PAGE.read_text() if PAGE.exists() else "", re.M))
    text = PREFACE
    for folder, title in SECTIONS.items():
        paths = sorted((CUDA / folder).glob(f"*{ENDING}"))
        names = [path.name.removesuffix(ENDING) for path in paths]
        chosen = [
            path
            for path, name in zip(paths, names, strict=True)
            if folder in options.sections and fnmatch.fnmatch(name, options.only)
        ]
        with ThreadPoolExecutor(options.jobs) as pool:
            known |= dict(pool.map(row_of, chosen))
        rows = [f"| {name} {known[name]}" for name in names if name in known]
        text += "\n".join([f"\n## {title}\n", HEAD, RULE, *rows, "", *summary(rows)]) + "\n"
    PAGE.write_text(text)
    return 0


def summary(rows: Sequence[str]) -> Iterator[str]:
    """How many are equal."""
    cells = [row.split(" | ") for row in rows]
    same = sum(each[3].startswith(("equal", "in order")) for each in cells)
    peaks = sum(each[5] == "+0" for each in cells)
    yield f"Of {len(rows)}, {same} are equal or in order, and {peaks} in the peak."


def row_of(path: Path) -> tuple[str, str]:
    """The name of a recording, and the rest of its row."""
    recording = Recording(path, json.loads(gzip.decompress(path.read_bytes())))
    last = recording.content["marks"][-1]
    print(recording.name, file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        try:
            predicted = recording.predicted(Path(folder))
        except (subprocess.CalledProcessError, OSError) as error:
            why = " ".join(str(getattr(error, "stderr", b"") or error).split())[-80:]
            return recording.name, f"| {recording.gpu} |  | not predicted: {why} |  |  |  |"
    ended = predicted["marks"][-1]
    card, here = moments(recording.content), moments(predicted)
    cells = [recording.gpu, f"{len(card) - 1:,}", comparison(card, here)]
    cells += [f"{last['max_allocated']:,}"]
    cells += [f"{ended[key] - last[key]:+,}" for key in ("max_allocated", "max_reserved")]
    return recording.name, f"| {' | '.join(cells)} |"


def comparison(card: Sequence[Moment], here: Sequence[Moment]) -> str:
    """The cell of a table that says whether two programs allocate the same."""
    pairs = zip(card, here, strict=False)
    first = next((i for i, (one, other) in enumerate(pairs) if one.nbytes != other.nbytes), None)
    if first is None and len(card) == len(here):
        late = sum(one.freed != other.freed for one, other in zip(card, here, strict=True))
        return f"equal, {late} frees late" if late else "equal"
    remaining = iter(each.nbytes for each in card)
    if all(each.nbytes in remaining for each in here[:-1]):
        return f"in order, with {len(card) - len(here):,} more on the card"
    at = min(len(card), len(here)) - 1 if first is None else first
    place = re.split(r"(?<!:)<", card[at].site)[0]
    return f"from {at:,}: {card[at].nbytes:,} at `{place}`, not {here[at].nbytes:,}"


def moments(content: dict[str, Any]) -> list[Moment]:
    """Each allocation of a program, and its end."""
    found: list[Moment] = []
    numbers: dict[int, int] = {}
    freed: list[int] = []
    for action, nbytes, ordinal, *rest in content["events"]:
        if action == "a" and nbytes:
            numbers[ordinal] = len(found)
            found.append(Moment(tuple(sorted(freed)), nbytes, content["sites"][rest[0]]))
            freed = []
        elif action == "f" and ordinal in numbers:
            freed.append(numbers[ordinal])
    return [*found, Moment(tuple(sorted(freed)), 0, "the end")]


if __name__ == "__main__":
    sys.exit(main())
