"""The CPU oracle for ranks: real processes that talk over gloo, and graphmem's ranks, each alone.

Both run a program of `tests.support.rank_programs` on the CPU, one process a rank; graphmem's ranks
exchange values where the program needs that (`TOGETHER`). A real rank is
observed as in `tests.support.oracle`, and its `storage.resize_(n)` as well; a traced one has the
process group and the reducer of `graphmem.ranks`.

The transport is not compared, only what uses it: wrappers, reducer, DTensor, schedules.
  (1) Memory that gloo allocates is invisible: within an operation of `c10d`, in its threads, and in
      `wait`. It reduces and scatters in a clone of the input (`reduce_scatter_tensor_coalesced`,
      whose `LambdaWork` copies from it when it is waited for) and gathers into one flat tensor
      (`AsyncAllgatherWork`; ProcessGroupGloo.cpp). NCCL scatters in place; its flat tensor is
      clause 1 of `graphmem.ranks.group`.
  (2) A thread of gloo releases a work, and with it the tensors, some time after it is done
      (`ProcessGroupGloo::runLoop`), so frees have no fixed order there; NCCL's is clause 5.
  (3) Up to 2.9 the first messages of a pipeline's stages are sent from an int64 and received in a
      float32 (`_get_init_p2p_neighbors_ops`, torch/distributed/pipelining/stage.py), which gloo
      does not allow (`Pair::read`, gloo/transport/tcp/pair.cc). Here a float32 is sent.
Fake tensors, with which DTensor infers shapes, have no memory.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes

from graphmem import TrainingStep, ranks
from graphmem.caller import Belongings
from graphmem.live import resized_storages
from graphmem.ranks import journal, messages
from graphmem.ranks.journal import Journal
from graphmem.ranks.world import World
from graphmem.torch_releases import installed_release
from graphmem.trace import TraceOptions
from graphmem.trace.composites import is_pure
from graphmem.trace.dispatch import _COMPOSITE
from graphmem.trace.tracer import _Tracer
from graphmem.trace.wrapper_tensors import is_wrapper
from graphmem.virtual_device.devices import Devices
from graphmem.virtual_device.libraries.python_kernels import run_kernel
from graphmem.virtual_device.patching import replaced
from tests.support import oracle
from tests.support.oracle import Event

OPTIONS = TraceOptions(steps=3, subclass_like=True)
PATIENCE = timedelta(seconds=90)
SETTLING = 0.005
"""Seconds in which a thread of gloo lets go of a work that is done (clause 2)."""
Build = Callable[[], TrainingStep]
_PROCESSES: Any = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.support.rank_oracle", "tests.support.rank_programs"])


# ---- one rank ------------------------------------------------------------------------------------


class RealRank(oracle.RealRun):
    """Observes a real rank."""

    def _observe(self, tensor: torch.Tensor, *, is_statistic: bool) -> None:
        if not isinstance(tensor, FakeTensor) and not is_wrapper(type(tensor)):
            super()._observe(tensor, is_statistic=is_statistic)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        unwrapped = not any(is_wrapper(kind) or kind is FakeTensor for kind in types)
        if unwrapped and func.namespace == "aten" and is_pure(func):
            with self:  # DTensor calls composites below autograd, which would take them apart
                return func._op_dk(_COMPOSITE, *args, **kwargs or {})
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func is torch.ops.c10d.broadcast_.default:  # the reducer waits in C++
            dist.Work.unbox(result[1]).wait()
        elif func is torch.ops._c10d_functional.wait_tensor.default:
            time.sleep(SETTLING)
        return result

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe; `wait` is the transport's, and a storage may be resized."""
        wait, resize = dist.Work.wait, torch.UntypedStorage.resize_

        def wait_unseen(*args: Any, **options: Any) -> Any:
            with _disable_current_modes():
                result = wait(*args, **options)
            time.sleep(SETTLING)
            return result

        def resize_seen(storage: torch.UntypedStorage, size: int) -> Any:
            old = self._blocks.get(storage._cdata)
            result = resize(storage, size)
            self._where = "resize_"
            if size:
                self._observe(_over(storage), is_statistic=False)
            elif old is not None:
                self._freed(old)
            return result

        with (
            _messages_of_one_type(),
            mock.patch.object(dist.Work, "wait", wait_unseen),
            mock.patch.object(torch.UntypedStorage, "resize_", resize_seen),
            self,
        ):
            yield


def _over(storage: torch.UntypedStorage) -> torch.Tensor:
    with _disable_current_modes():
        return torch.empty(0, dtype=torch.uint8).set_(storage)


def _messages_of_one_type() -> Any:
    """Let the first messages of a stage have one type, clause 3."""
    if installed_release() >= (2, 10):
        return nullcontext()
    name = "_get_init_p2p_neighbors_ops"
    first_messages: Any = getattr(_PipelineStageBase, name)

    def of_one_type(stage: Any) -> list[dist.P2POp]:
        messages: list[Any] = first_messages(stage)
        for message in messages:
            if message.tensor.dtype is not torch.float32:
                message.kept = message.tensor  # as long as PyTorch does
                with _disable_current_modes():
                    message.tensor = message.tensor.float()
        return messages

    return mock.patch.object(_PipelineStageBase, name, of_one_type)


def real_events(build: Build) -> list[Event]:
    """The events of this rank, with the others running."""
    with oracle.comparable():
        mode = RealRank()
        with mode.watching():
            iterate = build().step
            assert iterate is not None
            for mode.step in range(OPTIONS.steps):
                iterate()
            return list(mode.recording.events)


_NEW_PARAMETER: Any = torch.nn.Parameter.__new__


def _shards_kept() -> Any:
    """Leave shards alone, which are of fake parameters, when all parameters are made fake."""
    new_fake: Any = torch.nn.Parameter.__new__

    def new(cls: type, data: Any = None, requires_grad: bool = True) -> Any:
        make = _NEW_PARAMETER if isinstance(data, DTensor) else new_fake
        return make(cls, data, requires_grad)

    return mock.patch.object(torch.nn.Parameter, "__new__", staticmethod(new))


class _RankTracer(_Tracer):
    """A tracer on the CPU in which a rank runs alone, as in `graphmem.live`."""

    def __init__(self) -> None:
        super().__init__(None, OPTIONS, lambda message: None)
        mode = self._session.mode
        own_kernel = mode._own_kernel

        def collective(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            if func.namespace != "_c10d_functional":
                return own_kernel(func, types, args, kwargs)
            with mode:  # as on a card
                return run_kernel(func, args, kwargs)

        mode._own_kernel = collective  # type: ignore[method-assign]

    @contextmanager
    def _device_context(self, belongings: Belongings) -> Iterator[None]:
        session, recorder = self._session, self._recorder
        known = session.reads.known
        journal = Journal(known, lambda: None, lambda: False)
        replacements = [
            *ranks.replacements(recorder, session.location, known, Devices(), journal),
            *resized_storages.replacements(recorder, session.saved.replaced),
        ]
        with (
            super()._device_context(belongings),
            _shards_kept(),
            replaced(replacements),
            ranks.groups_taken_down(),
        ):
            yield


def traced_events(build: Build) -> list[Event]:
    """The events of this rank, running alone."""
    with oracle.comparable():
        return oracle.events_of(_RankTracer().run(build))


# ---- all ranks -----------------------------------------------------------------------------------


def _run(observe: Callable[[Build], list[Event]], name: str, world: World, folder: Path) -> None:
    """Run a program as one rank, in a process of its own, and write its events."""
    from tests.support.rank_programs import OF_FOUR, OF_TWO, TOGETHER

    torch.set_num_threads(1)
    store = f"file://{folder}/store"

    def build() -> TrainingStep:
        size, rank = world.size, world.rank
        dist.init_process_group(
            "gloo", init_method=store, rank=rank, world_size=size, timeout=PATIENCE
        )
        return (OF_TWO | OF_FOUR)[name]()

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for rank in range(world.size):  # they are all running: none need be started for its messages
        (folder / f"{rank}.started").touch()
    exchange = {messages.FOLDER: str(folder), messages.COMMAND: "[]"}
    if name in TOGETHER:
        beside = ",".join(map(str, range(world.size)))
        exchange |= {journal.FOLDER: str(folder), messages.BESIDE: beside}
    result: tuple[list[Event], str] = [], ""
    try:
        with world.launched(exchange):
            result = observe(build), ""
    except BaseException:  # noqa: BLE001 - the parent reports it
        result = [], traceback.format_exc()
    draft = folder / f"{world.rank}.draft"
    draft.write_bytes(pickle.dumps(result))
    draft.rename(folder / f"{world.rank}.events")
    os._exit(0)  # threads of gloo may be waiting


def events_of_ranks(
    observe: Callable[[Build], list[Event]], name: str, size: int, folder: Path
) -> list[list[Event]]:
    """Run a program on several ranks at once, and collect the events of each.

    Raises:
        AssertionError: a rank failed, or took too long; all of them have ended.
    """
    folder.mkdir()
    worlds = [World(size, rank, size) for rank in range(size)]
    processes = [
        _PROCESSES.Process(target=_run, args=(observe, name, world, folder)) for world in worlds
    ]
    until = time.monotonic() + PATIENCE.total_seconds()
    found: list[list[Event]] = []
    try:
        for process in processes:
            process.start()
        for rank, process in enumerate(processes):
            process.join(max(0.0, until - time.monotonic()))
            path = folder / f"{rank}.events"
            assert path.exists(), f"{name}: rank {rank} of {size} did not end"
            events, error = pickle.loads(path.read_bytes())
            assert not error, f"{name}: rank {rank} of {size} failed\n{error}"
            found.append(events)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return found


def allocations(events: list[Event]) -> list[Event]:
    """Only the allocations."""
    return [event for event in events if event.kind == "alloc"]
