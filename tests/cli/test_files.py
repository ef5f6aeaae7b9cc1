"""`-o FILE`: an existing file is written in place, never replaced."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from graphmem.errors import InputError
from graphmem.files import check_place, write_text
from tests.conftest import Outcome

Run = Callable[..., Outcome]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A fast target: a linear layer."""
    model = tmp_path / "tiny.py"
    model.write_text(
        "import torch\ndef build():\n    return torch.nn.Linear(2, 2), (torch.ones(1, 2),)\n"
    )
    return model


def test_a_report_goes_through_a_symbolic_link(
    report: Path, tmp_path: Path, run_graphmem: Run
) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real/target.txt", tmp_path / "link.txt"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to("real/target.txt")

    outcome = run_graphmem("analyze", f"{report}:build", "--steps", "1", "-o", str(link))

    assert outcome.exit_code == 0
    assert link.is_symlink()
    assert "peak" in target.read_text()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(path.name for path in (tmp_path / "real").iterdir()) == ["target.txt"]


def test_a_dangling_link_creates_the_file_it_names(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("new.txt")

    write_text(tmp_path / "link", "hello")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new.txt").read_text() == "hello"


def test_circular_links_are_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    with pytest.raises(InputError, match="cannot write"):
        write_text(tmp_path / "a", "hello")


def test_a_fifo_is_written_to_and_stays_one(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
    reader.start()

    check_place(fifo)
    write_text(fifo, "hello")
    reader.join()

    assert read == ["hello"]
    assert stat.S_ISFIFO(fifo.lstat().st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_a_device_is_written_to_and_stays_one(tmp_path: Path) -> None:
    null = tmp_path / "null"
    try:
        os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        null.write_text("x")
    except OSError:
        pytest.skip("no device nodes here")

    check_place(null)
    write_text(null, "hello")

    assert stat.S_ISCHR(null.lstat().st_mode)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
@pytest.mark.slow
def test_standard_output_is_written_as_a_stream_even_if_it_is_a_file(
    name: str, report: Path, tmp_path: Path
) -> None:
    """`-o /dev/stdout > out.txt`: renaming a file over out.txt would lose other output."""
    (tmp_path / "link").symlink_to("/dev/stdout")
    out = tmp_path / "out.txt"
    with out.open("w") as file:
        file.write("before\n")
        file.flush()
        inode = out.stat().st_ino
        done = subprocess.run(
            [sys.executable, "-m", "graphmem", "graph", f"{report}:build", "-o", name],
            cwd=tmp_path, stdout=file, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert out.stat().st_ino == inode
    assert out.read_text().startswith("before\n")
    assert "addmm" in out.read_text()


def test_a_file_keeps_its_owner(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can change a file's owner")
    path = tmp_path / "theirs.txt"
    path.write_text("old")
    os.chown(path, 12345, 12346)

    write_text(path, "new")

    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12346)
    assert path.read_text() == "new"


def test_a_name_that_is_not_utf8_is_written(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff\xfe.txt")

    check_place(path)
    write_text(path, "hello")

    assert path.read_text() == "hello"


def test_a_long_name_is_written(tmp_path: Path) -> None:
    """A name may have at most 255 bytes; that of the temporary file beside it would be longer."""
    path = tmp_path / ("x" * 255)

    write_text(path, "hello")

    assert path.read_text() == "hello"


WRITERS = {
    "out.txt": ("graph", "-o"),
    "out.json": ("analyze", "--format", "json", "-o"),
    "out.html": ("analyze", "--html"),
    "out.graphmem": ("analyze", "--save"),
    "out.svg": ("render", "-o"),
}


@pytest.mark.parametrize(
    "name",
    [
        name if name == "out.html" else pytest.param(name, marks=pytest.mark.slow)
        for name in WRITERS
    ],
)
def test_a_full_disk_is_a_one_line_error_and_leaves_the_old_file(
    name: str, report: Path, tmp_path: Path
) -> None:
    """A file size limit stands in for a full disk (`ulimit -f`)."""
    (tmp_path / name).write_text("old")
    command, *options = WRITERS[name]
    limited = (
        # which writes a file of its own, up to torch 2.9
        "import torch.distributed.nn; "
        "import resource, signal, sys; from pathlib import Path; "
        "sys.dont_write_bytecode = True; "  # importlib takes a cut file for a whole one (gh-126606)
        "from graphmem.cli import main; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16)); main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, command, f"{report}:build", *options, name],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 2, done.stderr
    assert done.stderr == f"error: cannot write {name}: File too large\n"
    assert (tmp_path / name).read_text() == "old"
    assert [path.name for path in tmp_path.glob(".out*")] == []
