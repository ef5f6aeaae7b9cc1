"""What a script would publish, and what stays on this machine.

The weights of a run on the virtual card are zeros, and its losses mean nothing:
(1) `huggingface_hub` makes no repository and no commit; its functions return as if they had;
(2) `wandb` is disabled, unless `WANDB_MODE` says otherwise.

The report names both. Not covered: other services, and functions of `huggingface_hub` that were
imported before the virtual GPU was entered.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from graphmem.trace.location import Location
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.libraries.imports import prepared
from graphmem.virtual_device.patching import replaced

_WHY = "a run without a GPU has nothing to publish"
_MODE = "WANDB_MODE"
_NO_COMMIT = "0" * 40
_COMMITS = ("create_commit", "upload_file", "upload_folder")
"""Functions of huggingface_hub that return a `CommitInfo`, or a future with one."""
_OTHERS = (
    *("create_repo", "create_branch", "create_tag", "delete_repo"),
    *("preupload_lfs_files", "upload_large_folder"),
)
_OF_BUCKETS = ("batch_bucket_files", "delete_bucket")
"""What writes into a bucket; `sync_bucket` calls the first."""

Note = Callable[[str, str], None]
"""Reports what was left out, and what was done instead."""


@contextmanager
def unpublished(recorder: Recorder, location: Location) -> Iterator[None]:
    """Publish nothing while the context is open."""

    def note(what: str, instead: str) -> None:
        recorder.assumptions.leave_out(what, instead, _WHY, location.place())

    with (
        prepared("huggingface_hub.hf_api", lambda module: _without_commits(module, note)),
        prepared("wandb", lambda module: _disabled(note)),
    ):
        yield


@contextmanager
def _disabled(note: Note) -> Iterator[None]:
    if _MODE in os.environ:
        yield
        return
    note("wandb", f"disabled; {_MODE}=offline or online changes that")
    os.environ[_MODE] = "disabled"
    try:
        yield
    finally:
        os.environ.pop(_MODE, None)


def _without_commits(module: Any, note: Note) -> AbstractContextManager[None]:
    def standing_in(name: str) -> Callable[..., Any]:
        arguments_of = inspect.signature(getattr(module.HfApi, name))

        def call(api: Any, *args: Any, **kwargs: Any) -> Any:
            given = arguments_of.bind(api, *args, **kwargs).arguments
            if name in _OF_BUCKETS:
                note(f"{name} of {given['bucket_id']}", "left out")
                return None
            repository = _address(module, api, given["repo_id"], given.get("repo_type"))
            if name == "create_repo":
                return repository
            note(f"{name} of {given['repo_id']}", "left out")
            return _commit(module, repository, given) if name in _COMMITS else None

        return call

    names = [name for name in (*_COMMITS, *_OTHERS, *_OF_BUCKETS) if hasattr(module.HfApi, name)]
    functions = {name: standing_in(name) for name in names}
    of_class = [(module.HfApi, name, each) for name, each in functions.items()]
    of_module = [(module, name, partial(each, module.api)) for name, each in functions.items()]
    return replaced([*of_class, *of_module])


def _address(module: Any, api: Any, repo_id: str, repo_type: str | None) -> Any:
    """What `create_repo` returns."""
    prefix = module.constants.REPO_TYPES_URL_PREFIXES.get(repo_type, "")
    return module.RepoUrl(f"{api.endpoint}/{prefix}{repo_id}", endpoint=api.endpoint)


def _commit(module: Any, repository: Any, given: Mapping[str, Any]) -> Any:
    """What a function returns that makes a commit, with the arguments `given`."""
    made = module.CommitInfo(
        commit_url=f"{repository}/commit/{_NO_COMMIT}",
        commit_message=given.get("commit_message") or "",
        commit_description=given.get("commit_description") or "",
        oid=_NO_COMMIT,
    )
    if not given.get("run_as_future"):
        return made
    future: Future[Any] = Future()
    future.set_result(made)
    return future
