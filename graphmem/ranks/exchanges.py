"""Values that ranks running side by side exchange in a collective, as real ones do.

Clauses:
(1) A tensor of up to `MOST` elements is exchanged if all ranks of its group began side by side:
    flags, counts, losses and splits, which are what programs go by. Ranks decide so alike, by
    what has one size on all of them; in `all_to_all` nothing has, so each leaves something.
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
    if operation in ("all_to_all", "all_to_all_single"):
        parts = [each.numel() for each in sent]
        shares = parts if operation == "all_to_all" else _shares(sent[0], arguments, group.size())
        left = mail.leave(group, *(sent if _are_short(sent) else ()), more=shares)
    elif _are_short(_alike(operation, sent, arguments, group.size())):
        left = mail.leave(group, *sent)
    else:
        return None
    return lambda: arrive(left, *arguments)


def _alike(
    operation: str, sent: Sequence[torch.Tensor], arguments: Sequence[Any], size: int
) -> Sequence[torch.Tensor]:
    """Tensors by which all ranks decide alike: what they give in may have another size on each."""
    if operation == "scatter":  # which only the root gives in
        return [*arguments[0]] * size
    if operation == "all_gather":
        return [max(arguments[0][0], key=torch.Tensor.numel)] if len(sent) == 1 else []
    return sent


def _are_short(tensors: Sequence[torch.Tensor]) -> bool:
    are_real = not any(each.is_complex() for each in tensors)
    return are_real and 0 < sum(each.numel() for each in tensors) <= MOST


def _shares(sent: torch.Tensor, arguments: Sequence[Any], size: int) -> Sequence[int]:
    """How many numbers a rank sends to each; of equal parts NCCL leaves the rest."""
    rows = listed(arguments[3] if len(arguments) > 3 else None)
    if not rows:
        return [sent.numel() // size] * size
    return [each * (sent.numel() // max(1, sent.size(0))) for each in rows]


def _values(left: Left) -> _Values | None:
    """The values of each rank; None if those of one are not known."""
    if left.given is None:
        return None
    found = [left.of(rank) for rank in left.ranks]
    known = [each for each in found if each is not None and len(each) == len(left.given)]
    return known if len(known) == len(found) else None


def _of_each(write_one: Callable[..., None]) -> Callable[..., None]:
    """A collective of several tensors at once, whose values are left one after the other."""

    def arrive(left: Left, outputs: Sequence[torch.Tensor], inputs: Any, opts: Any = None) -> None:
        values, first = _values(left), 0
        for output, sent in zip(outputs, inputs, strict=True):
            last = first + sent.numel()
            if values is not None:
                write_one(left, output, [each[first:last] for each in values], opts)
            first = last

    return arrive


def _of_one(write_one: Callable[..., None]) -> Callable[..., None]:
    arrive = _of_each(write_one)
    return lambda left, output, sent, opts=None: arrive(left, [output], [sent], opts)


def _write_sum(left: Left, output: torch.Tensor, values: _Values, opts: Any) -> None:
    write(output, _reduced(values, opts))


def _write_all(left: Left, output: torch.Tensor, values: _Values, opts: Any) -> None:
    write(output, [number for each in values for number in each])


def _write_own_sum(left: Left, output: torch.Tensor, values: _Values, opts: Any) -> None:
    _write_own(left, output, _reduced(values, opts))


def _write_own(left: Left, output: torch.Tensor, values: Numbers) -> None:
    """Write the part for this rank of what is for all."""
    first = left.ranks.index(left.own) * output.numel()
    part = values[first : first + output.numel()]
    if len(part) == output.numel():
        write(output, part)


def _all_reduce(left: Left, tensors: Any, opts: Any = None) -> None:
    listed_tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    _of_each(_write_sum)(left, listed_tensors, listed_tensors, opts)


def _reduced(values: _Values, opts: Any) -> Numbers:
    operation = getattr(opts, "reduceOp", ReduceOp.SUM)
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


def _reduce_scatter(left: Left, outputs: Sequence[torch.Tensor], inputs: Any, opts: Any) -> None:
    values = _values(left)
    if values is not None:
        reduced = _reduced(values, opts)
        first = sum(each.numel() for each in inputs[0][: left.ranks.index(left.own)])
        write(outputs[0], reduced[first : first + outputs[0].numel()])


def _received(left: Left) -> _Values:
    """The part for this rank of what each rank sends; empty if those of one are not known."""
    found = []
    own, size = left.ranks.index(left.own), len(left.ranks)
    for rank in left.ranks if left.given is not None else ():
        values = left.of(rank)
        if values is None:
            return ()
        shares = [int(each) for each in values[-size:]]
        first = sum(shares[:own])
        found.append(values[:-size][first : first + shares[own]])
    return found


def _all_to_all(left: Left, outputs: Sequence[torch.Tensor], *rest: Any, **more: Any) -> None:
    for output, values in zip(outputs, _received(left), strict=False):
        if len(values) == output.numel():
            write(output, values)


def _all_to_all_single(left: Left, output: torch.Tensor, *rest: Any, **more: Any) -> None:
    received = [number for values in _received(left) for number in values]
    if len(received) == output.numel():
        write(output, received)


_ARRIVALS: Mapping[str, Callable[..., None]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_reduce_coalesced": _all_reduce,
    "all_gather_into_tensor": _of_one(_write_all),
    "all_gather_into_tensor_coalesced": _of_each(_write_all),
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter_tensor": _of_one(_write_own_sum),
    "reduce_scatter_tensor_coalesced": _of_each(_write_own_sum),
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
}
