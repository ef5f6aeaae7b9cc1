"""LSTM, GRU and RNN as one cuDNN operation on the virtual GPU."""

from __future__ import annotations

import gzip
import json
from itertools import dropwhile, takewhile

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from graphmem import TrainingStep, analyze, virtual_gpu
from graphmem.cudnn_recurrent import GRU, LSTM, Layers
from graphmem.gpus import find_gpu
from graphmem.graph import StepGraph, Storage
from graphmem.trace import TraceOptions, trace
from tests.support.kernel_calls import Calls, aten, tensor
from tests.support.places import ROOT
from tests.support.traced_step import traced

FLOAT = 4
SEQ2SEQ = ROOT / "fixtures" / "cuda" / "real" / "seq2seq.events.json.gz"


def storages_of(graph: StepGraph, target: str) -> list[Storage]:
    return [
        graph.storages[number]
        for op in graph.ops
        if op.target.startswith(target)
        for number in op.births
    ]


def test_weights_share_one_buffer() -> None:
    """Stonesjtu/pytorch_memlab prints 32.03M for the weights of LSTM(1024, 1024) on a card:
    4 * 1024 * (1024 + 1024) + 2 * 4 * 1024 = 8,396,800 numbers of 4 bytes."""
    kept: list[nn.Module] = []
    graph = traced(lambda: kept.append(nn.LSTM(1024, 1024).cuda()))

    alive = [s for s in graph.storages if s.death is None and s.device == "cuda:0"]
    assert [storage.nbytes for storage in alive] == [8_396_800 * FLOAT]
    assert f"{alive[0].nbytes / 2**20:.2f}M" == "32.03M"
    assert len({weight.untyped_storage()._cdata for weight in kept[0].parameters()}) == 1


def test_weights_in_one_buffer_are_copied_into_another() -> None:
    """`RNNBase.flatten_parameters` only checks that no two weights have the same address.

    Recording wlm_gru of fixtures/cuda/public: after `torch.load`, which puts the two layers of
    GRU(200, 200) on the card in one storage, 482,400 numbers are allocated and as many freed.
    """
    numbers = 2 * 3 * 200 * (200 + 200 + 2)
    kept: list[nn.GRU] = []
    graph = traced(lambda: kept.append(nn.GRU(200, 200, 2).cuda()) or kept[0].flatten_parameters())

    buffers = [each for each in graph.storages if each.nbytes == numbers * FLOAT]
    assert numbers == 482_400
    assert [each.death is None for each in buffers] == [False, True]


def test_gradients_share_one_buffer_too() -> None:
    def build() -> TrainingStep:
        return TrainingStep(
            model=nn.GRU(8, 16, bidirectional=True),
            inputs=torch.randn(5, 3, 8),
            loss=lambda returned: returned[0].sum(),
            optimizer=None,
        )

    graph = trace(build, gpu=find_gpu("t4"), options=TraceOptions(steps=1))
    # The gradients of the input and the first state are unused; those of the weights: two
    # directions of 3 * 16 * (8 + 16) weights and 2 * 3 * 16 biases.
    of_weights = storages_of(graph, "aten._cudnn_rnn_backward.")[-1]

    assert of_weights.nbytes == 2 * (3 * 16 * 24 + 96) * FLOAT


def test_what_the_operation_returns() -> None:
    """T = 5, B = 3, two layers of 16: the output, both states, and the reserve: 256 bytes, four
    gates and the cell state of two layers, and the first layer's output."""

    def step() -> None:
        layers = nn.LSTM(8, 16, num_layers=2).cuda()
        layers(torch.randn(5, 3, 8, device="cuda"))

    output, hy, cy, reserve = storages_of(traced(step), "aten._cudnn_rnn.")

    assert output.nbytes == 5 * 3 * 16 * FLOAT
    assert hy.nbytes == cy.nbytes == 2 * 3 * 16 * FLOAT
    assert reserve.nbytes == 256 + 5 * 3 * (2 * (4 * 16 + 16) + 16) * FLOAT


def test_packed_sequences_have_a_row_for_each_step_of_each_sequence() -> None:
    def step() -> None:
        layers = nn.RNN(8, 16).cuda()
        rows = torch.randn(5, 3, 8, device="cuda")
        layers(pack_padded_sequence(rows, torch.tensor([5, 4, 2])))

    output = storages_of(traced(step), "aten._cudnn_rnn.")[0]

    assert output.nbytes == (5 + 4 + 2) * 16 * FLOAT


def test_the_steps_of_each_length_are_copied_before_they_are_packed() -> None:
    """As an H200 did for 64 sentences of 40 to 20 tokens, 512 wide (recording `seq2seq`)."""
    content = json.loads(gzip.decompress(SEQ2SEQ.read_bytes()))
    packing = [at for at, site in enumerate(content["sites"]) if ":pack_padded_sequence:" in site]
    events = dropwhile(lambda event: event[3:] != packing, content["events"])
    recorded = [event[1] for event in takewhile(lambda event: event[0] == "a", events)]
    lengths = torch.linspace(40, 20, 64).long()

    def step() -> None:
        pack_padded_sequence(torch.empty(64, 40, 512, device="cuda"), lengths, batch_first=True)

    _, *copies, packed = [each for each in traced(step).storages if each.device == "cuda:0"]

    assert [each.nbytes for each in (*copies, packed)] == recorded
    assert len(copies) == 20  # of 21 lengths; the one row of the longest is contiguous
    assert packed.nbytes == int(lengths.sum()) * 512 * FLOAT


def test_autocast_casts_all_weights_into_one_half_buffer() -> None:
    def step() -> None:
        layers = nn.LSTM(8, 16).cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            layers(torch.randn(5, 3, 8, device="cuda"))

    sizes = [storage.nbytes for storage in storages_of(traced(step), "aten.zeros.")]

    weights = 4 * 16 * (8 + 16) + 2 * 4 * 16
    assert weights * FLOAT in sizes  # the flat buffer of the module
    assert weights * 2 in sizes


def test_the_report_says_what_only_cudnn_knows() -> None:
    report = analyze(
        lambda: TrainingStep(
            model=nn.LSTM(8, 16),
            inputs=torch.randn(5, 3, 8),
            loss=lambda returned: returned[0].sum(),
        ),
        steps=1,
    )

    assert [each.what for each in report.assumptions] == [
        "what cuDNN's recurrent layers keep and need",
    ]


@pytest.mark.parametrize("width", [16, 64], ids=["known", "estimated"])
def test_the_peak_says_whether_its_workspace_is_an_estimate(width: int) -> None:
    """On an H100 that of an LSTM is known if its inputs are no wider than its state."""
    report = analyze(
        lambda: TrainingStep(
            model=nn.LSTM(width, 32),
            inputs=torch.randn(50, 3, width),
            loss=lambda returned: returned[0].sum(),
        ),
        gpu="h100-80gb",
        steps=1,
    )

    assert report.peak.op in ("aten._cudnn_rnn.default", "aten._cudnn_rnn_backward.default")
    told = "includes an estimate, workspace of cuDNN's recurrent layers" in report.to_text()
    assert told is (width > 32)


@pytest.mark.parametrize(
    ("steps", "nbytes"), [(40, 42_883_328), (56, 60_383_488), (33, 34_896_128)]
)
def test_dropout_keeps_a_bit_for_each_step_of_the_longest_sequence(steps: int, nbytes: int) -> None:
    """Recording `seq2seq`: 64 sentences of `steps` to half as many tokens, packed."""
    rows = int(torch.linspace(steps, steps // 2, 64).long().sum())
    layers = Layers(
        LSTM, steps, 64, rows, 512, 256, 256, 2, 2, 0.2, torch.float32, is_training=True
    )

    assert layers.reserve_bytes == nbytes


class TestCopies:
    """B = 3, T = 5, inputs of 8, states of 16; sizes in bytes of float32."""

    weights = (tensor(64, 8), tensor(64, 16), tensor(64), tensor(64))
    numbers = 64 * 8 + 64 * 16 + 2 * 64

    def forward(self, source: torch.Tensor, *, batch_first: bool) -> list[str | int]:
        state = tensor(1, 3, 16)
        return Calls().call(
            aten._cudnn_rnn.default, source, list(self.weights), 4, tensor(self.numbers),
            state, state, 2, 16, 0, 1, batch_first, 0.0, False, False, [], None,
        )  # fmt: skip

    def test_batch_first_is_copied_to_time_first(self) -> None:
        program = self.forward(tensor(3, 5, 8), batch_first=True)

        assert (program[0], program[-1]) == (3 * 5 * 8 * FLOAT, -3 * 5 * 8 * FLOAT)

    def test_time_first_is_not_copied(self) -> None:
        program = self.forward(tensor(5, 3, 8), batch_first=False)

        work = 256 + 32 + (8 << 20) + (15 * 8 + 64 * 24 + (21 * 15 + 8 * 3) * 16) * FLOAT
        assert program == ["out0", "out1", "out2", work, -work]


class TestCells:
    """B = 3, inputs of 10, states of 20 (cuda/RNN.cu); sizes in bytes of float32."""

    state = 3 * 20 * FLOAT

    def test_a_gru_cell_keeps_five_numbers_for_each_state_element(self) -> None:
        def step() -> None:
            cell = nn.GRUCell(10, 20).cuda()
            cell(torch.randn(3, 10, device="cuda")).sum().backward()

        graph = traced(step)

        forward = storages_of(graph, "aten._thnn_fused_gru_cell.")
        assert sorted(each.nbytes for each in forward) == [self.state, 5 * self.state]
        backward = storages_of(graph, "aten._thnn_fused_gru_cell_backward.")
        bias = 3 * 20 * FLOAT
        assert [each.nbytes for each in backward] == [
            3 * self.state, 3 * self.state, self.state, bias, bias
        ]  # fmt: skip

    def test_a_gru_cell_without_biases_has_no_bias_gradients(self) -> None:
        def step() -> None:
            cell = nn.GRUCell(10, 20, bias=False).cuda()
            cell(torch.randn(3, 10, device="cuda")).sum().backward()

        backward = storages_of(traced(step), "aten._thnn_fused_gru_cell_backward.")
        assert [each.nbytes for each in backward] == [3 * self.state, 3 * self.state, self.state]

    @pytest.mark.parametrize("bias", [True, False])
    def test_an_lstm_cell_keeps_its_gates(self, *, bias: bool) -> None:
        def step() -> None:
            cell = nn.LSTMCell(10, 20, bias=bias).cuda()
            cell(torch.randn(3, 10, device="cuda"))[0].sum().backward()

        forward = storages_of(traced(step), "aten._thnn_fused_lstm_cell.")
        assert sorted(each.nbytes for each in forward) == [self.state, self.state, 4 * self.state]

    def test_tensors_for_backward_are_allocated_first(self) -> None:
        gates, state = tensor(3, 80), tensor(3, 20)
        biases = tensor(80), tensor(80)
        program = Calls().call(aten._thnn_fused_lstm_cell.default, gates, gates, state, *biases)

        assert program == ["out2", "out0", "out1"]


def test_known_lengths_copied_off_the_device_pack_their_steps() -> None:
    def step() -> None:
        layers = nn.LSTM(8, 16, batch_first=True).cuda()
        rows = torch.randn(3, 5, 8, device="cuda")
        lengths = torch.tensor([5, 2, 4], device="cuda").cpu()
        layers(pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False))

    report = analyze(lambda: TrainingStep(step=step), steps=1)
    told = {each.what: each.value for each in report.assumptions}

    assert storages_of(traced(step), "aten._cudnn_rnn.")[0].nbytes == (5 + 2 + 4) * 16 * FLOAT
    assert "the lengths of packed sequences" not in told


@pytest.mark.parametrize(
    ("mode", "steps", "width", "nbytes"),
    [
        (GRU, 70, 200, 21_577_568),
        (LSTM, 70, 650, 55_257_568),
        (LSTM, 13, 650, 46_365_600),
        (LSTM, 35, 200, 21_177_568),
    ],
    ids=["wlm_gru", "wlm_lstm", "wlm_lstm, the last batch", "wlm_lstm_adamw_dry"],
)
def test_dropout_takes_no_workspace_in_evaluation(
    mode: int, steps: int, width: int, nbytes: int
) -> None:
    """Recordings of fixtures/cuda/public: 10 sequences, two layers, a dropout of 0.2."""
    rows = steps * 10
    layers = Layers(
        mode, steps, 10, rows, width, width, width, 2, 1, 0.2, torch.float32, is_training=False
    )
    assert layers.workspace_bytes == nbytes


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("is_packed", [False, True])
def test_inference_mode_runs_the_same_operation(kind: type[nn.RNNBase], is_packed: bool) -> None:
    """Composites arrive there in one piece: neuralforecast's predictions of its TFT."""
    targets = []
    for mode in (torch.no_grad, torch.inference_mode):

        def step(mode: type[torch.no_grad | torch.inference_mode] = mode) -> None:
            layers = kind(32, 32, 2, bidirectional=True).cuda()
            source = torch.zeros(7, 4, 32, device="cuda")
            with mode():
                layers(pack_padded_sequence(source, [7, 5, 3, 2]) if is_packed else source)

        targets.append([op.target for op in traced(step).ops if "detach" not in op.target])
    assert "aten._cudnn_rnn.default" in targets[0]
    assert targets[0] == targets[1]


def test_without_cudnn_layers_run_cell_by_cell() -> None:
    """PyTorch 2.13.0+cu130 itself, above a driver that runs no kernel, has these bytes then."""
    with virtual_gpu("h100-80gb"), torch.backends.cudnn.flags(enabled=False):
        layer = nn.LSTM(32, 48).cuda()
        steps = torch.randn(20, 4, 32, device="cuda")
        layer(steps)  # takes cuBLAS's workspace
        before = torch.cuda.memory_allocated()
        result, _ = layer(steps)

        assert torch.cuda.memory_allocated() - before == 243_712
        assert "Cudnn" not in str(result.grad_fn)
