"""A run without a GPU publishes nothing."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import HfApi

import graphmem

SCRIPT = """
import os, time
from huggingface_hub import HfApi, create_repo, upload_folder
from transformers import GPT2Config, GPT2LMHeadModel

time.sleep = lambda seconds: None  # the Hub's client waits before it asks again
net = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=10)).cuda()
print(create_repo("me/small", private=True).repo_id)
net.push_to_hub("me/small")
os.makedirs("out")
open("out/a.txt", "w").write("a")
print(upload_folder(repo_id="me/small", folder_path="out"))
kind = dict(repo_id="me/words", repo_type="dataset", run_as_future=True)
file = HfApi().upload_file(path_or_fileobj="out/a.txt", path_in_repo="a.txt", **kind)
print(file.result().repo_url.repo_id)
if hasattr(HfApi, "upload_large_folder"):
    HfApi().upload_large_folder("me/large", folder_path="out", repo_type="model")
if hasattr(HfApi, "batch_bucket_files"):
    HfApi().batch_bucket_files("me/bucket", add=[("out/a.txt", "a.txt")])
try:
    upload_folder(folder="out")
except TypeError as error:
    print("'repo_id'" in str(error))
"""
# Nothing listens there: what is sent to the Hub fails.
NOWHERE = {"HF_ENDPOINT": "http://127.0.0.1:1"}


def test_the_hub_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "graphmem", "run", "--strict", "--gpu", "t4", "train.py"]
    env = {**os.environ, **NOWHERE}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "me/small",
        f"http://127.0.0.1:1/me/small/commit/{'0' * 40}",
        "me/words",
        "True",
    ]
    report = " ".join(done.stderr.split())
    for left_out in (
        "create_commit of me/small",
        "upload_folder of me/small",
        "upload_file of me/words",
        "upload_large_folder of me/large",
        "batch_bucket_files of me/bucket",
    ):
        name = left_out.partition(" ")[0]
        assert (f"{left_out}: left out" in report) == hasattr(HfApi, name)


@pytest.mark.parametrize("mode", [None, "offline"])
def test_wandb_is_disabled_unless_its_mode_is_set(
    mode: str | None, make_module: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_module("wandb.sdk", "")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if mode:
        monkeypatch.setenv("WANDB_MODE", mode)

    with graphmem.virtual_gpu("t4") as gpu:
        importlib.import_module("wandb")
        within = os.environ.get("WANDB_MODE")

    assert within == (mode or "disabled")
    assert os.environ.get("WANDB_MODE") == mode
    noted = [each.what for each in gpu.report().assumptions]
    assert noted == ([] if mode else ["wandb"])
