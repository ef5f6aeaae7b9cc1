"""The repository cites nothing its reader cannot open."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.places import ROOT

_HERE = Path(__file__).relative_to(ROOT).as_posix()
_FOLDER_OF_RECORDINGS = ("shared/recordings", '"shared" / "recordings"')
_CANNOT_BE_OPENED = re.compile(
    r"cuda_memory_facts|cuda_recordings|ground_truth\.md|fact sheet|\bground truth [A-E]\b"
    r"|(?<!/)\bshared/|\(seed [0-4]\)|\bseed [0-4](?:'s| derives)|INDEX\.md of",
    re.IGNORECASE,
)
_DOC = re.compile(r"(?:docs/\s*)([a-z_]+\.md)(?:#([a-z0-9-]+)|\)?,\s+\"([^\"]+)\")?")


def _texts() -> dict[str, str]:
    """Every text file that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git repository")
    endings = (".py", ".md", ".toml", ".yml", ".yaml", "Makefile")
    names = [name for name in listed.stdout.split("\0") if name.endswith(endings)]
    return {name: (ROOT / name).read_text() for name in names if (ROOT / name).is_file()}


def _joined(text: str) -> str:
    """The text with comment signs and line breaks as one space, so that citations are unbroken."""
    return re.sub(r"\s*\n[ \t]*(?:#:? )?", " ", text)


def _headings(text: str) -> set[str]:
    return {line.lstrip("# ") for line in text.splitlines() if line.startswith("#")}


def _anchors(text: str) -> set[str]:
    slugs = {re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in _headings(text)}
    return slugs | set(re.findall(r'<a id="([^"]+)"', text))


def test_no_text_cites_a_file_that_is_not_in_the_repository() -> None:
    found = []
    for name, text in _texts().items():
        for known in _FOLDER_OF_RECORDINGS:  # where `verify` and the tests look for recordings
            text = text.replace(known, "")  # noqa: PLW2901
        found += [f"{name}: {match[0]!r}" for match in _CANNOT_BE_OPENED.finditer(_joined(text))]

    assert [line for line in found if not line.startswith(f"{_HERE}:")] == []


def test_every_page_and_heading_that_is_cited_exists() -> None:
    pages = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
    missing = []
    for name, text in _texts().items():
        for page, anchor, heading in _DOC.findall(_joined(text)):
            if page not in pages or (heading and heading not in _headings(pages[page])):
                missing.append(f"{name}: {page} {heading}")
            elif anchor and anchor not in _anchors(pages[page]):
                missing.append(f"{name}: {page}#{anchor}")

    assert [line for line in missing if not line.startswith(f"{_HERE}:")] == []


def test_links_within_the_documentation_lead_somewhere() -> None:
    missing = []
    for path in [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]:
        for target, anchor in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", path.read_text()):
            page = path.parent / target if target else path
            if not page.exists() or (anchor and anchor not in _anchors(page.read_text())):
                missing.append(f"{path.name}: {target}#{anchor}")

    assert missing == []
