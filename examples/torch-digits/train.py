"""Trains a convolutional network, in torch, to read handwritten digits; on a GPU where there is one.

Prints the training loss, the accuracy on digits that it has not trained on, and its speed, once an epoch.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

BATCH = 128
TEST_IMAGES = 360


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default="data/digits.csv.gz", help="the digits, as CSV (%(default)s)"
    )
    parser.add_argument(
        "--epochs", type=int, default=15, help="passes over the training images (%(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the split, the weights and the batches (%(default)s)"
    )
    parser.add_argument(
        "--runs", type=Path, default="runs", help="where the trained model is kept (%(default)s)"
    )
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(
        f"torch {torch.__version__} on {torch.cuda.get_device_name() if device.type == 'cuda' else 'the CPU'}"
    )
    images, labels = load(options.data, device)
    order = torch.randperm(len(images), device=device)
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    train_images, train_labels = shifted(images[train]), labels[train].repeat(9)

    network = new_network().to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    step = 0
    for epoch in range(1, options.epochs + 1):
        network.train()
        started = time.perf_counter()
        # Added up on the device: reading a loss out at each step would make the GPU wait for the CPU.
        loss_sum = torch.zeros((), device=device)
        batches = torch.randperm(len(train_images), device=device).split(BATCH)
        for batch in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(train_images[batch]), train_labels[batch])
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
        step += len(batches)
        mean_loss = loss_sum.item() / len(batches)
        throughput = len(train_images) / (time.perf_counter() - started)
        network.eval()
        with torch.no_grad():
            accuracy = (network(images[test]).argmax(dim=1) == labels[test]).float().mean().item()
        print(
            f"epoch={epoch} step={step} loss={mean_loss:.4f} "
            f"accuracy={accuracy:.4f} throughput={throughput:.1f} images/s"
        )

    options.runs.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), options.runs / "model.pt")


def load(path: Path, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images (n, 1, 8, 8), from 0 to 1, and what they show. A row is 64 pixels from 0 to 16, then the digit."""
    table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.float32)).to(device)
    return table[:, :64].reshape(-1, 1, 8, 8) / 16, table[:, 64].long()


def shifted(images: torch.Tensor) -> torch.Tensor:
    """Return the images in nine positions, a pixel apart: a digit is the same a little aside."""
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    return torch.cat([padded[:, :, y : y + 8, x : x + 8] for y in range(3) for x in range(3)])


def new_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(128, 10),
    )


if __name__ == "__main__":
    main()
