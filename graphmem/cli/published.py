"""`graphmem published`: published estimates by name, beside the exact result."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from graphmem.cli import options
from graphmem.cli.output import progress, put_result
from graphmem.cli.request import takes_request

if TYPE_CHECKING:
    from graphmem.analysis import Request
    from graphmem.formulas.terms import Term


@takes_request("settings torch env autocast optimizer grads steps")
def published(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="`model.py:build` or `model.pt2`; without it, only the given terms are used.",
            show_default=False,
        ),
    ] = None,
    term: Annotated[
        list[str] | None,
        typer.Option(
            "--term",
            metavar="NAME=VALUE",
            help="A term in place of what the trace shows, by letter or name: h=768 or "
            "heads=12; degrees of parallelism too: DP, TP, SP, PP, CP, MB; repeatable.",
        ),
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option("--params", metavar="N", help="The same as --term N=…, such as 2851e6."),
    ] = None,
    largest_layer: Annotated[
        str | None,
        typer.Option("--largest-layer", metavar="N", help="Parameters of the largest module."),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="N", help="Total GPUs, for DeepSpeed's tables.")
    ] = None,
    nodes: Annotated[
        str | None, typer.Option("--nodes", metavar="N", help="Number of machines.")
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(
            "--example",
            metavar="NAME",
            help="The terms of a published example: t5-3b, t5-large, t5-11b or llama-3-405b.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="FORMULA", help="One formula: nanogpt-peak; repeatable."),
    ] = None,
    *,
    request: Request,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="NAME",
            help="The card; with it, each formula has a verdict. `graphmem gpus` lists them.  "
            f"[default: {options.DEFAULT_GPU_NAME}, without verdicts]",
            show_default=False,
        ),
    ] = None,
    output_format: options.Format = "text",
    output: options.Output = None,
) -> None:
    """Print published memory formulas for a model, and what each leaves out, term by term.

    Formulas: DeepSpeed's for ZeRO-2 and ZeRO-3, nanoGPT's arithmetic, EleutherAI's and Korthikanti
    et al.'s for activations, and one rank under every parallelism. Their terms are read from the
    traced step; each is compared with the exact result, and the differences sum to the whole.

    Example: graphmem published model.py:build --only nanogpt-activations

    Without a model: graphmem published --params 2851e6 --gpus 8
    """
    from graphmem.formulas import formulas_for, formulas_of
    from graphmem.formulas.text import FILE_WIDTH, print_sheet

    asked_for = {
        "parameters": parameters,
        "largest_layer": largest_layer,
        "gpus": gpus,
        "nodes": nodes,
    }
    terms, chosen = _terms(term, asked_for, example, tuple(only or ()), gpu)
    if target is None:
        sheet = formulas_for(terms, chosen)
    else:
        from graphmem.analysis import run_analysis

        request = replace(request, gpu=gpu or options.DEFAULT_GPU_NAME)
        with progress() as report_progress:
            sheet = formulas_of(run_analysis(target, request, report_progress), terms, chosen)
    put_result(output_format, output, sheet.to_json, partial(print_sheet, sheet), FILE_WIDTH)


def _terms(
    texts: list[str] | None,
    asked_for: dict[str, str | None],
    example: str | None,
    only: tuple[str, ...],
    gpu: str | None,
) -> tuple[dict[str, Term], tuple[str, ...]]:
    """The given terms and formulas; an example brings its own."""
    from graphmem.formulas.examples import EXAMPLES, example_terms
    from graphmem.formulas.terms import card_term, given_terms

    given = {name: text for name, text in asked_for.items() if text is not None}
    card = {"memory": card_term(gpu)} if gpu is not None else {}
    terms = card | given_terms(options.pairs(texts, "--term") | given)
    if example is None:
        return terms, only
    return example_terms(example) | terms, only or EXAMPLES[example].formulas
