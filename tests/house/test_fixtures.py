"""Every fixture is a model that trains: one eager iteration on the CPU, tiny sizes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphmem import TrainingStep
from tests.support.places import FIXTURES

if str(FIXTURES) not in sys.path:
    sys.path.append(
        str(FIXTURES)
    )  # fixtures import their siblings, as `python fixtures/mlp.py` can

AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}

TINY: dict[str, dict[str, Any]] = {
    "linear_stack": {"layers": 3, "width": 8, "batch": 4},
    "mlp": {"d_model": 8, "batch": 2, "seq": 4},
    "transformer_block": {"d_model": 16, "batch": 2, "seq": 8},
    "gpt2": {"vocab": 50, "batch": 2, "seq": 8, "width": 16, "layers": 2, "heads": 2},
    "llama": {
        "vocab": 50,
        "seq": 8,
        "width": 16,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "ffn": 24,
    },
    "bert": {"vocab": 50, "batch": 2, "seq": 8, "width": 16, "layers": 2, "heads": 2},
    "vit": {
        "image": 16,
        "patch": 8,
        "classes": 5,
        "batch": 2,
        "width": 16,
        "layers": 2,
        "heads": 2,
    },
    "resnet": {"width": 4, "image": 32, "classes": 5, "batch": 2},
    "lstm": {"vocab": 50, "batch": 2, "seq": 5, "width": 8, "hidden": 12},
    "unet_block": {"channels": 8, "image": 8, "batch": 2, "heads": 2, "groups": 4},
    "moe": {"vocab": 50, "seq": 8, "width": 16, "layers": 2, "heads": 2, "ffn": 24, "experts": 4},
    "transformers_model": {"seq": 8, "width": 16, "vocab": 50},
    "t5": {
        "seq": 8,
        "d_model": 16,
        "d_ff": 24,
        "d_kv": 8,
        "num_heads": 2,
        "num_layers": 1,
        "vocab_size": 100,
    },
    "training_techniques": {"width": 8, "batch": 4, "device": "cpu"},
    "vision": {"library": "unet", "size": 16, "classes": 5, "batch": 2, "dense": True},
}

CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in TINY),
    ("linear_stack", {"relu": True, "freeze_start": 1, "freeze_end": 3, "optimizer": "sgd"}),
    *(("mlp", {"activation": name}) for name in importlib.import_module("activations").ACTIVATIONS),
    ("mlp", {"dtype": "fp32", "dropout": 0.5, "inputs_require_grad": False}),
    ("transformer_block", {"activation": "gelu"}),
    ("gpt2", {"attention": "sdpa", "dropout": 0.1, "bias": True, "autocast": None}),
    ("gpt2", {"return_logits": True, "optimizer": "adamw-foreach"}),
    ("gpt2", {"scaler": True, "optimizer": "adamw"}),
    ("llama", {"checkpoint": "reentrant", "norm": "written_out"}),
    ("llama", {"checkpoint": "non-reentrant"}),
    ("llama", {"dtype": "bf16", "autocast": None}),
    ("bert", {"mask": "bool"}),
    *(
        (name, {"autocast": "bf16"})
        for name in ("bert", "vit", "resnet", "lstm", "unet_block", "moe", "transformers_model")
    ),
    ("resnet", {"blocks": "bottleneck", "depths": (1, 1), "channels_last": True}),
    ("lstm", {"bidirectional": True, "dropout": 0.1}),
    *(("transformers_model", {"family": name}) for name in ("llama", "qwen2", "opt", "gpt_neox")),
    *(
        ("training_techniques", {"technique": name})
        for name in importlib.import_module("training_techniques").TECHNIQUES
    ),
]


def build(name: str, **settings: Any) -> TrainingStep:
    torch.manual_seed(0)
    step = importlib.import_module(name).build(**settings)
    assert isinstance(step, TrainingStep)
    return step


def parameter_count(model: nn.Module | None) -> int:
    assert model is not None
    return sum(parameter.numel() for parameter in model.parameters())


# ---- one eager iteration ------------------------------------------------------------------------


def run_eagerly(step: TrainingStep) -> None:
    """One whole iteration on the CPU, with PyTorch's engine."""
    if step.step is not None:
        step.step()
        return
    assert step.model is not None
    optimizer = make_optimizer(step, step.model)
    scaler = torch.amp.GradScaler("cpu", enabled=step.scaler is True)
    for _ in range(step.accumulate):
        with autocast(step.autocast):
            loss = loss_of(step, call(step.model, step.inputs))
        assert loss.isfinite()
        scaler.scale(loss).backward()
    if step.clip_grad_norm is not None:
        torch.nn.utils.clip_grad_norm_(step.model.parameters(), step.clip_grad_norm)
    scaler.step(optimizer)
    scaler.update()


def make_optimizer(step: TrainingStep, model: nn.Module) -> torch.optim.Optimizer:
    if isinstance(step.optimizer, torch.optim.Optimizer):
        return step.optimizer
    return (step.optimizer or torch.optim.AdamW)(model.parameters())


def autocast(name: str | None) -> AbstractContextManager[Any]:
    return nullcontext() if name is None else torch.autocast("cpu", dtype=AUTOCAST[name])


def call(model: nn.Module, inputs: Any) -> Any:
    if callable(inputs) and not isinstance(inputs, Tensor):
        inputs = inputs()
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def loss_of(step: TrainingStep, output: Any) -> Tensor:
    loss = output.loss if step.loss is None else step.loss(output)
    assert isinstance(loss, Tensor)
    return loss


def weights_of(step: TrainingStep) -> list[Tensor]:
    assert step.model is not None
    return [parameter.detach().clone() for parameter in step.model.parameters()]


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_one_iteration_trains(name: str, settings: dict[str, Any]) -> None:
    step = build(name, **{**TINY[name], **settings})
    before = weights_of(step)
    # oneDNN has no LSTM in 16 bits for CPUs without AVX-512; PyTorch's own runs everywhere.
    with torch.backends.mkldnn.flags(enabled=False):
        run_eagerly(step)
    after = weights_of(step)
    assert all(weight.isfinite().all() for weight in after)
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_frozen_layers_keep_their_weights() -> None:
    step = build("linear_stack", layers=4, width=8, freeze_start=1, freeze_end=3)
    before = weights_of(step)
    run_eagerly(step)
    kept = [torch.equal(old, new) for old, new in zip(before, weights_of(step), strict=True)]
    assert kept == [False, False, False, True, True, False, False, False]


# ---- published sizes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "parameters"),
    [
        ("gpt2", {}, 124_373_760),
        ("vit", {}, 86_567_656),
        ("resnet", {}, 11_689_512),
        ("resnet", {"blocks": "bottleneck", "depths": (3, 4, 6, 3)}, 25_557_032),
    ],
)
def test_parameter_count(name: str, settings: dict[str, Any], parameters: int) -> None:
    with torch.device("meta"):
        step = build(name, **settings)
    assert parameter_count(step.model) == parameters


def test_linear_stack_takes_the_published_parameter_bytes() -> None:
    model = build("linear_stack").model
    assert model is not None
    rounded = [-(-weight.nbytes // 512) * 512 for weight in model.parameters()]
    assert sum(rounded) == 8_135_168


def test_gpt2_has_75_parameters_and_the_published_model_bytes() -> None:
    with torch.device("meta"):
        model = build("gpt2").model
    assert model is not None
    assert len(list(model.parameters())) == 75
    held = [*model.parameters(), *model.buffers()]
    assert sum(tensor.nbytes for tensor in held) == 547_826_688


# ---- what autograd saves ------------------------------------------------------------------------


def saved_bytes(step: TrainingStep) -> int:
    """Bytes of the storages one forward pass saves, excluding parameters."""
    assert step.model is not None
    storages: dict[int, int] = {}
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = call(step.model, step.inputs)
    assert output.requires_grad
    return sum(storages.values()) - storages_among(storages, step.model.parameters())


def storages_among(storages: dict[int, int], tensors: Iterable[Tensor]) -> int:
    return sum(storages.get(tensor.untyped_storage().data_ptr(), 0) for tensor in tensors)


@pytest.mark.parametrize(
    ("activation", "wide_tensors"),
    [
        *(("relu", 1), ("tanh", 1), ("sigmoid", 1), ("leaky_relu_inplace", 1), ("identity", 1)),
        *(("gelu", 2), ("silu", 2), ("leaky_relu", 2), ("relu_squared", 2)),
    ],
)
def test_mlp_saves_its_input_and_the_wide_tensors(activation: str, wide_tensors: int) -> None:
    batch, seq, width = 2, 16, 32
    step = build("mlp", activation=activation, d_model=width, batch=batch, seq=seq)
    narrow = batch * seq * width * 2
    assert saved_bytes(step) == narrow + wide_tensors * 4 * narrow


@pytest.mark.parametrize(("activation", "tensors"), [("relu", 12), ("gelu", 16)])
def test_transformer_block_saves_what_the_article_counts(activation: str, tensors: int) -> None:
    batch, seq, width, heads = 2, 64, 32, 2
    sizes = {"d_model": width, "heads": heads, "batch": batch, "seq": seq}
    step = build("transformer_block", activation=activation, **sizes)
    statistics = 4 * batch * seq * 2  # bf16 on the CPU, fp32 on CUDA
    logsumexp = batch * heads * seq * 4
    expected = tensors * batch * seq * width * 2 + statistics + logsumexp
    assert saved_bytes(step) == expected
