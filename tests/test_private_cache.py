"""A cache whose content is executed is only read where nobody else can have written it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graphmem.private_cache import PrivateCache, users_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "graphmem"


@pytest.fixture
def cache(folder: Path) -> PrivateCache:
    made = PrivateCache(folder, most_bytes=1000)
    made.write("entry", b"content")
    assert made.read("entry") == b"content"
    return made


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nobody_else_can_read_or_write_it(folder: Path, cache: PrivateCache) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "entry").stat().st_mode & 0o777 == 0o600
    assert names_in(folder) == ["entry"]  # nothing temporary is left


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_not_read(
    folder: Path, cache: PrivateCache, mode: int
) -> None:
    (folder / "entry").chmod(mode)

    assert cache.read("entry") is None


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777])
def test_a_folder_that_others_may_write_is_not_used(
    folder: Path, cache: PrivateCache, mode: int
) -> None:
    folder.chmod(mode)
    cache.write("other", b"content")

    assert cache.read("entry") is None
    assert names_in(folder) == ["entry"]


def test_nothing_of_another_user_is_read(
    cache: PrivateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)

    assert cache.read("entry") is None


def test_links_are_not_followed(folder: Path, cache: PrivateCache) -> None:
    (folder / "entry").rename(folder.parent / "entry")
    (folder / "entry").symlink_to(folder.parent / "entry")
    assert cache.read("entry") is None

    (folder.parent / "link").symlink_to(folder)
    linked = PrivateCache(folder.parent / "link", most_bytes=1000)
    linked.write("other", b"content")
    assert linked.read("other") is None


@pytest.mark.parametrize("damaged", [b"", b"short", b"\0" * 100])
def test_a_damaged_file_is_as_good_as_none(
    folder: Path, cache: PrivateCache, damaged: bytes
) -> None:
    (folder / "entry").write_bytes(damaged)
    assert cache.read("entry") is None

    cache.write("entry", b"again")
    assert cache.read("entry") == b"again"


def test_those_unused_for_longest_are_removed(folder: Path, cache: PrivateCache) -> None:
    """Each takes 300 bytes and a digest; three fit in 1000."""
    (folder / "entry").unlink()
    for time, name in enumerate(("a", "b", "c")):
        cache.write(name, b"x" * 300)
        os.utime(folder / name, (time, time))
    assert cache.read("a") is not None

    cache.write("d", b"x" * 300)

    assert names_in(folder) == ["a", "c", "d"]


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = PrivateCache(tmp_path / "file" / "folder", most_bytes=1000)

    cache.write("entry", b"content")

    assert cache.read("entry") is None


def test_the_environment_names_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("GRAPHMEM_CACHE", raising=False)
    for base, folder in (
        ("", "/home/me/.cache"),
        ("here", "/home/me/.cache"),
        ("/there", "/there"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", base)
        assert users_folder() == Path(folder) / "graphmem"

    monkeypatch.setenv("GRAPHMEM_CACHE", "/elsewhere")
    assert users_folder() == Path("/elsewhere")

    monkeypatch.setenv("GRAPHMEM_CACHE", "")
    assert users_folder() is None
