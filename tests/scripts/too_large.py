"""A model larger than the card, which runs out before its first call."""

import torch
from torch import nn


def main() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(1 << 15, 1 << 15, bias=False) for _ in range(30)])
    model.to_empty(device="cuda")


main()
