"""Values that ranks running side by side exchange in a collective, as real ones do.

Clauses:
(1) A tensor of up to `MOST` elements is exchanged if all ranks of its group began side by side:
    flags, counts, losses and splits, which are what programs go by.
(2) A rank leaves its values when the collective begins, and takes the others' when it waits for it:
    an asynchronous one may be waited for after a message without which another rank does not come.
(3) If a rank does not know its values, or ends before it leaves any, the others go on as if each
    ran alone: with copies of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp
from torch.utils._python_dispatch import _disable_current_modes

from graphmem import constructors
from graphmem.ranks.mail import MOST, Left, Mail, write
from graphmem.ranks.messages import Numbers
from graphmem.ranks.sizes import listed

Arrival = Callable[[], None]
_Values = Sequence[Numbers]


def begin(
    mail: Mail, group: Any, operation: str, sent: Sequence[torch.Tensor], arguments: Sequence[Any]
) -> Arrival | None:
    """Leave what this rank gives in.

    Args:
        mail: carries values to and from other ranks.
        group: the group.
        operation: one of `torch.distributed`.
        sent: the tensors that this rank gives in.
        arguments: those of the group's method.

    Returns:
        A function that takes what the others leave, or None if nothing is exchanged.
    """
    arrive = _ARRIVALS.get(operation)
    if arrive is None or not mail.began_beside(group):
        return None
    is_scattered = operation == "scatter"  # only the root has sent anything
    if not _is_short(arguments[0] if is_scattered else sent, group.size() if is_scattered else 1):
        return None
    left = mail.leave(group, *sent)
    return lambda: arrive(left, *arguments)


def _is_short(tensors: Sequence[torch.Tensor], times: int) -> bool:
    if len(tensors) != 1 or tensors[0].is_complex():
        return False
    return 0 < times * tensors[0].numel() <= MOST


def _values(left: Left) -> _Values | None:
    """The values of each rank; None if those of one are not known."""
    if left.given is None:
        return None
    found = [left.of(rank) for rank in left.ranks]
    known = [each for each in found if each is not None and len(each) == len(left.given)]
    return known if len(known) == len(found) else None


def _all_reduce(left: Left, tensors: Any, opts: Any = None) -> None:
    values = _values(left)
    if values is not None:
        output = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
        write(output, _reduced(values, getattr(opts, "reduceOp", ReduceOp.SUM)))


def _reduced(values: _Values, operation: Any) -> Numbers:
    with _disable_current_modes():
        rows = constructors.tensor(values)
        combine = next((each for name, each in _REDUCTIONS if operation == name), None)
        found: Numbers = (rows[0] if combine is None else combine(rows)).tolist()
        return found


_REDUCTIONS: Sequence[tuple[Any, Callable[[torch.Tensor], torch.Tensor]]] = (
    (ReduceOp.SUM, lambda rows: rows.sum(0)),
    (ReduceOp.AVG, lambda rows: rows.sum(0) / len(rows)),
    (ReduceOp.PRODUCT, lambda rows: rows.prod(0)),
    (ReduceOp.MIN, lambda rows: rows.amin(0)),
    (ReduceOp.MAX, lambda rows: rows.amax(0)),
    (ReduceOp.BAND, lambda rows: _in_turn(rows, torch.bitwise_and)),
    (ReduceOp.BOR, lambda rows: _in_turn(rows, torch.bitwise_or)),
    (ReduceOp.BXOR, lambda rows: _in_turn(rows, torch.bitwise_xor)),
)


def _in_turn(rows: torch.Tensor, combine: Callable[..., torch.Tensor]) -> torch.Tensor:
    result = rows[0]
    for row in rows[1:]:
        result = combine(result, row)
    return result


def _reduce(left: Left, tensors: Sequence[torch.Tensor], opts: Any) -> None:
    if left.ranks[opts.rootRank] == left.own:
        _all_reduce(left, tensors, opts)


def _broadcast(left: Left, tensors: Sequence[torch.Tensor], opts: Any = None) -> None:
    root = left.ranks[getattr(opts, "rootRank", 0)]
    values = None if root == left.own else left.of(root)
    if values is not None and len(values) == tensors[0].numel():
        write(tensors[0], values)


def _all_gather(left: Left, outputs: Any, inputs: Any, opts: Any = None) -> None:
    for output, values in zip(outputs[0], _values(left) or (), strict=False):
        write(output, values)


def _gather(left: Left, outputs: Any, inputs: Any, opts: Any) -> None:
    if left.ranks[opts.rootRank] == left.own:
        _all_gather(left, outputs, inputs)


def _scatter(left: Left, outputs: Sequence[torch.Tensor], inputs: Any, opts: Any) -> None:
    values = left.of(left.ranks[opts.rootRank])
    if values is not None:
        _write_own(left, outputs[0], values)


def _reduce_scatter_single(left: Left, output: torch.Tensor, sent: Any, opts: Any = None) -> None:
    values = _values(left)
    if values is not None:
        _write_own(left, output, _reduced(values, getattr(opts, "reduceOp", ReduceOp.SUM)))


def _write_own(left: Left, output: torch.Tensor, values: Numbers) -> None:
    """Write the part for this rank of what is for all."""
    first = left.ranks.index(left.own) * output.numel()
    part = values[first : first + output.numel()]
    if len(part) == output.numel():
        write(output, part)


def _all_gather_single(left: Left, output: torch.Tensor, sent: Any, opts: Any = None) -> None:
    values = _values(left)
    if values is not None:
        write(output, [number for each in values for number in each])


def _all_to_all(
    left: Left, output: torch.Tensor, sent: torch.Tensor, *splits: Any, **more: Any
) -> None:
    are_split = any(map(listed, splits[:2]))
    values = None if are_split else _values(left)  # how others split theirs is not known
    if values is not None and sent.numel() % len(values) == 0:  # else NCCL leaves the rest
        part = sent.numel() // len(values)
        first = left.ranks.index(left.own) * part
        write(output, [number for each in values for number in each[first : first + part]])


_ARRIVALS: Mapping[str, Callable[..., None]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_single,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter_tensor": _reduce_scatter_single,
    "all_to_all_single": _all_to_all,
}
