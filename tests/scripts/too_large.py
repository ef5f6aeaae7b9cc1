"""A model that is larger than the card, before it is ever called."""

import torch
from torch import nn


def main() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(1 << 15, 1 << 15, bias=False) for _ in range(30)])
    model.to_empty(device="cuda")


main()
