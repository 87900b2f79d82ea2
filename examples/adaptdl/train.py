"""Trains a small network with AdaptDL, as its documentation shows it: https://adaptdl.readthedocs.io

The script is independent of `bai`. AdaptDL chooses the batch size for the present number of replicas, saves when it is told to end,
and resumes in the middle of an epoch. The first replica prints a line for each of its batches:

    epoch=3 batch=128 loss=0.1432 replicas=2
"""

import argparse
import gzip
from pathlib import Path

import adaptdl.env
import adaptdl.torch
import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

TEST_IMAGES = 360


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default="data/digits.csv.gz", help="the digits, as CSV (%(default)s)"
    )
    parser.add_argument(
        "--epochs", type=int, default=30, help="passes over the training images (%(default)s)"
    )
    parser.add_argument("--batch-size", type=int, default=64, help="images at once (%(default)s)")
    options = parser.parse_args()

    # The network is small, so CPUs suffice, and any number of replicas can share a machine.
    adaptdl.torch.init_process_group("gloo")
    torch.manual_seed(0)
    train, test = load(options.data)
    batches = adaptdl.torch.AdaptiveDataLoader(
        train, batch_size=options.batch_size, shuffle=True, drop_last=True
    )
    batches.autoscale_batch_size(1024, local_bsz_bounds=(32, 256))
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    model = adaptdl.torch.AdaptiveDataParallel(network, optimizer)
    is_first = adaptdl.env.replica_rank() == 0

    for epoch in adaptdl.torch.remaining_epochs_until(options.epochs):
        model.train()
        for images, labels in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            if is_first:
                size, replicas = batches.current_batch_size, adaptdl.env.num_replicas()
                print(f"epoch={epoch} batch={size} loss={loss.item():.4f} replicas={replicas}")
    if is_first:
        network.eval()
        with torch.no_grad():
            right = network(test.tensors[0]).argmax(dim=1) == test.tensors[1]
        print(f"accuracy={right.float().mean().item():.4f}")


def load(path: Path) -> tuple[TensorDataset, TensorDataset]:
    """Return the images to learn from and those to test with: 8 × 8 pixels from 0 to 16, and a digit."""
    with gzip.open(path, "rt") as lines:
        table = torch.from_numpy(np.loadtxt(lines, delimiter=",", dtype=np.float32))
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    images, labels = table[:, :64] / 16, table[:, 64].long()
    return (
        TensorDataset(images[TEST_IMAGES:], labels[TEST_IMAGES:]),
        TensorDataset(images[:TEST_IMAGES], labels[:TEST_IMAGES]),
    )


if __name__ == "__main__":
    main()
