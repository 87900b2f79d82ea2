"""Trains a convolutional network, in torch, to read handwritten digits; on a GPU if there is one.

Prints the training loss, the accuracy on digits that were not used for training, and the speed, once an epoch.
Runs alone, under torchrun, or with Horovod under mpirun. Several processes share each batch, and add up their gradients. In a job with
[checkpoint] the state is saved after each epoch. After a restart the training continues from it, with any number of processes.
"""

import argparse
import hashlib
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

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

    team = new_team()
    torch.manual_seed(options.seed)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", team.place % torch.cuda.device_count())
    if team.rank == 0:
        where = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
        print(f"torch {torch.__version__} on {where}, {team.size} × {team.name}")
    images, labels = load(options.data, device)
    # The order is the same on all processes, regardless of other random numbers.
    shuffle = torch.Generator(device).manual_seed(options.seed)
    order = torch.randperm(len(images), device=device, generator=shuffle)
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    train_images, train_labels = shifted(images[train]), labels[train].repeat(9)

    network = new_network().to(device)
    torch.manual_seed(options.seed + 1 + team.rank)  # for the dropout
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    trained = step = 0
    if (state := saved_state(device)) is not None:
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        shuffle.set_state(state["shuffle"].cpu())
        trained, step = state["epoch"], state["step"]
        print(f"process {team.rank} of {team.size} goes on after epoch {trained}")
    if team.sum(torch.tensor([trained], device=device)).item() != trained * team.size:
        sys.exit(f"the nodes have different checkpoints: here it is of epoch {trained}")
    for epoch in range(trained + 1, options.epochs + 1):
        network.train()
        started = time.perf_counter()
        # The losses are added up on the device, because reading one at each step would make the GPU wait for the CPU.
        loss_sum = torch.zeros((), device=device)
        share_sum, share_size = torch.zeros((), device=device), 0
        batches = torch.randperm(len(train_images), device=device, generator=shuffle).split(BATCH)
        for batch in batches:
            optimizer.zero_grad()
            # This process's share of the batch's mean; shares may differ by an image.
            share = batch[team.rank :: team.size]
            own_loss = nn.functional.cross_entropy(
                network(train_images[share]), train_labels[share], reduction="sum"
            )
            loss = own_loss / len(batch)
            loss.backward()
            add_up_gradients(network, team)
            optimizer.step()
            loss_sum += loss.detach()
            share_sum += own_loss.detach()
            share_size += len(share)
        step += len(batches)
        if team.size > 1:
            share_loss = share_sum.item() / share_size
            print(f"process={team.rank} step={step} share_loss={share_loss:.6f} of {share_size} images")
        mean_loss = team.sum(loss_sum).item() / len(batches)
        throughput = len(train_images) / (time.perf_counter() - started)
        network.eval()
        with torch.no_grad():
            accuracy = (network(images[test]).argmax(dim=1) == labels[test]).float().mean().item()
        if team.rank == 0:
            print(
                f"epoch={epoch} step={step} loss={mean_loss:.4f} "
                f"accuracy={accuracy:.4f} throughput={throughput:.1f} images/s"
            )
            save(network, optimizer, epoch=epoch, step=step, shuffle=shuffle.get_state())

    print(f"weights of process {team.rank}: {checksum(network)}")
    if team.local_rank == 0:  # one on each node
        options.runs.mkdir(parents=True, exist_ok=True)
        torch.save(network.state_dict(), options.runs / "model.pt")
    team.leave()


class Alone:
    """The one process of a training that shares nothing."""

    name = "alone"
    rank, size, local_rank = 0, 1, 0
    place = 0  # among the processes of this machine, on which several nodes may be

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of all processes' tensors."""
        return tensor

    def leave(self) -> None:
        return


class TorchrunTeam(Alone):
    name = "torchrun"

    def __init__(self) -> None:
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.place, processes = place_on_machine()
        backend = "gloo"
        if torch.cuda.device_count() >= processes:
            torch.cuda.set_device(self.place)
            backend = "nccl"
        torch.distributed.init_process_group(backend, timeout=timedelta(minutes=1))
        self.rank, self.size = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        torch.distributed.all_reduce(tensor)
        return tensor

    def leave(self) -> None:
        torch.distributed.destroy_process_group()


def place_on_machine() -> tuple[int, int]:
    """Return the number of this process among those of its machine, and how many there are: NCCL refuses two on one GPU.

    Under torchrun. Nodes of a local job are all on one machine.
    """
    addresses = os.environ.get("BAI_NODE_ADDRS", "").split(",")
    node, local = int(os.environ.get("BAI_NODE_RANK", "0")), int(os.environ["LOCAL_RANK"])
    here = [rank for rank, address in enumerate(addresses) if address == addresses[node]]
    of_node = int(os.environ["LOCAL_WORLD_SIZE"])
    return here.index(node) * of_node + local, len(here) * of_node


class HorovodTeam(Alone):
    name = "Horovod"

    def __init__(self) -> None:
        import horovod.torch

        self.horovod = horovod.torch
        self.horovod.init()
        self.rank, self.size = self.horovod.rank(), self.horovod.size()
        self.place = self.local_rank = self.horovod.local_rank()

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        # Reduces on the CPU, because a Horovod can reduce on GPUs only if it was built for that.
        return self.horovod.allreduce(tensor.cpu(), op=self.horovod.Sum).to(tensor.device)

    def leave(self) -> None:
        self.horovod.shutdown()


def new_team() -> Alone:
    """Return the processes that train together, by what started this one."""
    if "OMPI_COMM_WORLD_SIZE" in os.environ or "HOROVOD_SIZE" in os.environ:
        return HorovodTeam()
    return TorchrunTeam() if "TORCHELASTIC_RUN_ID" in os.environ else Alone()


def add_up_gradients(network: nn.Module, team: Alone) -> None:
    """Put the sum over all processes into each gradient; in one message, as many small ones take longer."""
    if team.size == 1:
        return
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    together = team.sum(torch.cat([each.flatten() for each in gradients]))
    for gradient, part in zip(gradients, together.split([each.numel() for each in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def checkpoint_file() -> Path | None:
    """Return where the training is saved; None for a job without [checkpoint]."""
    folder = os.environ.get("BAI_CHECKPOINT_DIR")
    return Path(folder, "training.pt") if folder else None


def save(network: nn.Module, optimizer: torch.optim.Optimizer, **progress: object) -> None:
    """Write the checkpoint under another name and rename it: whoever reads it finds the old one or the new one, whole."""
    path = checkpoint_file()
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), **progress}
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def saved_state(device: torch.device) -> dict[str, Any] | None:
    """Return what `save` wrote, if the job has restored it; whatever else lies in the folder is this node's alone."""
    path = checkpoint_file()
    if path is None or not os.environ["BAI_RESUMED"]:
        return None
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state


def checksum(network: nn.Module) -> str:
    """Return what is the same for all processes, if they have learned the same to the last bit."""
    weights = torch.cat([each.detach().flatten() for each in network.parameters()])
    return hashlib.sha256(weights.cpu().numpy().tobytes()).hexdigest()[:16]


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
