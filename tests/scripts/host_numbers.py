"""Fills large tensors on the host with random numbers, and prints what readers find in them.

With an argument a small part is read by way of the card.
"""

import copy
import ctypes
import hashlib
import io
import sys

import numpy as np
import torch
from torch import nn

N = 2100  # a square has more elements than those whose values are followed
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def show(name, tensor):
    numbers = tensor.detach().contiguous().view(torch.uint8).numpy()
    print(name, hashlib.sha256(numbers.tobytes()).hexdigest())


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.numbers = torch.empty(N, N).normal_()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.numbers[index].sum()


def drawn():
    for dtype in DTYPES:
        square = torch.empty(N, N, dtype=dtype).normal_(1, 2)
        uneven = torch.empty(N * N + 7, dtype=dtype).uniform_(-1, 2)
        also_uneven = torch.empty(N * N + 7, dtype=dtype).normal_()
        show(f"{dtype} next", torch.rand(3))
        show("generator", torch.get_rng_state())
        for each in (also_uneven, square, uneven):
            show(f"{dtype}", each)
    generator = torch.Generator().manual_seed(5)
    own = torch.empty(N, N).normal_(generator=generator)
    show("own generator", torch.rand(2, generator=generator))
    show("own", own)


def changed():
    layer = nn.Linear(N, N)
    nn.init.normal_(layer.weight, std=0.02)
    show("again", layer.weight)
    embedding = nn.Embedding(N, N, padding_idx=3)
    nn.init.trunc_normal_(embedding.weight, std=0.02)
    with torch.no_grad():
        embedding.weight[5].zero_()
    show("rows", embedding.weight[3:6])
    show("all", embedding.weight)
    transposed = torch.empty(N, N).normal_().t()
    before = transposed.clone()
    transposed.normal_()
    show("transposed", transposed)
    show("before", before)


def copied():
    show("cast", nn.Linear(N, N).bfloat16().weight)
    show("deep copy", copy.deepcopy(nn.Linear(N, N)).weight)
    weight = nn.Linear(N, N).weight.detach()
    half = weight.half()
    weight.mul_(2)
    show("half", half)
    show("doubled", weight)


def read():
    weight = nn.Linear(N, N).weight.detach()
    print(weight[0, :4].tolist(), nn.Linear(N, N).weight.sum().item())
    file = io.BytesIO()
    torch.save(nn.Linear(N, N).state_dict(), file)
    file.seek(0)
    show("saved", torch.load(file)["weight"])
    print([float(each) for each in torch.utils.data.DataLoader(Rows(), num_workers=2)])
    show("shared", torch.empty(N, N).normal_().share_memory_())
    print(np.asarray(torch.empty(N, N).normal_())[0, :3])
    print(np.from_dlpack(torch.empty(N, N).normal_())[1, 1])
    numbers = torch.empty(N, N).normal_()
    print(ctypes.string_at(numbers.data_ptr(), 8))
    part = nn.Linear(N, N).weight.detach()[:2, :3]
    print((part.cuda() if len(sys.argv) > 1 else part).tolist())


def seen_by_others():
    array = np.zeros((N, N), dtype=np.float32)
    torch.from_numpy(array).normal_()
    print(array[1, :3])
    tensor = torch.empty(N, N)
    array = tensor.numpy()
    tensor.normal_()
    print(array[1, :3])
    tensor = torch.empty(N, N).share_memory_().normal_()
    child = torch.multiprocessing.get_context("fork").Process(target=show, args=("child", tensor))
    child.start()
    child.join()


torch.manual_seed(3)
drawn()
changed()
copied()
read()
seen_by_others()
