"""DistributedDataParallel's reducer, which in PyTorch is C++ and hooks the C++ engine.

Clauses (torch/csrc/distributed/c10d/reducer.cpp; names in brackets are its own):
  (1) a hook on each parameter's `AccumulateGrad` copies the gradient, divided by the number of
      ranks, into its place in a bucket; with a communication hook it is not divided
      [`mark_variable_ready_dense`];
  (2) buckets are reduced in order, each once its last gradient is ready [`mark_bucket_ready`];
  (3) after the backward pass the reduced values are copied back into the gradients, which are
      created if there are none [`finalize_backward`, `copy_bucket_to_grad`]; with
      `gradient_as_bucket_view` the gradients are always views of the buckets;
  (4) before the second forward pass buckets are rebuilt, in the order in which gradients became
      ready [`rebuild_buckets`]; rank 0 sends that order to the others in two small tensors on the
      card [`sync_bucket_indices`]; the old buckets are freed first [`initialize_buckets`];
  (5) with `find_unused_parameters`, buckets are not rebuilt and a map of used parameters, one int
      each, is on the card [`initialize_local_used_map`];
  (6) with a static graph, the first iteration's gradients are copied and reduced when it ends
      [`delay_all_reduce`];
  (7) under `Join`, the work that counts the ranks which still have data is kept to the next forward
      pass, and waited for before the first gradient is divided by their number, unless that is
      the number of all ranks [`set_forward_pass_work_handle`, `set_divide_factor`]. A rank that has
      run out of data reduces zeros in place of each bucket [`get_grad_buckets`].

A parameter that this rank does not use is assumed to be unused on all. Sparse gradients are
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from graphmem import constructors
from graphmem.graph import OwnerKind
from graphmem.ranks.buckets import Bucket, GradBucket
from graphmem.ranks.error_messages import NoReducerModelError, SparseGradientsError
from graphmem.ranks.reducer_hook import ReducerHook
from graphmem.trace.gradients import clone_obey_contract
from graphmem.trace.recorder import Recorder
from graphmem.wording import NOT_REDUCED

_is_alias_of: Any = vars(torch._C)["_is_alias_of"]


class Reducer:
    """Replaces `torch.distributed.Reducer`, with its arguments and methods.

    The additional first argument is the recorder, in which the buckets are named.
    """

    def __init__(
        self,
        recorder: Recorder,
        parameters: Sequence[torch.Tensor],
        bucket_indices: Sequence[Sequence[int]],
        per_bucket_size_limits: Sequence[int],
        process_group: Any,
        expect_sparse_gradients: Sequence[bool] = (),
        bucket_bytes_cap: int = 25 * 1024 * 1024,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        param_to_name_mapping: Any = None,
        first_bucket_bytes_cap: int = 1024 * 1024,
        *later: Any,
        **options: Any,
    ) -> None:
        if any(expect_sparse_gradients):
            raise SparseGradientsError()
        self._recorder = recorder
        self._parameters = list(parameters)
        self._group = process_group
        limits = [each for each in later if isinstance(each, list) and each]
        flags = [each for each in later if isinstance(each, bool)]
        self._is_for_python = len(flags) > 1 and flags[1]  # `use_python_reducer`
        self._limits = limits[0] if limits else [first_bucket_bytes_cap, bucket_bytes_cap]
        self._finds_unused = find_unused_parameters
        self._keeps_views = gradient_as_bucket_view
        self._is_static = False
        self._iterations = 0
        self._has_rebuilt = False
        self._ready_order: list[int] = []
        self._unused: list[int] = []
        self._has_marked_unused = False
        self._calls = [0] * len(self._parameters)
        self._calls_left: list[int] = []
        self._is_used = [False] * len(self._parameters)
        self._expects_hooks = False
        self._must_finalize = False
        self._comm_hook: Callable[[GradBucket], Any] | None = None
        self._taking_part: Any = None
        self._is_counted = True
        self._futures: list[Any] = []
        self._dtype: torch.dtype | None = None
        self._buckets: list[Bucket] = []
        self._place: dict[int, tuple[int, int]] = {}
        self._make_buckets(bucket_indices)
        self._hooked = [self._hook(i) for i in range(len(self._parameters))]
        self._used_map = self._new_ints(len(self._parameters)) if find_unused_parameters else None

    def __getattr__(self, name: str) -> Any:
        raise NoReducerModelError(name)

    def _hook(self, index: int) -> tuple[Any, Any]:
        """Clause (1). Autograd records nothing about an inference tensor, so none reaches it."""
        parameter = self._parameters[index]
        if parameter.is_inference():
            return None, None
        with torch.enable_grad():
            copied: Any = parameter.expand_as(parameter)
            accumulator = copied.grad_fn.next_functions[0][0]
        hook = ReducerHook(self, index, is_for_python=self._is_for_python)
        return accumulator, accumulator.register_hook(hook)

    def _new_ints(self, count: int) -> torch.Tensor:
        return constructors.empty(count, dtype=torch.int32, device=self._parameters[0].device)

    # Buckets ------------------------------------------------------------------------------------

    def _make_buckets(self, indices: Sequence[Sequence[int]]) -> None:
        self._buckets.clear()
        self._place.clear()
        for number, of_bucket in enumerate(indices):
            chosen = [self._parameters[i] for i in of_bucket]
            bucket = Bucket(list(of_bucket), chosen, self._dtype)
            self._buckets.append(bucket)
            kind = OwnerKind.GRADIENT if self._keeps_views else OwnerKind.COMMUNICATION
            self._recorder.identify(bucket.gradients, kind, f"gradient bucket {number}")
            self._place |= {i: (number, j) for j, i in enumerate(of_bucket)}
            if self._keeps_views:
                _move_into(bucket)

    def _rebuild_buckets(self) -> bool:
        self._check_reducer_finalized()
        if not self._rebuilds or not self._ready_order:
            return False
        order, self._ready_order = self._ready_order, []
        assign: Any = vars(dist)["_compute_bucket_assignment_by_size"]
        found, _ = assign(
            [self._parameters[i] for i in order], self._limits, [False] * len(order), order
        )
        sent = []
        for count in (len(order) + 1, len(found)):
            sent.append(constructors.empty(count, dtype=torch.int32))  # written on the host
            sent.append(self._new_ints(count))
            self._group.broadcast(sent[-1:], c10d.BroadcastOptions()).wait()
        while sent:  # last to first, as C++ scopes do
            sent.pop()
        self._has_rebuilt = True
        self._make_buckets(found)
        return True

    @property
    def _rebuilds(self) -> bool:
        return (self._is_static or not self._finds_unused) and not self._has_rebuilt

    @property
    def _is_first_of_static(self) -> bool:
        return self._is_static and self._iterations == 1

    @property
    def _searches(self) -> bool:
        return self._finds_unused and not self._is_static

    # What DistributedDataParallel calls ---------------------------------------------------------

    def set_logger(self, logger: Any) -> None:
        """Do nothing: nothing is logged."""

    def prepare_for_forward(self) -> None:
        """Begin a forward pass whose gradients will be reduced."""
        self._iterations += 1

    def prepare_for_backward(self, outputs: Sequence[torch.Tensor]) -> None:
        """Expect gradients of all parameters that the outputs depend on."""
        self._expects_hooks = True
        for bucket in self._buckets:
            bucket.pending = len(bucket.parameters)
        self._next = 0
        self._calls_left = list(self._calls)
        self._has_marked_unused = False
        if self._searches:
            self._unused = self._missing_from(outputs)

    def _missing_from(self, outputs: Sequence[torch.Tensor]) -> list[int]:
        """The parameters that no gradient of the outputs reaches [`search_unused_parameters`]."""
        queue = [output.grad_fn for output in outputs if output.grad_fn is not None]
        seen = set(queue)
        while queue:
            following = {node for node, _ in queue.pop().next_functions if node is not None}
            queue += following - seen
            seen |= following
        return [i for i, (node, _) in enumerate(self._hooked) if node not in seen]

    def _set_static_graph(self) -> None:
        self._is_static = True
        if self._used_map is None:
            self._used_map = self._new_ints(len(self._parameters))

    def _set_forward_pass_work_handle(self, work: Any, use_static_world_size: bool) -> None:
        self._taking_part = work
        self._is_counted = use_static_world_size

    def _get_zeros_like_grad_buckets(self) -> list[GradBucket]:
        last = len(self._buckets) - 1
        buckets = [GradBucket(i, each, i == last) for i, each in enumerate(self._buckets)]
        for each in buckets:
            each.set_buffer(torch.zeros_like(each.buffer()))
        return buckets

    def _run_comm_hook(self, bucket: GradBucket) -> Any:
        if self._comm_hook is not None:
            return self._comm_hook(bucket)
        return self._sum(bucket.buffer()).get_future()

    def _sum(self, tensor: torch.Tensor) -> Any:
        return self._group.allreduce([tensor], c10d.AllreduceOptions())

    def _get_local_used_map(self) -> torch.Tensor:
        assert self._used_map is not None
        return self._used_map

    def _set_mixed_precision_param_dtype(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        for bucket in self._buckets:
            bucket.gradients = bucket.gradients.to(dtype)

    def _install_post_backward_futures(self, futures: Sequence[Any]) -> None:
        self._futures += futures

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        """Do nothing: nothing is logged."""

    def _remove_autograd_hooks(self) -> None:
        for _, handle in self._hooked:
            if handle is not None:
                handle.remove()

    def _check_reducer_finalized(self) -> None:
        if self._must_finalize:
            raise RuntimeError(
                "Expected to have finished reduction in the prior iteration before starting a new "
                "one. This error indicates that your module has parameters that were not used in "
                "producing loss. You can enable unused parameter detection by passing the keyword "
                "argument `find_unused_parameters=True` to "
                "`torch.nn.parallel.DistributedDataParallel`"
            )

    # The backward pass --------------------------------------------------------------------------

    def gradient_is_ready(self, index: int) -> None:
        """Take the gradient of a parameter into its bucket [`autograd_hook`]."""
        if self._parameters[index].grad is not None:
            self._is_used[index] = True
        if self._is_first_of_static:
            self._calls[index] += 1
            return
        if not self._expects_hooks:
            self._name_local(self._parameters[index])
            return
        if not self._has_marked_unused:
            self._has_marked_unused = True
            for unused in self._unused:
                self._mark_ready(unused)
        if self._is_static:
            self._calls_left[index] -= 1
            if self._calls_left[index]:
                return
        if self._rebuilds:
            self._ready_order.append(index)
        self._mark_ready(index)

    def _name_local(self, parameter: torch.Tensor) -> None:
        """Name a gradient of `no_sync`, which a bucket will replace if gradients are its views."""
        if self._keeps_views and parameter.grad is not None:
            name = self._recorder.identity_of(parameter) or "a parameter"
            self._recorder.identify(parameter.grad, OwnerKind.GRADIENT, f"{name}{NOT_REDUCED}")

    def _mark_ready(self, index: int) -> None:
        self._must_finalize = True
        number, position = self._place[index]
        bucket = self._buckets[number]
        self._put(bucket, position)
        bucket.pending -= 1
        while self._next < len(self._buckets) and not self._buckets[self._next].pending:
            self._reduce(self._next)
            self._next += 1
        if self._next == len(self._buckets):
            if self._searches:
                self._reduce_used_map()
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._finalize_queued)
            self._next += 1  # once

    def _put(self, bucket: Bucket, position: int) -> None:
        """Put a gradient into its bucket (clause 1)."""
        if not self._is_counted:  # once for each forward pass
            self._is_counted = True
            self._taking_part.wait()
        parameter, view = bucket.parameters[position], bucket.views[position]
        gradient = parameter.grad
        with torch.no_grad():
            if gradient is None:
                view.zero_()
            elif _is_alias_of(gradient, view):
                if self._comm_hook is None:
                    view.div_(self._group.size())
            elif self._comm_hook is None:
                torch.mul(gradient, 1.0 / self._group.size(), out=view)
            else:
                view.copy_(gradient)
            if self._keeps_views and gradient is not None:
                parameter.grad = view

    def _reduce(self, number: int) -> None:
        bucket = self._buckets[number]
        last = number == len(self._buckets) - 1
        bucket.work = self._run_comm_hook(GradBucket(number, bucket, last))

    def _reduce_used_map(self) -> None:
        assert self._used_map is not None
        self._used_work = self._sum(self._used_map)

    def _finalize_queued(self) -> None:
        if self._is_static and self._rebuilds:
            self._ready_order += self._unused
        self._finalize()

    def _finalize(self) -> None:
        self._expects_hooks = self._must_finalize = False
        for bucket in self._buckets:
            bucket.work.wait()
            reduced = bucket.gradients if self._comm_hook is None else _value(bucket.work)
            views = bucket.views_of(reduced)
            for position in range(len(bucket.parameters)):
                self._give_back(bucket, position, views[position])
        for future in self._futures:
            future.wait()
        self._futures = []
        if self._searches:
            self._is_used = [False] * len(self._parameters)

    def _give_back(self, bucket: Bucket, position: int, reduced: torch.Tensor) -> None:
        """Copy the reduced values into a gradient (clause 3)."""
        is_checked = self._is_static or self._finds_unused
        is_unused = is_checked and not self._is_used[bucket.indices[position]]
        parameter, view = bucket.parameters[position], bucket.views[position]
        with torch.no_grad():
            if self._keeps_views and not _is_alias_of(view, reduced):
                view.copy_(reduced)
            if is_unused:
                return
            if self._keeps_views:
                parameter.grad = view
            elif parameter.grad is None:
                parameter.grad = clone_obey_contract(reduced, parameter)
            else:
                parameter.grad.copy_(reduced)

    def _delay_all_reduce(self) -> None:
        """Reduce everything at the end of a static graph's first iteration (clause 6)."""
        self._reduce_used_map()
        self._unused = [i for i, calls in enumerate(self._calls) if not calls]
        self._must_finalize = True
        for index in range(len(self._parameters)):
            self._put(*self._at(index))
        for number in range(len(self._buckets)):
            self._reduce(number)
        self._finalize()

    def _push_all_rebuilt_params(self) -> None:
        if self._rebuilds and not self._ready_order:
            self._ready_order = list(range(len(self._parameters)))

    def _at(self, index: int) -> tuple[Bucket, int]:
        number, position = self._place[index]
        return self._buckets[number], position


def _move_into(bucket: Bucket) -> None:
    for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
        if parameter.grad is not None:
            with torch.no_grad():
                view.copy_(parameter.grad)
            parameter.grad = view


def _value(future: Any) -> torch.Tensor:
    value = future.value()
    found: torch.Tensor = value[0] if isinstance(value, (list, tuple)) else value
    return found
