"""Record the workspaces of many convolutions on a real GPU, one line each.

    python tools/record_convolutions.py -o convolutions_0.txt [--part 0/8] [--until SECONDS]

It needs torch and a GPU but not graphmem. The convolutions are those of `fixtures/convolutions.txt`
(`tools/list_convolutions.py` makes it), each in every batch, dtype and layout of which no tensor
has 2 GiB or more, the most common first; another start continues an unfinished file. The first
line of the result is JSON: the card, cuDNN, torch. A further line is

    DTYPE LAYOUT BATCH CONVOLUTION: RESULT INPUT WEIGHT

with the bytes that computing the result, the gradient of the input and that of the weight allocated
at most at once, beside what they return; the gradients run separately. `BYTES*N` means that there
were N allocations, where one for what is returned and one workspace are usual. `oom` means that the
card was full at some time, so that cuDNN may have been given another plan; `error` that it refused,
and after an error of CUDA the process stops: start it again to go on with the next one.

The figures are the allocator's `requested_bytes.all.peak` (CUDACachingAllocator.cpp), which counts
what was asked for, before rounding; nothing waits for the card. `--dry-run` computes shapes only;
under `graphmem run` the figures are those predicted, which `tools/verify_convolutions.py` compares.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "fixtures" / "convolutions.txt"
LARGEST = 1 << 31

BATCHES = {32: 1.0, 64: 0.8, 16: 0.7, 8: 0.6, 128: 0.5, 1: 0.4, 4: 0.4, 2: 0.35, 256: 0.3}
MODES = {
    ("float32", "planes"): 1.0,
    ("bfloat16", "last"): 1.0,
    ("bfloat16", "planes"): 0.9,
    ("float32", "last"): 0.5,
    ("float16", "planes"): 0.4,
    ("float16", "last"): 0.4,
}
"""How common each is, roughly: it only decides what comes first."""

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Convolution:
    """One convolution of a batch of any size.

    As text, `64@56x56 128 k3 s2 p1`: channels and space of the input, channels of the result,
    kernel, stride, padding, then d (dilation), g (groups), and for transposed ones o (output
    padding). One number stands for all dimensions; strides and groups of 1 are left out, and so on.
    """

    channels: int
    space: tuple[int, ...]
    results: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    output_padding: tuple[int, ...] | None = None

    def __str__(self) -> str:
        usual = [("k", self.kernel, 0), ("s", self.stride, 1), ("p", self.padding, 0)]
        rest = [("d", self.dilation, 1), ("g", (self.groups,), 1)]
        given = [("o", self.output_padding, -1)] if self.output_padding is not None else []
        words = [
            letter + short(values)
            for letter, values, default in [*usual, *rest, *given]
            if any(value != default for value in values)
        ]
        space = "x".join(map(str, self.space))
        return " ".join([f"{self.channels}@{space}", str(self.results), *words])

    @classmethod
    def read(cls, text: str) -> Convolution:
        """The convolution that a text describes."""
        source, results, *words = text.split()
        channels, _, size = source.partition("@")
        space = tuple(map(int, size.split("x")))
        given = {word[0]: tuple(map(int, word[1:].split("x"))) for word in words}

        def spread(letter: str, default: int) -> tuple[int, ...]:
            values = given.get(letter, (default,))
            return values * len(space) if len(values) == 1 else values

        return cls(
            int(channels),
            space,
            int(results),
            kernel=spread("k", 0),
            stride=spread("s", 1),
            padding=spread("p", 0),
            dilation=spread("d", 1),
            groups=given.get("g", (1,))[0],
            output_padding=spread("o", 0) if "o" in given else None,
        )

    @property
    def is_transposed(self) -> bool:
        """Whether it is the gradient of another one, as a layer."""
        return self.output_padding is not None

    @property
    def weight(self) -> tuple[int, ...]:
        """Sizes of the weight."""
        if self.is_transposed:
            return (self.channels, self.results // self.groups, *self.kernel)
        return (self.results, self.channels // self.groups, *self.kernel)

    @property
    def result(self) -> tuple[int, ...]:
        """Sizes of one image's result."""
        reach = [d * (k - 1) for d, k in zip(self.dilation, self.kernel, strict=True)]
        sides = zip(self.space, self.stride, self.padding, reach, strict=True)
        if self.output_padding is not None:
            space = [(n - 1) * s - 2 * p + r + 1 for n, s, p, r in sides]
            more = zip(space, self.output_padding, strict=True)
            return (self.results, *(n + o for n, o in more))
        return (self.results, *((n + 2 * p - r - 1) // s + 1 for n, s, p, r in sides))

    def largest(self, batch: int) -> int:
        """Numbers in the largest tensor."""
        source = batch * self.channels * math.prod(self.space)
        return max(source, batch * math.prod(self.result), math.prod(self.weight))


def short(values: Sequence[int]) -> str:
    """`3` for (3, 3), `1x3` for (1, 3)."""
    return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))


@dataclass(frozen=True)
class Call:
    """A convolution in one batch, dtype and layout."""

    convolution: Convolution
    batch: int
    dtype: str
    layout: str

    def __str__(self) -> str:
        return f"{self.dtype} {self.layout} {self.batch} {self.convolution}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Record every call of this part; the exit code is 2 without a GPU."""
    options = parse(arguments)
    sys.path.insert(0, str(ROOT))
    import torch

    if not options.dry_run and not torch.cuda.is_available():
        print("error: torch sees no CUDA device here", file=sys.stderr)
        return 2
    end = time.monotonic() + options.until
    number, parts = map(int, options.part.split("/"))
    calls = ordered(options.list.read_text().splitlines())[number::parts]
    done = len(options.output.read_text().splitlines()) - 1 if options.output.exists() else -1
    with options.output.open("a") as file:
        if done < 0:
            file.write(json.dumps(about(options.dry_run)) + "\n")
        rows_of = dry_rows if options.dry_run else partial(recorded_rows, cached=options.cached)
        rows = rows_of(calls[max(done, 0) :])
        for row in itertools.takewhile(lambda row: time.monotonic() < end, rows):
            file.write(row + "\n")
            file.flush()
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Record the workspaces of convolutions.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--list", type=Path, default=LIST, help="the convolutions")
    parser.add_argument("--part", default="0/1", help="a part, such as 0/4 (default: 0/1)")
    parser.add_argument("--until", type=float, default=1e9, help="time limit, in seconds")
    parser.add_argument(
        "--cached", type=float, default=6, help="GiB that the allocator may keep (default: 6)"
    )
    parser.add_argument("--dry-run", action="store_true", help="shapes only, without a GPU")
    return parser.parse_args(arguments)


def ordered(lines: Iterable[str]) -> list[Call]:
    """Every call, the most common first; a line is `NETWORKS CONVOLUTION`."""
    weighted = []
    for line in lines:
        networks, _, text = line.partition(" ")
        convolution = Convolution.read(text)
        for batch, (mode, common) in itertools.product(BATCHES, MODES.items()):
            dtype, layout = mode
            is_too_large = convolution.largest(batch) * ITEM_BYTES[dtype] >= LARGEST
            has_no_layouts = layout == "last" and len(convolution.space) == 1
            if not is_too_large and not has_no_layouts:
                weight = int(networks) * BATCHES[batch] * common
                weighted.append((weight, Call(convolution, batch, dtype, layout)))
    weighted.sort(key=lambda pair: -pair[0])
    return [call for _, call in weighted]


def about(is_dry: bool) -> dict[str, Any]:
    """The card and the versions."""
    import torch

    from tools import record_cuda

    made = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if is_dry:
        return made
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "compute_capability": [properties.major, properties.minor],
        "multiprocessors": properties.multi_processor_count,
        "driver": record_cuda.driver_version(),
        **made,
        "cudnn": torch.backends.cudnn.version(),
        "allow_tf32": torch.backends.cudnn.allow_tf32,
        "benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.backends.cudnn.deterministic,
    }


# One call ----------------------------------------------------------------------------------------


def dry_rows(calls: Iterable[Call]) -> Iterator[str]:
    """The rows without figures; shapes that PyTorch refuses raise its error."""
    for call in calls:
        for product in products(call, "meta"):
            product()
        yield f"{call}: - - -"


def recorded_rows(calls: Iterable[Call], cached: float) -> Iterator[str]:
    """The rows of calls on the card, which other processes may use."""
    import torch

    is_usable = True
    for call in calls:
        figures = []
        try:
            for product in products(call, "cuda"):
                figures.append(measured(product))  # noqa: PERF401 - kept if the next one fails
        except torch.OutOfMemoryError:
            figures.append("oom")
            torch.cuda.empty_cache()
        except RuntimeError as error:
            print(f"error: {call}: {error}", file=sys.stderr)
            figures.append("error")
            is_usable = "CUDA error" not in str(error)  # after which every call fails
        yield f"{call}: {' '.join([*figures, *['-'] * (3 - len(figures))])}"
        if not is_usable:
            return
        if torch.cuda.memory_reserved() > cached * 2**30:
            torch.cuda.empty_cache()


def products(call: Call, device: str) -> Iterator[Callable[[], Any]]:
    """What computes the result, the gradient of the input, and that of the weight."""
    import torch

    convolution = call.convolution
    made = {"dtype": getattr(torch, call.dtype), "device": device}
    if call.layout == "last":
        last = {4: torch.channels_last, 5: torch.channels_last_3d}
        made["memory_format"] = last[2 + len(convolution.space)]
    source = torch.empty((call.batch, convolution.channels, *convolution.space), **made)
    weight = torch.empty(convolution.weight, **made)
    gradient = torch.empty((call.batch, *convolution.result), **made)
    steps = (convolution.stride, convolution.padding, convolution.dilation)
    enlarged = convolution.output_padding or (0,) * len(convolution.space)
    rest = (*steps, convolution.is_transposed, enlarged, convolution.groups)
    aten = torch.ops.aten
    yield lambda: aten.convolution(source, weight, None, *rest)
    for mask in ([True, False, False], [False, True, False]):
        yield lambda mask=mask: aten.convolution_backward(  # type: ignore[misc]
            gradient, source, weight, None, *rest, mask
        )


def measured(product: Callable[[], Any]) -> str:
    """What a call allocates at most at once, beside what it returns."""
    import torch

    before = torch.cuda.memory_stats_as_nested_dict()
    torch.cuda.reset_peak_memory_stats()
    returned = product()
    after = torch.cuda.memory_stats_as_nested_dict()
    if after["num_ooms"] != before["num_ooms"]:
        torch.cuda.empty_cache()
        return "oom"
    kept = after["requested_bytes"]["all"]["current"]
    more = after["requested_bytes"]["all"]["peak"] - kept
    count = sum(
        sign * stats["allocation"]["all"]["allocated"] for sign, stats in ((1, after), (-1, before))
    )
    del returned
    return str(more) if count == 1 + bool(more) else f"{more}*{count}"


if __name__ == "__main__":
    sys.exit(main())
