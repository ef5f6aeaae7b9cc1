"""Writes to large tensors of zeros on the host, and prints what is there."""

import copy

import numpy as np
import torch

N = 3000  # 36 MB in 32 bits


def show(name, tensor):
    print(name, tensor.double().sum().item(), tensor.flatten()[:: N * N // 7].tolist())


def made():
    like = torch.ones(N, N)
    for zeros in (
        torch.zeros(N, N),
        torch.zeros_like(like),
        like.new_zeros(N, N),
        torch.full((N, N), 0.0, dtype=torch.bfloat16),
        torch.zeros(N, N, dtype=torch.int64),
        torch.zeros(N, N, dtype=torch.complex64).real,
        torch.zeros(N, N).to_sparse_csr().to_dense(),
        torch.zeros_like(like.t()),
    ):
        show(f"{zeros.dtype} {zeros.stride()}", zeros)


def changed():
    zeros = torch.zeros(N, N)
    zeros[1, :3] = 5
    copied = zeros.clone()
    show("a part, copied", copied)
    zeros.mul_(2).zero_()
    show("zeros again", zeros)
    zeros.mul_(2)
    zeros += 1
    show("ones", zeros)
    show("sum", torch.zeros(N, N) + zeros)
    scaled = torch.zeros(N, N)
    scaled.mul_(float("inf"))
    print(scaled[0, 0])
    state = torch.zeros(N, N).lerp_(zeros, 0.5)
    show("state", copy.deepcopy(state))
    random = torch.zeros(N, N)
    torch.manual_seed(1)
    random.normal_()
    show("random", random)
    show("written to", torch.empty(N, N).copy_(zeros))


def seen_by_others():
    zeros = torch.zeros(N, N)
    zeros.numpy()[3] = 7
    show("written by NumPy", zeros.clone())
    print(np.asarray(torch.zeros(N, N)).sum())
    zeros = torch.zeros(N, N)
    zeros.untyped_storage().resize_(0)
    zeros.untyped_storage().resize_(4 * N * N)
    show("resized", zeros.fill_(2))


def differentiated():
    weight = torch.zeros(N, N, requires_grad=True)
    (weight + 1).pow(2).sum().backward()
    show("gradient", weight.grad)
    torch.optim.AdamW([weight], lr=1).step()
    show("weight", weight.detach())


made()
changed()
seen_by_others()
differentiated()
