"""Where people look up commands: the reference, the man page, the shell's completion."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from graphmem.gpus import GPUS
from tests.conftest import Outcome
from tools.commands import MAN, PAGE, program

Run = Callable[..., Outcome]


def words(text: str) -> str:
    """A text without marks and blanks."""
    text = re.sub(r"\\\[u(\w{4})\]", lambda found: chr(int(found[1], 16)), text)
    return re.sub(r"[\s`\\]+", "", text.replace(".PP", ""))


@pytest.mark.parametrize("document", [PAGE, MAN], ids=["page", "man"])
def test_the_reference_has_every_command_with_its_help_and_options(document: Path) -> None:
    """If it fails, run `python -m tools.commands`, which updates both."""
    text = words(document.read_text())
    made, context = program()
    for name, command in made.commands.items():
        assert words(command.help.partition("Example:")[0]) in text
        assert f"graphmem{name}" in text
        for parameter in command.get_params(context):
            assert words(parameter.help or "") in text


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff formats man pages")
def test_the_man_page_is_well_formed() -> None:
    finished = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", MAN], capture_output=True, text=True, check=True
    )

    assert finished.stderr == ""


def offered(
    run_graphmem: Run, monkeypatch: pytest.MonkeyPatch, *line: str, shell: str = "bash"
) -> list[str]:
    """What a shell offers for the last word of a line."""
    monkeypatch.setenv("_GRAPHMEM_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", " ".join(("graphmem", *line)))
    monkeypatch.setenv("COMP_CWORD", str(len(line)))
    run = run_graphmem()
    assert (run.exit_code, run.stderr) == (0, "")
    return run.stdout.split()


def test_a_shell_completes_commands_options_and_cards(
    run_graphmem: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offered(run_graphmem, monkeypatch, "wha") == ["whatif"]
    assert offered(run_graphmem, monkeypatch, "analyze", "--auto") == ["--autocast"]
    assert offered(run_graphmem, monkeypatch, "analyze", "--autocast", "f") == ["fp16"]
    h100 = [gpu.name for gpu in GPUS if gpu.name.startswith("h100")]
    assert offered(run_graphmem, monkeypatch, "fit", "--gpu", "h100") == h100


def test_a_shell_completes_the_targets_of_the_configuration(
    run_graphmem: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "graphmem.toml").write_text('[targets.small]\ntarget = "model.py"\n')
    monkeypatch.chdir(tmp_path)

    assert offered(run_graphmem, monkeypatch, "check", "s") == ["small"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_printed(
    run_graphmem: Run, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)
    run = run_graphmem("--show-completion")

    assert (run.exit_code, run.stderr) == (0, "")
    assert f"_GRAPHMEM_COMPLETE=complete_{shell}" in run.stdout


@pytest.mark.parametrize("document", [PAGE, MAN], ids=["page", "man"])
def test_an_option_that_commands_share_is_described_once(document: Path) -> None:
    made, context = program()
    options = [o for command in made.commands.values() for o in command.get_params(context)]
    (strict,) = {option.help for option in options if option.name == "strict"}

    assert sum(option.name == "strict" for option in options) > 1
    assert words(document.read_text()).count(words(strict)) == 1
