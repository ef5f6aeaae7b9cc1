"""The stand-in for Transformer Engine's extension. Figures are derived by hand from its sources.

The layers are the package's own Python code (`pip install --no-deps transformer_engine`, and what
it imports): where that is not installed, its tests are skipped.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import graphmem
from graphmem.virtual_device.messages import NoStandInPartError
from tests.conftest import Outcome
from tests.support.card_bytes import kept_and_peak

ROWS, WIDTH = 4096, 1024
BLOCK = 512  # what a few numbers take
HALF, FLOAT = 2, 4
H100_PROCESSORS = 132
MIB = 2**20
has_package = pytest.mark.skipif(
    any(
        importlib.util.find_spec(each) is None
        for each in ("transformer_engine", "onnxscript", "einops")
    ),
    reason="Transformer Engine's Python part is not installed",
)


@pytest.fixture
def tex() -> Iterator[Any]:
    with graphmem.virtual_gpu("h100", stand_in=["transformer_engine"]):
        yield importlib.import_module("transformer_engine_torch")


def half(*size: int) -> torch.Tensor:
    return torch.zeros(size, device="cuda", dtype=torch.bfloat16)


def test_a_product_makes_its_output_and_the_gradient_of_a_bias(tex: Any) -> None:
    """`gemm` of csrc/extensions/gemm.cpp, as `te.Linear` calls it forward and for its weight."""
    data, weight = half(8, ROWS // 8, WIDTH), half(3 * WIDTH, WIDTH)
    bias, workspace = half(3 * WIDTH), torch.zeros(1, device="cuda", dtype=torch.uint8)
    kind = tex.DType.kBFloat16
    rest = (workspace, 1, False, False)

    def forward() -> Any:
        call = (weight, True, data, False, None, None, kind, bias, kind, False, None, False)
        return tex.generic_gemm(*call, *rest)

    made, kept, peak = kept_and_peak(forward)
    assert kept == peak == ROWS * 3 * WIDTH * HALF
    assert made[0].shape == (8, ROWS // 8, 3 * WIDTH)

    def of_weight() -> Any:
        gradient = made[0].view(ROWS, 3 * WIDTH)
        call = (data, False, gradient, True, None, None, kind, bias, kind, False, None, True)
        return tex.generic_gemm(*call, *rest)

    made, kept, peak = kept_and_peak(of_weight)
    assert kept == peak == 3 * WIDTH * WIDTH * HALF + 3 * WIDTH * HALF
    assert made[0].shape == weight.shape


@pytest.mark.parametrize(
    ("name", "statistics", "weights", "at_once"), [("layernorm", 2, 2, 2), ("rmsnorm", 1, 1, 3)]
)
def test_norms_sum_gradients_in_as_many_rows_as_blocks_run_at_once(
    tex: Any, name: str, statistics: int, weights: int, at_once: int
) -> None:
    """csrc/extensions/normalization.cpp; the blocks of the kernels for 1,024 columns on an H100.

    Four rows to a block of 128 threads, whose 195 and 161 registers leave room for 2 and 3 on each
    of 132 multiprocessors (65,536 / (128 x 200), 65,536 / (128 x 168)).
    """
    data, gamma = half(ROWS, WIDTH), half(WIDTH)
    affine = [gamma] * weights
    options = (1e-5, None, None, tex.DType.kBFloat16, 0, False)
    forward = getattr(tex, f"{name}_fwd")
    made, kept, peak = kept_and_peak(lambda: forward(data, *affine, *options))
    assert kept == ROWS * WIDTH * HALF + statistics * ROWS * FLOAT
    assert peak == kept + BLOCK  # a workspace of no bytes is one of one byte

    saved = [each for each in made[1:] if each is not None]
    backward = getattr(tex, f"{name}_bwd")
    _, kept, peak = kept_and_peak(lambda: backward(data, data, *saved, gamma, 0, False))
    assert kept == ROWS * WIDTH * HALF + weights * WIDTH * HALF
    assert peak == kept + weights * H100_PROCESSORS * at_once * WIDTH * FLOAT


def test_a_norm_of_an_untuned_width_sums_no_more_rows_than_it_has(tex: Any) -> None:
    """`register_rmsnorm_bwd_general`: 1,000 columns take the kernel for 1,024, 4 rows a block."""
    data, gamma, inverse = half(64, 1000), half(1000), torch.zeros(64, device="cuda")
    _, kept, peak = kept_and_peak(lambda: tex.rmsnorm_bwd(data, data, inverse, gamma, 0, False))
    assert peak - kept == -(-64 // 4 * 1000 * FLOAT // BLOCK) * BLOCK


def test_a_row_that_several_blocks_share_takes_their_sums_and_a_barrier(tex: Any) -> None:
    """`register_ln_bwd_tuned`: of 8,192 columns two blocks, two of which run at once."""
    width = 8192
    data, gamma, statistic = half(64, width), half(width), torch.zeros(64, device="cuda")
    call = (data, data, statistic, statistic, gamma, 0, False)
    _, kept, peak = kept_and_peak(lambda: tex.layernorm_bwd(*call))
    columns = H100_PROCESSORS * 2 // 2
    sums, barrier = columns * 2 * 8 * 2, columns * 2 * FLOAT
    workspace = sums + barrier + 2 * columns * width * FLOAT
    assert peak - kept == -(-workspace // BLOCK) * BLOCK


def test_gated_activations_halve_the_width_and_their_gradients_do_not(tex: Any) -> None:
    """`activation_helper` and `dactivation_helper` of csrc/extensions/activation.cpp."""
    data, gradient = half(ROWS, 2 * WIDTH), half(ROWS, WIDTH)
    _, kept, peak = kept_and_peak(lambda: tex.swiglu(data, None))
    assert kept == peak == ROWS * WIDTH * HALF
    _, kept, peak = kept_and_peak(lambda: tex.dswiglu(gradient, data, None))
    assert kept == peak == ROWS * 2 * WIDTH * HALF
    _, kept, peak = kept_and_peak(lambda: tex.gelu(data, None))
    assert kept == peak == ROWS * 2 * WIDTH * HALF


def test_cudnns_attention_keeps_a_number_for_each_row_and_a_random_state(tex: Any) -> None:
    """`fused_attn_fwd` and `fused_attn_bwd` of csrc/extensions/attention.cpp.

    The plan's workspaces are those that PyTorch's calls were recorded with on an H100.
    """
    rows, batch, heads, width = 512, 4, 16, 64
    joined = half(rows, batch, 3, heads, width)
    q, k, v = (joined.select(2, part) for part in range(3))
    ends = torch.zeros(batch + 1, device="cuda", dtype=torch.int32)
    layout, order = tex.NVTE_QKV_Layout.NVTE_SB3HD, tex.NVTE_QKV_Format.NVTE_SBHD
    unset = tex.NVTE_QKV_Format.NVTE_QKV_Format_NOT_SET
    kinds = (
        tex.NVTE_Bias_Type.NVTE_NO_BIAS,
        tex.NVTE_Mask_Type.NVTE_CAUSAL_MASK,
        tex.NVTE_Softmax_Type.NVTE_VANILLA_SOFTMAX,
    )
    window = ((-1, 0), False)
    sizes = (rows, rows, True, 0.125, 0.1, False, layout, order, unset)
    nothing = (None,) * 9
    options = (torch.bfloat16, *nothing, 1, False, False)
    call = (*sizes, *kinds, *window, ends, ends, q, k, v, *options)
    made, kept, peak = kept_and_peak(lambda: tex.fused_attn_fwd(*call))
    output, of_rows = rows * batch * heads * width * HALF, rows * batch * heads * FLOAT
    assert kept == output + of_rows + BLOCK
    assert peak == kept + BLOCK

    out, *saved = made
    sizes = (rows, rows, 0.125, 0.1, False, layout, order, order, layout, unset, unset)
    operands = (q, k, v, out, out, torch.bfloat16, saved)
    call = (*sizes, *kinds, *window, False, ends, ends, *operands, *(None,) * 5, False)
    made, kept, peak = kept_and_peak(lambda: tex.fused_attn_bwd(*call))
    assert kept == 3 * output
    assert peak == kept + output * 2 + of_rows + BLOCK
    assert made[1].stride() == q.stride()


@pytest.mark.parametrize(
    ("card", "changed", "is_taken"),
    [
        ("h100", {}, True),
        ("h100", {"head_dim_qk": 256, "head_dim_v": 256}, True),
        ("a100", {"head_dim_qk": 256, "head_dim_v": 256}, False),
        ("h100", {"head_dim_qk": 192, "head_dim_v": 128}, False),
        ("h100", {"qkv_dtype": 4}, False),  # float32
        ("t4", {}, False),
    ],
)
def test_cudnn_takes_what_it_can(card: str, changed: dict[str, Any], is_taken: bool) -> None:
    """`nvte_get_fused_attn_backend` of common/fused_attn/fused_attn.cpp."""
    with graphmem.virtual_gpu(card, stand_in=["transformer_engine"]):
        tex = importlib.import_module("transformer_engine_torch")
        plain = {
            "qkv_dtype": tex.DType.kBFloat16,
            "head_dim_qk": 64,
            "head_dim_v": 64,
            "is_training": True,
            "bias_type": tex.NVTE_Bias_Type.NVTE_NO_BIAS,
            "attn_mask_type": tex.NVTE_Mask_Type.NVTE_CAUSAL_MASK,
            "dropout": 0.1,
            "window_size_left": -1,
            "window_size_right": 0,
            "max_seqlen_q": 512,
            "max_seqlen_kv": 512,
        }
        backend, reason = tex.get_fused_attn_backend(SimpleNamespace(**{**plain, **changed}))
        assert bool(reason) != is_taken
        taken = tex.NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen
        assert (backend == taken) == is_taken


def test_what_the_stand_in_lacks_is_refused_by_name(tex: Any) -> None:
    with pytest.raises(NoStandInPartError, match="moe_permute_fwd"):
        tex.moe_permute_fwd()


@pytest.mark.skipif(
    importlib.util.find_spec("transformer_engine") is not None, reason="it is installed"
)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "; --stand-in transformer_engine stands in for it"),
        (["--stand-in", "transformer_engine"], "stopped at layer.py:3"),
    ],
)
def test_without_its_python_part_a_layer_is_refused_at_its_line(
    options: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_graphmem: Callable[..., Outcome],
) -> None:
    script = "import transformer_engine.pytorch as te\n\nte.Linear(4, 4)\n"
    (tmp_path / "layer.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    done = run_graphmem("run", *options, "layer.py")
    assert said in done.stderr
    assert ("has no Linear" in done.stderr) == bool(options)
    assert ("pip install --no-deps transformer_engine" in done.stderr) == bool(options)


def measured(te: Any, is_fp8: bool, has_fp8_weight: bool) -> str:
    """What memory_usage_1 to 3 of docs/features/low_precision_training/ measure, in MiB."""
    before = torch.cuda.memory_allocated()
    with (
        te.quantized_model_init(enabled=has_fp8_weight),
        torch.set_grad_enabled(not has_fp8_weight),
    ):
        layer = te.Linear(WIDTH, WIDTH, params_dtype=torch.bfloat16)
        data = torch.randn(WIDTH, WIDTH, dtype=torch.bfloat16, device="cuda")
        with te.autocast(enabled=is_fp8):
            out = layer(data)
    del data
    taken = torch.cuda.memory_allocated() - before
    del out, layer
    return f"{taken / MIB:.2f}"


def residual_peak(te: Any, saves_input: bool) -> str:
    """What save_original_input measures there."""
    recipe = importlib.import_module("transformer_engine.common.recipe").Float8CurrentScaling()
    torch.cuda.reset_peak_memory_stats()
    dtype = torch.bfloat16
    layer = te.Linear(WIDTH, WIDTH, params_dtype=dtype, save_original_input=saves_input)
    data = torch.randn(WIDTH, WIDTH, dtype=dtype, device="cuda", requires_grad=True)
    with te.autocast(enabled=True, recipe=recipe):
        out = layer(data) + data
    out.sum().backward()
    return f"{torch.cuda.max_memory_allocated() / MIB:.1f}"


@has_package
def test_it_prints_what_transformer_engines_documentation_prints() -> None:
    """docs/features/low_precision_training/performance_considerations/*_pytorch.out (d0067d0).

    They were printed on an Ada or Hopper card that is not named; a Hopper's workspace for cuBLAS is
    32 MiB, so that of the last two was an Ada. Each is measured twice, the second time counts. The
    last two have a program of their own, here a card of their own.
    """
    with graphmem.virtual_gpu("l40s", stand_in=["transformer_engine"]):
        te = importlib.import_module("transformer_engine.pytorch")
        cases = [(False, False), (True, False), (True, True)]
        assert [[measured(te, *each) for _ in range(2)][1] for each in cases] == [
            *("6.00", "6.02", "3.02")
        ]
    with graphmem.virtual_gpu("l40s", stand_in=["transformer_engine"]):
        te = importlib.import_module("transformer_engine.pytorch")
        for saves_input in (False, True):
            residual_peak(te, saves_input)
        assert [residual_peak(te, each) for each in (False, True)] == ["25.0", "24.0"]
    assert "transformer_engine" not in sys.modules


@has_package
def test_delayed_scaling_keeps_fp8_copies_and_histories() -> None:
    """Of a linear layer on an H100, where a product needs a transposed copy of its operands.

    Of the input the copy for the gradient of the weight stays; of the weight both stay. Each of
    three tensors forward and of two backward has 1,024 largest values; scales take a block each,
    forward, backward, and of the input and the weight inverted.
    """
    out_width = 3 * WIDTH
    with graphmem.virtual_gpu("h100", stand_in=["transformer_engine"]):
        te = importlib.import_module("transformer_engine.pytorch")
        recipe = importlib.import_module("transformer_engine.common.recipe").DelayedScaling()
        layer = te.Linear(WIDTH, out_width, params_dtype=torch.bfloat16)
        data = half(ROWS, WIDTH).requires_grad_()

        def forward() -> Any:
            with te.autocast(enabled=True, recipe=recipe):
                return layer(data)

        out, kept, _ = kept_and_peak(forward)
        workspace = 32 * MIB + 1024
        copies = ROWS * WIDTH + 2 * WIDTH * out_width
        histories = (3 + 2) * 1024 * FLOAT + 4 * BLOCK
        assert kept == ROWS * out_width * HALF + workspace + copies + histories
        out.sum().backward()
        assert layer.weight.grad is not None


@has_package
def test_grouped_layers_multiply_into_one_output() -> None:
    """`te_general_grouped_gemm`: four workspaces, one for each of TE's streams."""
    with graphmem.virtual_gpu("h100", stand_in=["transformer_engine"]):
        te = importlib.import_module("transformer_engine.pytorch")
        layer = te.GroupedLinear(4, WIDTH, WIDTH, params_dtype=torch.bfloat16)
        data = half(ROWS, WIDTH).requires_grad_()
        out, kept, _ = kept_and_peak(lambda: layer(data, [ROWS // 4] * 4))
        assert kept == ROWS * WIDTH * HALF + 4 * (32 * MIB + 1024)
        out.sum().backward()
        assert data.grad is not None


@has_package
def test_parts_in_blocks_share_a_buffer() -> None:
    """`bulk_allocate_fp8_blockwise_tensors`: for each row of each 128 columns a float32 scale."""
    with graphmem.virtual_gpu("h100", stand_in=["transformer_engine"]):
        te = importlib.import_module("transformer_engine.pytorch")
        tex = importlib.import_module("transformer_engine_torch")
        uses = {"rowwise": True, "columnwise": False, "block_scaling_dim": 1}
        quantizers = [te.Float8BlockQuantizer(tex.DType.kFloat8E4M3, **uses) for _ in range(4)]
        parts = [ROWS // 4] * 4
        data = half(ROWS, WIDTH)
        made, kept, _ = kept_and_peak(lambda: tex.split_quantize(data, parts, quantizers))
        scales = ROWS * WIDTH // 128 * FLOAT
        assert kept == ROWS * WIDTH + scales + BLOCK  # 256 bytes to align it, rounded up
        assert made[0].shape == (ROWS // 4, WIDTH)


@has_package
def test_flash_attentions_stand_in_serves_transformer_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without cuDNN's attention it takes `flash_attn_func`, which keeps a float32 for each row.

    The random state is flash-attn's, and Transformer Engine caches where sequences begin.
    """
    monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    with graphmem.virtual_gpu("h100", stand_in=["transformer_engine", "flash_attn"]):
        te = importlib.import_module("transformer_engine.pytorch")
        attend = te.DotProductAttention(8, 64, qkv_format="bshd", attn_mask_type="causal")
        operands = [half(2, 256, 8, 64).requires_grad_() for _ in range(3)]
        _, kept, _ = kept_and_peak(lambda: attend(*operands))
        assert kept == 2 * 256 * 8 * 64 * HALF + 2 * 256 * 8 * FLOAT + 2 * BLOCK


@has_package
@pytest.mark.slow
def test_a_transformer_layer_trains_with_fused_adam() -> None:
    """The layer's attention is cuDNN's; both states of the optimizer are in float32."""
    with graphmem.virtual_gpu("h100", stand_in=["transformer_engine"]) as gpu:
        te = importlib.import_module("transformer_engine.pytorch")
        options = {"params_dtype": torch.bfloat16, "self_attn_mask_type": "causal"}
        layer = te.TransformerLayer(256, 1024, 4, **options)
        data = half(128, 2, 256).requires_grad_()
        layer(data).sum().backward()
        optimizer = te.optimizers.FusedAdam(layer.parameters())
        before = gpu.allocated
        optimizer.step()
        states = sum(each.numel() for each in layer.parameters()) * 2 * FLOAT
        assert states <= gpu.allocated - before <= states + 2 * BLOCK * len([*layer.parameters()])
