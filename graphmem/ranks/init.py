"""`init_process_group` and its kin without the network, for every backend under its own name.

PyTorch's own functions run, and the rendezvous fails where no launcher has set RANK; some that they
call are replaced. The rendezvous makes a store of this process. Under `TORCH_DIST_INIT_BARRIER=1`
PyTorch would wait in that store for the other ranks. Groups are made by the backend "fake", which
is registered as `LoneGroup` for the time, and are then renamed to what the program asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial, wraps
from importlib import import_module
from typing import Any

import torch.distributed
from torch.distributed import c10d_logger, device_mesh, distributed_c10d

from graphmem.graph import OwnerKind
from graphmem.ranks.group import LoneGroup
from graphmem.ranks.journal import Journal, called
from graphmem.ranks.mail import Mail
from graphmem.ranks.noted import NotedGroup
from graphmem.ranks.stores import LoneFileStore, LoneTcpStore
from graphmem.ranks.unwaited import Unwaited
from graphmem.ranks.world import World
from graphmem.torch_releases import installed_release
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.devices import Devices
from graphmem.virtual_device.patching import Replacement

rendezvous = import_module("torch.distributed.rendezvous")  # a function has the module's name
_OPTIONS = "backend_options" if installed_release() >= (2, 6) else "pg_options"
_ALONE = "do what this one does", "not all of them run"
_BESIDE = (
    "send what this one does, except for objects and values (docs/ranks.md)",
    "a virtual card knows few values",
)


def replacements(
    recorder: Recorder, mail: Mail, unwaited: Unwaited, devices: Devices, journal: Journal
) -> list[Replacement]:
    """List the attributes to replace; assumptions go to the recorder."""
    cuda = _Cuda(devices)
    handle = device_mesh._get_device_handle
    backend: Any = distributed_c10d.Backend
    card = torch.device("cuda", devices.own)
    plugin = backend._plugins["FAKE"]._replace(
        creator_fn=partial(_make_group, recorder, mail, unwaited, card, journal), extended_api=True
    )
    helper = distributed_c10d._new_process_group_helper

    def named_as_asked(
        group_size: int, group_rank: int, ranks: Any, asked: Any, store: Any, *args: Any, **kw: Any
    ) -> Any:
        if not ranks:
            World(group_size, group_rank, group_size)  # refuses a rank outside the world
        kw |= {_OPTIONS: None, "device_id": None}
        group, prefix = helper(group_size, group_rank, ranks, "fake", store, *args, **kw)
        if group is not distributed_c10d.GroupMember.NON_GROUP_MEMBER:
            _rename(group, asked)
            group.keep_name()
            if isinstance(group, NotedGroup):
                group.key = journal.group(ranks or range(group_size))
        if group_size > 1:
            run_too = mail.messages.began_beside(ranks or range(group_size))
            recorder.assume("other ranks", *(_BESIDE if run_too else _ALONE), None)
        return group, prefix

    return [
        (backend, "_plugins", {**backend._plugins, "FAKE": plugin}),
        (distributed_c10d, "_new_process_group_helper", named_as_asked),
        (rendezvous, "TCPStore", LoneTcpStore),
        (rendezvous, "FileStore", LoneFileStore),
        (distributed_c10d, "_store_based_barrier", _everybody_is_here),
        (
            distributed_c10d,
            "_set_pg_timeout",
            _setting_no_timeout(distributed_c10d._set_pg_timeout),
        ),
        (torch.distributed, "TCPStore", LoneTcpStore),
        (torch.distributed, "FileStore", LoneFileStore),
        (
            device_mesh,
            "_get_device_handle",
            lambda device_type="cuda": cuda if device_type == "cuda" else handle(device_type),
        ),
        # failures are logged with NCCL's version, which a CPU build does not have
        (c10d_logger, "_get_msg_dict", lambda *args, **options: {}),
    ]


def _setting_no_timeout(set_timeout: Callable[..., None]) -> Callable[..., None]:
    """`_set_pg_timeout` of groups that never wait for the network, and so have no timeout."""

    @wraps(set_timeout)
    def set_without_warning(*args: Any, **options: Any) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Set timeout is now only supported")
            set_timeout(*args, **options)

    return set_without_warning


class _Cuda:
    """`torch.cuda` for device meshes, which choose the device if CUDA is not initialized yet.

    For everything else CUDA is initialized from the start (graphmem/virtual_device/cuda_api.py).
    """

    def __init__(self, devices: Devices) -> None:
        self._devices = devices

    def is_initialized(self) -> bool:
        """Whether the program has used the card."""
        return self._devices.is_initialized

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


def _make_group(
    recorder: Recorder,
    mail: Mail,
    unwaited: Unwaited,
    card: torch.device,
    journal: Journal,
    options: Any,
    backend_options: Any,
) -> LoneGroup:
    joined = recorder.run.note_communicator if options.group_size > 1 else _nothing
    rank, size = options.group_rank, options.group_size
    guessed = partial(
        recorder.assume,
        "unequal parts from other ranks",
        "as large as those sent to them, which may be too many bytes or too few",
        "they do not run beside this rank; with --rank all, up to 8 ranks tell each other",
        None,
    )
    made = LoneGroup if not journal.is_open or size == 1 else NotedGroup
    group = made(rank, size, mail, card, unwaited, joined, guessed)
    group.kept_own = partial(_kept_own, recorder, journal)
    group.name_received = partial(_name_received, recorder, options.global_ranks_in_group)
    if isinstance(group, NotedGroup):
        group.journal = journal
    return group


def _kept_own(recorder: Recorder, journal: Journal) -> None:
    is_programs = called() == "broadcast"  # wrappers compare themselves by one of their own
    if is_programs and not (journal.arrives or journal.exchanges_weights):
        recorder.assume(
            "numbers that another rank broadcasts",
            "this rank's own",
            "that one does not run beside this one; with --rank all, up to 8 ranks tell each other",
            journal.place(),
        )


def _name_received(
    recorder: Recorder, ranks: Sequence[int], tensor: torch.Tensor, source: int
) -> None:
    rank = ranks[source] if ranks else source
    recorder.identify(tensor, OwnerKind.COMMUNICATION, f"received from rank {rank}")


def _nothing() -> None:
    pass


def _everybody_is_here(*args: Any, **options: Any) -> None:
    """A barrier in a store, which takes nothing on the card."""


def _rename(group: Any, asked: Any) -> None:
    world = distributed_c10d._world
    backend = distributed_c10d.Backend(asked)
    world.pg_map[group] = (backend, world.pg_map[group][1])
    config = distributed_c10d.BackendConfig(backend)
    world.pg_backend_config[group] = str(config)
    backends = config.get_device_backend_map()
    group.device_types = [torch.device(name) for name in backends]
    if backends.get("cuda") != distributed_c10d.Backend.NCCL:
        group.never_joins()
