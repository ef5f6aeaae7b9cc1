"""The command line around the commands: help, errors, exit codes, `graphmem gpus`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import pytest
import typer

import graphmem
from graphmem import cli
from graphmem.errors import GraphmemError, InputError
from graphmem.gpus import DEFAULT_GPU, GPUS
from tests.conftest import Outcome

Run = Callable[..., Outcome]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Add a command `fail` that raises the given exception."""

    def add(error: BaseException) -> None:
        def fail() -> NoReturn:
            raise error

        monkeypatch.setattr(cli, "COMMANDS", {**cli.COMMANDS, "Fail": (fail,)})

    return add


def run_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def run_without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run graphmem in a process of its own, which fails if it imports torch or numpy."""
    script = f"""
import sys
from graphmem.cli import main
exit_code = main({arguments!r})
assert "torch" not in sys.modules
assert "numpy" not in sys.modules
sys.exit(exit_code)
"""
    return run_process("-c", script)


@pytest.mark.parametrize("arguments", [("--help",), ("gpus", "--help"), ("gpus",), ("--version",)])
def test_what_needs_no_torch_does_not_import_it(arguments: tuple[str, ...]) -> None:
    finished = run_without_torch(*arguments)

    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.parametrize("option", [("--batch", "x"), ("--lora", "r=0"), ("--quantise", "nf5")])
def test_a_malformed_change_is_rejected_without_torch(option: tuple[str, str]) -> None:
    finished = run_without_torch("whatif", "fixtures/gpt2.py:build", *option)

    assert finished.returncode == 2
    assert "AssertionError" not in finished.stderr


def test_without_arguments_three_first_commands_are_suggested(run_graphmem: Run) -> None:
    outcome = run_graphmem()

    assert outcome.exit_code == 0
    for command in ("run train.py", "analyze model.py:build", "fit model.py:build"):
        assert f"\n  graphmem {command} " in outcome.stdout


def test_help_lists_every_command_under_its_purpose(run_graphmem: Run) -> None:
    outcome = run_graphmem("--help")

    assert outcome.exit_code == 0
    assert "Usage: graphmem [OPTIONS] COMMAND" in outcome.stdout
    for panel, commands in cli.COMMANDS.items():
        listed = outcome.stdout.partition(f"─ {panel} ")[2].partition("╰")[0]
        for command in commands:
            assert f"│ {command.__name__.replace('_', '-')} " in listed


def test_help_shows_no_type_where_a_flag_takes_no_value(run_graphmem: Run) -> None:
    for command in ([], ["run"], ["check"]):
        assert "<bool>" not in run_graphmem(*command, "--help").stdout


def test_help_is_broken_at_the_terminals_width_only(
    run_graphmem: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line ends where the first word of the next one has no room."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in cli.build_program().commands:
        description = run_graphmem(name, "--help").stdout.partition("╭─")[0]
        lines = [line.strip() for line in description.splitlines()]
        for line, following in pairwise(lines):
            if line and following:
                assert len(f"{line} {following.split()[0]}") > 78, (name, line)


def test_examples_of_the_help_fit_on_a_line_and_need_no_checkout() -> None:
    for name, command in cli.build_program().commands.items():
        for line in (command.help or "").splitlines():
            if line.startswith(("Example: ", "Without a model: ")):
                assert len(line) <= 78, name
                assert "fixtures/" not in line


def test_the_package_runs_as_a_module() -> None:
    finished = run_process("-m", "graphmem", "--version")

    assert finished.stdout == f"graphmem {graphmem.__version__}\n"
    assert finished.returncode == 0


def test_a_file_named_as_a_module_of_the_library_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-m` puts the folder on Python's path; the command `graphmem` does not."""
    (tmp_path / "secrets.py").write_text("raise RuntimeError('a file of the user')")
    monkeypatch.chdir(tmp_path)
    assert run_process("-m", "graphmem", "gpus").returncode == 0


def test_a_script_finds_what_pythonpath_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder takes the first place of the path, and what followed stays."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "apart.py").touch()
    (tmp_path / "script.py").write_text("import apart")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "library"))
    assert run_process("-m", "graphmem", "run", str(tmp_path / "script.py")).returncode == 0


def test_the_exit_code_reaches_the_shell() -> None:
    assert run_process("-m", "graphmem", "no-such-command").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            ("gpu",),
            "No such command 'gpu'. Did you mean 'gpus'?",
            "see `graphmem --help`",
        ),
        (
            ("gpus", "--fromat", "json"),
            "No such option: --fromat (Possible options: --format)",
            "see `graphmem gpus --help`",
        ),
        (
            ("gpus", "--vary", "batch"),
            "No such option: --vary",
            "--vary is an option of `graphmem fit`; see `graphmem gpus --help`",
        ),
        (
            ("--debgu", "gpus"),
            "No such option: --debgu (Possible options: --debug)",
            "see `graphmem --help`",
        ),
    ],
)
def test_a_misspelled_word_suggests_the_nearest(
    run_graphmem: Run, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    outcome = run_graphmem(*arguments)

    assert outcome == Outcome(2, "", f"error: {message}\nhint: {hint}\n")


def test_an_impossible_value_is_a_usage_error_on_one_line(run_graphmem: Run) -> None:
    outcome = run_graphmem("gpus", "--format", "yaml")

    assert (outcome.exit_code, outcome.stdout) == (2, "")
    error, hint = outcome.stderr.splitlines()
    assert error.startswith("error: Invalid value for '--format'")
    assert hint == "hint: see `graphmem gpus --help`"


class GateError(GraphmemError):
    exit_code = 1


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(InputError("no"), 2), (GateError("no"), 1), (GraphmemError("no"), 3)],
)
def test_an_error_of_graphmem_has_its_own_exit_code(
    run_graphmem: Run,
    failing: Callable[[BaseException], None],
    error: GraphmemError,
    exit_code: int,
) -> None:
    failing(error)

    assert run_graphmem("fail") == Outcome(exit_code, "", "error: no\n")


def test_the_users_traceback_stands_between_message_and_hint(
    run_graphmem: Run, failing: Callable[[BaseException], None]
) -> None:
    trace = '  File "model.py", line 3, in build\nValueError: [bold]width[/bold]\n'
    failing(InputError("build raised ValueError", hint="mend model.py", user_traceback=trace))

    outcome = run_graphmem("fail")

    assert outcome.stderr == f"error: build raised ValueError\n{trace}hint: mend model.py\n"


def test_a_long_message_is_not_folded(
    run_graphmem: Run, failing: Callable[[BaseException], None]
) -> None:
    failing(InputError("word " * 100 + "end"))

    assert len(run_graphmem("fail").stderr.splitlines()) == 1


def test_an_internal_error_is_one_line_and_exit_code_3(
    run_graphmem: Run, failing: Callable[[BaseException], None]
) -> None:
    failing(KeyError("storage 7\nand more"))

    assert run_graphmem("fail") == Outcome(
        3,
        "",
        "error: graphmem itself failed: KeyError: 'storage 7\\nand more'\n"
        "hint: run with --debug for the traceback\n",
    )


def test_a_long_internal_error_prints_its_first_line(
    run_graphmem: Run, failing: Callable[[BaseException], None]
) -> None:
    failing(RuntimeError("first\nsecond"))

    outcome = run_graphmem("fail")

    assert "error: graphmem itself failed: RuntimeError: first\n" in outcome.stderr
    assert "second" not in outcome.stderr


@pytest.mark.parametrize("arguments", [("--debug", "fail"), ("fail", "--debug")])
@pytest.mark.parametrize(
    ("error", "exit_code"), [(KeyError("storage"), 3), (InputError("no such file"), 2)]
)
def test_debug_shows_the_whole_traceback(
    run_graphmem: Run,
    failing: Callable[[BaseException], None],
    arguments: tuple[str, ...],
    error: Exception,
    exit_code: int,
) -> None:
    failing(error)

    outcome = run_graphmem(*arguments)

    assert outcome.exit_code == exit_code
    assert "Traceback (most recent call last)" in outcome.stderr
    assert "in fail\n    raise error" in outcome.stderr


def test_a_command_may_choose_its_exit_code(
    run_graphmem: Run, failing: Callable[[BaseException], None]
) -> None:
    failing(typer.Exit(1))

    assert run_graphmem("fail") == Outcome(1, "", "")


@pytest.mark.parametrize("code", [0, 1, None])
def test_an_exit_of_the_users_code_is_not_a_verdict(
    run_graphmem: Run, failing: Callable[[BaseException], None], code: int | None
) -> None:
    failing(SystemExit(code))

    outcome = run_graphmem("fail")

    message = f"error: the code under analysis called sys.exit({code})\n"
    assert outcome == Outcome(2, "", message)


def test_an_interrupt_is_exit_code_130_and_silent(
    run_graphmem: Run, failing: Callable[[BaseException], None]
) -> None:
    failing(KeyboardInterrupt())

    assert run_graphmem("fail") == Outcome(130, "", "")


@pytest.mark.parametrize(
    "arguments",
    [("gpus",), ("gpus", "--format", "json"), ("--version",)],  # the last fits stdout's buffer
)
def test_a_closed_pipe_is_exit_code_141_and_silent(arguments: tuple[str, ...]) -> None:
    """`graphmem gpus | head -0` neither shows a traceback nor looks like a failed gate."""
    reader, writer = os.pipe()
    os.close(reader)
    finished = subprocess.run(
        [sys.executable, "-m", "graphmem", *arguments],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    os.close(writer)

    assert (finished.returncode, finished.stderr) == (141, "")


@pytest.mark.parametrize(
    ("closed", "code"),
    [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0), ("> /dev/full", 2)],
)
def test_unwritable_output_is_not_an_internal_error(closed: str, code: int) -> None:
    command = f"{sys.executable} -m graphmem gpus {closed}"
    finished = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    said = "error: cannot write the result: No space left on device\n" if code else ""
    assert (finished.returncode, finished.stderr) == (code, said)


@pytest.mark.parametrize(
    "close", [pytest.param("sys.stdout.close()", marks=pytest.mark.slow), "os.close(1)"]
)
def test_a_program_that_closes_stdout_ends_quietly(close: str, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        f"import os, sys, torch\n\n\ndef build():\n    {close}\n"
        "    return torch.nn.Linear(4, 4), torch.zeros(2, 4)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-m", "graphmem", "analyze", "model.py", "--steps", "1"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (141, "", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "code", "told"),
    [("sys.exit(0)", 0, "fits on "), ("raise ValueError('mine')", 1, "ValueError: mine\n")],
)
def test_a_script_that_closes_stdout_has_its_exit_code_and_report(
    ending: str, code: int, told: str, tmp_path: Path
) -> None:
    """As under Python; the report goes to stderr."""
    (tmp_path / "train.py").write_text(
        f"import sys, torch\nx = torch.ones(4).cuda()\nsys.stdout.close()\n{ending}\n"
    )
    finished = subprocess.run(
        [sys.executable, "-m", "graphmem", "run", "train.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (finished.returncode, finished.stdout) == (code, ""), finished.stderr
    assert told in finished.stderr
    assert "peak 512 B" in finished.stderr


def test_only_terminals_that_want_colour_get_it() -> None:
    wrong = ("-m", "graphmem", "gpu")
    script = """
import os, pty, sys
master, slave = pty.openpty()
if os.fork() == 0:
    os.dup2(slave, 2)
    os.execv(sys.executable, [sys.executable, "-m", "graphmem", "gpu"])
os.close(slave)
sys.stdout.write(os.read(master, 10_000).decode())
"""

    assert "\x1b[" not in run_process(*wrong).stderr
    assert "\x1b[1;31merror" in run_process("-c", script, TERM="xterm", NO_COLOR="").stdout
    assert "\x1b[1;31merror" not in run_process("-c", script, TERM="xterm", NO_COLOR="1").stdout


def test_gpus_lists_every_gpu_on_a_line_of_its_own(run_graphmem: Run) -> None:
    lines = run_graphmem("gpus").stdout.splitlines()

    rows = {line.split()[0]: line for line in lines[1 : len(GPUS) + 1]}
    assert list(rows) == [gpu.name for gpu in GPUS]
    assert "NVIDIA RTX PRO 6000 Blackwell Server Edition" in rows["rtx-pro-6000"]
    assert "79.256 GiB" in rows["a100-80gb"]
    assert f"default: {DEFAULT_GPU}" in lines


def test_gpus_as_json_has_the_same_figures(run_graphmem: Run) -> None:
    listing = json.loads(run_graphmem("gpus", "--format", "json").stdout)

    assert listing["schema"] == "graphmem.gpus/1"
    assert listing["default"] == DEFAULT_GPU
    assert [row["name"] for row in listing["gpus"]] == [gpu.name for gpu in GPUS]
    [a100] = [row for row in listing["gpus"] if row["name"] == "a100-80gb"]
    assert a100["memory_bytes"] == 85_100_068_864
    assert a100["compute_capability"] == [8, 0]


def test_the_console_script_is_the_same_program() -> None:
    script = Path(sys.executable).with_name("graphmem")
    if not script.exists():
        pytest.skip("graphmem is not installed beside this interpreter")

    finished = subprocess.run([script, "--version"], capture_output=True, text=True, check=False)

    assert finished.stdout == f"graphmem {graphmem.__version__}\n"


@pytest.mark.parametrize(("old", "new"), [("formula", "closed-form"), ("formulas", "published")])
def test_a_former_name_of_a_command_works_and_says_so(
    run_graphmem: Run, old: str, new: str
) -> None:
    outcome = run_graphmem(old, "--help")

    assert (outcome.exit_code, outcome.stdout.count("Usage")) == (0, 1)
    assert outcome.stderr == f"note: `graphmem {old}` is now `graphmem {new}`\n"
    assert f"│ {old} " not in run_graphmem("--help").stdout


@pytest.mark.parametrize("command", ["run", "fit", "published", "graph"])
def test_an_unwritable_output_path_is_reported_before_the_work(
    run_graphmem: Run, tmp_path: Path, command: str
) -> None:
    target = tmp_path / "model.py"
    target.write_text("raise AssertionError('the work has begun')\n")
    missing = tmp_path / "missing"

    outcome = run_graphmem(command, "-o", str(missing / "report"), str(target))

    assert outcome.exit_code == 2
    assert outcome.stderr.splitlines() == [
        f"error: cannot write {missing / 'report'}: no such folder",
        f"hint: mkdir -p {missing}",
    ]


def test_an_output_path_must_not_be_a_folder(run_graphmem: Run, tmp_path: Path) -> None:
    outcome = run_graphmem("analyze", "-o", str(tmp_path), "model.py:build")

    assert outcome.exit_code == 2
    assert outcome.stderr.startswith(f"error: cannot write {tmp_path}: it is a folder\n")
