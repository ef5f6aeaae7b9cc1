"""The dispatch mode under which the user's step runs: every ATen operation passes through it.

Tensors on the traced device are fake: they have shape, dtype and storage identity, but no data.
Some on the CPU are real (`real_tensors`). Subclasses handle operators that need more:
`special_operators`, `sparse_tensors`, `sizes_by_data`, `data_dependent`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.function import BackwardCFunction

from graphmem import constructors
from graphmem.caller import Belongings
from graphmem.graph import Op, OwnerKind
from graphmem.trace import overwritten, proxies
from graphmem.trace.autocast import AutocastRegions
from graphmem.trace.compilable import CompilableMode
from graphmem.trace.composites import IN_PARTS, MARKED_VIEWS, is_pure, run_in_parts
from graphmem.trace.higher_order import run_without_modes
from graphmem.trace.in_place_forms import WATCHED, InPlaceForms
from graphmem.trace.later_nodes import LaterNodes
from graphmem.trace.location import Location
from graphmem.trace.messages import NoKernelOnCardError, NoMetaKernelError
from graphmem.trace.operands import tensors_of
from graphmem.trace.python_functions import name_of
from graphmem.trace.reads import Reads
from graphmem.trace.real_tensors import REAL_CPU_ELEMENTS, stays_real
from graphmem.trace.recorder import Recorder
from graphmem.trace.refused_operators import EXPLAINED, at, explain, lacks_sparse_kernel
from graphmem.trace.replayed_views import ReplayedViews
from graphmem.trace.saved_variables import note_history
from graphmem.trace.saved_versions import note_write
from graphmem.trace.threads import NodeNumbers
from graphmem.trace.wrapper_tensors import is_wrapper
from graphmem.virtual_device.encoder_layers import FAST_PATHS
from graphmem.virtual_device.libraries.python_kernels import (
    call_in_words,
    has_python_kernel,
    is_custom,
    no_scratch,
    run_kernel,
)
from graphmem.virtual_device.operators.ctc import CTC_LOSSES
from graphmem.virtual_device.recurrent import RECURRENT

aten = torch.ops.aten

_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
_PLAIN = frozenset({FakeTensor, torch.nn.Parameter})
_KERNELS_ON_CARD = (torch._C.DispatchKey.CUDA, torch._C.DispatchKey.CompositeExplicitAutograd)
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_OF_VIRTUAL_GPU = (aten.scaled_dot_product_attention.default, *FAST_PATHS, *CTC_LOSSES, *RECURRENT)
_PROFILER = (
    torch.ops.profiler._record_function_enter_new.default,
    torch.ops.profiler._record_function_exit._RecordFunction,
)


class _OfThread(threading.local):
    node: Any = None
    keeps_graph = False
    makes_graph = True


class _Handlers(dict[Any, Callable[..., Any]]):
    """The handler of each operation, which is looked for once: a trace repeats few operators."""

    def __init__(self, handler_of: Callable[[Any], Callable[..., Any]]) -> None:
        super().__init__()
        self._handler_of = handler_of

    def __missing__(self, func: Any) -> Callable[..., Any]:
        self[func] = found = self._handler_of(func)
        return found


class TraceMode(CompilableMode):
    """Runs each operation on fake tensors and has it recorded.

    Attributes:
        is_over: whether the program has ended; its threads may go on.
        numbers: keeps autograd's node numbers unique across threads.
        belongings: the caller's tensors, if they are to be restored afterwards.
        reads: answers the program's reads, and knows values.
        is_host_counted: whether the counted memory is the CPU's.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        recorder: Recorder,
        fake_mode: FakeTensorMode,
        location: Location,
        autocast: AutocastRegions,
        views: ReplayedViews,
        later: LaterNodes,
        forms: InPlaceForms,
        numbers: NodeNumbers,
        reads: Reads,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._fake_mode = fake_mode
        self._location = location
        self._autocast = autocast
        self._views = views
        self._later = later
        self._forms = forms
        on_cpu = recorder.device.type == "cpu"
        self._real_elements: float = 1 if on_cpu else REAL_CPU_ELEMENTS
        self.is_over = False
        self.numbers = numbers
        self.reads = reads
        self._of_thread = _OfThread()
        self._one_at_a_time = threading.RLock()
        self.belongings: Belongings | None = None
        self.is_host_counted = on_cpu
        self._newest_node = torch._C._autograd._get_sequence_nr()
        self._op_of_node: dict[int, Op] = {}
        self._callers: dict[int, str] = {}  # the modules that called compiled code, by operation
        self._handlers = _Handlers(self._handler_of)
        self._handlers |= dict.fromkeys(_PROFILER, _run_unrecorded)
        if not on_cpu:
            self._handlers |= dict.fromkeys(IN_PARTS, self._run_in_parts)

    @property
    def node(self) -> Any:
        """The node running in this thread; None in a forward pass, also one that is recomputed."""
        recomputes = not self._of_thread.makes_graph and torch.is_grad_enabled()
        return None if recomputes else self._of_thread.node

    @property
    def keeps_graph(self) -> bool:
        """Whether the node running in this thread may run again."""
        return self._of_thread.keeps_graph

    def run_node(self, node: Any, *, keeps_graph: bool) -> None:
        """Assign this thread's operations to a node, in the mode that its walk has set for it."""
        running = self._of_thread
        running.node, running.keeps_graph = node, keeps_graph
        running.makes_graph = torch.is_grad_enabled()

    def forward_of(self, node: Any) -> Op | None:
        """The operation for which autograd made a node."""
        return self._op_of_node.get(node._sequence_nr())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_over:
            return func(*args, **kwargs)
        # Two calls out of three are `tensor.device`, which is dispatched but is not an operation.
        if func is DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        if not _PLAIN.issuperset(types) and any(map(is_wrapper, types)):
            return NotImplemented  # the tensors inside come here once unwrapped
        if self._recorder.overwritten:
            overwritten.check(self._recorder, func, tensors_of((args, *kwargs.values())))
        if (mode := proxies.mode_in_charge(args, kwargs)) is not None:
            return proxies.run(mode, self, func, types, args, kwargs)
        with self._one_at_a_time:
            self.numbers.go_on()
            return self._handlers[func](func, types, args, kwargs)

    def _handler_of(self, func: Any) -> Callable[..., Any]:
        if isinstance(func, HigherOrderOperator):
            return self._higher_order
        if has_python_kernel(func):
            return self._own_kernel
        if func._can_decompose():
            return self._composite
        return self._run_in_form if func in WATCHED else self._run

    def _composite(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func not in MARKED_VIEWS and _is_inference(args):
            return self._decompose(func, types, args, kwargs)
        if is_pure(func):
            with self:  # below the keys that the call has passed, unlike an inference tensor's
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        return self._run(func, types, args, kwargs)

    def _run_in_parts(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        with self:
            result = run_in_parts(func, args, kwargs)
        self.reads.known.follow(func, args, kwargs, result)  # `isinf`: numbers are finite
        return result

    def _own_kernel(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a library's operator by its kernel, each part of which passes through here."""
        if self._stays_real(func, args, kwargs) or self._recorder.device.type != "cuda":
            return self._run(func, types, args, kwargs)
        first = len(self._recorder.graph.ops)
        try:
            with self:
                result = run_kernel(func, args, kwargs)
        except (RuntimeError, TypeError, NoMetaKernelError) as error:
            if isinstance(error, torch.OutOfMemoryError) or not is_custom(func):
                raise
            # The kernel calls compiled code; its own shape function says what comes of it.
            result = self._run(func, types, args, kwargs)
            self._recorder.assume(*no_scratch(func, error), self._location.place())
            return result
        note_write(func, args)
        names = map(self._recorder.identity_of, args)
        self._recorder.label_since(first, call_in_words(func, names))
        return result

    def _higher_order(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a higher-order operator by its kernel, each part of which passes through here."""
        kernels = (func.py_kernels.get(key) for key in _KERNELS_ON_CARD)
        kernel = next((each for each in kernels if each is not None), None)
        if kernel is None:
            raise NoKernelOnCardError(func.name(), at(self._location.place()))
        with self:
            return run_without_modes(kernel, args, kwargs)

    def _run_in_form(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        caller = _caller()
        form = self._forms.choose(func, args, self.node, caller)
        result = self._run(form, types, args, kwargs)
        self._forms.note(form, result, self.node, caller)
        return result

    def _decompose(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a composite operation by its parts, each of which passes through here.

        Inference tensors, which have no autograd keys, bring composites this far. One with a CUDA
        kernel runs whole on a card, where some kernels are the virtual GPU's, and so does what is
        composed for compilers only (torch/_decomp/decompositions.py), which may take more memory.
        """
        is_cuda = self._recorder.device.type == "cuda"
        if is_cuda and func in _OF_VIRTUAL_GPU:
            with self:
                return func.redispatch(_CUDA, *args, **kwargs)
        has_kernel = partial(torch._C._dispatch_has_kernel_for_dispatch_key, func.name())
        if not has_kernel(_COMPOSITE.name) or (is_cuda and has_kernel("CUDA")):
            return self._run(func, types, args, kwargs)
        # Autocast casts a composite's parts, not the composite: restore the thread's keys for it.
        with torch._C._RestorePythonTLSSnapshot(), self:  # type: ignore[attr-defined]
            return func._op_dk(_COMPOSITE, *args, **kwargs)

    def _run(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._stays_real(func, args, kwargs):
            return self._run_real(func, args, kwargs)
        tick = self._recorder.begin_op()
        try:
            result = self._fake_mode.dispatch(func, types, args, kwargs)
        except EXPLAINED as error:
            result = self._dynamic(error, func, args, kwargs)
            if result is None:
                raise explain(error, func, args, self._location.place()) from error
            return result
        except RuntimeError as error:
            if lacks_sparse_kernel(error, args):
                raise explain(error, func, args, self._location.place()) from error
            raise
        with torch._C.DisableTorchFunction():  # else each look at a tensor looks for it
            note_write(func, args)
            self._record(func, args, kwargs, result, tick)
        return result

    def _dynamic(self, error: Exception, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation that needs data; None if it is unknown."""
        return None

    def _run_real(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tick = self._recorder.begin_op()
        self._spare(func, args, kwargs)
        result = func(*args, **kwargs)
        if self._recorder.device.type == "cpu":
            self._record(func, args, kwargs, result, tick)
        return result

    def _spare(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Back up a tensor of the caller's before the program writes into it."""
        if self.belongings is not None:
            self.belongings.before(func, args, kwargs)

    def _stays_real(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return stays_real(func, args, kwargs, self._real_elements)

    def _record(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, tick: int
    ) -> Op:
        self._views.settle()
        self._later.settle()
        node, source, autograd_node, forward = self.node, None, None, None
        module = caller = self._location.module
        buffer = self._location.compiled(sys._getframe(1))
        newest = torch._C._autograd._get_sequence_nr()
        if node is not None:
            autograd_node = sys.intern(name_of(node))
            if isinstance(node, BackwardCFunction):  # a formula of PyTorch's runs no program
                source = self._location.source(in_node=True)
            made_by = self.forward_of(node)
            if made_by is not None:
                forward, source = made_by.index, source or made_by.source
                module = caller = module or self._callers.get(made_by.index, made_by.module)
        source = source or self._location.source()
        if buffer is not None:
            module, source = buffer.place(module, source, self._recorder.graph.modules)
        record = partial(self._recorder.record_op, func, args, kwargs, result, tick=tick)
        op = record(module=module, source=source, autograd_node=autograd_node, forward=forward)
        op.autocast = self._autocast.state_of(func)
        if buffer is not None:
            self._callers[op.index] = caller
            if op.births:
                self._recorder.label(op.births[0], OwnerKind.COMPILED, str(buffer))
        if newest > self._newest_node:
            self._newest_node = newest
            self._op_of_node[newest - 1] = op
            self._views.note(newest - 1, args, result, node)
        self._later.note(result)
        self._recorder.newest_node = newest - 1
        note_history(args, result)
        if func is aten._to_copy.default and op.births:
            self._identify_autocast_copy(args[0], result)
        self.reads.known.follow(func, args, kwargs, result)
        return op

    def _identify_autocast_copy(self, weight: torch.Tensor, copy: torch.Tensor) -> None:
        """Name a copy that autocast keeps.

        The conditions of `cached_cast` (aten/src/ATen/autocast_mode.cpp): an fp32 leaf that
        requires grad, cast to autocast's lower precision while the cache is on.
        """
        kind = self._recorder.device.type
        if not (
            self._autocast.enabled
            and torch.is_autocast_cache_enabled()
            and copy.dtype == torch.get_autocast_dtype(kind)
            and weight.dtype == torch.float32
            and weight.is_leaf
            and weight.requires_grad
            and not weight._is_view()
        ):
            return
        storage = self._recorder.storage_of(weight)
        named = None if storage is None else storage.owned_as(OwnerKind.PARAMETER)
        name = "a leaf tensor" if named is None else named.name
        self._recorder.identify(copy, OwnerKind.AUTOCAST_CACHE, name)

    def _record_made(self, func: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> Any:
        self._record(func, args, kwargs, result, self._recorder.begin_op())
        return result

    def _new_empty(self, shape: Sequence[int], like: FakeTensor, dtype: torch.dtype) -> FakeTensor:
        return self._empty_on(like.fake_device, shape, dtype)

    def _empty_on(
        self, device: torch.device, shape: Sequence[int], dtype: torch.dtype
    ) -> FakeTensor:
        with torch._C._DisableTorchDispatch():
            memory = constructors.empty(shape, dtype=dtype, device="meta")
        return FakeTensor(self._fake_mode, memory, device)


def _caller() -> FrameType:
    """The frame that called the operation, above `TraceMode`'s and a subclass's dispatch."""
    frame = sys._getframe(3)
    is_own = str(frame.f_globals.get("__name__")).startswith("graphmem.")
    is_subclass = is_own and frame.f_code.co_name == "__torch_dispatch__"
    return frame.f_back or frame if is_subclass else frame


DEVICE = torch.ops.prim.device.default


def _run_unrecorded(func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """Run the profiler's own operations, which are not part of the step."""
    return func(*args, **kwargs)


def _is_inference(args: tuple[Any, ...]) -> bool:
    """Whether a call may involve inference tensors, which outlive inference mode."""
    return torch.is_inference_mode_enabled() or any(
        tensor.is_inference() for tensor in tensors_of(args)
    )
