"""A small repository with a model, like a user's, for tests of the gate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL = """\
import torch
from torch import nn

CONTEXT = 256


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = (q @ k.transpose(1, 2) / 8).softmax(-1)
        return self.out(scores @ v)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = Attention(width)
        self.up = nn.Linear(width, 4 * width)
        self.activation = nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.down(self.activation(self.up(x)))


class Model(nn.Module):
    def __init__(self, width=64, layers=2):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 512)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(batch: int = 8):
    return Model(), torch.randn(batch, CONTEXT, 64)
"""

TINY = "import torch\n\n\ndef build():\n    return torch.nn.Linear(64, 64), torch.randn(4, 64)\n"

KEEPING = (
    "        return self.head(x)\n",
    "        x = self.head(x)\n        OUTPUTS.append(x)\n        return x\n",
)


@dataclass(frozen=True)
class Run:
    """The result of a command."""

    exit_code: int
    stdout: str
    stderr: str

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stdout)
        return found


@dataclass(frozen=True)
class Project:
    """A git repository."""

    root: Path

    @classmethod
    def create(cls, root: Path, **files: str) -> Project:
        root.mkdir(parents=True, exist_ok=True)
        project = cls(root)
        project.git("init", "--quiet", "--initial-branch=main")
        for name, text in files.items():
            project.write(name.replace("__", "."), text)
        return project

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a shell in which `graphmem` is a command."""
        folder = self.root.parent / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / "graphmem"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m graphmem "$@"\n')
        program.chmod(0o755)
        return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}

    def git(self, *arguments: str, check: bool = True) -> str:
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.com")
        return subprocess.run(
            ["git", *identity, *arguments],
            cwd=self.root,
            check=check,
            env=self.environment,
            capture_output=True,
            text=True,
        ).stdout

    def commit(self, message: str) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        text = self.read(name)
        assert old in text
        self.write(name, text.replace(old, new))

    def read(self, name: str) -> str:
        return (self.root / name).read_text()

    @property
    def lock(self) -> str:
        return self.read("graphmem.lock")

    def graphmem(self, *arguments: str, **environment: str) -> Run:
        finished = self.start(*arguments, **environment)
        stdout, stderr = finished.communicate(timeout=120)
        return Run(finished.returncode, stdout, stderr)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [Path(sys.executable).with_name("graphmem"), *arguments],
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
