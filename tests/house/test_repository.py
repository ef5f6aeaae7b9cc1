"""Packaging: the wheel and the editable install."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from graphmem.version import __version__
from tests.support.packaging import copied_sources
from tests.support.places import ROOT
from tools.release_links import main


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that the work tree stays clean."""
    source = copied_sources(tmp_path_factory.mktemp("source"))
    target = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", target, source], check=True)
    [built] = target.glob("graphmem-*.whl")
    return built


def _python_files() -> list[Path]:
    return [file for folder in ("graphmem", "passes") for file in (ROOT / folder).rglob("*.py")]


def _installed(path: Path) -> Path:
    """The installed path of a file or folder: passes/ moves below graphmem/."""
    inside = path.relative_to(ROOT)
    return "graphmem" / inside if inside.parts[0] == "passes" else inside


def python(*arguments: str, cwd: Path) -> str:
    """What Python prints when run outside the repository."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=True
    ).stdout


def test_every_package_is_listed(project: dict[str, Any]) -> None:
    """An unlisted folder with Python files would be missing from the wheel."""
    folders = {file.parent for file in _python_files()}
    packages = {".".join(_installed(folder).parts) for folder in folders}

    assert set(project["tool"]["setuptools"]["packages"]) == packages


def test_every_package_says_so() -> None:
    folders = {file.parent for file in _python_files()}

    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_wheel_has_every_module_the_man_page_and_nothing_else(wheel: Path) -> None:
    modules = {_installed(file).as_posix() for file in _python_files()}
    page = {file.relative_to(ROOT).as_posix() for file in (ROOT / "graphmem/render/page").iterdir()}
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}

    man = f"graphmem-{__version__}.data/data/share/man/man1/graphmem.1"
    measured = "graphmem/passes/kernels/convolutions.txt.gz"
    assert files == modules | page | {"graphmem/py.typed", man, measured}


def test_the_wheel_carries_licence_and_entry_points(wheel: Path, project: dict[str, Any]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [licence] = [name for name in archive.namelist() if name.endswith("/LICENSE")]
        [entry_points] = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        registered = archive.read(entry_points).decode()

    assert ".dist-info/" in licence
    assert "graphmem = graphmem.cli:main" in registered
    for group in project["project"]["entry-points"]:
        assert f"[{group}]" in registered


def test_the_passes_of_the_wheel_import_as_graphmem_passes(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); sys.meta_path[:] = "
        "[finder for finder in sys.meta_path if 'editable' not in repr(finder)]; "
        "import graphmem.passes; print(graphmem.passes.__file__)"
    )

    found = Path(python("-I", "-c", script, cwd=tmp_path).strip())

    assert found == tmp_path / "site/graphmem/passes/__init__.py"


def test_the_suite_of_an_installed_package_says_what_it_needs(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); sys.meta_path[:] = "
        "[finder for finder in sys.meta_path if 'editable' not in repr(finder)]; "
        "from graphmem.cli import main; sys.exit(main(['verify', '--suite']))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    first, *hints = done.stderr.splitlines()
    assert first == (
        "error: the case files of the suite come with graphmem's repository, not with the package"
    )
    assert "--cases DIR --recordings DIR" in " ".join(hints)


def test_the_editable_install_maps_passes_and_leaves_their_name_free(tmp_path: Path) -> None:
    script = (
        "import importlib.util, graphmem.passes; "
        "print(graphmem.passes.__file__, importlib.util.find_spec('passes'))"
    )

    assert python("-c", script, cwd=tmp_path) == f"{ROOT / 'passes/__init__.py'} None\n"


def test_the_version_is_written_once(project: dict[str, Any]) -> None:
    assert project["project"]["dynamic"] == ["version"]
    assert "version" not in project["project"]


def test_make_test_installs_torch_alone_and_first() -> None:
    """`pip install torch` together with other packages may fetch gigabytes of CUDA libraries."""
    recipe = [
        line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("\t")
    ]
    commands = [line.split("$(PIP) ")[1] for line in recipe if "$(PIP) " in line]

    assert not [line for line in recipe if "pip install" in line]

    assert commands == [
        "torch==$(or $(TORCH),2.13.0)",
        "triton==$(or $(TRITON),3.7.1)",
        "$(if $(RESOLUTION),-c $(VENV)/constraints.txt) -e '.[dev,transformers]' 'transformers<5'",
        '--no-deps "xformers==0.0.35; $(XFORMERS_WHEELS)")',
    ]


def test_every_action_is_pinned_to_a_commit() -> None:
    files = [ROOT / "action.yml", *(ROOT / ".github" / "workflows").glob("*.yml")]
    used = [each for file in files for each in re.findall(r"uses: (\S+)", file.read_text())]

    assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each)] == []


def test_the_citation_has_the_version() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_a_release_links_to_its_repository(tmp_path: Path) -> None:
    """The wheel's metadata, after the release workflow has said where the repository is."""
    address = "https://git.example/someone/graphmem"
    source = copied_sources(tmp_path / "source")
    main(address, "v9", source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", tmp_path, source], check=True)

    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        text = archive.read(metadata).decode()
    assert f"Project-URL: Issues, {address}/issues\n" in text
    assert f"({address}/blob/v9/docs/exactness.md)" in text
    assert f"({address}/raw/v9/docs/images/page-gpt2-1400-light.png)" in text
    assert re.findall(r"\]\((?!https?://|#)", text) == []
