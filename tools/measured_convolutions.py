"""Write passes/kernels/convolutions.txt.gz: recorded workspaces, as convolutions are looked up.

    python -m tools.measured_convolutions [RECORDED …]

The default is fixtures/cuda/convolutions.txt.xz. Given what `tools/record_convolutions.py` wrote,
plain or .gz, it first joins those files into that one. Rows with an unusual number of allocations,
an error or a full card are left out.
"""

from __future__ import annotations

import gzip
import lzma
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from graphmem.passes.kernels.convolution_measured import (  # type: ignore[import-not-found]
    MEASURED,
    call_of,
    described,
)
from graphmem.passes.kernels.convolution_plans import (  # type: ignore[import-not-found]
    ConvolutionPlan,
)
from tools.record_convolutions import Call, Convolution

RECORDED = Path(__file__).resolve().parent.parent / "fixtures" / "cuda" / "convolutions.txt.xz"
MULTIPROCESSORS = 132
_LEVEL = 9


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both files; the exit code is 0."""
    files = [Path(name) for name in (sys.argv[1:] if arguments is None else arguments)]
    if files:
        text = "\n".join(joined(files)) + "\n"
        RECORDED.write_bytes(lzma.compress(text.encode(), preset=_LEVEL | lzma.PRESET_EXTREME))
    text = "\n".join(lines(recorded())) + "\n"
    MEASURED.write_bytes(gzip.compress(text.encode(), _LEVEL, mtime=0))
    return 0


def joined(files: Iterable[Path]) -> Iterator[str]:
    """The first line of all, which must be the same, then their rows in order of the text."""
    texts = [_text(file).splitlines() for file in files]
    about, *others = {text[0] for text in texts}
    if others:
        raise SystemExit("error: the files are of different cards or releases")
    yield about
    yield from sorted(row for text in texts for row in text[1:])


def _text(file: Path) -> str:
    data = file.read_bytes()
    return (gzip.decompress(data) if file.suffix == ".gz" else data).decode()


def recorded() -> list[tuple[Call, tuple[int, ...]]]:
    """The recorded calls, with the bytes of the three products."""
    rows = lzma.decompress(RECORDED.read_bytes()).decode().splitlines()[1:]
    pairs = (row.split(": ") for row in rows)
    figures = [(call, texts.split()) for call, texts in pairs]
    return [(call_from(call), tuple(map(int, each))) for call, each in figures if _is_usual(each)]


def call_from(text: str) -> Call:
    """`float32 planes 32 64@56x56 256 k1` as a call."""
    dtype, layout, batch, convolution = text.split(" ", 3)
    return Call(Convolution.read(convolution), int(batch), dtype, layout)


def _is_usual(figures: Iterable[str]) -> bool:
    return all(text.isdigit() for text in figures)


def lines(calls: Iterable[tuple[Call, tuple[int, ...]]]) -> Iterator[str]:
    """The lines of the file that is looked up."""
    found: dict[str, set[str]] = defaultdict(set)
    for call, figures in calls:
        plan = plan_of(call)
        first, second, third = figures
        both = (second, first) if call.convolution.is_transposed else (first, second)
        row = " ".join(map(str, (*both, third)))
        found[described(plan)].add(f"{call_of(plan)} {row}")
    for convolution in sorted(found):
        yield "\t".join([convolution, *sorted(found[convolution])])


def plan_of(call: Call) -> ConvolutionPlan:
    """The call as the rules see it."""
    convolution = call.convolution
    source = (call.batch, convolution.channels, *convolution.space)
    result = (call.batch, *convolution.result)
    if convolution.is_transposed:
        source, result = result, source
    return ConvolutionPlan(
        source,
        convolution.weight,
        result,
        convolution.stride,
        convolution.padding,
        convolution.dilation,
        convolution.groups,
        is_channels_last=call.layout == "last",
        dtype=call.dtype,
        multiprocessors=MULTIPROCESSORS,
    )


if __name__ == "__main__":
    sys.exit(main())
