"""`graphmem run`: whole scripts on a virtual GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import graphmem
from graphmem.analysis import analysis_of
from graphmem.record import load
from graphmem.report.text import report_as_text
from graphmem.torch_releases import installed_release
from tests.conftest import Outcome
from tests.support.places import ROOT, SCRIPTS
from tests.support.sizes import MIB

SEEDS = Path(os.environ.get("GRAPHMEM_SEED_SCRIPTS", ROOT.parent / "shared" / "seeds" / "scripts"))
FORWARD = "Memory consumed after forward pass (activations stored, depends on batch size)"
BACKWARD = "After backward pass (activations released, grad stored)"

Run = Callable[..., Outcome]


@pytest.fixture
def run(run_graphmem: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`graphmem run ARGUMENTS…` in a folder."""

    def call(*arguments: str | Path, cwd: Path = ROOT) -> Outcome:
        monkeypatch.chdir(cwd)
        return run_graphmem("run", *map(str, arguments))

    return call


def report_of(path: Path) -> dict:
    return json.loads(path.read_text())


def phases_of(path: Path) -> list[list[str]]:
    """The names of each step's phases."""
    return [[phase["name"] for phase in step["phases"]] for step in report_of(path)["steps"]]


def findings_of(report: dict, name: str) -> list[str]:
    return [
        line for each in report["findings"] if each["found_by"] == name for line in each["lines"]
    ]


class TestArticles:
    """The articles' scripts print what a card printed (EXPECTED.md beside them)."""

    @pytest.mark.parametrize(
        ("script", "lines"),
        [
            (
                "cublas_workspace.py",
                [
                    "Starting mem: 0",
                    "Mem usage after allocating a: 512",
                    "Mem usage after matmul: 8520704",
                    "Mem usage allocating gradient: 8521216",
                    "Mem usage after backwards: 17041408",
                ],
            ),
            (
                "backprop_memory.py",
                [
                    f"2: {FORWARD}: 46,616,576 change:  5,171,200",
                    f"3: {BACKWARD} 49,580,544 change: 2,963,968",
                    "4: After optimizer step (moments stored at first time): 49,580,544 change: 0 ",
                    "5: After zero_grad step (grads released): 41,445,376 change: -8,135,168 ",
                ],
            ),
            (
                "activation_memory.py",
                [
                    "mem.delta={'allocated': 3072, 'current': 1024, 'freed': 2048, 'peak': 2048}",
                    "ReLU bytes: 83886080",
                    "GELU bytes: 150994944",
                    "ReLU/GeLU act mem ratio: 0.5555555555555556",
                ],
            ),
        ],
    )
    def test_an_articles_script_prints_what_its_card_printed(
        self, run: Run, script: str, lines: list[str]
    ) -> None:
        if not (SEEDS / script).exists():
            pytest.skip(f"no {script} in {SEEDS} (set GRAPHMEM_SEED_SCRIPTS)")

        # as in the articles' releases: cuBLAS keeps its workspaces, cublasLt has none besides
        names = ("TORCH_CUBLAS_WORKSPACE_CACHE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE")
        env = [word for name in names for word in ("--env", f"{name}=1")]
        done = run("--gpu", "a100-80gb", *env, script, cwd=SEEDS)

        assert done.exit_code == 0
        printed = done.stdout.splitlines()
        assert [line for line in printed if line][-len(lines) :] == lines


class TestLinearStack:
    """Which activations a stack of linear layers keeps, by the derivative of a product."""

    activation = 64 * 128 * 4

    @pytest.mark.parametrize(
        ("variant", "kept"),
        [
            # each of 51 products keeps its input for its weight's gradient
            ([], 51),
            # a frozen product keeps nothing; the first one trains
            (["frozen"], 1),
            # 50 results of ReLU, of which all but the last are inputs of products, and two inputs
            (["relu"], 52),
            # frozen too, but ReLU's derivative needs its result
            (["frozen", "relu"], 51),
        ],
    )
    def test_the_variants_keep_what_their_derivatives_need(
        self, run: Run, variant: list[str], kept: int
    ) -> None:
        done = run("--gpu", "a100-80gb", SCRIPTS / "linear_stack.py", *variant)

        moments_made_in_the_second_step = 0
        assert done.stdout == f"{kept * self.activation} {moments_made_in_the_second_step}\n"


class TestTraining:
    """A typical training script."""

    def test_it_runs_with_workers_and_checkpoints(self, run: Run, tmp_path: Path) -> None:
        arguments = ["--workers", "2", "--save", str(tmp_path / "model.pt")]
        done = run(SCRIPTS / "training.py", "--epochs", "1", *arguments)

        assert done.stdout.splitlines() == [
            # 64 rows; the sums of two batches are read as 1.0 each
            f"epoch 0 loss 1.00 eval {2 / 64:.4f}",
            "the CPU is real: True",
            "cuda:0 True",
            "cpu 0.0",
        ]
        assert done.exit_code == 0

    def test_iterations_and_evaluations_are_found(self, run: Run, tmp_path: Path) -> None:
        output = tmp_path / "report.json"
        run("--format", "json", "-o", output, SCRIPTS / "training.py", "--epochs", "2")

        report = report_of(output)
        training = ["forward", "backward", "optimizer"]
        assert phases_of(output) == [training, [*training, "evaluation"]] * 2
        assert report["model"]["parameters"] == 16 * 64 + 64 + 64 * 4 + 4
        assert report["model"]["optimizer_state_bytes"] == 2 * report["model"]["parameter_bytes"]

    def test_a_reference_model_is_part_of_the_forward_pass(self, run: Run, tmp_path: Path) -> None:
        script, output = tmp_path / "preferences.py", tmp_path / "report.json"
        script.write_text(
            "import torch\n"
            "policy, reference = torch.nn.Linear(4, 4).cuda(), torch.nn.Linear(4, 4).cuda()\n"
            "optimizer = torch.optim.SGD(policy.parameters(), 0.1)\n"
            "for _ in range(2):\n"
            "    x = torch.randn(2, 4, device='cuda')\n"
            "    y = policy(x)\n"
            "    with torch.no_grad():\n"
            "        wanted = reference(x)\n"
            "    (y - wanted).sum().backward()\n"
            "    optimizer.step()\n"
            "with torch.no_grad():\n"
            "    reference(policy(x))\n"
        )
        run("--format", "json", "-o", output, script)

        training = ["forward", "backward", "optimizer"]
        assert phases_of(output) == [training, [*training, "evaluation"]]

    def test_max_steps_stops_before_the_next_iteration(self, run: Run, tmp_path: Path) -> None:
        output = tmp_path / "report.json"
        where = ["--max-steps", "3", "--format", "json", "-o", output]
        done = run(*where, SCRIPTS / "training.py", "--epochs", "1000000")

        assert done.exit_code == 0
        assert "stopped by --max-steps" in done.stderr
        assert len(report_of(output)["steps"]) == 3

    def test_an_error_in_what_a_stopped_script_leaves_is_not_its_end(
        self, run: Run, tmp_path: Path
    ) -> None:
        """Python asks `__exit__` of TorchRL's `to_module` for a truth value, and it has none."""
        script = tmp_path / "failing_exit.py"
        script.write_text(
            "import torch\n"
            "model = torch.nn.Linear(4, 4).cuda()\n"
            "class Restored:\n"
            "    def __enter__(self): pass\n"
            "    def __exit__(self, *of): return torch.ones(2)\n"
            "while True:\n"
            "    with Restored():\n"
            "        model(torch.ones(2, 4, device='cuda')).sum().backward()\n"
        )
        done = run("--max-steps", "2", script)

        assert done.exit_code == 0
        assert "graphmem: stopped by --max-steps\n" in done.stderr
        assert "Traceback" not in done.stderr

    def test_max_steps_counts_forward_passes_where_nothing_trains(
        self, run: Run, tmp_path: Path
    ) -> None:
        script = tmp_path / "infer.py"
        script.write_text(
            "import torch\nmodel = torch.nn.Linear(4, 4).cuda()\n"
            "with torch.no_grad():\n"
            "    while True:\n"
            "        model(torch.randn(2, 4, device='cuda'))\n"
            "        print('batch')\n"
        )
        done = run("--max-steps", "3", script)

        assert done.exit_code == 0
        assert "stopped by --max-steps" in done.stderr
        assert done.stdout.count("batch\n") == 3

    def test_an_evaluation_before_training_is_not_taken_for_training(
        self, run: Run, tmp_path: Path
    ) -> None:
        """LLMs-from-scratch prints its model's losses before it makes an optimizer."""
        script = tmp_path / "evaluate_first.py"
        script.write_text(
            "import torch\nmodel = torch.nn.Linear(4, 4).cuda()\n"
            "x = torch.randn(2, 4, device='cuda')\n"
            "with torch.no_grad():\n"
            "    for _ in range(3):\n"
            "        model(x)\n"
            "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
            "while True:\n"
            "    model(x).sum().backward()\n"
            "    optimizer.step()\n"
            "    print('step')\n"
        )
        too_few = run("--max-steps", "2", script)
        enough = run("--max-steps", "3", script)

        assert "step\n" not in too_few.stdout
        told = "stopped by --max-steps, which counts forward passes until something trains"
        assert told in too_few.stderr
        assert enough.stdout.count("step\n") == 3
        assert "stopped by --max-steps\n" in enough.stderr

    def test_forces_found_in_an_evaluation_are_no_step(self, run: Run, tmp_path: Path) -> None:
        """nequip's model differentiates its energy in Lightning's first validation, too."""
        script, output = tmp_path / "forces.py", tmp_path / "report.json"
        script.write_text(
            "import torch\n"
            "class Model(torch.nn.Linear):\n"
            "    def forward(self, x):\n"
            "        with torch.enable_grad():\n"
            "            x = x.requires_grad_()\n"
            "            energy = super().forward(x).square().sum()\n"
            "            return torch.autograd.grad(energy, x, create_graph=self.training)[0]\n"
            "model = Model(4, 4).cuda()\n"
            "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
            "for training in (False, True, False):\n"
            "    with torch.set_grad_enabled(training):\n"
            "        force = model.train(training)(torch.randn(2, 4, device='cuda'))\n"
            "    if training:\n"
            "        force.sum().backward()\n"
            "        optimizer.step()\n"
        )
        run("--format", "json", "-o", output, script)

        for_forces = ["forward", "backward"]
        assert phases_of(output) == [
            [*for_forces, "forward", "backward", "optimizer", "evaluation"]
        ]

    def test_layers_tried_on_the_cpu_are_no_steps(self, run: Run, tmp_path: Path) -> None:
        """YOLOv5 measures its strides so, calling each layer of a model that is not moved yet."""
        script = tmp_path / "detect.py"
        script.write_text(
            "import torch\n"
            "model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))\n"
            "x = torch.randn(2, 4)\n"
            "for layer in model:\n"
            "    x = layer(x)\n"
            "model.cuda()\n"
            "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
            "while True:\n"
            "    model(torch.randn(2, 4, device='cuda')).sum().backward()\n"
            "    optimizer.step()\n"
            "    print('step')\n"
        )
        output = tmp_path / "report.json"
        done = run("--max-steps", "1", "--format", "json", "-o", output, script)

        assert done.stdout.count("step\n") == 1
        report = report_of(output)
        moved = 4 * 512  # two weights and two biases, each in a block of its own
        assert report["steps"][0]["phases"][0]["start"] == moved + 512  # and the input
        assert "[0-1]" in report["calls"]

    def test_operators_tried_on_the_cpu_are_no_step(self, run: Run, tmp_path: Path) -> None:
        """Unsloth tries a derivative so, when it is imported."""
        script = tmp_path / "tune.py"
        script.write_text(
            "import torch\n"
            "torch.ones(2, requires_grad=True).clamp(max=2.0).sum().backward()\n"
            "weight = torch.ones(1024, device='cuda', requires_grad=True)\n"
            "optimizer = torch.optim.SGD([weight], 0.1)\n"
            "while True:\n"
            "    weight.sum().backward()\n"
            "    optimizer.step()\n"
            "    print('step')\n"
        )
        output = tmp_path / "report.json"
        done = run("--max-steps", "2", "--format", "json", "-o", output, script)

        assert done.stdout.count("step\n") == 2
        assert phases_of(output) == [
            ["backward", "optimizer"],
            ["forward", "backward", "optimizer"],
        ]

    def test_what_an_object_keeps_is_named_by_its_path(self, run: Run, tmp_path: Path) -> None:
        """improved-diffusion's trainer keeps averages of weights so, in lists of lists."""
        script = tmp_path / "averages.py"
        script.write_text(
            "import torch\n"
            "class Trainer:\n"
            "    def __init__(self, weight):\n"
            "        self.averages = [[torch.empty_like(weight)] for _ in range(2)]\n"
            "        self.cache = {'x': {'y': torch.empty(2048, device='cuda')}}\n"
            "weight = torch.ones(1024, device='cuda', requires_grad=True)\n"
            "trainer = Trainer(weight)\n"
            "weight.sum().backward()\n"
        )
        done = run("--verbose", script)

        assert "held by the variable trainer.averages[0-1][0]" in done.stderr
        assert "held by the variable trainer.cache['x']['y']" in done.stderr

    def test_the_variables_of_a_script_without_a_model_are_named_at_its_end(
        self, run: Run, tmp_path: Path
    ) -> None:
        script = tmp_path / "tensors.py"
        script.write_text("import torch\nbatch = torch.zeros(1 << 20, device='cuda')\n")
        done = run("--gpu", "t4", script)

        assert f"held by the variable batch ({script}:2)" in " ".join(done.stderr.split())

    def test_what_a_dictionary_keeps_is_named_without_its_own_methods(
        self, run: Run, tmp_path: Path
    ) -> None:
        """transformers' MODEL_MAPPING imports every model when it is asked for its items."""
        script = tmp_path / "lazy.py"
        script.write_text(
            "import torch\n"
            "class Lazy(dict):\n"
            "    def items(self):\n"
            "        raise ImportError('a model that is not there')\n"
            "    values = items\n"
            "weight = torch.ones(1024, device='cuda', requires_grad=True)\n"
            "lazy = Lazy(x=torch.empty(2048, device='cuda'))\n"
            "weight.sum().backward()\n"
        )
        done = run("--verbose", script)

        assert done.exit_code == 0
        assert "held by the variable lazy['x']" in done.stderr

    def test_a_function_may_keep_a_name_of_its_own(self, run: Run, tmp_path: Path) -> None:
        """Lingua's probe does; the context is the autograd node, which has a method `name`."""
        script = tmp_path / "probe.py"
        script.write_text(
            "import torch\n"
            "class Probe(torch.autograd.Function):\n"
            "    @staticmethod\n"
            "    def forward(ctx, x, name):\n"
            "        ctx.name = name\n"
            "        return x.clone()\n"
            "    @staticmethod\n"
            "    def backward(ctx, gradient):\n"
            "        print(ctx.name)\n"
            "        return gradient * 2, None\n"
            "weight = torch.ones(1024, device='cuda', requires_grad=True)\n"
            "Probe.apply(weight * 2, 'wq').sum().backward()\n"
        )
        done = run(script)

        assert (done.exit_code, done.stdout) == (0, "wq\n"), done.stderr

    def test_an_assumption_is_printed_once_and_can_be_overridden(self, run: Run) -> None:
        chosen = ["--assume", "loss=2.5", "--assume", "training.py:18=6.4"]
        done = run(*chosen, SCRIPTS / "training.py", "--epochs", "2")

        # the evaluation reads 6.4 twice, for 64 rows
        assert "epoch 1 loss 2.50 eval 0.2000" in done.stdout
        told = [line for line in done.stderr.splitlines() if line.startswith("graphmem: ")]
        assert len([line for line in told if "assuming loss = 2.5" in line]) == 1
        listed = re.search(r"assumed or left out(.*)", done.stderr, re.S)
        assert listed
        assert "loss: 2.5" in listed[1]

    def test_an_assumption_of_many_lines_is_listed_once(self, run: Run, tmp_path: Path) -> None:
        """As of the masks of `SyncBatchNorm`, which each layer of a model calls."""
        script = tmp_path / "masks.py"
        lines = ["x[x > 0].sum()"] * 5
        begin = ["import torch", "x = torch.randn(64, device='cuda')"]
        script.write_text("\n".join([*begin, *lines]))

        told = " ".join(run(script).stderr.split())
        assert told.count("how many elements a mask selects:") == 1
        places = "; ".join(f"{script}:{line}" for line in (3, 4, 5))
        assert f"({places}; 2 more lines)" in told

    def test_a_branch_follows_the_assumption(self, run: Run) -> None:
        done = run("--assume", "training.py:46=true", SCRIPTS / "training.py")

        assert done.exit_code == 1
        assert "diverged\n" in done.stderr

    @pytest.mark.parametrize(("script", "exit_code"), [("training.py", 2), ("fragmenting.py", 0)])
    def test_an_option_after_the_script_gets_a_hint(
        self, run: Run, script: str, exit_code: int
    ) -> None:
        """The first script rejects what it does not know, the second reads no options."""
        done = run(SCRIPTS / script, "--gpu", "t4")

        assert done.exit_code == exit_code
        assert "hint: --gpu went to the script; graphmem's options go before" in done.stderr

    def test_an_option_that_both_have_gets_no_hint(self, run: Run) -> None:
        """`makemore.py --max-steps N` has one too."""
        done = run("--gpu", "t4", SCRIPTS / "fragmenting.py", "--gpu", "0")

        assert done.exit_code == 0
        assert "went to the script" not in done.stderr

    def test_an_option_that_the_script_defines_gets_no_hint(self, run: Run, tmp_path: Path) -> None:
        """`awd-lstm-lm` saves its model with `--save`."""
        script = tmp_path / "saving.py"
        script.write_text(
            "import argparse\n"
            "parser = argparse.ArgumentParser()\n"
            "parser.add_argument('--save')\n"
            "parser.parse_args()\n"
        )

        done = run("--gpu", "t4", script, "--save", "model.pt")

        assert done.exit_code == 0
        assert "went to the script" not in done.stderr

    @pytest.mark.parametrize(
        ("after", "is_excused"),
        [("torch.nn.Conv1d(1, 1, 1).cuda()(x)", True), ("torch.no_such_name", False)],
    )
    def test_an_error_that_an_assumed_number_may_explain_names_it(
        self, run: Run, tmp_path: Path, after: str, is_excused: bool
    ) -> None:
        """VITS predicts how long its speech is; with 0 frames a convolution fails."""
        script = tmp_path / "predicted_length.py"
        script.write_text(
            "import torch\n"
            "frames = torch.randn(3, device='cuda').exp().ceil().long().sum()\n"
            "x = torch.zeros(1, 1, int(frames), device='cuda')\n"
            f"{after}\n"
        )
        done = run(script)

        assert done.exit_code == 1
        excuse = "predicted_length.py:3 was taken as 0, which may be why; override with"
        ending = next(line for line in done.stderr.splitlines() if "ended by" in line)
        assert (excuse in ending) == is_excused
        assert (f"{excuse} --assume frames=VALUE" in ending) == is_excused

    def test_the_report_goes_where_stderr_went_before_a_script_replaced_it(
        self, run: Run, tmp_path: Path
    ) -> None:
        """StyleGAN3's `Logger` copies both streams to a file, and has no `isatty`."""
        script = tmp_path / "logging_to_a_file.py"
        script.write_text(
            "import sys, torch\n"
            "class Logger:\n"
            "    def __init__(self, stream): self.stream = stream\n"
            "    def write(self, text): self.stream.write('> ' + text)\n"
            "    def flush(self): self.stream.flush()\n"
            "sys.stdout = sys.stderr = Logger(sys.stdout)\n"
            "x = torch.zeros(1 << 20, device='cuda')\n"
            "print('made')\n"
        )
        done = run("--gpu", "t4", script)

        assert done.exit_code == 0
        assert "> made" in done.stdout
        assert f"({4 << 20:,} bytes)" in done.stderr
        assert "> fits" not in done.stdout

    def test_files_are_where_the_command_was_given_though_a_script_goes_elsewhere(
        self, run: Run, tmp_path: Path
    ) -> None:
        """As Hydra's `main` does for each run (`hydra.job.chdir`)."""
        (tmp_path / "outputs").mkdir()
        (tmp_path / "train.py").write_text(
            "import atexit, os, torch\n"
            "os.chdir('outputs')\n"
            "x = torch.zeros(1 << 20, device='cuda')\n"
            "print('ends in', os.getcwd())\n"
        )
        done = run("--save", "step.graphmem", "--html", "page.html", "train.py", cwd=tmp_path)

        assert f"ends in {tmp_path / 'outputs'}" in done.stdout
        assert "4.0 MiB  float32 [1048576] (train.py:3)" in done.stderr
        assert {"page.html", "step.graphmem"} <= {each.name for each in tmp_path.iterdir()}
        assert Path.cwd() == tmp_path / "outputs"  # for what the script does at its exit

    def test_a_malformed_assumption_is_rejected(self, run: Run) -> None:
        done = run("--assume", "loss", SCRIPTS / "training.py")

        assert done.exit_code == 2
        assert "cannot assume 'loss'" in done.stderr
        assert "write NAME=NUMBER or FILE:LINE=NUMBER" in done.stderr


def run_report(saved: Path) -> str:
    """The report of a saved step."""
    return report_as_text(analysis_of(load(saved)).report)


class TestFindings:
    """Problems are reported with their line and owner."""

    def test_a_list_that_keeps_graphs_is_a_leak(self, run: Run, tmp_path: Path) -> None:
        output = tmp_path / "report.json"
        run("--gpu", "h100", "--format", "json", "-o", output, SCRIPTS / "leaking.py")

        # input 128 x 256, ReLU's result 128 x 1024, the difference 128 x 256, a loss of one block
        each = 4 * (128 * 256 + 128 * 1024 + 128 * 256) + 512
        first, *_ = findings_of(report_of(output), "memory that grows")
        assert f"({each:,} bytes) more every iteration" in first
        assert "held by `losses`" in first
        assert "leaking.py:18)" in first
        assert "with the graph that autograd keeps" in first

    def test_a_leak_that_fits_says_how_long_it_can_go_on(self, run: Run, tmp_path: Path) -> None:
        output = tmp_path / "report.json"
        run("--gpu", "t4", "--format", "json", "-o", output, SCRIPTS / "leaking.py")
        done = run("--gpu", "t4", SCRIPTS / "leaking.py")

        each = 4 * (128 * 256 + 128 * 1024 + 128 * 256) + 512  # as above
        card = report_of(output)["ran"]
        left = card["margin"] // each
        assert card["grows_by"] == each
        assert (
            f"  if it goes on, memory runs out after about {left:,} more iterations\n"
            in done.stderr
        )

    def test_a_leak_that_runs_out_in_the_fourth_iteration_is_named(self, run: Run) -> None:
        """8 layers keep 98,304 x 1,024 floats each in every iteration."""
        done = run("--gpu", "t4", SCRIPTS / "leaking_fast.py", "98304")

        assert done.stdout == "0\n1\n2\n"
        verdict = " ".join(done.stderr.partition("does NOT fit on Tesla T4")[2].split())
        assert verdict.startswith("(14.563 GiB): out of memory in the backward phase of step 3 at ")
        each = 8 * 98_304 * 1_024 * 4
        assert f"a leak: 3.000 GiB ({each:,} bytes) more every iteration" in verdict
        assert "held by `history` " in verdict
        assert "leaking_fast.py:19), with the graph" in verdict

    def test_a_script_that_does_not_fit_gets_a_hint_how_to_save(
        self, run: Run, tmp_path: Path
    ) -> None:
        saved = tmp_path / "step.graphmem"
        done = run("--gpu", "t4", "--save", saved, SCRIPTS / "too_large.py")

        hint = f"graphmem: hint: `graphmem explain {saved}` lists what may lower the peak"
        assert done.stderr.splitlines()[-1] == hint

    def test_two_iterations_are_enough_when_memory_runs_out(self, run: Run) -> None:
        done = run("--gpu", "t4", SCRIPTS / "leaking_fast.py", "131072")

        assert done.stdout == "0\n1\n"
        assert "a leak: 4.000 GiB" in done.stderr

    def test_a_brief_report_names_the_leak_in_its_third_line(self, run: Run) -> None:
        done = run("--gpu", "t4", "--brief", SCRIPTS / "leaking.py")

        fits, peak, leak = done.stderr.splitlines()
        assert fits.startswith("fits on Tesla T4")
        assert peak.startswith("peak ")
        assert re.fullmatch(
            r"a leak: .* more every iteration, .* held by `losses` \(.*:18\).*", leak
        )

    def test_what_iterations_keep_is_not_temporary(self, run: Run, tmp_path: Path) -> None:
        """For each of 3 iterations: every layer's input (`x` is the batch) and the last output."""
        output = tmp_path / "report.json"
        arguments = ["--gpu", "t4", "--format", "json", "-o", output]
        run(*arguments, SCRIPTS / "leaking_fast.py", "98304")

        report = report_of(output)
        each = 98_304 * 1_024 * 4
        inputs_and_outputs = 3 * (8 + 1) * each
        assert report["peak"]["step"] == 3
        assert report["at_peak"]["by_category"]["kept"] == inputs_and_outputs

    def test_what_ended_the_script_is_reported_first(self, run: Run, tmp_path: Path) -> None:
        output = tmp_path / "report.json"
        arguments = ["--gpu", "t4", "--format", "json", "-o", output]
        run(*arguments, SCRIPTS / "leaking_fast.py", "98304")

        names = [each["found_by"] for each in report_of(output)["findings"]]
        assert names[:2] == ["out of memory", "memory that grows"]

    def test_equal_lines_of_a_finding_are_one(self, run: Run, tmp_path: Path) -> None:
        """Each iteration keeps the 8 layers' inputs; what is left is of the fourth iteration."""
        output = tmp_path / "report.json"
        arguments = ["--gpu", "t4", "--format", "json", "-o", output]
        run(*arguments, SCRIPTS / "leaking_fast.py", "98304")

        report = report_of(output)
        _, *growing = findings_of(report, "memory that grows")
        assert len(growing) == 1
        assert growing[0].startswith("  8 x 384.0 MiB (402,653,184 bytes): ")
        lines = findings_of(report, "out of memory")
        assert lines[1] == "  the largest tensors on the GPU at that moment:"
        assert re.match(r"    \d+ x 384.0 MiB float32 \[98304 x 1024\]: saved", lines[2])

    def test_a_script_that_fits_says_so_first(self, run: Run, tmp_path: Path) -> None:
        saved = tmp_path / "step.graphmem"
        output = tmp_path / "report.json"
        done = run("--gpu", "t4", "--save", saved, SCRIPTS / "training.py", "--epochs", "1")
        run("--gpu", "t4", "--format", "json", "-o", output, SCRIPTS / "training.py")

        assert "\nfits on Tesla T4 (14.563 GiB)\n" in done.stderr
        card = report_of(output)["ran"]
        assert card["margin"] == card["capacity"] - card["reserved"]
        again = run_report(saved)
        assert again.startswith("fits on Tesla T4 (14.563 GiB)\n")

    def test_a_script_that_fails_has_no_verdict(self, run: Run, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text("import torch\nx = torch.ones(9, device='cuda')\nraise ValueError\n")

        assert "fits on" not in run("--gpu", "t4", script).stderr

    def test_tensors_that_pin_segments_are_named(self, run: Run, tmp_path: Path) -> None:
        output = tmp_path / "report.json"
        arguments = ["--gpu", "h100", "--format", "json", "-o", output]
        done = run(*arguments, SCRIPTS / "fragmenting.py")

        assert done.stdout == "80 800\n"
        total, line, *_ = findings_of(report_of(output), "fragmentation")
        assert f"({40 * 18 * MIB:,} bytes) of the 800.0 MiB reserved at the end is free" in total
        assert "40 segments" in line
        assert "each pinned by 2.0 MiB made at" in line
        assert "fragmenting.py:10, held by `kept`" in line

    @pytest.mark.parametrize(("later", "sections"), [(4, ["fragmentation"]), (8, [])])
    def test_what_is_little_of_what_a_program_reserves_later_is_no_finding(
        self, run: Run, tmp_path: Path, later: int, sections: list[str]
    ) -> None:
        """720 MiB free in segments of 800, as the second step begins; GiB more after that."""
        script, output = tmp_path / "growing.py", tmp_path / "report.json"
        script.write_text(
            (SCRIPTS / "fragmenting.py").read_text() + "model = torch.nn.Linear(8, 8).cuda()\n"
            "optimizer = torch.optim.SGD(model.parameters())\n"
            "for step in range(2):\n"
            "    model(torch.ones(8, 8, device='cuda')).sum().backward()\n"
            "    optimizer.step()\n"
            f"more = torch.empty({later} << 30, dtype=torch.uint8, device='cuda')\n"
        )

        run("--gpu", "h100", "--format", "json", "-o", output, script)

        found = [each["found_by"] for each in report_of(output)["findings"]]
        assert [each for each in found if each == "fragmentation"] == sections

    def test_a_parameter_that_pins_is_named_as_such(self, run: Run, tmp_path: Path) -> None:
        """A list holds it too, as awd-lstm-lm's `params`."""
        script, output = tmp_path / "pinning.py", tmp_path / "report.json"
        script.write_text(
            "import torch\n"
            "torch.empty(80 << 20, dtype=torch.uint8, device='cuda')\n"
            "model = torch.nn.Linear(1024, 1024, bias=False).cuda()\n"
            "params = list(model.parameters())\n"
        )

        run("--format", "json", "-o", output, script)

        _, line = findings_of(report_of(output), "fragmentation")
        assert f"({(80 - 4) * MIB:,} bytes) free in 1 segment" in line
        assert line.endswith("the parameter weight")

    def test_the_text_names_a_finding_once_above_its_lines(self, run: Run) -> None:
        done = run("--gpu", "h100", SCRIPTS / "fragmenting.py")

        _, _, told = done.stderr.partition("\nfindings\n")
        name, total, end_of_total, line, rest, *_ = told.splitlines()
        assert name == "  fragmentation"
        assert total.startswith("    720.0 MiB")
        assert end_of_total == "    released"
        # continuation lines are indented, even wrapped ones
        assert line.startswith(" " * 6 + f"720.0 MiB ({40 * 18 * MIB:,} bytes) free in 40 segments")
        assert rest.startswith(" " * 6)
        assert rest[6] != " "

    def test_a_script_that_runs_out_continues_as_on_a_card(self, run: Run, tmp_path: Path) -> None:
        output = tmp_path / "report.json"
        arguments = ["--gpu", "a100-80gb", "--format", "json", "-o", output]
        done = run(*arguments, SCRIPTS / "running_out.py")

        # 2^20 rows take 16 GiB: input, hidden, GELU's result and output fit into 79 GiB with
        # workspace and weights, but a fifth tensor, the output's gradient, does not
        assert done.stdout.splitlines() == [
            "no room for 1048576 1",
            "left over: True",
            "room for 524288",
        ]
        assert done.exit_code == 1
        assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 60.00 GiB. GPU 0" in (
            done.stderr
        )
        lines = findings_of(report_of(output), "out of memory")
        refused = [line for line in lines if "Tried to allocate" in line]
        assert "running_out.py:11): Tried to allocate 16.00 GiB" in refused[0]
        assert "running_out.py:28): Tried to allocate 60.00 GiB" in refused[1]
        assert "held by the variable hoard[0]" in "\n".join(lines)

    def test_equal_tensors_of_a_list_are_one_line_named_after_it(
        self, run: Run, tmp_path: Path
    ) -> None:
        """9 of 10 tensors of 2^27 floats, 512 MiB each, were in the list at a backward pass."""
        script = tmp_path / "hoarding.py"
        script.write_text(
            "import torch\n"
            "def main():\n"
            "    history = []\n"
            "    for _ in range(10):\n"
            "        made = torch.randn(2**27, device='cuda')\n"
            "        torch.ones((), device='cuda', requires_grad=True).backward()\n"
            "        history.append(made)\n"
            "        del made\n"
            "    torch.empty(2**34, dtype=torch.uint8, device='cuda')\n"
            "main()\n"
        )
        done = run("--gpu", "t4", script)

        told = " ".join(done.stderr.split())
        assert "4.500 GiB 9 x 512.0 MiB, float32 [134217728] (" in told
        assert f"held by the variable history[0-8] ({script}:7)" in told

    def test_the_parameters_of_an_oversized_model_are_named(self, run: Run, tmp_path: Path) -> None:
        output = tmp_path / "report.json"
        arguments = ["--gpu", "a100-80gb", "--format", "json", "-o", output]
        done = run(*arguments, SCRIPTS / "too_large.py")

        # 2^15 x 2^15 floats are 4 GiB; 19 of them fit beside the CUDA context
        assert done.exit_code == 1
        assert "graphmem: ended by OutOfMemoryError: CUDA out of memory." in (
            done.stderr.splitlines()
        )
        lines = findings_of(report_of(output), "out of memory")
        assert "too_large.py:10): Tried to allocate 4.00 GiB" in lines[0]
        held = [line for line in lines if "4.000 GiB" in line]
        assert "the parameter 0.weight" in held[0]
        assert report_of(output)["peak"]["allocated"] == 19 * (4 << 30)


def test_an_error_before_the_first_step_leaves_parameters_their_names(
    run: Run, tmp_path: Path
) -> None:
    script = tmp_path / "ended.py"
    script.write_text(
        "import torch\n"
        "def main():\n"
        "    model = torch.nn.Linear(1024, 1024, bias=False).to('cuda')\n"
        "    raise ValueError('no data')\n"
        "main()\n"
    )
    output = tmp_path / "report.json"

    run("--format", "json", "-o", output, script)

    [weight] = report_of(output)["at_peak"]["holders"]
    assert (weight["category"], weight["reason"]) == ("parameter", "the parameter weight")


def test_a_message_that_begins_with_an_empty_line_is_shown(run: Run, tmp_path: Path) -> None:
    """Coqui's TTS raises its hints on packages so."""
    script = tmp_path / "ended.py"
    script.write_text("raise ImportError('\\nTorchCodec is needed:\\npip install it')\n")

    assert "graphmem: ended by ImportError: TorchCodec is needed:\n" in run(script).stderr


def test_an_error_before_a_modules_init_is_the_scripts_own(run: Run, tmp_path: Path) -> None:
    """The traceback's frame holds a module without parameters, as in DETR's `Backbone`."""
    script = tmp_path / "ended.py"
    script.write_text(
        "import torch\n"
        "class Backbone(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        raise ValueError('no weights')\n"
        "Backbone()\n"
    )

    done = run(script)

    assert "graphmem: ended by ValueError: no weights" in done.stderr
    assert "AttributeError" not in done.stderr


def test_what_a_module_holds_before_its_init_is_found(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "too_large.py"
    script.write_text(
        "import torch\n"
        "class Backbone(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        self.pages = [torch.empty(1 << 28, device='cuda') for _ in range(20)]\n"
        "Backbone()\n"
    )

    done = run("--gpu", "t4", script)

    assert "graphmem: ended by OutOfMemoryError: CUDA out of memory." in done.stderr
    assert "1.000 GiB float32" in done.stderr
    assert "AttributeError" not in done.stderr


def test_a_first_request_that_does_not_fit_has_no_list_of_others(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "too_large.py"
    script.write_text("import torch\ntorch.empty(1 << 34, device='cuda')\n")

    done = run("--gpu", "t4", script)

    assert "Tried to allocate 64.00 GiB" in done.stderr
    assert "largest tensors" not in done.stderr


class TestCommands:
    """What a package installs runs by its name, as `llamafactory-cli train config.yaml` does."""

    @pytest.mark.parametrize(
        "shebang",
        ["#!{python}\n", "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"],
        ids=["short", "long"],
    )
    def test_one_in_python_runs(
        self, run: Run, shebang: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _install(tmp_path / "fit-it", shebang.format(python=sys.executable))
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

        assert run("fit-it", "train").stdout == f"{tmp_path / 'fit-it'} train 512\n"

    def test_a_file_of_that_name_comes_first(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _install(tmp_path / "fit-it", f"#!{sys.executable}\n")
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        (tmp_path / "work").mkdir()
        (tmp_path / "work" / "fit-it").write_text("print('mine')")

        assert run("fit-it", cwd=tmp_path / "work").stdout == "mine\n"

    def test_another_is_refused(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _install(tmp_path / "fit-it", "#!/bin/sh\n")
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

        done = run("fit-it")

        assert done.exit_code == 2
        assert "error: cannot read fit-it: No such file" in done.stderr


def _install(command: Path, shebang: str) -> None:
    command.write_text(
        f"{shebang}import sys, torch\n"
        "kept = torch.ones(1, device='cuda')\n"
        "print(*sys.argv, torch.cuda.memory_allocated())\n"
    )
    command.chmod(0o755)


class TestExitCodes:
    """A script exits as it does under python."""

    @pytest.mark.parametrize(
        ("code", "exit_code", "stderr"),
        [
            ("print('fine')", 0, ""),
            ("import sys; sys.exit(7)", 7, ""),
            ("import sys; sys.exit('no data')", 1, "no data\n"),
            ("import sys; sys.exit(None)", 0, ""),
            ("raise SystemExit", 0, ""),
            ("import os; os._exit(7)", 7, ""),
        ],
    )
    def test_exit_codes(
        self, run: Run, code: str, exit_code: int, stderr: str, tmp_path: Path
    ) -> None:
        script = tmp_path / "script.py"
        script.write_text(code)

        done = run(script)

        assert done.exit_code == exit_code
        assert done.stderr.startswith(stderr)

    @pytest.mark.parametrize(("code", "fits"), [(0, True), (7, False)])
    def test_only_a_script_that_succeeded_fits(
        self, run: Run, code: int, fits: bool, tmp_path: Path
    ) -> None:
        """hydra's `main` catches errors and exits with 1, so the rest of the script is unknown."""
        script = tmp_path / "script.py"
        script.write_text(f"import sys, torch\nx = torch.ones(9).cuda()\nsys.exit({code})\n")

        done = run(script)

        assert ("fits on" in done.stderr) == fits

    def test_an_exception_is_printed_as_python_prints_it(self, run: Run, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import torch\n"
            "def fail():\n"
            "    x = torch.ones(2, 3, device='cuda')\n"
            "    return x @ x\n"
            "fail()\n"
        )

        done = run(script)

        assert done.exit_code == 1
        printed = done.stderr.partition("graphmem: ")[0]
        assert printed.startswith("Traceback (most recent call last):\n")
        assert f'File "{script}", line 5, in <module>' in printed
        assert f'File "{script}", line 4, in fail' in printed
        assert str(Path(graphmem.__file__).parent) not in printed
        assert "_subclasses" not in printed  # kernels are C++ on a card

    @pytest.mark.parametrize("fails", [False, True])
    def test_an_error_is_printed_by_the_programs_own_hook(
        self, run: Run, tmp_path: Path, fails: bool
    ) -> None:
        """As that of `rich.traceback.install()`; Python prints itself if the hook fails."""
        script = tmp_path / "script.py"
        hook = "1 / 0" if fails else "print(kind.__name__, 'told')"
        script.write_text(
            f"import sys\ndef show(kind, error, trace): {hook}\n"
            "sys.excepthook = show\nraise KeyError('x')\n"
        )
        before = sys.excepthook

        done = run(script)

        assert (done.exit_code, done.stdout) == (1, "" if fails else "KeyError told\n")
        assert done.stderr.startswith("Traceback ") is fails
        assert sys.excepthook is before

    def test_a_process_group_of_one_leaves_no_hook_behind(self, run: Run, tmp_path: Path) -> None:
        """`init_process_group` sets a `sys.excepthook` that prefixes lines with the rank."""
        script = tmp_path / "script.py"
        script.write_text(
            "import torch.distributed as dist\n"
            "dist.init_process_group('nccl')\n"
            "print(dist.get_world_size())\n"
            "dist.destroy_process_group()\n"
        )
        before = sys.excepthook

        done = run("--nproc-per-node", "1", script)

        assert (done.exit_code, done.stdout) == (0, "1\n")
        assert sys.excepthook is before

    def test_a_syntax_error_is_printed_as_python_prints_it(self, run: Run, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text("import os\nx = = 3\n")
        command = [sys.executable, str(script)]
        python = subprocess.run(command, capture_output=True, text=True, check=False)

        done = run(script)

        assert (done.exit_code, python.returncode) == (1, 1)
        assert done.stderr.partition("graphmem: ")[0] == python.stderr

    def test_a_script_under_run_has_its_virtual_gpu_already(self, run: Run, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import graphmem\nwith graphmem.virtual_gpu('h100'):\n    print('never')\n"
        )

        done = run("--gpu", "t4", script)

        assert (done.exit_code, done.stdout) == (2, "")
        assert "error: there is a virtual GPU already, Tesla T4" in done.stderr
        assert "under `graphmem run` the script needs none" in done.stderr

    def test_endless_recursion_is_printed(self, run: Run, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text("def f():\n    f()\nf()\n")

        done = run(script)

        assert done.exit_code == 1
        assert "RecursionError: maximum recursion depth exceeded" in done.stderr
        assert "graphmem itself failed" not in done.stderr

    def test_an_interrupted_run_reports_what_it_has(self, run: Run, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import signal, torch\n"
            "x = torch.ones(1 << 20, device='cuda')\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "signal.raise_signal(signal.SIGINT)\n"
        )

        done = run(script)

        assert done.exit_code == 130
        assert "graphmem: interrupted" in done.stderr
        assert f"({4 << 20:,} bytes)" in done.stderr

    def test_an_unsupported_operation_is_reported_after_the_report(
        self, run: Run, tmp_path: Path
    ) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import torch\n"
            "library = torch.library.Library('graphmem_test', 'DEF')\n"
            "library.define('opaque(Tensor x) -> Tensor')\n"
            "x = torch.ones(1 << 20, device='cuda')\n"
            "torch.ops.graphmem_test.opaque(x)\n"
        )

        done = run(script)

        assert done.exit_code == 2
        report, _, error = done.stderr.partition("error: ")
        assert f"({4 << 20:,} bytes)" in report
        said, hint = error.splitlines()
        assert "operator graphmem_test.opaque.default has no meta kernel" in said
        assert "script.py:5" in said
        assert hint.startswith("hint: register one with torch.library.register_fake")

    def test_a_script_sees_what_python_would_set(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "beside.py").write_text("WORD = 'found'\n")
        script = tmp_path / "script.py"
        script.write_text(
            "import os, sys, beside, __main__\n"
            "print(__name__, __file__, sys.argv[1:], beside.WORD, os.getcwd())\n"
            "print(__main__.__dict__ is globals(), sys.path[0])\n"
        )

        done = run("script.py", "--gpu", "mine", "-m", "-o", "x", cwd=tmp_path)

        assert done.stdout.splitlines() == [
            f"__main__ script.py ['--gpu', 'mine', '-m', '-o', 'x'] found {tmp_path}",
            f"True {tmp_path}",
        ]

    def test_a_module_runs_as_with_python_m(self, run: Run, tmp_path: Path) -> None:
        package = tmp_path / "package"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "word.py").write_text("WORD = 'found'\n")
        (package / "__main__.py").write_text(
            "import sys\nfrom .word import WORD\nprint(__package__, WORD, sys.argv[1:])\n"
        )

        done = run("-m", "package", "--epochs", "3", cwd=tmp_path)

        assert done.stdout == "package found ['--epochs', '3']\n"

    @pytest.mark.parametrize("arguments", [["nowhere.py"], ["-m", "no.such.module"]])
    def test_a_missing_script_is_exit_code_2(self, run: Run, arguments: list[str]) -> None:
        done = run(*arguments)

        assert done.exit_code == 2
        assert "Traceback" not in done.stderr

    def test_a_misspelt_script_has_the_nearest_name(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "train.py").write_text("")

        assert "did you mean train.py?" in run("trian.py", cwd=tmp_path).stderr


TRAINS_ON_THE_HOST = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
"""As CORL's edac.py, whose device is the CPU unless it is told another."""


class TestText:
    @pytest.mark.parametrize("lines", ["", TRAINS_ON_THE_HOST], ids=["idle", "trains"])
    def test_a_script_that_never_touches_the_card_ends_with_two_lines(
        self, run: Run, tmp_path: Path, lines: str
    ) -> None:
        script = tmp_path / "script.py"
        script.write_text(f"{lines}print('hello')\n")

        release = "{}.{}".format(*installed_release())
        done = run("--gpu", "a100-80gb", "--torch", release, script)

        assert done.stdout == "hello\n"
        assert done.stderr.splitlines() == [
            "peak 0 B allocated (0 bytes): nothing ran on the card",
            f"  NVIDIA A100-SXM4-80GB (79.256 GiB), torch {release}",
        ]

    def test_parts_without_lines_have_no_heading_and_lines_no_trailing_blanks(
        self, run: Run, tmp_path: Path
    ) -> None:
        script, file = tmp_path / "script.py", tmp_path / "report.txt"
        script.write_text("import torch\nx = torch.ones(1 << 20, device='cuda')\n")

        printed = run(script).stderr
        run("-o", file, script)

        lines = printed.splitlines()
        assert file.read_text() == printed
        assert "share" in printed
        assert [line for line in lines if line != line.rstrip()] == []
        assert not any(line.startswith("step ") or "0 steps" in line for line in lines)


def test_a_script_finds_nvidia_smi_without_a_driver(
    run_graphmem: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training scripts log its output, as those of openai/parameter-golf do."""
    script = tmp_path / "log.py"
    script.write_text(
        "import os, subprocess, torch\n"
        "print(subprocess.run(['nvidia-smi'], stdout=subprocess.PIPE, text=True).stdout)\n"
        "query = ['nvidia-smi', '--query-gpu=name,memory.used', '--format=csv,noheader']\n"
        "print(subprocess.run(query, stdout=subprocess.PIPE, text=True).stdout)\n"
        "torch.ones(1, device='cuda')\n"
        "query = 'nvidia-smi --query-gpu=memory.total,memory.used --format=csv,noheader,nounits'\n"
        "before = os.popen(query).read()\n"
        "torch.empty(100 << 20, device='cuda')\n"
        "print('used:', before, os.popen(query).read(), torch.cuda.mem_get_info())\n"
    )
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    outcome = run_graphmem("run", "--gpu", "h100-80gb", str(script))

    assert outcome.exit_code == 0
    assert "|   0  NVIDIA H100 80GB HBM3   0MiB / " in outcome.stdout
    assert "\nNVIDIA H100 80GB HBM3, 0 MiB\n" in outcome.stdout  # there is no context yet
    told = outcome.stdout.partition("used:")[2]
    mib_total, before, same_total, after, free, total = map(int, re.findall(r"\d+", told))
    assert after - before == 400
    assert mib_total == same_total == total >> 20
    assert after == (total - free) >> 20
    assert os.environ["PATH"] == "/usr/bin:/bin"


def test_repeated_reads_on_one_line_are_one_line_of_the_report(
    run_graphmem: Run, tmp_path: Path
) -> None:
    script = tmp_path / "norms.py"
    script.write_text(
        "import torch\n"
        "layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(20))).cuda()\n"
        "layers(torch.rand(2, 4).cuda()).sum().backward()\n"
        "for name, value in layers.named_parameters():\n"
        "    print(name, value.grad.tolist())\n"
    )

    outcome = run_graphmem("run", str(script))

    # The gradient of the last bias is known: 1 for each of two rows. The other 39 are not.
    assert "19.bias [2.0, 2.0, 2.0, 2.0]" in outcome.stdout
    listed = [line for line in outcome.stderr.splitlines() if f"{script}:5, 39 times)" in line]
    assert len(listed) == 1, outcome.stderr


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_attributes_of_parameters_are_the_programs_own(
    run_graphmem: Run, tmp_path: Path, place: str
) -> None:
    """accelerate's `register_empty_parameter` (big_modeling.py) hands them to their class."""
    script = tmp_path / "empty.py"
    script.write_text(
        "import torch\n"
        "from accelerate import init_on_device\n"
        f"with init_on_device(torch.device('{place}')):\n"
        "    first = torch.nn.Linear(4, 4)\n"
        "    second = torch.nn.Linear(4, 4)\n"
        "    second.weight = first.weight\n"
        "kept = torch.nn.Parameter(torch.ones(2))\n"
        "(2 * kept).sum().backward()\n"
        "print(second.weight.device, vars(kept))\n"
    )

    outcome = run_graphmem("run", str(script))

    assert (outcome.exit_code, outcome.stdout) == (0, f"{place} {{}}\n"), outcome.stderr


@pytest.mark.parametrize("pins", [False, True])
def test_what_is_saved_on_the_host_is_not_read(
    run_graphmem: Run, tmp_path: Path, pins: bool
) -> None:
    script = tmp_path / "offload.py"
    script.write_text(
        "import torch\n"
        "layers = torch.nn.Sequential(torch.nn.Linear(99, 99), torch.nn.ReLU()).cuda()\n"
        f"with torch.autograd.graph.save_on_cpu(pin_memory={pins}):\n"
        "    loss = layers(torch.rand(8, 99, device='cuda')).sum()\n"
        "loss.backward()\n"
    )

    outcome = run_graphmem("run", "--strict", str(script))

    assert outcome.exit_code == 0, outcome.stderr
    assert "assum" not in outcome.stderr
