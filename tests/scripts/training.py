"""A small typical training script: data loader, evaluation, checkpoint."""

import argparse
import sys

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def evaluate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    total, correct = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            logits = model(x.to("cuda"))
            total += F.cross_entropy(logits, y.cuda(), reduction="sum").item()
            correct += int((logits.argmax(1) == y.to("cuda")).sum())
    model.train()
    return total / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--save")
    options = parser.parse_args()

    torch.manual_seed(0)
    x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))
    mean = x.mean().item()
    loader = DataLoader(
        TensorDataset(x, y), batch_size=32, num_workers=options.workers, pin_memory=True
    )
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    first = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    model.to("cuda")
    assert first is model[0].weight
    assert first.is_cuda
    for epoch in range(options.epochs):
        for batch, target in loader:
            loss = F.cross_entropy(model(batch.cuda(non_blocking=True)), target.cuda())
            if torch.isnan(loss).any():
                sys.exit("diverged")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss:.2f} eval {evaluate(model, loader):.4f}")
    print("the CPU is real:", mean == x.mean().item() and 0.9 < x.std().item() < 1.1)
    if options.save:
        torch.save({"model": model.state_dict(), "data": x}, options.save)
        loaded = torch.load(options.save)
        print(loaded["model"]["0.weight"].device, torch.equal(loaded["data"], x))
        on_host = torch.load(options.save, map_location="cpu")
        weight = on_host["model"]["0.weight"]
        print(weight.device, weight.abs().sum().item())


if __name__ == "__main__":
    main()
