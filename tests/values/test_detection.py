"""torchvision's detectors: matches are known, or as many are sampled as the model requests."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphmem.gpus import find_gpu
from graphmem.graph import StepGraph
from graphmem.passes.kernel_memory import find_kernel_memory
from graphmem.runtime import Runtime
from graphmem.trace import TraceOptions, trace
from graphmem.training_step import TrainingStep
from tests.support import oracle
from tests.support.assumed_values import AssumedValues
from tests.support.kernel_calls import readable

torchvision = pytest.importorskip("torchvision")
from torchvision.models import detection  # noqa: E402

SIZE, BATCH, SAMPLED = 64, 2, 8


def inputs() -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    target = {
        "boxes": torch.tensor([[4.0, 4, 40, 40], [20, 10, 60, 50]]),
        "labels": torch.tensor([1, 2]),
    }
    return [torch.rand(3, SIZE, SIZE) for _ in range(BATCH)], [dict(target) for _ in range(BATCH)]


def traced(make: Any) -> StepGraph:
    def build() -> TrainingStep:
        return TrainingStep(make(), inputs(), lambda losses: sum(losses.values()))

    return trace(build, gpu=find_gpu("t4"), options=TraceOptions(steps=1))


def retinanet() -> Any:
    return detection.retinanet_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=3, min_size=SIZE, max_size=SIZE
    )


def test_anchors_match_as_many_targets_as_in_a_real_run(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = detection._utils.Matcher
    match, found = matcher.__call__, []

    def watched(self: Any, overlaps: torch.Tensor) -> torch.Tensor:
        matches = match(self, overlaps)
        found.append(int((matches >= 0).sum()))
        return matches

    with monkeypatch.context() as patch:
        patch.setattr(matcher, "__call__", watched)
        retinanet()(*inputs())
    graph = traced(retinanet)
    rows = {
        op.outputs[0].shape[0]
        for op in graph.ops
        if op.target == "aten.index.Tensor" and op.outputs[0].shape[1:] == (4,)
    }

    assert set(found) <= rows
    assert min(found) > 0
    assert not [each for each in graph.assumptions if "mask" in each.what or "match" in each.what]
    assert matcher.__call__ is match


def test_a_box_head_gets_the_sampled_boxes() -> None:
    """`box_batch_size_per_image` for each image, whatever proposals overlap."""

    def make() -> Any:
        return detection.fasterrcnn_mobilenet_v3_large_320_fpn(
            weights=None,
            weights_backbone=None,
            num_classes=3,
            min_size=SIZE,
            max_size=SIZE,
            box_batch_size_per_image=SAMPLED,
        )

    graph = traced(make)
    heads = [
        op
        for op in graph.ops
        if op.module == "roi_heads.box_head.fc6" and op.target == "aten.addmm.default"
    ]

    assert heads[0].outputs[0].shape[0] == BATCH * SAMPLED
    assert any("boxes match a target" in each.what for each in graph.assumptions)


def fasterrcnn() -> Any:
    return detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=3, min_size=SIZE, max_size=SIZE
    )


@pytest.mark.parametrize("make", [retinanet, fasterrcnn])
def test_a_detector_agrees_with_a_real_step_that_matches_the_same_boxes(make: Any) -> None:
    def build() -> TrainingStep:
        torch.manual_seed(0)
        step = TrainingStep(make(), inputs(), lambda losses: sum(losses.values()))
        step.optimizer = torch.optim.SGD
        return step

    options = TraceOptions(steps=1, keep_grads=True, subclass_like=True)
    assumed = AssumedValues()
    with assumed.kept():
        events = oracle.traced_events(build, options)

    oracle.assert_agree(oracle.run(build, options, assumed), events)


def test_batched_nms_runs_once_a_level() -> None:
    """The levels of boxes kept by a mask stay known: `nms` runs once per level, not per box."""

    def step() -> torch.Tensor:
        scores = torch.nn.Linear(4, 3000, device="cuda")(torch.ones(4, device="cuda"))
        boxes = scores.detach()[:, None].expand(3000, 4).contiguous()
        levels = torch.arange(3000, device="cuda") // 1000
        kept = torch.where(scores > 0.5)[0]
        return torchvision.ops.boxes._batched_nms_vanilla(
            boxes[kept], scores[kept], levels[kept], 0.5
        )

    graph = trace(
        lambda: TrainingStep(step=step), gpu=find_gpu("t4"), options=TraceOptions(steps=1)
    )
    assert [op.target for op in graph.ops].count("torchvision.nms.default") == 3


def test_nms_keeps_one_of_two_boxes_at_the_same_place() -> None:
    """A bit for each pair in words of 64: for 100 boxes 2 words of 8 bytes each."""

    def step() -> torch.Tensor:
        corners = torch.arange(100, device="cuda").div(2, rounding_mode="floor").float()[:, None]
        boxes = torch.cat([corners * 10, corners * 10, corners * 10 + 5, corners * 10 + 5], 1)
        return torchvision.ops.nms(boxes, torch.arange(100.0, device="cuda"), 0.5)

    graph = trace(
        lambda: TrainingStep(step=step), gpu=find_gpu("t4"), options=TraceOptions(steps=1)
    )
    (nms,) = (op for op in graph.ops if op.target == "torchvision.nms.default")
    programs = find_kernel_memory(graph, Runtime(find_gpu("t4"), "2.13", {}), {}).programs

    assert nms.outputs[0].shape == (50,)
    assert readable(programs[nms.index])[:6] == [400, 800, 1600, 1600, 100, "out0"]
    assert not graph.assumptions
