"""MNIST in one process, as people write such scripts. Start it with: python own_script.py"""

import argparse
from pathlib import Path

import torch
from mnist_data import MNIST, MNIST_FOLDER, mnist_folder
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm

BATCH = 64
LR = 0.1


class Shifted(MNIST):
    """MNIST, with each image moved by up to two pixels."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        shift = torch.randint(-2, 3, (2,)).tolist()
        return image.roll(shift, (1, 2)), label


def network():
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(256, 10),
    )  # fmt: skip


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=mnist_folder, default=MNIST_FOLDER, help="folder with MNIST's four files")
    parser.add_argument("--images", type=int, default=6_000, help="training images")
    parser.add_argument("--tested", type=int, default=1_999, help="test images")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("own.pt"), help="file for the checkpoint")
    return parser.parse_args()


def main():
    args = parse_arguments()
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    torch.set_num_threads(1)

    torch.manual_seed(args.seed)
    model = network().to(device)
    loss_function = nn.CrossEntropyLoss()

    train = Shifted(args.data, "train", args.images)
    test = MNIST(args.data, "test", args.tested)
    loader = DataLoader(train, BATCH, shuffle=True, drop_last=True)
    test_loader = DataLoader(test, 500)

    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, epochs=args.epochs, steps_per_epoch=len(loader))

    for epoch in range(1, args.epochs + 1):
        model.train()
        loss_sum = torch.zeros((), device=device)
        for images, labels in tqdm(loader, desc=f"epoch {epoch}", disable=None):
            loss = loss_function(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            loss_sum += loss.detach()
        mean_loss = loss_sum.item() / len(loader)

        model.eval()
        right = torch.zeros((), device=device)
        with torch.no_grad():
            for images, labels in test_loader:
                guesses = model(images.to(device)).argmax(1)
                right += (guesses == labels.to(device)).sum()
        accuracy = right.item() / len(test)

        print(f"epoch {epoch}: loss {mean_loss:.3f}, accuracy {accuracy:.2%}")
        torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)


if __name__ == "__main__":
    main()
