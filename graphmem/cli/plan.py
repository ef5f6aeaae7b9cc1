"""`graphmem plan`: what each rank holds when a step is split over many GPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from graphmem.cli import options
from graphmem.cli.messages import (
    NoBucketsError,
    NothingGatheredError,
    SearchOptionsError,
    SearchWithWrapError,
    StagesNotNumbersError,
    TwoShardingsError,
    UnknownOffloadError,
)
from graphmem.cli.output import progress, put_result
from graphmem.cli.request import takes_request

if TYPE_CHECKING:
    from rich.console import Console

    from graphmem.analysis import Request
    from graphmem.parallel import Layout, Sharding
    from graphmem.parallel.search.search_jobs import SearchJob

DOES_NOT_FIT = 1
SHOWN = 10


@takes_request("settings gpu torch env assume autocast optimizer grads steps checkpoint")
def plan(
    target: options.Target,
    gpus: Annotated[
        int, typer.Option("--gpus", min=1, metavar="N", help="The number of GPUs.")
    ] = 1,
    *,
    request: Request,
    dp: Annotated[
        int | None,
        typer.Option(
            "--dp",
            metavar="N",
            help="Data parallel: replicas, each with a batch of its own.  "
            "[default: what the other degrees leave of --gpus]",
            show_default=False,
        ),
    ] = None,
    tp: Annotated[
        int | None,
        typer.Option(
            "--tp",
            metavar="N",
            help="Tensor parallel: split heads and features.  [default: 1]",
            show_default=False,
        ),
    ] = None,
    pp: Annotated[
        int | None,
        typer.Option(
            "--pp",
            metavar="N",
            help="Pipeline parallel: split the blocks.  [default: 1]",
            show_default=False,
        ),
    ] = None,
    cp: Annotated[
        int | None,
        typer.Option(
            "--cp",
            metavar="N",
            help="Context parallel: split the sequence.  [default: 1]",
            show_default=False,
        ),
    ] = None,
    ep: Annotated[
        int | None,
        typer.Option(
            "--ep",
            metavar="N",
            help="Expert parallel: split experts among N of the dp replicas.  [default: 1]",
            show_default=False,
        ),
    ] = None,
    zero: Annotated[
        int | None,
        typer.Option(
            "--zero",
            min=1,
            max=3,
            help="Shard over the replicas: 1 optimizer state, 2 gradients too, 3 parameters too.",
            show_default=False,
        ),
    ] = None,
    fsdp: Annotated[
        bool, typer.Option("--fsdp", help="Shard as torch's fully_shard does, block by block.")
    ] = False,
    no_reshard: Annotated[
        bool,
        typer.Option("--no-reshard", help="FSDP: reshard_after_forward=False."),
    ] = False,
    bucket_view: Annotated[
        bool, typer.Option("--bucket-view", help="DDP: gradient_as_bucket_view=True.")
    ] = False,
    sp: Annotated[
        bool,
        typer.Option(
            "--sp", help="Sequence parallel: with --tp, split norms and dropouts as well."
        ),
    ] = False,
    micro_batches: Annotated[
        int | None,
        typer.Option(
            "--micro-batches",
            metavar="N",
            help="Split the traced batch into N, run one after another.",
        ),
    ] = None,
    schedule: Annotated[
        Literal["gpipe", "1f1b", "interleaved"],
        typer.Option("--schedule", help="The order in which a pipeline runs its micro-batches."),
    ] = "1f1b",
    interleave: Annotated[
        int,
        typer.Option(
            "--interleave", metavar="N", help="Groups of consecutive blocks on each stage."
        ),
    ] = 1,
    stages: Annotated[
        str | None,
        typer.Option(
            "--stages",
            metavar="N,N,…",
            help="Blocks of each stage.  [default: balanced by bytes]",
            show_default=False,
        ),
    ] = None,
    blocks: Annotated[
        str | None,
        typer.Option(
            "--blocks",
            metavar="NAME",
            help="The list of modules that a pipeline divides, such as layers.  "
            "[default: the longest]",
            show_default=False,
        ),
    ] = None,
    wrap: Annotated[
        list[str] | None,
        typer.Option(
            "--wrap",
            metavar="PATTERN",
            help="Modules that FSDP wraps, of nested ones the outermost; repeatable.  "
            "[default: the blocks]",
            show_default=False,
        ),
    ] = None,
    precision: Annotated[
        Literal["as-traced", "bf16-master"],
        typer.Option(
            "--precision",
            help="As build() says, or bf16 weights with fp32 master copies in the optimizer.",
        ),
    ] = "as-traced",
    offload: Annotated[
        str | None,
        typer.Option(
            "--offload",
            metavar="WHAT",
            help="What to keep on the host: optimizer, parameters, or optimizer,parameters.",
            show_default=False,
        ),
    ] = None,
    search: Annotated[
        bool,
        typer.Option(
            "--search",
            help="List layouts that fit: given options stay fixed, everything else is tried.",
        ),
    ] = False,
    sort: Annotated[
        Literal["headroom", "traffic"] | None,
        typer.Option(
            "--sort",
            help="A search's first key: most memory left, or least traffic.  [default: headroom]",
            show_default=False,
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            min=1,
            metavar="N",
            help=f"How many layouts a search shows.  [default: {SHOWN}]",
            show_default=False,
        ),
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(
            "--dask",
            metavar="ADDRESS",
            help="Search on a Dask cluster.",
            show_default=False,
        ),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option("--also", metavar="TARGET", help="Search this model as well; repeatable."),
    ] = None,
    output_format: options.Format = "text",
    output: options.Output = None,
) -> None:
    """Predict what each rank holds when a step is split over many GPUs.

    build() describes what one data-parallel replica runs on one device,
    unsplit. The degrees multiply to --gpus: dp x tp x pp x cp. Micro-batches
    cut the traced batch. The exit code is 1 if it does not fit.

    With --search it lists layouts that fit instead; without --checkpoint it
    tries checkpoints of every block as well.

    Example: graphmem plan model.py:build --gpus 64 --tp 8 --pp 2 --zero 1
    """
    from graphmem.parallel import Layout, Precision, Schedule
    from graphmem.parallel.layout import check_degrees
    from graphmem.parallel.search.search import SEARCHED, Wanted
    from graphmem.parallel.search.search_jobs import SearchJob

    several = interleave > 1 or schedule == "interleaved"
    degrees = _Degrees(dp, tp, pp, cp, ep, micro_batches)
    layout = Layout(
        **degrees.filled(gpus),
        sharding=_sharding(zero, fsdp),
        sequence_parallel=sp,
        schedule=Schedule.INTERLEAVED if several else Schedule(schedule),
        interleave=interleave,
        reshard_after_forward=not no_reshard,
        bucket_view=bucket_view,
        precision=Precision(precision),
        offload=_offloaded(offload),
        stages=_numbers(stages),
    )
    put = partial(put_result, output_format, output)
    if search:
        if wrap:
            raise SearchWithWrapError()
        wanted = Wanted(
            base=layout,
            **degrees._asdict(),
            sequence_parallel=True if sp else None,
            shardings=(layout.sharding,) if fsdp or zero else SEARCHED,
        )
        jobs = [
            SearchJob(each, request, gpus, wanted, blocks, by=sort or "headroom", top=top or SHOWN)
            for each in (target, *(also or ()))
        ]
        _search(jobs, dask, put)
        return
    if dask or also or sort or top:
        raise SearchOptionsError()
    check_degrees(layout, gpus)
    _check_sharding_options(layout, wrap)
    _plan(target, request, layout, blocks, tuple(wrap or ()), put)


class _Degrees(NamedTuple):
    """The degrees as given; None if not given."""

    data: int | None
    tensor: int | None
    pipeline: int | None
    context: int | None
    expert: int | None
    micro_batches: int | None

    def filled(self, gpus: int) -> dict[str, int]:
        """Every degree, by default 1; data parallelism by default takes the remaining GPUs.

        `check_degrees` rejects a remainder.
        """
        given = {name: degree or 1 for name, degree in self._asdict().items()}
        model = given["tensor"] * given["pipeline"] * given["context"]
        data = max(1, gpus // max(1, model)) if self.data is None else self.data
        return {**given, "data": data}


def _check_sharding_options(layout: Layout, wrap: list[str] | None) -> None:
    """Reject options that would change nothing; a search may try shardings where they do."""
    if not layout.sharding.shares_parameters:
        if wrap:
            raise NothingGatheredError("--wrap")
        if not layout.reshard_after_forward:
            raise NothingGatheredError("--no-reshard")
    if layout.bucket_view and not layout.has_buckets:
        raise NoBucketsError(layout)


def _plan(
    target: str,
    request: Request,
    layout: Layout,
    blocks: str | None,
    wrap: tuple[str, ...],
    put: Callable[..., None],
) -> None:
    from graphmem.parallel.describe import describe
    from graphmem.parallel.text import print_plan
    from graphmem.parallel.tracing import planner_for

    with progress() as report_progress:
        name, planner = planner_for(
            target, request, layout.precision, blocks, wrap, report_progress
        )
        ranks = planner.plan(layout, report_progress)
    found = describe(name, planner, layout, ranks, request.changes.checkpoint)
    put(found.to_json, partial(print_plan, found, str(layout)))
    if not found.fits:
        raise typer.Exit(DOES_NOT_FIT)


def _search(jobs: list[SearchJob], dask: str | None, put: Callable[..., None]) -> None:
    from graphmem.parallel.search.search_jobs import run_jobs, searches_json
    from graphmem.parallel.text import print_search

    with progress() as report_progress:
        found = run_jobs(jobs, dask, report_progress)

    def show(to: Console) -> None:
        for each in found:
            print_search(each, to)

    put(partial(searches_json, found), show)
    if not all(each.fitting for each in found):
        raise typer.Exit(DOES_NOT_FIT)


def _sharding(zero: int | None, fsdp: bool) -> Sharding:
    from graphmem.parallel import Sharding

    if fsdp and zero is not None:
        raise TwoShardingsError()
    if fsdp:
        return Sharding.FSDP
    return Sharding.REPLICATED if zero is None else Sharding(f"zero-{zero}")


def _offloaded(text: str | None) -> frozenset[str]:
    found = frozenset((text or "").replace(" ", "").split(",")) - {""}
    unknown = found - {"optimizer", "parameters"}
    if unknown:
        raise UnknownOffloadError(", ".join(sorted(unknown)))
    return found


def _numbers(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(",")) if text else ()
    except ValueError as error:
        raise StagesNotNumbersError(text) from error
