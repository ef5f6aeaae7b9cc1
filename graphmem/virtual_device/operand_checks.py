"""The types, devices and overlaps of operands that an operation refuses.

A meta kernel computes shapes and looks at few types: `half @ float` has a result, where a card has
an error. These operations are refused by code that every device shares (structured meta functions,
`TensorIterator`, or C++ before the kernel), so PyTorch says itself what is wrong: it runs the
operation on the host, on operands of one element. Files are below aten/src/ATen/native/.

Three checks are a card's own: that of `mm` (cuda/Blas.cpp, `addmm_out_cuda_impl`) differs from the
host's in a word, cuDNN's convolutions have theirs (Convolution.cpp,
`check_input_same_type_as_parameters`), and layer and group norm read weights as numbers of the
input's type (cuda/layer_norm_kernel.cu, cuda/group_norm_kernel.cu, `const_data_ptr<T>`), where
the host's kernels take more.

Types for which a card has no kernel ("not implemented for 'Half'") are in `missing_kernels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from graphmem import constructors
from graphmem.virtual_device.missing_kernels import check_kernel
from graphmem.virtual_device.random import device_of

aten = torch.ops.aten

_SHARED = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,  # LinearAlgebra.cpp, `ADDMM_META`
        aten.addmm_.default,
        aten.bmm.default,  # `common_checks_baddbmm_bmm`
        aten.baddbmm.default,
        aten.baddbmm_.default,
        aten.mv.default,  # Blas.cpp, `TORCH_META_FUNC(addmv)`, `dot_check`
        aten.addmv.default,
        aten.dot.default,
        aten.scaled_dot_product_attention.default,  # transformers/attention.cpp
        aten.embedding.default,  # Embedding.cpp, `checkScalarTypes`
        aten.binary_cross_entropy.default,  # `TensorIterator`
        aten.binary_cross_entropy_with_logits.default,
        aten.nll_loss_forward.default,  # cuda/Loss.cu, cuda/NLLLoss2d.cu: the weights' type
        aten.nll_loss2d_forward.default,
        aten.index_add.default,  # TensorAdvancedIndexing.cpp
        aten.index_add_.default,
        aten.index_copy.default,
        aten.index_copy_.default,
        aten.index_put.default,
        aten.index_put_.default,
        aten.masked_select.default,
        aten.add_.Tensor,  # `TensorIterator`
        aten.sub_.Tensor,
        aten.mul_.Tensor,
        aten.div_.Tensor,
        aten.rsub.Scalar,  # BinaryOps.h, `sub_check`
        aten.rsub.Tensor,
        aten.std.correction,  # ReduceOps.cpp, `std_var_out`
        aten.var.correction,
        aten.var_mean.correction,
    }
)
_NORMS = {aten.native_layer_norm.default: slice(2, 4), aten.native_group_norm.default: slice(1, 3)}
"""The places of their weights and biases."""

_INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}

_OF_CARD = {"expected m1 and m2": "expected mat1 and mat2"}


def check_operands(func: Any, args: Sequence[Any], kwargs: Any = None) -> None:
    """Refuse operands as PyTorch does.

    Raises:
        RuntimeError: the operation takes no operands of these types, devices or overlaps.
    """
    if kwargs and kwargs.get("generator") is not None:
        _check_generator(kwargs["generator"], args, kwargs)
    if func in _INDEXED:
        _check_indices(args[0], args[1])
    if func is aten.convolution.default:
        _check_convolution(*args[:3])
    elif func in _NORMS:
        _check_norm(args[0], *args[_NORMS[func]])
    elif func in _SHARED and not _are_usual(func, args):
        _rehearse(func, args, kwargs)
    elif _writes_elements(func) and any(shared := _are_shared(args[0])):
        _rehearse(func, args, kwargs, shared)
    check_kernel(func, args)


@cache
def _writes_elements(func: Any) -> bool:
    """Whether an operation writes into its first operand, element by element."""
    name: str = func._schema.name
    is_elementwise = torch.Tag.pointwise in func.tags or func is aten.copy_.default
    return is_elementwise and name.endswith("_") and not name.endswith("__")


def _are_shared(value: Any) -> list[bool]:
    """For each dimension, whether its places are the same memory, as in an expanded tensor.

    `has_internal_overlap` (aten/src/ATen/MemoryOverlap.cpp).
    """
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return []
    dims = zip(value.shape, value.stride(), strict=True)
    return [stride == 0 and size > 1 for size, stride in dims]


def _are_usual(func: Any, args: Sequence[Any]) -> bool:
    """Whether all operands are of one floating type, or nothing looks at their types.

    The meta device does not, and an operation looks first whether all are on one device.
    """
    operands = [each for each in args if isinstance(each, torch.Tensor)]
    types, devices = ({getattr(each, look) for each in operands} for look in ("dtype", "device"))
    are_numbers = operands[0].is_floating_point() or operands[0].is_complex()
    is_one = len(types) == 1 and are_numbers and func is not aten.embedding.default
    return is_one or operands[0].is_meta or len(devices) > 1


def _check_indices(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> None:
    """`make_info` (TensorAdvancedIndexing.cpp)."""
    for each in indices:
        if each is not None and each.device.type not in ("cpu", tensor.device.type):
            raise RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor "
                f"({tensor.device})"
            )


def _check_generator(generator: Any, args: Sequence[Any], kwargs: Any) -> None:
    """`check_generator` (aten/src/ATen/core/Generator.h), for what a card draws."""
    first = args[0] if args else None
    place = first.device if isinstance(first, torch.Tensor) else kwargs.get("device")
    wanted = "cpu" if place is None else torch.device(place).type
    found = device_of(generator)
    if wanted == "cuda" != found:
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found '{found}'")


def _check_convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    for name, other in (("weight", weight), ("bias", bias)):
        if other is not None and not x.is_meta and not _are_alike(x, other):
            raise RuntimeError(
                f"Input type ({x.type()}) and {name} type ({other.type()}) should be the same"
            )


def _are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.device.type == other.device.type


def _check_norm(x: torch.Tensor, *weights: torch.Tensor | None) -> None:
    for each in weights:
        if each is not None and each.dtype != x.dtype and x.is_cuda:
            wanted, found = (
                tensor.type().rpartition(".")[2].removesuffix("Tensor") for tensor in (x, each)
            )
            raise RuntimeError(f"expected scalar type {wanted} but found {found}")


def _rehearse(
    func: Any, args: Sequence[Any], kwargs: Any = None, shared: Sequence[bool] = ()
) -> None:
    """Run an operation on one element of each operand's type, and raise what is refused.

    The first operand has two places in dimensions in which they are `shared`.
    """
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
        first, *others = _one_of_each(args)
        if any(shared):
            first = first.expand([2 if each else 1 for each in shared])
        try:
            func(first, *others, **(kwargs or {}))
        except RuntimeError as error:  # from 2.15 on some are a NotImplementedError, which is one
            if "not implemented for '" not in str(error):  # which only the host's kernel may be
                raise type(error)(_as_on_card(str(error))) from None


def _one_of_each(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return constructors.zeros((1,) * value.dim(), dtype=value.dtype, device="cpu")
    return list(map(_one_of_each, value)) if isinstance(value, (list, tuple)) else value


def _as_on_card(said: str) -> str:
    for of_host, of_card in _OF_CARD.items():
        said = said.replace(of_host, of_card)
    return said
