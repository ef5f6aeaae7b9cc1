"""Print the lowest version of every dependency, as constraints: `make test RESOLUTION=lowest`.

It omits torch, which `make test TORCH=2.9.1` chooses, and the test tools.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)")


def lowest(project: Path = PROJECT) -> list[str]:
    """The constraints, such as "numpy==1.26"."""
    told = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    extras = told["optional-dependencies"]
    wanted = [
        *told["dependencies"],
        *(each for name in extras if name != "dev" for each in extras[name]),
    ]
    found = (_REQUIREMENT.match(each) for each in wanted)
    return [f"{match[1]}=={match[2]}" for match in found if match and match[1] != "torch"]


if __name__ == "__main__":
    print("\n".join(lowest()))
