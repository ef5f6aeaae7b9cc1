"""Record every allocation of a training step on a real GPU, for `graphmem verify`.

    python tools/record_cuda.py fixtures/gpt2.py:build --set batch=4 --steps 3 -o recordings/gpt2
    python tools/record_cuda.py -o recordings/train train.py --epochs 1

It needs torch and a GPU but not graphmem: if that is not installed, fixtures get a stand-in for
`graphmem.TrainingStep`. Recording starts on an empty device, before `build()` is called or before
the first line of a script. It writes three files side by side (with RANK set, a script's have
`.rankR` in their names):

    NAME.pickle.gz      the snapshot of torch.cuda.memory, gzipped
    NAME.events.json    the same events, compact, as `graphmem verify` reads them
    NAME.json           GPU, driver, torch, environment, settings, figures, and the phase marks

A mark counts the allocations and frees before it, so that each event has its phase.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import inspect
import json
import os
import pickle
import platform
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

AUTOCAST = {"fp16": "float16", "bf16": "bfloat16"}
RECORDED_ENVIRONMENT = (
    "PYTORCH_",
    "CUBLAS",
    "CUDNN",
    "CUDA_LAUNCH",
    "CUDA_MODULE",
    "TORCH_",
    "DISABLE_ADDMM",
)
ACTIONS = {
    "alloc": "a",
    "free_completed": "f",
    "segment_alloc": "S",
    "segment_free": "s",
    "segment_map": "M",
    "segment_unmap": "U",
}
LIBRARIES = ("transformers", "accelerate", "peft", "timm", "torchvision", "torchao", "bitsandbytes")
INSTALLED = ("site-packages/", "dist-packages/", "/lib/python3", "<frozen ")


@dataclass
class StandIn:
    """What fixtures return without graphmem installed; see graphmem/training_step.py."""

    model: Any = None
    inputs: Any = None
    loss: Any = None
    optimizer: Any = None
    autocast: str | None = None
    accumulate: int = 1
    clip_grad_norm: float | None = None
    scaler: Any = None
    step: Callable[[], Any] | None = None
    assume: Mapping[str, float] = field(default_factory=dict)
    keep_output: bool = True


def main(arguments: Sequence[str] | None = None) -> int:
    """Record one target; the exit code is 2 without a GPU."""
    options = parse(arguments)
    import torch

    if not torch.cuda.is_available():
        print("error: torch sees no CUDA device here", file=sys.stderr)
        return 2
    marks: list[dict[str, Any]] = []
    torch.cuda.memory._record_memory_history(enabled="all", stacks="python")
    before = counters()
    if options.target.endswith(".py"):
        run_script(options)
        marks.append(mark("end", 0, before))
    else:
        build, settings = load(options.target, options.set)
        step = build(**settings)
        marks.append(mark("setup", -1, before))
        for name, number in iterate(step, options, "cuda"):
            marks.append(mark(name, number, before))
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    write(options, snapshot, {**metadata(options), "base": before, "marks": marks})
    return 0


def run_script(options: argparse.Namespace) -> None:
    """Run a script as `python script.py ARGS` does; its globals stay alive to the end."""
    script = Path(options.target)
    rank = os.environ.get("RANK")
    if rank is not None:
        options.output = options.output.with_name(f"{options.output.name}.rank{rank}")
    sys.argv = [options.target, *options.arguments]
    sys.path.insert(0, str(script.resolve().parent))
    module = types.ModuleType("__main__")
    vars(module)["__file__"] = options.target
    sys.modules["__main__"] = module
    try:
        exec(compile(script.read_bytes(), options.target, "exec"), vars(module))
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Record every allocation of a training step on a real GPU."
    )
    parser.add_argument("target", help="model.py:build; or a script, with its arguments")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--steps", type=int, default=3, help="iterations (default: 3)")
    parser.add_argument("--autocast", choices=sorted(AUTOCAST))
    parser.add_argument("--grads", choices=("keep", "none"), default="none")
    parser.add_argument("--inference", action="store_true", help="forward passes only")
    parser.add_argument("--compile", metavar="MODE", help="torch.compile the model, in this mode")
    parser.add_argument(
        "--benchmark", action="store_true", help="let cuDNN benchmark its algorithms"
    )
    parser.add_argument(
        "--no-snapshot", action="store_true", help="leave out NAME.pickle.gz, which takes longest"
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="NAME", help="path without an extension"
    )
    given = list(sys.argv[1:] if arguments is None else arguments)
    script = next((i for i, text in enumerate(given) if text.endswith(".py")), len(given))
    options = parser.parse_args(given[: script + 1])
    options.arguments = given[script + 1 :]  # those of the script
    return options


# The step ----------------------------------------------------------------------------------------


def load(target: str, texts: Sequence[str]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The build function of `model.py:build`, and its keyword arguments."""
    stand_in()
    file, _, name = target.rpartition(":")
    path = Path(file).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SystemExit(f"error: {target} is not model.py:build")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # fixtures import their siblings
    sys.modules[spec.name] = module  # where `dataclasses` looks for it
    spec.loader.exec_module(module)
    build: Callable[..., Any] = getattr(module, name)
    return build, dict(map(setting_reader(build), texts))


def stand_in() -> None:
    """Provide fixtures with a `graphmem.TrainingStep` if graphmem is not installed."""
    try:
        import graphmem  # noqa: F401
    except ImportError:
        module = types.ModuleType("graphmem")
        vars(module)["TrainingStep"] = StandIn
        sys.modules["graphmem"] = module


def setting_reader(build: Callable[..., Any]) -> Callable[[str], tuple[str, Any]]:
    """A reader of `KEY=VALUE` that gives the value the type of the parameter's default."""
    parameters = inspect.signature(build).parameters

    def read(text: str) -> tuple[str, Any]:
        key, _, value = text.partition("=")
        if key not in parameters:
            raise SystemExit(f"error: build() has no parameter {key!r}")
        kind = type(parameters[key].default)
        if value == "none" and "None" in str(parameters[key].annotation):
            return key, None
        if kind is bool:
            return key, value.lower() in ("1", "true", "yes")
        return key, kind(value) if kind in (int, float) else value

    return read


def iterate(step: Any, options: argparse.Namespace, device: str) -> Iterator[tuple[str, int]]:
    """Run the iterations as graphmem/trace/loop.py traces them; yield the end of each phase."""
    run = step.step or Loop(step, options, device)
    for number in range(options.steps):
        if isinstance(run, Loop):
            for name in run.phases():
                yield name, number
        else:
            run()
            yield "step", number


class Loop:
    """A training loop that reports its phases."""

    def __init__(self, step: Any, options: argparse.Namespace, device: str) -> None:
        import torch

        self.step = step
        self.device = torch.device(device)
        self.autocast = options.autocast or step.autocast
        self.drops_grads = options.grads == "none"
        self.inference = options.inference
        self.model = step.model.to(self.device)
        if options.benchmark:
            torch.backends.cudnn.benchmark = True
        if options.compile:
            self.model = torch.compile(self.model, mode=options.compile)
        self.loss: Any = None
        self.output: Any = None
        self.scaler = step.scaler
        if self.inference:
            self.model.eval()
            return
        self.optimizer = self._optimizer()
        if step.scaler is True:
            self.scaler = torch.amp.GradScaler(self.device.type)

    def _optimizer(self) -> Any:
        import torch

        made = self.step.optimizer
        if isinstance(made, torch.optim.Optimizer):
            return made
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return (made or torch.optim.AdamW)(trained)

    def phases(self) -> Iterator[str]:
        """One iteration, phase by phase."""
        import torch

        if self.inference:
            with torch.inference_mode(), self._autocast():
                self.output = self._forward()
            yield "forward"
            return
        for _ in range(self.step.accumulate):
            loss_of = self.step.loss or default_loss
            with self._autocast():
                if self.step.keep_output:
                    self.output = self._forward()
                    loss = loss_of(self.output)
                else:
                    loss = loss_of(self._forward())
            self.loss = loss if self.step.accumulate == 1 else loss / self.step.accumulate
            del loss
            yield "forward"
            (self.scaler.scale(self.loss) if self.scaler else self.loss).backward()
            yield "backward"
        self._optimize()
        yield "optimizer"

    def _forward(self) -> Any:
        inputs = self.step.inputs() if callable(self.step.inputs) else self.step.inputs
        inputs = moved(inputs, self.device)
        if isinstance(inputs, dict):
            return self.model(**inputs)
        return self.model(*inputs) if isinstance(inputs, (tuple, list)) else self.model(inputs)

    def _autocast(self) -> AbstractContextManager[Any]:
        import torch

        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, AUTOCAST[self.autocast]))

    def _optimize(self) -> None:
        import torch

        if self.step.clip_grad_norm is not None:
            if self.scaler:
                self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.step.clip_grad_norm)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.drops_grads)


def moved(value: Any, device: Any) -> Any:
    """A nest of tensors on the device; a leaf stays a leaf."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().to(device).requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(moved(item, device) for item in value)
    return value


def default_loss(output: Any) -> Any:
    """The output's `loss`, a scalar output itself, else its sum."""
    loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if loss is not None:
        return loss
    first = output[0] if isinstance(output, (tuple, list)) else output
    return first.sum() if first.dim() else first


# What is written ---------------------------------------------------------------------------------


def counters() -> dict[str, int]:
    """Bytes held, and the number of allocations and frees."""
    import torch

    stats = torch.cuda.memory_stats()
    return {
        "allocations": stats.get("allocation.all.allocated", 0),
        "frees": stats.get("allocation.all.freed", 0),
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "max_allocated": torch.cuda.max_memory_allocated(),
        "max_reserved": torch.cuda.max_memory_reserved(),
    }


def mark(name: str, step: int, before: Mapping[str, int]) -> dict[str, Any]:
    """The end of a phase: events since the recording began, and bytes held."""
    now = counters()
    for key in ("allocations", "frees"):
        now[key] -= before[key]
    return {"phase": name, "step": step, **now}


def metadata(options: argparse.Namespace) -> dict[str, Any]:
    """The machine, the versions, the environment and the settings."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "target": options.target,
        "settings": options.set,
        "steps": options.steps,
        "autocast": options.autocast,
        "grads": options.grads,
        "inference": options.inference,
        "compile": options.compile,
        "benchmark": options.benchmark,
        "arguments": options.arguments,
        "rank": os.environ.get("RANK"),
        "world_size": os.environ.get("WORLD_SIZE"),
        "gpu": properties.name,
        "compute_capability": [properties.major, properties.minor],
        "multiprocessors": properties.multi_processor_count,
        "total_memory": properties.total_memory,
        "driver": driver_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": sys.version.split()[0],
        "platform": "wddm"
        if platform.system() == "Windows" or "microsoft" in platform.release()
        else "linux",
        "packages": installed(),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(RECORDED_ENVIRONMENT)
        },
    }


def installed() -> dict[str, str]:
    """The versions of libraries that a step may use."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@cache
def driver_version() -> str:
    """What nvidia-smi says, or `unknown`."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (found.stdout.splitlines() or ["unknown"])[0].strip()


def write(options: argparse.Namespace, snapshot: Any, about: Mapping[str, Any]) -> None:
    """The three files."""
    name: Path = options.output
    name.parent.mkdir(parents=True, exist_ok=True)
    if not options.no_snapshot:
        with gzip.open(name.with_name(f"{name.name}.pickle.gz"), "wb") as file:
            pickle.dump(snapshot, file)
    events = compact(snapshot, about)
    name.with_name(f"{name.name}.events.json").write_text(json.dumps(events))
    name.with_name(f"{name.name}.json").write_text(json.dumps(about, indent=2) + "\n")
    for path in sorted(name.parent.glob(f"{name.name}.*")):
        print(path)


def compact(snapshot: Any, about: Mapping[str, Any], device: int = 0) -> dict[str, Any]:
    """The events of one device as `*.events.json` has them (docs/sources.md), to the last mark.

    A row is [action, bytes, ordinal], with the index of its site for an allocation. An ordinal
    stands for an address, in order of first appearance; blocks and segments have their own.
    """
    ordinals: dict[tuple[bool, int], int] = {}
    sites: dict[str, int] = {}
    rows: list[list[Any]] = []
    last = (about.get("marks") or [{}])[-1]
    left = {"a": last.get("allocations", -1), "f": last.get("frees", -1)}
    for entry in snapshot["device_traces"][device]:
        action = ACTIONS.get(entry["action"])
        if action is None:
            continue
        if not any(left.values()):
            break  # freed by the recorder itself
        if action in left:
            left[action] -= 1
        key = (action in "af", entry["addr"])
        row = [action, entry["size"], ordinals.setdefault(key, len(ordinals))]
        if action == "a":
            row.append(sites.setdefault(site(entry.get("frames", ())), len(sites)))
        rows.append(row)
    base = about.get("base", {})
    return {
        **about,
        "events": rows,
        "sites": list(sites),
        "allocator_settings": snapshot.get("allocator_settings", {}),
        "replay": {
            "base_alloc": base.get("allocated", 0),
            "base_res": base.get("reserved", 0),
        },
    }


def site(frames: Sequence[Any]) -> str:
    """`train.py:main:16<linear.py:forward:125`: the user's line and the innermost library line."""
    lines = [frame for frame in frames if frame["filename"].endswith(".py")]
    if not lines:
        return "engine"
    user = next((frame for frame in lines if is_users(frame["filename"])), lines[-1])
    named = [user] if user is lines[0] else [user, lines[0]]
    return "<".join(
        f"{Path(frame['filename']).name}:{frame['name']}:{frame['line']}" for frame in named
    )


def is_users(filename: str) -> bool:
    """Whether a file belongs to no installed package and is not this one."""
    path = filename.replace("\\", "/")
    return path != __file__ and not any(part in path for part in INSTALLED)


if __name__ == "__main__":
    sys.exit(main())
