"""`CausalBias` represents a mask; jagged tensors are traced, strided nested ones rejected."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right

from graphmem import TrainingStep
from graphmem.gpus import find_gpu
from graphmem.passes.kernel_memory import find_kernel_memory
from graphmem.runtime import Runtime
from graphmem.trace import TraceOptions, trace
from graphmem.trace.messages import NestedLayoutError, NestedTensorError
from tests.conftest import Outcome
from tests.support import oracle
from tests.support.kernel_calls import readable
from tests.support.traced_step import traced

aten = torch.ops.aten

ROWS = """
import torch

pieces = [torch.ones(length, 64) for length in (5, 9, 2)]
host = torch.nested.nested_tensor(pieces, layout=torch.jagged)
host._get_max_seqlen()  # keeps the longest length beside the rows
other = torch.nested.nested_tensor_from_jagged(torch.ones(16, 64), host.offsets())
"""
MOVED = f"""{ROWS}
rows, others = host.to("cuda"), other.to("cuda")
back = (rows + others).cpu()
print(tuple((rows + others).values().shape), back.shape[1] == host.shape[1])
print(tuple((back + host).values().shape), rows._get_max_seqlen())
"""
COMPILED = f"""{ROWS}
rows = {{made}}
layer = torch.nn.Linear(64, 32, device="cuda")
rows.to_padded_tensor(0.0)  # computes the longest length, if it is not known
out = torch.compile(lambda x: torch.sin(layer(x)) * 2)(rows)
print(tuple(out.values().shape), out.shape[1] == rows.shape[1], out.requires_grad)
out.values().sum().backward()
print(layer.weight.grad.numel())
"""


def test_a_square_causal_bias_equals_is_causal() -> None:
    """`CausalBias._dispatch` (torch/nn/attention/bias.py) passes `is_causal=True` and no mask."""

    def step(**how: Any) -> None:
        query = torch.ones(1, 2, 128, 8, device="cuda", requires_grad=True)
        attend = torch.nn.functional.scaled_dot_product_attention
        attend(query, query, query, **how).sum().backward()

    biased = traced(lambda: step(attn_mask=causal_lower_right(128, 128)))
    causal = traced(lambda: step(is_causal=True))

    assert [op.target for op in biased.ops] == [op.target for op in causal.ops]


def test_strided_nested_tensors_are_rejected_by_name() -> None:
    rows = [torch.ones(3, 8), torch.ones(5, 8)]

    with pytest.raises(NestedLayoutError) as refused:
        traced(lambda: torch.nested.nested_tensor(rows))
    assert "layout=torch.jagged" in (refused.value.hint or "")


def test_a_step_on_jagged_rows_agrees_with_a_real_one() -> None:
    def build() -> TrainingStep:
        torch.manual_seed(0)
        first, second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

        def step() -> None:
            pieces = [torch.ones(3, 8), torch.ones(5, 8)]
            rows = torch.nested.nested_tensor(pieces, layout=torch.jagged)
            hidden = torch.nn.functional.gelu(first(rows))
            torch.nn.functional.layer_norm(second(hidden), (4,)).values().sum().backward()

        return TrainingStep(step=step)

    options = TraceOptions(steps=2, subclass_like=True)
    oracle.assert_agree(oracle.run(build, options), oracle.traced_events(build, options))


def test_jagged_rows_that_move_keep_the_sizes_of_the_host(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """As real ones do: the same lines on the CPU print the same."""
    script = tmp_path / "moved.py"
    script.write_text(MOVED)

    outcome = run_graphmem("run", "--gpu", "t4", str(script))

    assert outcome.stdout == "(16, 64) True\n(16, 64) 9\n"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Inductor writes Triton")
@pytest.mark.parametrize("made", ['host.to("cuda")', 'other.to("cuda")'])
def test_compiled_code_takes_jagged_rows(
    made: str, tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    script = tmp_path / "compiled.py"
    script.write_text(COMPILED.format(made=made))

    outcome = run_graphmem("run", "--gpu", "t4", str(script))

    assert outcome.stdout == f"(16, 32) True True\n{64 * 32}\n", outcome.stderr


def test_rows_without_their_padding_are_allocated_twice() -> None:
    """fixtures/real/jagged.py on an H200: 12,008 tokens, each of 512 numbers in bfloat16."""
    remove = aten._padded_dense_to_jagged_forward.default

    def step() -> None:
        starts = torch.tensor([0, 12000, 12008], device="cuda")
        remove(torch.ones(2, 12000, 512, device="cuda").bfloat16(), [starts], 12008)

    graph = traced(step)
    (removed,) = (op for op in graph.ops if op.target == str(remove))
    programs = find_kernel_memory(graph, Runtime(find_gpu("h200"), "2.11", {}), {}).programs

    assert readable(programs[removed.index]) == [12_296_192, "out0", -12_296_192]


@pytest.mark.parametrize(
    ("dtype", "gpu", "kernel"),
    [
        (torch.float32, "a100-80gb", "aten._efficient_attention_forward.default"),
        (torch.float16, "a100-80gb", "aten._flash_attention_forward.default"),
        (torch.float16, "t4", "aten._efficient_attention_forward.default"),
    ],
)
def test_attention_on_jagged_rows_takes_the_cards_kernel(
    dtype: torch.dtype, gpu: str, kernel: str
) -> None:
    """`_select_sdp_backend` (torch/nested/_internal/sdpa.py); no rows are padded."""

    def step() -> None:
        project = torch.nn.Linear(8, 96, device="cuda", dtype=dtype)
        pieces = [torch.ones(3, 8, dtype=dtype), torch.ones(5, 8, dtype=dtype)]
        rows = torch.nested.nested_tensor(pieces, layout=torch.jagged, device="cuda")
        heads = [
            each.unflatten(-1, [4, 8]).transpose(1, 2) for each in project(rows).chunk(3, dim=-1)
        ]
        attended = torch.nn.functional.scaled_dot_product_attention(*heads)
        attended.transpose(1, 2).values().sum().backward()

    build = TrainingStep(step=step)
    graph = trace(lambda: build, gpu=find_gpu(gpu), options=TraceOptions(steps=2))
    found = [op.outputs[0].shape for op in graph.ops if op.target == kernel]

    assert [shape[-3:] for shape in found] == [(8, 4, 8)] * 2
    assert not graph.assumptions


def test_a_nested_tensor_made_of_a_padded_vector_is_rejected_with_a_hint() -> None:
    def step() -> None:
        torch._nested_tensor_from_mask(
            torch.ones(2, 2, device="cuda"), torch.ones(2, 2, dtype=torch.bool, device="cuda")
        )

    with pytest.raises(NestedTensorError) as refused:
        traced(step)
    assert "layout=torch.jagged" in (refused.value.hint or "")
