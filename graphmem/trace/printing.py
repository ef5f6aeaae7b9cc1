"""Print tensors of the virtual GPU like those of a real one, with assumed values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from graphmem.trace.reads import Reads
from graphmem.virtual_device.patching import Replacement
from graphmem.virtual_device.sparse import parts_of


def replacements(reads: Reads, fake_mode: FakeTensorMode) -> list[Replacement]:
    """The attributes to replace.

    Args:
        reads: answers the program's reads.
        fake_mode: the mode of the program's tensors; those of other modes, such as
            `torch.compile`'s, have no values.
    """

    def to_host(tensor: torch.Tensor) -> torch.Tensor:
        return reads.on_host(tensor, tensor)

    def represent(tensor: FakeTensor) -> str:
        if tensor.layout is torch.sparse_coo:
            return represent_sparse(tensor)
        text = repr(to_host(tensor))
        device = f", device='{tensor.fake_device}'" if tensor.fake_device.type != "cpu" else ""
        kind = "Parameter containing:\n" if getattr(tensor, "_is_param", False) else ""
        return f"{kind}{text[:-1]}{device}{_origin(tensor)})"

    def represent_sparse(tensor: FakeTensor) -> str:
        indices, values = map(to_host, parts_of(tensor))
        host = torch.sparse_coo_tensor(indices, values, tensor.shape, check_invariants=False)
        text = repr(host).replace("size=", f"device='{tensor.fake_device}', size=", 1)
        return f"{text[:-1]}{_origin(tensor)})"

    def to_list(tensor: FakeTensor) -> Any:
        return to_host(tensor).tolist()

    def to_numpy(tensor: FakeTensor, *args: Any, force: bool = False) -> Any:
        if force:  # `tensor_to_numpy` (torch/csrc/utils/tensor_numpy.cpp)
            return tensor.detach().cpu().resolve_conj().resolve_neg().numpy()
        _refuse_of_card(tensor)
        real = to_host(tensor)
        with torch._C._DisableTorchDispatch():
            return real.numpy()

    def formatted(tensor: FakeTensor, specification: str) -> str:
        """`Tensor.__format__` (torch/_tensor.py), which handles plain tensors only."""
        if not tensor.dim():
            return format(reads.scalar(tensor), specification)
        return object.__format__(tensor, specification)

    return [
        *((torch, name, _of_items(getattr(torch, name))) for name in ("tensor", "as_tensor")),
        (FakeTensor, "__repr__", _of(fake_mode, "__repr__", _but_in_kernels(represent))),
        (FakeTensor, "__format__", _of(fake_mode, "__format__", formatted)),
        (FakeTensor, "tolist", _of(fake_mode, "tolist", to_list)),
        (FakeTensor, "numpy", _of(fake_mode, "numpy", to_numpy)),
        (FakeTensor, "__array__", _of(fake_mode, "__array__", to_numpy)),
    ]


def _of(fake_mode: FakeTensorMode, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A method that applies to tensors of one mode; others get PyTorch's own."""
    original: Callable[..., Any] = getattr(FakeTensor, name)

    def choose(tensor: FakeTensor, *args: Any, **options: Any) -> Any:
        chosen = function if tensor.fake_mode is fake_mode else original
        return chosen(tensor, *args, **options)

    return choose


def _but_in_kernels(represent: Callable[[FakeTensor], str]) -> Callable[..., str]:
    """`represent`, but PyTorch's own text inside a meta kernel.

    Overload resolution there writes down why an overload rejects its arguments
    (`FunctionSchema::checkArg`, aten/src/ATen/core/function_schema_inl.h).
    """
    unassumed: Callable[[FakeTensor], str] = FakeTensor.__repr__

    def choose(tensor: FakeTensor, *, tensor_contents: Any = None) -> str:
        in_kernel = tensor.fake_mode.in_kernel_invocation
        return unassumed(tensor) if in_kernel else represent(tensor)

    return choose


def _of_items(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.tensor` and `as_tensor`, which read tensors in a list behind the back of every mode.

    `infer_scalar_type` (torch/csrc/utils/tensor_new.cpp) promotes their types.
    """

    def tensor(data: Any, **options: Any) -> torch.Tensor:
        held = list(_fakes_in(data)) if isinstance(data, (list, tuple)) else []
        if held and options.get("dtype") is None:
            options["dtype"] = reduce(torch.promote_types, (each.dtype for each in held))
        return make(_read(data, _depth(data)) if held else data, **options)

    return tensor


def _fakes_in(data: Any) -> Iterator[FakeTensor]:
    if isinstance(data, FakeTensor):
        yield data
    elif isinstance(data, (list, tuple)):
        for each in data:
            yield from _fakes_in(each)


def _depth(data: Any) -> int:
    """How many dimensions the result has, which the first items say.

    A tensor among them counts as a number (`compute_sizes`, torch/csrc/utils/tensor_new.cpp).
    """
    if isinstance(data, (list, tuple)):
        return 1 + (_depth(data[0]) if data else 0)
    return 0 if isinstance(data, torch.Tensor) else int(getattr(data, "ndim", 0))


def _read(data: Any, depth: int) -> Any:
    """The numbers of tensors in a list.

    Where the result has no dimension left, a tensor of one element is that number, whatever its
    shape (`recursive_store`, torch/csrc/utils/tensor_new.cpp).
    """
    if isinstance(data, FakeTensor):
        if depth or not data.ndim:
            return data.tolist()
        if data.numel() != 1:
            raise ValueError("only one element tensors can be converted to Python scalars")
        return data.item()
    if not isinstance(data, (list, tuple)):
        return data
    return [_read(each, depth - 1) for each in data]


def _refuse_of_card(tensor: FakeTensor) -> None:
    """Raise the error of `tensor_to_numpy` (torch/csrc/utils/tensor_numpy.cpp)."""
    if tensor.fake_device.type != "cpu":
        raise TypeError(
            f"can't convert {tensor.fake_device} device type tensor to numpy. Use Tensor.cpu() to "
            "copy the tensor to host memory first."
        )


def _origin(tensor: torch.Tensor) -> str:
    if tensor.grad_fn is not None:
        return f", grad_fn=<{type(tensor.grad_fn).__name__}>"
    return ", requires_grad=True" if tensor.requires_grad else ""
