"""A report describes the forward pass that leaves autograd holding most, not the last one."""

from __future__ import annotations

import torch
from torch import nn

import graphmem

BATCH, WIDTH, INNER = 64, 128, 256


def test_an_incomplete_batch_and_an_evaluation_with_a_graph_are_not_described() -> None:
    """Two batches and a half of one, then an evaluation that forgets `no_grad`."""
    with graphmem.virtual_gpu("t4") as gpu:
        model = nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, 1)).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for batch in torch.ones(BATCH * 5 // 2, WIDTH).split(BATCH):
            with torch.autocast("cuda"):
                loss = model(batch.cuda()).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.autocast("cuda"):
            score = model(torch.ones(BATCH, WIDTH, device="cuda")).argmax()
        del score
    report = gpu.report()

    batch_and_weight = BATCH * WIDTH + INNER  # autocast's copies; the batch needs no gradient
    activations = 2 * BATCH * INNER  # GELU's input and output
    assert report.saved_for_backward == 2 * (batch_and_weight + activations)
    found = {each.found_by: "\n".join(each.lines) for each in report.findings}
    assert f"shrinks saved activations by {2 * activations // 1024}.0 KiB" in found["autocast"]
    assert f"keeps its input, {2 * BATCH * INNER // 1024}.0 KiB" in found["output_reuse"]
