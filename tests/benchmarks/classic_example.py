"""The well-known MNIST example, as a baseline: two 3×3 convolutions (32 and 64 channels), 9216–128–10,
dropout, Adadelta with learning rate 1.0 falling by 0.7 an epoch, batch 64.

    python classic_example.py SEED

Prints one JSON object: seconds of training and evaluation until 99 % test accuracy, and each epoch's.
"""

import json
import sys
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from workshop_lib.data import mnist

MEAN, STD = 33.3184, 78.5675
BATCH, TARGET, MOST_EPOCHS = 64, 0.99, 14


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(128, 10),
    )  # fmt: skip


def tensors(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    data = mnist.load(split)
    images = (torch.tensor(data.images).float() - MEAN) / STD
    return images.unsqueeze(1), torch.tensor(data.labels).long()


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    batches = zip(images.split(1000), labels.split(1000), strict=True)
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in batches)
    model.train()
    return right / len(labels)


def main(seed: int) -> dict:
    torch.manual_seed(seed)
    torch.set_num_threads(2)
    (images, labels), test = tensors("train"), tensors("test")
    model = network()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    epochs, seconds = [], 0.0
    while len(epochs) < MOST_EPOCHS and (not epochs or epochs[-1]["test_accuracy"] < TARGET):
        start = time.perf_counter()
        for index in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            cross_entropy(model(images[index]), labels[index]).backward()
            optimizer.step()
        schedule.step()
        reached = accuracy(model, *test)
        seconds += time.perf_counter() - start
        epochs.append({"seconds": seconds, "test_accuracy": reached})
    done = epochs[-1]["test_accuracy"] >= TARGET
    return {"seed": seed, "seconds_to_99": seconds if done else None, "epochs": epochs}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
