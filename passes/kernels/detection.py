"""torchvision's operators on boxes: torchvision/csrc/ops/cuda/nms_kernel.cu.

Not covered: the scratch memory of the sort within `nms`, which is freed before the overlaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphmem.kernel_program import Scratch, Step

from .call import Call, Rule, during
from .layout import INDEX_BYTES, nbytes

_BOXES_PER_WORD = 64


def _nms(call: Call) -> Iterator[Step]:
    """`nms_kernel`: a bit for each pair of boxes; the boxes to keep are selected on the card."""
    boxes, scores = call.tensor("dets"), call.tensor("scores")
    count = boxes.shape[0]
    words = count * -(-count // _BOXES_PER_WORD)
    scratch = [
        Scratch("sorted scores", nbytes(scores)),
        Scratch("order of the scores", count * INDEX_BYTES),
        Scratch("sorted boxes", nbytes(boxes)),
        Scratch("which boxes overlap", words * INDEX_BYTES),
        Scratch("which boxes are kept", count),
    ]
    yield from during(scratch if count else [], call.outputs())


RULES: Mapping[str, Rule] = {"torchvision.nms": _nms}
