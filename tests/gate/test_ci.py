"""The gate in pytest, pre-commit, GitHub Actions and GitLab CI."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from tests.support.gate_project import TINY, Project
from tests.support.gate_schemas import ANNOTATION, JUNIT, assert_junit
from tests.support.places import ROOT

CONFIG = '[defaults]\nsteps = 2\n\n[targets.tiny]\ntarget = "tiny.py"\nmax_allocated = "1 KiB"\n'


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose only target exceeds its limit."""
    project = Project.create(
        tmp_path_factory.mktemp("ci") / "project", graphmem__toml=CONFIG, tiny__py=TINY
    )
    project.graphmem("check", "--update")
    project.commit("all")
    return project


def shell(project: Project, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script as CI does, with graphmem on the path."""
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=project.root,
        env={**project.environment, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def snippet(heading: str) -> Any:
    """The YAML below a heading of docs/gating.md."""
    text = (ROOT / "docs/gating.md").read_text()
    found = re.search(rf"^## {heading}$.*?```yaml\n(.*?)```", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return yaml.safe_load(found[1])


def test_the_action_annotates_summarises_and_fails(project: Project, tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    [step] = [each for each in action["runs"]["steps"] if each["name"] == "Check GPU memory"]
    summary = tmp_path / "summary.md"

    finished = shell(
        project,
        step["run"],
        ARGUMENTS=action["inputs"]["arguments"]["default"],
        SARIF="found.sarif",
        GITHUB_STEP_SUMMARY=str(summary),
        RUNNER_TEMP=str(tmp_path),
    )

    assert finished.returncode == 1
    assert all(ANNOTATION.fullmatch(line) for line in finished.stdout.splitlines())
    assert "::error file=tiny.py,line=1,title=graphmem max_allocated::" in finished.stdout
    assert "| tiny |" in summary.read_text()
    assert (project.root / "found.sarif").exists()
    assert (tmp_path / "graphmem.md").read_text() == summary.read_text()


GH = """\
#!/bin/sh
printf '%s\\n' "$@" >> "$CALLS"
case "$*" in *--paginate*) echo "$EARLIER" ;; esac
"""


@pytest.mark.parametrize(
    ("earlier", "method", "path"),
    [
        ("", "POST", "repos/me/net/issues/7/comments"),
        ("41\n42", "PATCH", "repos/me/net/issues/comments/41"),
    ],
)
def test_a_pull_request_has_one_comment_that_is_updated(
    tmp_path: Path, earlier: str, method: str, path: str
) -> None:
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    (tmp_path / "outcome.md").write_text("### GPU memory\n\n@file is no file\n")
    calls = tmp_path / "calls"

    subprocess.run(
        [ROOT / "ci" / "comment.sh", "7", tmp_path / "outcome.md"],
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "CALLS": str(calls),
            "EARLIER": earlier,
            "GITHUB_REPOSITORY": "me/net",
        },
        check=True,
    )

    _, _, written = calls.read_text().partition("--silent\n")
    assert written.startswith(f"--method\n{method}\n{path}\n--raw-field\nbody=<!-- graphmem")
    assert written.endswith("### GPU memory\n\n@file is no file\n")


def test_the_action_passes_every_input_on() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    steps = yaml.safe_dump(action["runs"]["steps"])

    assert {name for name in action["inputs"] if f"inputs.{name}" in steps} == set(action["inputs"])
    assert set(snippet("GitHub Actions")["jobs"]["gpu-memory"]["steps"][-1]["with"]) <= set(
        action["inputs"]
    )


def test_the_gitlab_job_fails_and_leaves_a_junit_report(project: Project) -> None:
    assert snippet("GitLab CI")["include"][0]["file"] == "ci/gitlab.yml"
    job = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())["gpu-memory"]

    script = shell(project, "\n".join(job["script"]))
    shell(project, "\n".join(job["after_script"]))

    assert script.returncode == 1
    report = project.root / job["artifacts"]["reports"]["junit"]
    root = ET.fromstring(report.read_bytes())
    assert_junit(root, JUNIT)
    assert root.get("failures") == "1"


@pytest.mark.slow
def test_the_hooks_stop_only_a_commit_that_affects_a_model(project: Project) -> None:
    hooks = {
        hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    }
    documented = [hook["id"] for hook in snippet("pre-commit")["repos"][0]["hooks"]]

    untouched = shell(project, hooks["graphmem-check"]["entry"])
    everything = shell(project, hooks["graphmem-check-all"]["entry"])
    project.write("tiny.py", f"{TINY}\n")
    touched = shell(project, shlex.join(shlex.split(hooks["graphmem-check"]["entry"])))
    project.write("tiny.py", TINY)

    assert documented == list(hooks)
    assert (untouched.returncode, everything.returncode, touched.returncode) == (0, 1, 1)


def test_marked_tests_fail_above_their_limit(project: Project) -> None:
    project.write(
        "test_memory.py",
        """\
import pytest

@pytest.mark.max_gpu_memory("1 KiB", target="tiny.py", steps=1)
def test_too_small(): pass

@pytest.mark.max_gpu_memory("1 GiB", target="tiny.py:build", steps=1)
def test_large_enough(): pass

@pytest.mark.max_gpu_memory("1 KiB")
def test_a_report_that_it_asked_for(graphmem):
    assert graphmem("tiny.py", steps=1).peak.allocated > 2**10

@pytest.mark.max_gpu_memory("1 GiB")
def test_that_measures_nothing(): pass

@pytest.mark.max_gpu_memory("1 XiB")
def test_bad_unit(): pass

@pytest.mark.max_gpu_memory("1 GiB", target="missing.py")
def test_bad_target(): pass
""",
    )
    arguments = [sys.executable, "-m", "pytest", "-q", "-rA", "--strict-markers", "test_memory.py"]
    # The inner run must not mistake this pytest-xdist worker for one of its workers.
    environment = {key: each for key, each in os.environ.items() if "PYTEST" not in key}
    finished = subprocess.run(
        arguments, cwd=project.root, env=environment, capture_output=True, text=True, check=False
    )
    (project.root / "test_memory.py").unlink()

    assert "1 passed" in finished.stdout
    assert "5 failed" in finished.stdout
    assert "max_gpu_memory measured nothing" in finished.stdout
    assert "During handling of the above exception" not in finished.stdout
    assert "PASSED test_memory.py::test_large_enough" in finished.stdout
    assert re.search(r"tiny\.py allocates [\d,]+ bytes, .* above 1\.0 KiB", finished.stdout)
    assert "1 XiB" in finished.stdout
    assert "no such file: missing.py" in finished.stdout
