"""The gate on a repository with a history: from `graphmem init` to a merge with a conflict."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from markdown_it import MarkdownIt

from tests.support.gate_project import KEEPING, MODEL, Project, Run
from tests.support.gate_schemas import ANNOTATION, JUNIT, SARIF, assert_junit

pytestmark = pytest.mark.slow  # sixteen checks of GPT-2; test_pull_request.py tells a shorter story

FORMATS = ("text", "json", "markdown", "github", "junit", "sarif")


@dataclass
class Story:
    """What happened, chapter by chapter."""

    project: Project
    init: Run
    baseline: Run
    first_lock: str
    relu: Run
    tightened: Run
    second_lock: str
    keeping: dict[str, Run]
    keeping_line: int
    context: Run
    readme: Run
    since: Run
    conflict: Run
    resolved: Run
    difference: Run


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    project = Project.create(
        tmp_path_factory.mktemp("story") / "project",
        model__py=MODEL.replace("CONTEXT = 256\n", "CONTEXT = 256\nOUTPUTS = []\n"),
        README__md="A model.\n",
    )
    init = project.graphmem("init")
    baseline = project.graphmem("check", "--update")
    first_lock = project.lock
    project.commit("baseline")

    project.edit("model.py", "nn.GELU()", "nn.ReLU()")
    relu = project.graphmem("check", "--format", "json")
    tightened = project.graphmem("check", "--update")
    second_lock = project.lock
    project.commit("ReLU")

    project.edit("model.py", *KEEPING)
    keeping = {each: project.graphmem("check", "--format", each) for each in FORMATS}
    line = project.read("model.py").splitlines().index("        OUTPUTS.append(x)") + 1
    project.git("checkout", "--quiet", "-b", "keeping")
    project.graphmem("check", "--update")
    project.commit("keep the outputs")
    project.git("checkout", "--quiet", "main")

    project.edit("model.py", "CONTEXT = 256", "CONTEXT = 512")
    context = project.graphmem("check")
    project.graphmem("check", "--update")
    project.commit("more context")

    project.write("README.md", "A better model.\n")
    project.commit("words")
    readme = project.graphmem("check", "--format", "json")
    since = project.graphmem("check", "--format", "json", "--since", "HEAD~1")

    project.git("merge", "--quiet", "keeping", check=False)
    conflict = project.graphmem("check")
    resolved = project.graphmem("check", "--update")
    difference = project.graphmem("diff", "--git", "HEAD~2..HEAD", "--format", "json")
    return Story(
        project=project,
        init=init,
        baseline=baseline,
        first_lock=first_lock,
        relu=relu,
        tightened=tightened,
        second_lock=second_lock,
        keeping=keeping,
        keeping_line=line,
        context=context,
        readme=readme,
        since=since,
        conflict=conflict,
        resolved=resolved,
        difference=difference,
    )


def test_init_finds_the_model_and_explains_the_keys(story: Story) -> None:
    assert story.init.exit_code == 0
    text = story.project.read("graphmem.toml")
    assert 'target = "model.py:build"' in text
    assert "# max_allocated" in text


def test_the_first_update_writes_the_baseline(story: Story) -> None:
    assert story.baseline.exit_code == 0
    assert "[targets.model.modules.activation]" in story.first_lock
    assert '"blocks.[0-1].activation"' in story.first_lock


def test_an_improvement_passes_and_says_how_to_tighten_the_baseline(story: Story) -> None:
    assert story.relu.exit_code == 0
    assert story.relu.json()["results"][0]["status"] == "smaller"
    assert story.tightened.exit_code == 0
    assert story.second_lock != story.first_lock


def test_a_list_that_keeps_outputs_fails_and_its_line_is_named(story: Story) -> None:
    run = story.keeping["text"]

    assert run.exit_code == 1
    assert f"(model.py:{story.keeping_line}): held by OUTPUTS[0] and 1 more" in run.stdout
    assert re.search(r"in head .*; [\d,]+ -> [\d,]+ bytes", run.stdout)


def test_twice_the_context_fails_and_attention_is_named_first(story: Story) -> None:
    assert story.context.exit_code == 1
    first, *_ = [line for line in story.context.stdout.splitlines() if line.startswith("  +")]
    assert "attention" in first
    assert "model.py:" in first


def test_a_change_that_affects_no_model_reanalyses_nothing(story: Story) -> None:
    assert story.readme.exit_code == 0
    assert [each["is_cached"] for each in story.readme.json()["results"]] == [True]
    assert [each["status"] for each in story.since.json()["results"]] == ["unreached"]


def test_a_conflict_in_the_baseline_names_its_line_and_update_resolves_it(
    story: Story,
) -> None:
    assert story.conflict.exit_code == 2
    assert re.search(r"graphmem\.lock:\d+ has a merge conflict", story.conflict.stderr)
    assert "graphmem check --update" in story.conflict.stderr
    assert story.resolved.exit_code == 0
    assert "<<<<" not in story.project.lock


def test_a_diff_of_revisions_names_its_cause_first(story: Story) -> None:
    [diff] = story.difference.json() if story.difference.exit_code == 0 else [{}]

    assert diff["schema"] == "graphmem.diff/1"
    assert diff["after"]["allocated"] > diff["before"]["allocated"]
    assert "attention" in diff["differences"][0]["module"]
    growths = [(each["after"] - each["before"]) * each["layers"] for each in diff["differences"]]
    assert growths == sorted(growths, reverse=True)
    assert story.project.git("worktree", "list").count("\n") == 1


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_the_same_exit_code(story: Story, name: str) -> None:
    assert story.keeping[name].exit_code == 1
    assert story.keeping[name].stderr == ""


def test_the_annotation_stands_at_the_line_of_the_list(story: Story) -> None:
    lines = story.keeping["github"].stdout.splitlines()

    assert all(ANNOTATION.fullmatch(line) for line in lines)
    assert (
        f"::error file=model.py,line={story.keeping_line},title=graphmem max_increase::" in lines[0]
    )


def test_junit_fits_its_schema(story: Story) -> None:
    root = ET.fromstring(story.keeping["junit"].stdout.encode())

    assert_junit(root, JUNIT)
    assert root.get("failures") == "1"


def test_sarif_fits_its_schema(story: Story) -> None:
    log = json.loads(story.keeping["sarif"].stdout)

    jsonschema.validate(log, SARIF)
    [result] = log["runs"][0]["results"]
    region = result["locations"][0]["physicalLocation"]["region"]
    assert region["startLine"] == story.keeping_line


def test_markdown_is_a_table_and_a_list_for_a_real_parser(story: Story) -> None:
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(story.keeping["markdown"].stdout)
    kinds = [token.type for token in tokens]
    texts = [token.content for token in tokens if token.type == "inline"]

    assert kinds.count("table_open") == 1
    assert kinds.count("tr_open") == 2
    assert "bullet_list_open" in kinds
    assert any("OUTPUTS" in text for text in texts)


def test_json_says_what_the_text_says(story: Story) -> None:
    outcome = story.keeping["json"].json()

    assert outcome["schema"] == "graphmem.check/1"
    assert outcome["exit_code"] == 1
    [finding] = outcome["results"][0]["verdict"]["findings"]
    assert f"{finding['after']:,} bytes now" in story.keeping["text"].stdout
