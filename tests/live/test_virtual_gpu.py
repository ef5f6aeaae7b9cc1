"""Code written for a card runs on the virtual one, which leaves nothing behind."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._device import _device_constructors

import graphmem
from graphmem.gpus import find_gpu
from graphmem.graph import OwnerKind, PhaseName, StepGraph
from graphmem.torch_releases import installed_release
from graphmem.trace import TraceOptions, trace
from graphmem.trace.messages import InferenceOfOwnLoopError
from graphmem.training_step import TrainingStep
from tests.support.traced_step import targets


def traced(build: Callable[[], TrainingStep], gpu: str = "a100", **options: Any) -> StepGraph:
    return trace(build, gpu=find_gpu(gpu), options=TraceOptions(**{"steps": 1, **options}))


def stepping(step: Callable[[], Any]) -> Callable[[], TrainingStep]:
    return lambda: TrainingStep(step=step)


class TestTheCard:
    def test_it_reports_the_named_model(self) -> None:
        seen = {}

        def step() -> None:
            seen["available"] = torch.cuda.is_available()
            seen["count"] = torch.cuda.device_count()
            seen["capability"] = torch.cuda.get_device_capability()
            seen["name"] = torch.cuda.get_device_name(0)
            seen["bf16"] = torch.cuda.is_bf16_supported(including_emulation=False)

        traced(stepping(step), gpu="t4")

        assert seen == {
            "available": True,
            "count": 1,
            "capability": (7, 5),
            "name": "Tesla T4",
            "bf16": False,
        }

    def test_nothing_stays_behind(self) -> None:
        before = (torch.cuda.is_available(), nn.Module._apply, torch.zeros, torch.Tensor.to)
        traced(stepping(lambda: torch.zeros(2, device="cuda")))
        after = (torch.cuda.is_available(), nn.Module._apply, torch.zeros, torch.Tensor.to)

        assert before == after
        assert type(nn.Parameter(torch.zeros(2))) is nn.Parameter
        parameter = torch.ones(3, requires_grad=True)
        parameter.square().sum().backward()
        assert parameter.grad is not None
        assert parameter.grad.tolist() == [2, 2, 2]

    def test_nothing_stays_behind_after_an_error(self) -> None:
        def step() -> None:
            raise ValueError("the user's own")

        with pytest.raises(ValueError, match="the user's own"):
            traced(stepping(step))

        assert not torch.cuda.is_available()

    @pytest.mark.parametrize(
        "place",
        [
            lambda: torch.zeros(256).to(0),
            lambda: torch.zeros(256).cuda(),
            lambda: torch.zeros(256).cuda(0),
            lambda: torch.zeros(256, device=0),
            lambda: torch.zeros(256, device=torch.device(0)),
            lambda: torch.zeros(256).to(torch.device(device=0)),
            lambda: torch.zeros(256, device=0).new_ones(256, device=0),
            lambda: torch.zeros(256, device=0).new_tensor([0.0] * 256, device=torch.device(0)),
            lambda: torch.tensor([0.0] * 256, device="cuda"),
            lambda: torch.zeros(256).pin_memory().to("cuda", non_blocking=True),
            lambda: nn.Linear(255, 1, bias=False).to(0).weight,
            lambda: nn.Linear(255, 1, bias=False).cuda().weight,
        ],
    )
    def test_every_way_to_move_to_it_works(self, place: Callable[[], torch.Tensor]) -> None:
        found = []
        traced(stepping(lambda: found.append(place().device)))

        assert found == [torch.device("cuda:0")]

    def test_a_device_by_number_is_one_of_cuda_and_its_class_what_it_was(self) -> None:
        """`THPDevice_pynew` rejects -1, True and two numbers."""

        def step() -> None:
            device = torch.device(0)
            assert device == torch.device("cuda", 0)
            assert type(device) is torch.device
            assert (torch.device.__module__, torch.device.__name__) == ("torch", "device")
            assert pickle.loads(pickle.dumps([device, torch.device])) == [device, torch.device]
            assert torch.compile(lambda: torch.device(0), backend="eager")() == device
            for wrong in ((-1,), (True,), (0, 0)):
                with pytest.raises((RuntimeError, TypeError)):
                    torch.device(*wrong)

        before = type(torch.device)
        traced(stepping(step))

        assert type(torch.device) is before

    def test_a_device_context_works_even_if_it_is_the_first(self) -> None:
        """The context caches the factories at its first use in a process."""
        _device_constructors.cache_clear()
        found = []

        def step() -> None:
            with torch.device("cuda"):
                found.extend(tensor.device for tensor in (torch.empty(4), nn.Linear(4, 4).weight))

        traced(stepping(step))

        assert found == [torch.device("cuda:0")] * 2


class TestParameters:
    def test_an_optimizer_made_before_the_move_trains_the_moved_parameters(self) -> None:
        """`model.to` keeps each parameter's identity, so Adam's state is created on the device."""

        def build() -> TrainingStep:
            model = nn.Linear(8, 8, bias=False)
            optimizer = torch.optim.Adam(model.parameters())
            model.to("cuda")
            return TrainingStep(model, lambda: torch.zeros(1, 8, device="cuda"), None, optimizer)

        graph = traced(build)
        state = [each for each in graph.storages if each.owned_as(OwnerKind.OPTIMIZER_STATE)]

        assert [each.nbytes for each in state] == [8 * 8 * 4] * 2

    def test_a_change_of_dtype_is_a_new_storage_of_the_same_parameter(self) -> None:
        kept = []

        def step() -> None:
            model = nn.Linear(64, 64, bias=False).to("cuda")
            weight = model.weight
            model.half()
            kept.append((weight is model.weight, weight.dtype))

        traced(stepping(step))

        assert kept == [(True, torch.float16)]


def attention(
    dtype: torch.dtype = torch.float16,
    head_dim: int = 64,
    masked: bool = False,
    grad: bool = True,
    dropout: float = 0.0,
    trained_mask: bool = False,
) -> Callable[[], TrainingStep]:
    def step() -> None:
        query = torch.zeros(2, 4, 128, head_dim, device="cuda", dtype=dtype, requires_grad=grad)
        mask = torch.ones(128, 128, device="cuda", dtype=torch.bool) if masked else None
        if trained_mask:
            mask = torch.zeros(128, 128, device="cuda", dtype=dtype, requires_grad=True)
        F.scaled_dot_product_attention(query, query, query, attn_mask=mask, dropout_p=dropout)

    return stepping(step)


class TestAttention:
    """`sdp_utils.cpp`; versions and cards of docs/sources.md, "Attention"."""

    @pytest.mark.parametrize(
        ("gpu", "release", "build", "backend"),
        [
            ("a100", (2, 13), attention(), "flash"),
            ("t4", (2, 13), attention(), "efficient"),
            ("a100", (2, 13), attention(torch.float32), "efficient"),
            ("a100", (2, 13), attention(head_dim=512), "efficient"),
            ("a100", (2, 13), attention(masked=True), "efficient"),
            ("h100", (2, 13), attention(), "cudnn"),
            ("h100", (2, 13), attention(masked=True), "cudnn"),
            ("h100", (2, 13), attention(torch.float32), "efficient"),
            ("h100", (2, 10), attention(), "flash"),
            ("h100", (2, 6), attention(), "flash"),
            ("b200", (2, 11), attention(), "cudnn"),
            ("rtx-5090", (2, 13), attention(), "flash"),
            ("h100", (2, 11), attention(dropout=0.1), "cudnn"),
            ("h100", (2, 12), attention(dropout=0.1), "flash"),
            ("h100", (2, 12), attention(dropout=0.125), "cudnn"),
            ("h100", (2, 11), attention(trained_mask=True), "efficient"),
        ],
    )
    def test_backend(
        self,
        gpu: str,
        release: tuple[int, int],
        build: Callable[[], TrainingStep],
        backend: str,
    ) -> None:
        graph = traced(build, gpu, torch_release=release)

        assert f"aten._scaled_dot_product_{backend}_attention.default" in targets(graph)

    @pytest.mark.parametrize(
        ("release", "key_heads", "enable_gqa", "operator"),
        [
            ((2, 13), 2, True, "aten.bmm.default"),
            ((2, 14), 2, True, "aten._scaled_dot_product_efficient_attention.default"),
            ((2, 14), 1, False, "aten._scaled_dot_product_efficient_attention.default"),
        ],
    )
    def test_shared_keys_in_float32(
        self, release: tuple[int, int], key_heads: int, enable_gqa: bool, operator: str
    ) -> None:
        """PR #191085 of 2.14, whose meta kernel of the gradients must be there as well."""
        if release >= (2, 14) > installed_release():
            pytest.skip("the installed release's gradients have no shared keys")
        gradients: list[Any] = []

        def step() -> None:
            query = torch.zeros(2, 4, 128, 64, device="cuda", requires_grad=True)
            key = torch.zeros(2, key_heads, 128, 64, device="cuda", requires_grad=True)
            out = F.scaled_dot_product_attention(query, key, key, enable_gqa=enable_gqa)
            out.sum().backward()
            gradients.append(key.grad)

        graph = traced(stepping(step), "a100", torch_release=release)

        assert operator in targets(graph)
        assert gradients[0].shape == (2, key_heads, 128, 64)

    @pytest.mark.parametrize(
        ("gpu", "release", "operator"),
        [
            ("a100", (2, 13), "aten.bmm.default"),
            ("a100", (2, 14), "aten._scaled_dot_product_flash_attention.default"),
            ("h100", (2, 13), "aten.bmm.default"),
            ("h100", (2, 14), "aten._scaled_dot_product_cudnn_attention.default"),
        ],
    )
    def test_a_single_head_of_keys_in_half_precision(
        self, gpu: str, release: tuple[int, int], operator: str
    ) -> None:
        def step() -> None:
            query = torch.zeros(2, 4, 128, 64, device="cuda", dtype=torch.float16)
            key = torch.zeros(2, 1, 128, 64, device="cuda", dtype=torch.float16)
            F.scaled_dot_product_attention(query, key, key)

        assert operator in targets(traced(stepping(step), gpu, torch_release=release))

    def test_unsupported_head_sizes_take_the_math_path(self) -> None:
        graph = traced(attention(torch.float64))

        assert "aten.bmm.default" in targets(graph)

    def test_a_mask_without_contiguous_rows_takes_the_math_path(self) -> None:
        """As recorded on an H100: T5's biases are a permuted table of heads."""

        def step() -> None:
            query = torch.zeros(2, 8, 128, 64, device="cuda", requires_grad=True)
            bias = torch.zeros(128, 128, 8, device="cuda").permute(2, 0, 1)[None]
            F.scaled_dot_product_attention(query, query, query, attn_mask=bias)

        graph = traced(stepping(step), "h100", torch_release=(2, 11))

        assert "aten.bmm.default" in targets(graph)

    def test_no_fused_kernel_takes_bfloat16_before_ampere(self) -> None:
        """The math path works in float32; 128 x 128 scores for 2 x 4 heads."""
        graph = traced(attention(torch.bfloat16), "t4")
        op = next(op for op in graph.ops if op.target == "aten.bmm.default")

        assert (op.outputs[0].shape, op.outputs[0].dtype) == ((8, 128, 128), "float32")

    @pytest.mark.parametrize(
        ("release", "operators"),
        [
            ((2, 4), ["zeros_like", "logical_not", "masked_fill_"]),
            ((2, 5), ["scalar_tensor", "logical_not", "scalar_tensor", "where"]),
            ((2, 6), ["scalar_tensor", "scalar_tensor", "where"]),
        ],
    )
    def test_a_boolean_mask_becomes_additive(
        self, release: tuple[int, int], operators: list[str]
    ) -> None:
        """pytorch#130281 and #139784; the last as recorded on an H100 with 2.11."""
        names = [
            each.split(".")[1]
            for each in targets(traced(attention(masked=True), "a100", torch_release=release))
        ]
        before = names.index("_scaled_dot_product_efficient_attention")

        assert names[before - len(operators) - 1 : before - 1] == operators

    def test_cudnn_without_gradients_has_no_logsumexp(self) -> None:
        """As recorded on an H100."""
        graph = traced(attention(grad=False), "h100", torch_release=(2, 11))
        op = next(op for op in graph.ops if "cudnn_attention" in op.target)

        assert [graph.storages[born].nbytes for born in op.births] == [2 * 4 * 128 * 64 * 2, 8, 8]

    def test_without_gradients_the_other_results_die_in_order(self) -> None:
        """As recorded on an H100: logsumexp, seed and offset, before the next operation."""
        graph = traced(attention(grad=False), "h100", torch_release=(2, 10))
        op = next(op for op in graph.ops if "flash_attention" in op.target)
        deaths = [graph.storages[born].death or 0 for born in op.births[1:]]

        assert deaths == sorted(set(deaths))

    def test_random_state_of_efficient_attention_stays_on_the_host(self) -> None:
        graph = traced(attention(torch.float32))
        op = next(op for op in graph.ops if "efficient_attention" in op.target)

        assert [out.storage is not None for out in op.outputs] == [True, True, False, False]

    def test_flash_pads_head_sizes_to_eights(self) -> None:
        graph = traced(attention(head_dim=60))
        op = next(op for op in graph.ops if "flash_attention" in op.target)

        assert op.outputs[0].shape == (2, 4, 128, 64)


class TestFusedKernels:
    @pytest.mark.parametrize(("release", "fused"), [((2, 13), True), ((2, 8), False)])
    def test_rms_norm_is_one_kernel_since_2_9(self, release: tuple[int, int], fused: bool) -> None:
        """It then saves its input, its weight and one fp32 number per row."""

        def build() -> TrainingStep:
            return TrainingStep(nn.RMSNorm(64), torch.zeros(16, 64), optimizer=torch.optim.SGD)

        graph = traced(build, torch_release=release)

        assert ("aten._fused_rms_norm.default" in targets(graph)) is fused


class TestInPlaceForms:
    def test_a_separate_addition_is_not_the_bias_of_a_product(self) -> None:
        """All calls go through one line of `DeviceContext`, so their frames reuse one address."""

        def step() -> None:
            with torch.device("cuda"):
                for _ in range(20):
                    scores = torch.matmul(torch.ones(2, 3, 4), torch.ones(2, 4, 1))
                    torch.add(scores, scores.mT)

        seen = targets(traced(stepping(step)))

        assert seen.count("aten.add.Tensor") == 20
        assert "aten.add_.Tensor" not in seen


class TestInference:
    def test_composites_are_decomposed(self) -> None:
        """Inference tensors carry no autograd keys, so `linear` reaches the trace undecomposed."""

        def build() -> TrainingStep:
            model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
            return TrainingStep(model, torch.zeros(4, 64))

        graph = traced(build, inference=True)

        assert targets(graph).count("aten.addmm.default") == 2
        assert {phase.name for phase in graph.phases} == {PhaseName.SETUP, PhaseName.FORWARD}
        assert not any(each.owned_as(OwnerKind.SAVED_TENSOR) for each in graph.storages)

    def test_a_result_dies_when_the_next_layer_has_run(self) -> None:
        """A 1 KiB input, 1 KiB between the layers and 1 KiB out; two are alive at a time."""

        def build() -> TrainingStep:
            layers = [nn.Linear(64, 64, bias=False) for _ in range(3)]
            return TrainingStep(nn.Sequential(*layers), torch.zeros(4, 64))

        graph = traced(build, inference=True)
        results = [
            graph.storages[op.births[0]] for op in graph.ops if op.target == "aten.mm.default"
        ]

        assert results[0].death is not None
        assert results[1].birth < results[0].death < results[2].birth

    def test_attention_takes_the_cards_backend(self) -> None:
        class Attention(nn.Module):
            def forward(self, query: torch.Tensor) -> torch.Tensor:
                return F.scaled_dot_product_attention(query, query, query)

        def build() -> TrainingStep:
            return TrainingStep(Attention(), torch.zeros(1, 2, 64, 64, dtype=torch.float16))

        graph = traced(build, inference=True)

        assert "aten._scaled_dot_product_flash_attention.default" in targets(graph)

    def test_an_inference_tensor_is_read_outside_the_mode(self) -> None:
        """Then `item`, also a composite, reaches the trace undecomposed."""
        read = []

        def step() -> None:
            with torch.inference_mode():
                score = torch.ones(4, device="cuda").sum()
            read.append(score.item())

        traced(stepping(step))

        assert read == [4.0]

    def test_what_compilers_compose_runs_whole(self) -> None:
        """Interpolation and a norm without running averages, which have kernels on every card."""
        ran = []
        for mode in (torch.no_grad, torch.inference_mode):

            def step(mode: type[torch.no_grad | torch.inference_mode] = mode) -> None:
                with mode():
                    image = torch.ones(2, 8, 4, 4, device="cuda")
                    F.instance_norm(F.interpolate(image, scale_factor=2))

            ran.append(targets(traced(stepping(step))))
        assert "aten.upsample_nearest2d.default" in ran[0]
        assert ran[0] == ran[1]

    def test_parts_of_a_weight_are_views_in_inference_mode(self) -> None:
        """`nn.MultiheadAttention` takes them by `chunk` where its keys are not its values."""

        def parts_of(device: str) -> list[tuple[bool, bool, object, object]]:
            weight = nn.Parameter(torch.zeros(6, 2, device=device))
            with torch.inference_mode():
                own = torch.zeros(6, 2, device=device)
                made = [
                    *weight.chunk(3),
                    weight.narrow(0, 2, 2),
                    *own.chunk(3),
                    own.narrow(0, 2, 2),
                ]
            return [(e.is_inference(), e._is_view(), e.shape, e.storage_offset()) for e in made]

        with graphmem.virtual_gpu("a100"):
            on_card = parts_of("cuda")
            query, value = torch.randn(2, 2, 5, 64, device="cuda")
            attention = nn.MultiheadAttention(64, 4, device="cuda").eval()
            with torch.inference_mode():
                assert attention(query, query, value)[0].shape == (2, 5, 64)
        assert on_card == parts_of("cpu")

    def test_a_custom_step_cannot_be_inference(self) -> None:
        with pytest.raises(InferenceOfOwnLoopError):
            traced(stepping(lambda: None), inference=True)
