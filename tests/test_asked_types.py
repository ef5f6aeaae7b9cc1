"""Code that asks `type(x) is torch.Tensor` has the answer of a card, not that of a fake tensor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import graphmem
from tests.conftest import Outcome
from tests.support.sizes import MIB

LIBRARY = """
import torch
from torch.nn import Parameter

def to_host(state):
    return {k: v.cpu() if type(v) == torch.Tensor else v for k, v in state.items()}

def kinds(x):
    weight = Parameter(x)
    return [type(x) in (list, torch.Tensor), torch.Tensor is type(x), type(x) is not torch.Tensor,
            type(weight) is Parameter, type(weight) is torch.Tensor, type(3) is torch.Tensor]
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "asking.py").write_text(LIBRARY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "asking", raising=False)
    return tmp_path


def test_a_module_that_is_imported_on_the_card(library: Path) -> None:
    import torch

    with graphmem.virtual_gpu("t4") as gpu:
        import asking  # type: ignore[import-not-found]

        state = {"moment": torch.ones(1 << 18, device="cuda"), "step": 3}
        assert asking.kinds(state["moment"]) == [True, True, False, True, False, False]
        state = asking.to_host(state)
        assert gpu.allocated == 0
        assert state["moment"].device.type == "cpu"
    assert asking.kinds(torch.ones(2)) == [True, True, False, True, False, False]


NAMED = """
import torch

def shapes_of(tree):  # as OpenFold, and Boltz after it
    kind = type(tree)
    if kind is dict:
        return [shape for each in tree.values() for shape in shapes_of(each)]
    elif kind is list or kind is tuple:
        return [shape for each in tree for shape in shapes_of(each)]
    elif kind is torch.Tensor:
        return [tuple(tree.shape)]
    raise ValueError("Not supported")

async def like(tensor):
    kind: type = type(tensor)
    return kind

made = torch.ones(3, device="cuda" if torch.cuda.is_available() else "cpu")
kind = type(made)
is_tensor = kind is torch.Tensor
"""


def test_a_type_that_is_given_a_name_before_it_is_compared(library: Path) -> None:
    import torch

    (library / "asking.py").write_text(NAMED)
    with graphmem.virtual_gpu("t4"):
        import asking

        tensor = torch.ones(3, device="cuda")
        assert asking.shapes_of({"a": [tensor, tensor]}) == [(3,), (3,)]
        assert asking.is_tensor
        with pytest.raises(StopIteration) as returned:
            asking.like(tensor).send(None)
        assert returned.value.value is torch.Tensor


WRITTEN = """
import torch

def asked(x):
    name = type(x).__name__
    kind = x.__class__
    return [name == "Tensor", kind in (torch.Tensor, torch.nn.Parameter),
            x.__class__ is torch.Tensor, str(type(x)) == "<class 'torch.Tensor'>",
            type(x).__name__ in ("Tensor", "ndarray"), x.__class__.__name__ != 'Parameter']
"""


def test_a_class_that_is_asked_for_by_its_name_or_attribute(library: Path) -> None:
    """As people write it: each of these is in dozens of public repositories."""
    import torch

    (library / "asking.py").write_text(WRITTEN)
    with graphmem.virtual_gpu("t4"):
        import asking

        tensor = torch.ones(3, device="cuda")
        parameter = torch.nn.Parameter(tensor)
        on_card = asking.asked(tensor), asking.asked(parameter)
    tensor = torch.ones(3)
    assert on_card == (asking.asked(tensor), asking.asked(torch.nn.Parameter(tensor)))


TABLE = """
import torch
from torch.nn import Parameter

NAMES = {torch.Tensor: "tensor", Parameter: "parameter", int: "number",
         (torch.Tensor, int): "both"}

def names(x):
    weight = Parameter(x)
    return [NAMES[type(x)], NAMES.get(type(weight)), NAMES[type(3)], NAMES[type(x), type(3)],
            type(x) in NAMES, type("") not in NAMES, NAMES.get(type(""), "none")]
"""


def test_a_table_that_is_looked_up_by_type(library: Path) -> None:
    import torch

    (library / "asking.py").write_text(TABLE)
    with graphmem.virtual_gpu("t4"):
        import asking

        found = asking.names(torch.ones(2, device="cuda"))
    assert found == ["tensor", "parameter", "number", "both", True, True, "none"]
    assert asking.names(torch.ones(2)) == found


def test_a_script_and_what_it_compiles(library: Path, run_graphmem: Callable[..., Outcome]) -> None:
    (library / "script.py").write_text(
        "import torch\n"
        "x = torch.ones(1 << 18, device='cuda')\n"
        "print('plain', type(x) is torch.Tensor)\n"
        "f = torch.compile(lambda y: y.sin() if type(y) is torch.Tensor else y, fullgraph=True)\n"
        "z = f(x)\n"
        "print(torch.cuda.memory_allocated())\n"
    )
    done = run_graphmem("run", "--gpu", "t4", "script.py")
    assert done.exit_code == 0, done.stderr
    assert f"plain True\n{2 * MIB}\n" in done.stdout


def test_the_target_of_an_analysis(library: Path) -> None:
    (library / "target.py").write_text(
        "import torch\n"
        "def build():\n"
        "    def step():\n"
        "        x = torch.ones(1 << 18, device='cuda')\n"
        "        return torch.cat([x, x]) if type(x) is torch.Tensor else x\n"
        "    return __import__('graphmem').TrainingStep(step=step)\n"
    )
    report = graphmem.analyze("target.py:build", steps=1)
    assert report.peak.allocated == (1 + 2) * MIB


SENDING = """
import torch
from torch.nn import Parameter

class Weight(Parameter):
    pass

def send(value, device):  # as compressed_tensors.offload.utils.send_tensors does
    with torch.no_grad():
        moved = value.to(device)
    moved.__class__ = value.__class__
    moved.__dict__ = value.__dict__.copy()
    return moved

def there_and_back(kind):
    weight = kind(torch.ones(1 << 18))
    weight.loader = "w"
    moved = send(weight, "cuda")
    again = send(send(moved, "cuda"), "cpu")
    with_card = [moved.device.type, (moved * 2).shape, moved.loader, isinstance(moved, kind)]
    return with_card, [type(again) is kind, again.device.type, again.loader, again.sum()]

class Other:
    pass

def plain():
    other = Other()
    other.__dict__ = {"a": 1}
    other.__class__ = type("More", (Other,), {})
    return type(other).__name__, other.a
"""


@pytest.mark.parametrize("name", ["Parameter", "Weight"])
def test_a_parameter_that_is_moved_by_its_class_and_attributes(library: Path, name: str) -> None:
    (library / "asking.py").write_text(SENDING)
    with graphmem.virtual_gpu("t4") as gpu:
        import asking

        on_card, on_host = asking.there_and_back(getattr(asking, name))
        assert on_card == ["cuda", (1 << 18,), "w", True]
        assert on_host == [True, "cpu", "w", 1 << 18]
        assert asking.plain() == ("More", 1)
        assert gpu.allocated == 0
