"""The configuration, its errors and its limits."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from graphmem.errors import InputError
from graphmem.gate.config import Config, find_config, load_config
from graphmem.gate.limits import Increase, is_below
from graphmem.gate.messages import UnknownTargetError
from graphmem.gate.scaffold import scaffold

TEXT = """\
[defaults]
gpu = "h100"
max_increase = "1%"

[targets.small]
target = "model.py:build"
set = { batch = 8, causal = true }
max_allocated = "22 GiB"
max_increase.activations = "10 MiB"
fits = "a100-40gb"
"""


def load(folder: Path, text: str, name: str = "graphmem.toml") -> Config:
    path = folder / name
    path.write_text(text)
    return load_config(path)


def test_a_target_has_its_own_keys_and_those_of_the_defaults(tmp_path: Path) -> None:
    small = load(tmp_path, TEXT).targets["small"]

    assert small.request().gpu == "h100-80gb"
    assert small.request().settings == {"batch": "8", "causal": "True"}
    assert small.max_allocated.allocated == 22 * 2**30
    assert small.max_increase.activations == Increase("10.0 MiB", nbytes=10 * 2**20)
    assert small.max_increase.allocated is None
    assert small.fits == "a100-40gb"


def test_pyproject_holds_the_same_tables(tmp_path: Path) -> None:
    text = '[project]\nname = "x"\n\n[tool.graphmem.targets.small]\ntarget = "model.py"\n'
    load(tmp_path, text, "pyproject.toml")
    (tmp_path / "below").mkdir()

    path = find_config(tmp_path / "below")

    assert path == tmp_path / "pyproject.toml"
    assert list(load_config(path).targets) == ["small"]


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("max_allocated", "max_alocated", ":8: unknown key 'max_alocated'", "max_allocated?"),
        ("activations", "activation", ":9: unknown key 'activation'", "activations?"),
        ("[defaults]", "[default]", ":1: unknown key 'default'", "defaults?"),
        ('gpu = "h100"', 'gpv = "h100"', ":2: unknown key 'gpv'", "gpu?"),
        ("22 GiB", "22 GiX", ":8: targets.small.max_allocated", None),
        ('"1%"', '"1 %%"', ":3: defaults.max_increase", None),
        ('"h100"', '"h1000"', ":2: defaults.gpu: unknown GPU 'h1000'", None),
        ('target = "model.py:build"\n', "", ":5: targets.small has no 'target'", None),
        ("{ batch = 8, causal = true }", "8", ":7: targets.small.set", None),
        ("[targets.small]", "[targets.small", "graphmem.toml is not TOML", None),
    ],
)
def test_a_mistake_names_its_line_and_the_nearest_name(
    tmp_path: Path, old: str, new: str, message: str, hint: str | None
) -> None:
    with pytest.raises(InputError) as error:
        load(tmp_path, TEXT.replace(old, new, 1))

    assert message in str(error.value)
    assert hint is None or hint in str(error.value.hint)


def test_a_missing_target_suggests_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(UnknownTargetError) as error:
        load(tmp_path, TEXT).chosen(["smal"])

    assert error.value.hint == "did you mean small?"


def test_an_increase_is_a_percentage_of_the_baseline_or_bytes() -> None:
    assert Increase("1%", share=Fraction(1, 100)).allowed(1000) == 1010
    assert Increase("5 B", nbytes=5).allowed(1000) == 1005


@pytest.mark.parametrize(
    ("module", "pattern", "is_meant"),
    [
        ("h.0.attn", "h.*.attn", True),
        ("h.0.attn.c_proj", "h.*.attn", True),
        ("h.0", "h.*.attn", False),
        ("head", "h", False),
    ],
)
def test_a_pattern_matches_a_module_and_its_children(
    module: str, pattern: str, is_meant: bool
) -> None:
    assert is_below(module, pattern) == is_meant


def test_the_generated_configuration_names_what_build_needs(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/gpt.py").write_text("def build(layers, *, width=4):\n    ...\n")
    (tmp_path / "other.py").write_text("def main(): ...\n")

    text, targets = scaffold(tmp_path)

    assert targets == ["models/gpt.py"]
    config = load(tmp_path, text)
    assert config.targets["gpt"].set == {"layers": "…"}
