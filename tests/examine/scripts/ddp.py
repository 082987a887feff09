"""A small training script with DDP as people write it. The tests plant faults in it by replacing lines."""

import contextlib
import os
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

OUT = Path(os.environ.get("OUT", "."))
ACCUMULATE = 2


class Points(Dataset):
    def __init__(self, count, noise):
        generator = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(count, 16, generator=generator)
        self.labels = (self.inputs.sum(1) > 0).long()
        self.noise = noise

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.inputs[index] + self.noise * torch.randn(16), self.labels[index]


def build():
    first = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU())
    return nn.Sequential(first, nn.Dropout(0.1), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))


def train(model, loader, optimizer):
    model.train()
    for number, (inputs, labels) in enumerate(loader):
        last = (number + 1) % ACCUMULATE == 0
        with contextlib.nullcontext() if last else model.no_sync():
            loss = nn.functional.cross_entropy(model(inputs), labels) / ACCUMULATE
            loss.backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def evaluate(model, loader):
    model.eval()
    right = torch.zeros(2)
    with torch.no_grad():
        for inputs, labels in loader:
            right += torch.tensor([(model(inputs).argmax(1) == labels).sum(), len(labels)])
    distributed.all_reduce(right)
    return right[0] / right[1]


def main():
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(1)
    model = build()
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + rank)
    train_set, test_set = Points(256, 0.1), Points(90, 0.0)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=8, sampler=sampler, drop_last=True)
    test_loader = DataLoader(Subset(test_set, range(rank, len(test_set), size)), batch_size=32)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        train(model, loader, optimizer)
        accuracy = evaluate(model, test_loader)
        if rank == 0:
            print(f"epoch {epoch}: {accuracy:.1%}")
            torch.save({"model": model.module.state_dict(), "epoch": epoch}, OUT / "model.tmp")
            (OUT / "model.tmp").replace(OUT / "model.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
