"""Measure a process's GPU memory outside PyTorch's allocator: context, libraries, NCCL.

    python tools/record_contexts.py -o contexts.json

Each program of `PROGRAMS` runs alone; after each of its stages NVML reads the memory in use on the
whole card, minus what was in use before and minus what the allocator has reserved.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

STAGE = """
import os, sys, json, subprocess
import pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
def used():
    return pynvml.nvmlDeviceGetMemoryInfo(card).used
before = used()
def stage(name):
    import torch
    ready = torch.cuda.is_initialized()
    if ready:
        torch.cuda.synchronize()
    reserved = torch.cuda.memory_reserved() if ready else 0
    free, total = torch.cuda.mem_get_info() if ready else (0, 0)
    print(json.dumps({"stage": name, "outside": used() - before - reserved, "reserved": reserved,
                      "free": free, "total": total}), flush=True)
import torch
"""
PROGRAMS = {
    "plain": """
stage("import torch")
torch.cuda.init(); stage("torch.cuda.init")
torch.cuda.current_stream().synchronize(); stage("current_stream")
x = torch.empty(1, device="cuda"); stage("empty")
x.fill_(1); stage("fill kernel")
x = torch.randn(1024, 1024, device="cuda"); stage("randn")
y = x @ x; stage("mm float32")
y = x.bfloat16() @ x.bfloat16(); stage("mm bfloat16")
y = torch.nn.functional.linear(x, x, x[0]); stage("linear with bias")
x.sum(); x.softmax(1); x.sort(); stage("sum, softmax, sort")
q = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward(); stage("attention")
c = torch.nn.Conv2d(3, 64, 3).cuda()
c(torch.randn(2, 3, 64, 64, device="cuda")).sum().backward(); stage("convolution")
torch.nn.LSTM(64, 64).cuda()(torch.randn(5, 2, 64, device="cuda"))[0].sum().backward(); stage("lstm")
torch.fft.fft(x); stage("fft")
torch.linalg.inv(x); stage("inv")
torch.linalg.svdvals(x[:64, :64]); stage("svd")
(x.relu().to_sparse() @ x); stage("sparse")
s = [torch.cuda.Stream() for _ in range(8)]; stage("8 streams")
f = torch.compile(lambda x: (x.sin() + x.cos()).sum()); f(x); stage("torch.compile")
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    z = x * 2
g.replay(); stage("cuda graph")
""",
    "training": """
m = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 1024)).cuda()
stage("model on the card")
o = torch.optim.AdamW(m.parameters())
for i in range(3):
    with torch.autocast("cuda", torch.bfloat16):
        l = m(torch.randn(64, 1024, device="cuda")).sum()
    l.backward(); o.step(); o.zero_grad(); stage(f"step {i}")
""",
    "nccl": """
import torch.distributed as dist
torch.cuda.set_device(0); torch.empty(1, device="cuda").fill_(1)
stage("context")
dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0) if EAGER else None)
stage("init_process_group")
t = torch.ones(1 << 20, device="cuda"); stage("tensor")
dist.all_reduce(t); stage("all_reduce")
o = torch.empty(1 << 20, device="cuda"); dist.all_gather_into_tensor(o, t); stage("all_gather")
dist.reduce_scatter_tensor(o, t); stage("reduce_scatter")
dist.all_to_all_single(o, t); stage("all_to_all")
dist.barrier(); stage("barrier")
h = dist.new_group([0]); dist.all_reduce(t, group=h); stage("second group")
""",
}
RANKS = """
import torch.distributed as dist
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(0); torch.empty(1, device="cuda").fill_(1)
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]) + 1, world, rank == 0)
turn = [0]
def meet(name):
    torch.cuda.synchronize(); turn[0] += 1
    store.add(f"in{turn[0]}", 1)
    while store.add(f"in{turn[0]}", 0) < world: pass
    if rank == 0: stage(name)
    store.add(f"out{turn[0]}", 1)
    while store.add(f"out{turn[0]}", 0) < world: pass
meet("context")
dist.init_process_group("nccl"); meet("init_process_group")
t = torch.ones(world << 18, device="cuda"); o = torch.empty(world << 18, device="cuda"); meet("tensors")
dist.all_reduce(t); meet("all_reduce")
dist.all_gather_into_tensor(o, t[: 1 << 18]); meet("all_gather")
dist.reduce_scatter_tensor(o[: 1 << 18], t); meet("reduce_scatter")
dist.all_to_all_single(o, t); meet("all_to_all")
if world > 1:
    p = [dist.P2POp(dist.isend, t, (rank + 1) % world), dist.P2POp(dist.irecv, o, (rank - 1) % world)]
    [w.wait() for w in dist.batch_isend_irecv(p)]; meet("send and receive")
g = dist.new_group(list(range(world))); dist.all_reduce(t, group=g); meet("second group")
dist.destroy_process_group(); meet("destroyed")
"""


def main() -> int:
    """Run every program; the exit code is 0 even if one fails: its error is in the result."""
    parser = argparse.ArgumentParser(description="Measure contexts outside PyTorch's allocator.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    result: dict[str, Any] = {}
    programs = {
        "plain LAZY": PROGRAMS["plain"],
        "training LAZY": PROGRAMS["training"],
        "nccl LAZY": "EAGER = False\n" + PROGRAMS["nccl"],
        "nccl-device_id LAZY": "EAGER = True\n" + PROGRAMS["nccl"],
    }
    alone = {"CUDA_MODULE_LOADING": "LAZY", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29711"}
    for key, program in programs.items():
        result[key] = run([STAGE + program], alone)
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    for world in (2, 4):
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"298{world}0"}
        result[f"ranks {world}"] = run([STAGE + RANKS] * world, environment)
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def run(texts: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """The stages of one program, run by one process per text."""
    processes = []
    for rank, text in enumerate(texts):
        own = {"RANK": str(rank), "WORLD_SIZE": str(len(texts)), "LOCAL_RANK": "0"}
        if len(texts) > 1:  # NCCL rejects two ranks of one host on one card
            own |= {"NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN"}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", text],
                env={**os.environ, **environment, **own},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    outputs = []
    for process in processes:
        try:
            outputs.append(process.communicate(timeout=100))
        except subprocess.TimeoutExpired:
            process.kill()
            outputs.append(process.communicate())
    lines = [line for line in outputs[0][0].splitlines() if line.startswith("{")]
    errors = [
        error[-1500:]
        for (_, error), process in zip(outputs, processes, strict=True)
        if process.returncode
    ]
    return {"stages": [json.loads(line) for line in lines], "errors": errors}


if __name__ == "__main__":
    sys.exit(main())
