"""Constructs of training scripts that no library model covers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from graphmem import TrainingStep
from tools.model_zoo.case import Case, seeded

WIDTH, ROWS, CLASSES = 16, 8, 5
_constructs: dict[str, Callable[[], Any]] = {}


def cases() -> Iterator[Case]:
    """Every construct."""
    for name, build in _constructs.items():
        yield Case("constructs", name.replace("_", " "), seeded(build))


def _construct(build: Callable[[], Any]) -> Callable[[], Any]:
    _constructs[build.__name__] = build
    return build


def _rows() -> Any:
    return torch.randn(ROWS, WIDTH)


def _classes() -> Any:
    return torch.randint(0, CLASSES, (ROWS,))


def _calling(function: Callable[..., Any], *layers: nn.Module) -> nn.Module:
    """A module whose forward is `function(module, x)`."""

    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, *inputs: Any) -> Any:
            return function(self.layers, *inputs)

    return Called()


def _linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


# ---- steps ---------------------------------------------------------------------------------------


@_construct
def labels_that_the_loss_closes_over() -> Any:
    labels = _classes()
    return nn.Linear(WIDTH, CLASSES), _rows(), lambda out: functional.cross_entropy(out, labels)


@_construct
def a_constant_that_the_loss_closes_over() -> Any:
    weight = torch.ones(CLASSES)
    labels = _classes()
    loss = nn.CrossEntropyLoss(weight=weight)
    return nn.Linear(WIDTH, CLASSES), _rows(), lambda out: loss(out, labels)


@_construct
def an_averaged_model() -> TrainingStep:
    model = nn.Sequential(*(nn.Sequential(_linear(), nn.Tanh()) for _ in range(20)))
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = _rows()

    def step() -> None:
        model(rows).sum().backward()
        optimizer.step()
        average.update_parameters(model)

    return TrainingStep(model=model, optimizer=optimizer, step=step)


@_construct
def a_reference_model() -> Any:
    """Direct preference optimisation holds a frozen copy."""
    model = _linear()
    reference = copy.deepcopy(model).requires_grad_(False)
    held = _calling(lambda layers, x: layers[0](x) - layers[1](x), model, reference)
    return held, _rows()


@_construct
def two_optimizers() -> TrainingStep:
    made, judge = _linear(), nn.Linear(WIDTH, 1)
    both = [torch.optim.Adam(model.parameters()) for model in (made, judge)]
    rows = _rows()

    def step() -> None:
        judge(made(rows).detach()).mean().backward()
        both[1].step()
        both[1].zero_grad()
        judge(made(rows)).mean().backward()
        both[0].step()
        both[0].zero_grad()

    return TrainingStep(model=made, optimizer=both[0], step=step)


@_construct
def gradient_penalty() -> Any:
    def penalised(layers: Any, x: torch.Tensor) -> Any:
        x = x.requires_grad_()
        out = layers[0](x).tanh().sum()
        (gradient,) = torch.autograd.grad(out, x, create_graph=True)
        return (gradient.norm(2, dim=1) - 1).square().mean()

    return _calling(penalised, _linear()), _rows()


@_construct
def checkpointed_layers() -> Any:
    def run(layers: Any, x: torch.Tensor) -> Any:
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x

    return _calling(run, _linear(), _linear()), _rows()


@_construct
def a_scalar_that_is_printed() -> Any:
    def run(layers: Any, x: torch.Tensor) -> Any:
        out = layers[0](x).square().mean()
        f"{out:.3f} {out} {out.item()}"
        return out

    return _calling(run, _linear()), _rows()


# ---- values the program reads --------------------------------------------------------------------


@_construct
def a_mask_of_ones_that_is_asked() -> Any:
    def run(layers: Any, x: torch.Tensor, mask: torch.Tensor) -> Any:
        out = layers[0](x)
        return out if mask.all() else out * mask[:, None]

    return _calling(run, _linear()), (_rows(), torch.ones(ROWS, dtype=torch.int64))


@_construct
def tokens_that_are_counted() -> Any:
    def run(layers: Any, x: torch.Tensor, tokens: torch.Tensor) -> Any:
        count = int((tokens == 1).sum())
        return layers[0](x[:count])

    return _calling(run, _linear()), (_rows(), torch.tensor([1, 0, 1, 1, 0, 1, 0, 0]))


@_construct
def pieces_of_listed_lengths() -> Any:
    def run(layers: Any, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        pieces = x.split(lengths.tolist())
        return torch.stack([layers[0](piece).mean(0) for piece in pieces])

    return _calling(run, _linear()), (_rows(), torch.tensor([3, 1, 4]))


@_construct
def repeated_by_lengths() -> Any:
    def run(layers: Any, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        return layers[0](x.repeat_interleave(lengths, dim=0))

    return _calling(run, _linear()), (_rows(), torch.tensor([1, 2, 1, 1, 3, 1, 1, 2]))


@_construct
def one_hot_without_classes() -> Any:
    def run(layers: Any, x: torch.Tensor, labels: torch.Tensor) -> Any:
        wanted = functional.one_hot(labels)
        return (layers[0](x)[:, : wanted.shape[1]] - wanted).square().mean()

    return _calling(run, _linear()), (_rows(), torch.tensor([0, 1, 2, 4, 0, 1, 2, 3]))


@_construct
def a_loss_that_is_checked() -> Any:
    def run(layers: Any, x: torch.Tensor) -> Any:
        loss = layers[0](x).square().mean()
        if not torch.isfinite(loss):
            raise ValueError("the loss is not finite")
        return loss

    return _calling(run, _linear()), _rows()


@_construct
def distributions_that_check_arguments() -> Any:
    def run(layers: Any, x: torch.Tensor) -> Any:
        mean = layers[0](x)
        normal = torch.distributions.Normal(mean, functional.softplus(mean) + 0.1)
        return -normal.log_prob(x).mean()

    return _calling(run, _linear()), _rows()


@_construct
def experts_by_a_loop_over_hits() -> Any:
    """As `transformers` writes a mixture of experts."""

    def run(layers: Any, x: torch.Tensor) -> Any:
        gate, *experts = layers
        weights, chosen = gate(x).softmax(-1).topk(2, dim=-1)
        mask = functional.one_hot(chosen, num_classes=len(experts)).permute(2, 1, 0)
        out = torch.zeros_like(x)
        for hit in mask.sum(dim=(-1, -2)).nonzero():
            index, rows = torch.where(mask[hit].squeeze(0))
            found = experts[int(hit)](x[rows]) * weights[rows, index, None]
            out.index_add_(0, rows, found)
        return out

    return _calling(run, nn.Linear(WIDTH, 4), *(_linear() for _ in range(4))), _rows()


# ---- layers --------------------------------------------------------------------------------------


@_construct
def packed_sequences() -> Any:
    lengths = torch.tensor([5, 3, 2])

    def run(layers: Any, x: torch.Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        out, _ = layers[0](packed)
        return nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0]

    return _calling(run, nn.LSTM(WIDTH, WIDTH, batch_first=True)), torch.randn(3, 5, WIDTH)


@_construct
def a_cell_in_a_loop() -> Any:
    def run(layers: Any, x: torch.Tensor) -> Any:
        state = torch.zeros_like(x)
        for _ in range(3):
            state = layers[0](x, state)
        return state

    return _calling(run, nn.GRUCell(WIDTH, WIDTH)), _rows()


@_construct
def connectionist_temporal_classification() -> Any:
    def run(layers: Any, x: torch.Tensor) -> Any:
        scores = layers[0](x).log_softmax(-1)
        labels = torch.ones(2, 3, dtype=torch.int64)
        return functional.ctc_loss(scores, labels, torch.tensor([6, 6]), torch.tensor([3, 3]))

    return _calling(run, _linear()), torch.randn(6, 2, WIDTH)


@_construct
def a_sparse_embedding() -> Any:
    table = nn.Embedding(50, WIDTH, sparse=True)
    tokens = torch.randint(0, 50, (2, 7))
    return TrainingStep(table, tokens, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))


@_construct
def orthogonal_weights() -> Any:
    return nn.utils.parametrizations.orthogonal(_linear()), _rows()


@_construct
def initialised_by_every_function() -> Any:
    layer = nn.Linear(WIDTH, WIDTH)
    for initialise in (
        nn.init.trunc_normal_,
        nn.init.orthogonal_,
        nn.init.kaiming_normal_,
        nn.init.xavier_uniform_,
        nn.init.eye_,
    ):
        initialise(layer.weight)
    nn.init.sparse_(layer.weight, sparsity=0.1)
    return layer, _rows()


@_construct
def a_deep_encoder_with_a_mask() -> Any:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    return encoder, {"src": torch.randn(2, 4, WIDTH), "mask": causal}


@_construct
def data_parallel() -> Any:
    return nn.DataParallel(_linear()), _rows()
