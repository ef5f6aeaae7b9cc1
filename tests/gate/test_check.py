"""What `graphmem check` promises beyond its verdict: determinism, isolation, the cache."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from graphmem.gate.check import Check
from graphmem.gate.formats.messages import summary
from tests.support.gate_project import TINY, Project

CONFIG = """\
[defaults]
steps = 2

[targets.one]
target = "one.py"

[targets.two]
target = "two.py"
"""
FAULTY = """
[targets.raises]
target = "raises.py"

[targets.dies]
target = "dies.py"
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Two targets, and a file with the name of a module that graphmem's processes import."""
    return Project.create(
        tmp_path / "project",
        queue__py="raise SystemExit('not the library')",
        graphmem__toml=CONFIG,
        one__py=TINY,
        two__py=f"import helper\n{TINY}",
        helper__py="",
    )


@pytest.mark.slow
def test_the_baseline_is_the_same_text_whatever_made_it(project: Project) -> None:
    locks = []
    for jobs, seed in (("1", "1"), ("2", "2")):
        arguments = ("check", "--update", "--no-cache", "--jobs", jobs)
        run = project.graphmem(*arguments, PYTHONHASHSEED=seed)
        assert run.exit_code == 0, run.stderr
        locks.append(project.lock)
        (project.root / "graphmem.lock").unlink()

    assert locks[0] == locks[1]


OF_ITS_TRACES = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        # Wider by what an earlier analysis in this process could have left behind.
        left = torch.is_autocast_enabled("cuda") + (not torch.is_grad_enabled())
        left += torch.get_default_dtype() is not torch.float32
        left += torch.get_deterministic_debug_mode() + len(nn.modules.module._global_forward_hooks)
        self.words = nn.Embedding(100 + left, 64)
        self.block = nn.TransformerEncoderLayer(64, 4, batch_first=True)
        self.head = nn.Linear(64, 100)

    def forward(self, tokens):
        return self.head(self.block(self.words(tokens)))


def build():
    return Model(), torch.randint(0, 100, (2, 16)), lambda output: output.square().mean()
"""


@pytest.mark.slow
def test_a_report_is_the_same_bytes_in_a_warm_process(tmp_path: Path) -> None:
    """One worker for two targets is forked from a process that has analysed; one each is not."""
    reports = []
    for jobs in ("1", "2"):
        project = Project.create(
            tmp_path / "project", graphmem__toml=CONFIG, one__py=OF_ITS_TRACES, two__py=TINY
        )
        run = project.graphmem("check", "--jobs", jobs)
        assert run.exit_code == 0, run.stderr
        entries = sorted((project.root / ".graphmem_cache").rglob("*.json"))
        reports.append([entry.read_bytes() for entry in entries])
        shutil.rmtree(project.root)

    assert len(reports[0]) == 2
    assert reports[0] == reports[1]


ONE_AFTER_THE_OTHER = """\
import torch

from graphmem import TrainingStep

GIB = 2**30


def build(at_once: bool = False):
    def step():
        first = torch.empty(8 * GIB, dtype=torch.uint8, device="cuda")
        if not at_once:
            del first
        torch.empty(9 * GIB, dtype=torch.uint8, device="cuda")

    return TrainingStep(step=step)
"""


@pytest.mark.slow
def test_fits_is_the_verdict_on_the_card_it_names(project: Project) -> None:
    """In a T4's 14.4 GiB, 9 GiB fit once 8 are released; on the H100 both fit at once."""
    tables = "".join(
        f'[targets.{name}]\ntarget = "big.py"\nset = {{ at_once = {at_once} }}\n'
        f'gpu = "h100"\nfits = "{card}"\nsteps = 1\n'
        for name, at_once, card in (
            ("emptied", "false", "t4"),
            ("refused", "true", "t4"),
            ("roomy", "true", "h100"),
        )
    )
    project.write("graphmem.toml", tables)
    project.write("big.py", ONE_AFTER_THE_OTHER)

    run = project.graphmem("check", "--format", "json")

    results = {each["name"]: each for each in run.json()["results"]}
    assert {name: each["status"] for name, each in results.items()} == {
        "emptied": "new",
        "refused": "failed",
        "roomy": "new",
    }
    verdicts = {name: each["verdict"] for name, each in results.items()}
    assert verdicts["emptied"]["on_card"]["cache_emptied"] == 1
    assert verdicts["refused"]["on_card"]["refused"]["requested"] == 9 * 2**30
    assert {each["after"]["gpu"] for each in verdicts.values()} == {"h100-80gb"}
    assert run.exit_code == 1


def test_a_check_of_what_has_not_changed_does_not_import_torch(project: Project) -> None:
    project.graphmem("check")
    project.write("torch.py", "raise AssertionError('torch is imported')\n")

    again = project.graphmem("check")

    assert "2 targets: 2 new; 0 measured, 2 cached" in again.stdout
    assert again.exit_code == 0


def test_a_target_that_fails_or_dies_does_not_hide_the_others(project: Project) -> None:
    project.write("graphmem.toml", CONFIG + FAULTY)
    project.write("raises.py", "def build():\n    raise ValueError('no data')\n")
    project.write("dies.py", "import os\n\n\ndef build():\n    os._exit(7)\n")

    run = project.graphmem("check", "--update", "--format", "json")

    statuses = {each["name"]: each["status"] for each in run.json()["results"]}
    assert statuses == {"one": "new", "two": "new", "raises": "error", "dies": "error"}
    messages = {
        each["name"]: each["failure"]["message"]
        for each in run.json()["results"]
        if each["failure"]
    }
    assert "no data" in messages["raises"]
    assert "exit status 7" in messages["dies"]
    ending = summary(msgspec.convert(run.json(), Check))
    assert ending.endswith("the baseline of the 2 targets with an error is as before")
    assert run.exit_code == 2
    assert project.lock.count("[targets.one]") == project.lock.count("[targets.two]") == 1


@pytest.mark.slow
def test_an_error_is_annotated_at_the_line_that_failed(project: Project) -> None:
    """In whichever file of the project that is; a process that died has none."""
    targets = ("raises", "syntax", "calls", "dies")
    tables = (f'[targets.{each}]\ntarget = "{each}.py"\n' for each in targets)
    project.write("graphmem.toml", "\n".join(tables))
    project.write("raises.py", "def build():\n    raise ValueError('no data')\n")
    project.write("syntax.py", "\n\ndef build(:\n")
    project.write("calls.py", "import helper\n\n\ndef build():\n    helper.read()\n")
    project.write("helper.py", "def read():\n    open('no file')\n")
    project.write("dies.py", "import os\n\n\ndef build():\n    os._exit(7)\n")

    run = project.graphmem("check", "--format", "github")

    places = {line.partition(",title=")[0] for line in run.stdout.splitlines()[:-1]}
    assert places == {
        "::error file=raises.py,line=2",
        "::error file=syntax.py,line=3",
        "::error file=helper.py,line=2",
        "::error file=dies.py,line=1",
    }


def test_an_interrupt_leaves_the_baseline_untouched_and_no_process(project: Project) -> None:
    project.write("graphmem.lock", 'schema = "graphmem.lock/1"\n\n[targets]\n')
    before = project.lock
    marker = project.root / "marker"
    project.write(
        "two.py",
        "import os, pathlib, time\n\n\ndef build():\n"
        f"    pathlib.Path({str(marker)!r}).write_text(str(os.getpid()))\n    time.sleep(60)\n",
    )
    process = project.start("check", "--update")
    for _ in _until(lambda: marker.exists() and marker.read_text() != ""):
        time.sleep(0.05)

    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)

    assert process.returncode == 130
    assert project.lock == before
    for _ in _until(lambda: not Path(f"/proc/{marker.read_text()}").exists()):
        time.sleep(0.05)


def _until(is_done: object) -> Iterator[None]:
    deadline = time.monotonic() + 60
    while not is_done():  # type: ignore[operator]
        assert time.monotonic() < deadline
        yield


@pytest.mark.slow
def test_concurrent_checks_share_the_cache_safely(project: Project) -> None:
    processes = [project.start("check", "--jobs", "1") for _ in range(2)]
    for process in processes:
        _, stderr = process.communicate(timeout=120)
        assert (process.returncode, stderr) == (0, "")

    entries = list((project.root / ".graphmem_cache").rglob("*.json"))
    assert len(entries) == 2
    assert all(json.loads(entry.read_bytes())["report"] for entry in entries)
    again = project.graphmem("check", "--format", "json").json()
    assert all(each["is_cached"] for each in again["results"])


def test_a_change_affects_its_importers_and_nothing_else(project: Project) -> None:
    project.commit("all")
    project.write("helper.py", "WIDTH = 3\n")

    run = project.graphmem("check", "--since", "HEAD", "--format", "json").json()

    assert [each["status"] for each in run["results"]] == ["unreached", "new"]


@pytest.mark.slow
def test_a_file_read_by_build_is_part_of_the_key(project: Project) -> None:
    project.write("width.txt", "64")
    project.write(
        "two.py",
        "import pathlib, torch\n\n\ndef build():\n"
        "    width = int(pathlib.Path('width.txt').read_text())\n"
        "    return torch.nn.Linear(width, width), torch.randn(4, width)\n",
    )
    project.graphmem("check")
    project.write("width.txt", "128")

    run = project.graphmem("check", "--format", "json").json()

    assert [each["is_cached"] for each in run["results"]] == [True, False]


@pytest.mark.slow
def test_a_truncated_cache_entry_is_recomputed(project: Project) -> None:
    project.graphmem("check", "one")
    [entry] = (project.root / ".graphmem_cache").rglob("*.json")
    entry.write_bytes(entry.read_bytes()[:100])

    run = project.graphmem("check", "one", "--format", "json").json()

    assert [each["status"] for each in run["results"]] == ["new"]
    assert [each["is_cached"] for each in run["results"]] == [False]


@pytest.mark.slow
def test_entries_unused_for_a_month_are_dropped(project: Project) -> None:
    project.graphmem("check", "one")
    [entry] = (project.root / ".graphmem_cache").rglob("*.json")
    os.utime(entry, (0, 0))
    project.edit("one.py", "64", "32")

    project.graphmem("check", "one")

    assert not entry.exists()


@pytest.mark.slow
def test_the_same_baseline_comes_from_a_cluster_of_two_workers(project: Project) -> None:
    distributed = pytest.importorskip("distributed")
    project.graphmem("check", "--update")
    local = project.lock
    (project.root / "graphmem.lock").unlink()
    os.environ.setdefault("DASK_DISTRIBUTED__WORKER__DAEMON", "false")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        run = project.graphmem(
            "check", "--update", "--no-cache", "--dask", cluster.scheduler_address
        )

    assert run.exit_code == 0, run.stderr
    assert project.lock == local


def test_a_workers_profiler_pauses_during_a_trace() -> None:
    """Its samples hold frames, and through them tensors that the step has released."""
    distributed = pytest.importorskip("distributed")
    import dask

    from graphmem.gate.jobs import dask_executor, undisturbed

    def samples() -> int:
        before: int = distributed.get_worker().profile_recent["count"]
        time.sleep(0.2)
        return int(distributed.get_worker().profile_recent["count"]) - before

    def alone_and_watched() -> tuple[int, int]:
        with undisturbed():
            alone = samples()
        return alone, samples()

    often = {"distributed.worker.profile.interval": "2ms", "distributed.worker.profile.cycle": "1h"}
    with (
        dask.config.set(often),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        dask_executor(cluster.scheduler_address) as executor,
    ):
        alone, watched = executor.submit(alone_and_watched).result()

    assert alone == 0
    assert watched > 0
