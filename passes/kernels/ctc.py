"""`ctc_loss`: sequence lengths and offsets on the card, and the backward pass's table.

PyTorch's own kernels (aten/src/ATen/native/cuda/LossCTC.cu):
(1) Both passes copy the lengths of targets and inputs and the offsets of targets to the device.
(2) The backward pass allocates a table as large as the forward's `log_alpha`.
(3) For a large problem it adds that table and `log_alpha` for the blanks, in every other column.
(4) With `zero_infinity` a large problem's gradient is copied once more.

cuDNN's kernel (cudnn/LossCTC.cpp) allocates its gradient before its loss, and between the two a
workspace of a size that only cuDNN knows; targets on the host are copied if the lengths are
tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from graphmem.graph import TensorOut
from graphmem.kernel_program import Free, Output, Scratch, Step, Take

from .call import Call, Rule, during
from .layout import INDEX_BYTES, contiguous_strides, item_bytes, nbytes
from .reduction import logsumexp

_LARGE = 450
"""The threshold of `is_large`."""


def _forward(call: Call) -> Iterator[Step]:
    """`ctc_loss_gpu_template`: the table of `log_alpha` comes before the loss."""
    yield from _with_lengths(call, reversed(list(call.outputs())))


def _backward(call: Call) -> Iterator[Step]:
    table = Scratch("table of log_beta", nbytes(call.tensor("log_alpha")))
    steps = _large(call) if _is_large(call) else call.outputs()
    yield from _with_lengths(call, during([table], steps))


def _large(call: Call) -> Iterator[Step]:
    """Clauses (3) and (4)."""
    log_probs, log_alpha = call.tensor("log_probs"), call.tensor("log_alpha")
    copied = bool(call.value("zero_infinity"))
    first = Scratch("gradient with infinities", nbytes(log_probs))
    yield from [Take(first)] if copied else call.outputs()
    batch, steps, columns = log_alpha.shape
    shape = (batch, steps, columns // 2 + 1)
    blanks = TensorOut(shape, log_alpha.dtype, None, contiguous_strides(shape))
    summed = Scratch("log_alpha and log_beta of blanks", nbytes(blanks))
    result = Scratch("their logarithmic sum", batch * steps * item_bytes(log_alpha.dtype))
    yield Take(summed)
    yield from logsumexp(call, blanks, [2], [Take(result)], keepdim=True)
    yield from (Free(result), Free(summed))
    if copied:
        mask = Scratch("mask of infinities", batch)
        zero = Scratch("a zero", item_bytes(log_probs.dtype))
        yield from during([zero, mask], call.outputs())
        yield Free(first)


def _is_large(call: Call) -> bool:
    steps, batch, labels = call.tensor("log_probs").shape
    return 2 * steps + 24 * batch // 10 + 2 * labels // 10 > _LARGE


def _with_lengths(call: Call, steps: Iterable[Step]) -> Iterator[Step]:
    """Clause (1); the offsets are declared first, on the host, and freed last."""
    size = call.tensor("log_probs").shape[1] * INDEX_BYTES
    names = ("lengths of targets", "lengths of inputs", "offsets of targets")
    targets, inputs, offsets = (Scratch(name, size) for name in names)
    yield from map(Take, (targets, inputs, offsets))
    yield from steps
    yield from map(Free, (inputs, targets, offsets))


def _cudnn(call: Call) -> Iterator[Step]:
    targets = call.tensor("targets")
    is_copied = targets.storage is None and not isinstance(call.value("input_lengths"), list)
    held = [Scratch("targets on the device", nbytes(targets))] if is_copied else []
    call.leave_out("workspace of cuDNN's ctc_loss", "0 bytes", "only cuDNN knows its size")
    yield from during(held, (Output(1), Output(0)))


RULES: Mapping[str, Rule] = {
    "aten._ctc_loss": _forward,
    "aten._ctc_loss_backward": _backward,
    "aten._cudnn_ctc_loss": _cudnn,
}
