"""Give a release its address: `python -m tools.release_links https://github.com/OWNER/NAME v1.0`.

Run by the release workflow, which knows where the repository is, before the package is built. It
changes two files, which are not committed:

  (1) pyproject.toml gets `[project.urls]`;
  (2) the README's links into the repository, which work on its own page, become absolute, so that
      they work on PyPI too; pictures link to their bytes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(!?)(\[[^]]*\])\((?!https?://|#)([^)]+)\)")


def main(address: str, tag: str, root: Path = ROOT) -> None:
    """Change the files of a checkout.

    Args:
        address: the repository's page.
        tag: the release's tag; links lead to the files as it has them.
        root: the checkout.
    """
    project, readme = root / "pyproject.toml", root / "README.md"
    project.write_text(f"{project.read_text()}\n{_urls(address, tag)}")
    readme.write_text(_LINK.sub(lambda link: _absolute(link, address, tag), readme.read_text()))


def _urls(address: str, tag: str) -> str:
    pages = {
        "Homepage": address,
        "Documentation": f"{address}/tree/{tag}/docs",
        "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }
    return "[project.urls]\n" + "".join(f'{name} = "{page}"\n' for name, page in pages.items())


def _absolute(link: re.Match[str], address: str, tag: str) -> str:
    picture, text, path = link.groups()
    return f"{picture}{text}({address}/{'raw' if picture else 'blob'}/{tag}/{path})"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
