"""Trains the network of train.py under torchrun, in a job whose nodes join and leave.

Each generation continues from the step at which the previous one was saved. Batches depend only on seed and step, so the number
of processes changes the speed of the training, but not its result. SIGTERM stops all processes after the same step, which is saved.
"""

import argparse
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

# Set before the imports, which take seconds. From here on SIGTERM only sets a flag, which is checked after each step.
asked_to_stop = False


def stop_after_this_step(*_: object) -> None:
    global asked_to_stop
    asked_to_stop = True


signal.signal(signal.SIGTERM, stop_after_this_step)

import torch  # noqa: E402
from torch import distributed, nn  # noqa: E402
from train import (  # noqa: E402
    BATCH,
    TEST_IMAGES,
    checkpoint_file,
    checksum,
    load,
    new_network,
    place_on_machine,
    save,
    saved_state,
    shifted,
)

STOPPED = 128 + signal.SIGTERM
PATIENCE = timedelta(seconds=30)
"""How long a process waits for the others. A node that is lost without a word is noticed this late at most."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default="data/digits.csv.gz", help="the digits, as CSV (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=2000, help="batches to learn from (%(default)s)")
    parser.add_argument(
        "--save-every", type=int, default=50, help="steps between two checkpoints (%(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the split, the weights and the batches (%(default)s)"
    )
    parser.add_argument(
        "--runs", type=Path, default="runs", help="where the trained model is kept (%(default)s)"
    )
    options = parser.parse_args()

    device = meet()
    rank, size = distributed.get_rank(), distributed.get_world_size()
    nodes, generation = os.environ.get("BAI_NUM_NODES", "1"), os.environ.get("BAI_GENERATION", "0")
    torch.manual_seed(options.seed)
    network = new_network().to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    step = start = restore(network, optimizer, device)
    if rank == 0:
        print(f"generation={generation} nodes={nodes} processes={size}: goes on after step {start}")

    images, labels = load(options.data, device)
    order = torch.randperm(len(images), generator=seeded(options.seed)).to(device)
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    train_images, train_labels = shifted(images[train]), labels[train].repeat(9)
    in_an_epoch = len(train_images) // BATCH
    torch.manual_seed(options.seed + start * size + rank)  # for the dropout

    network.train()
    while step < options.steps:
        started = time.perf_counter()
        epoch, number = divmod(step, in_an_epoch)
        if step == start or number == 0:
            shuffled = torch.randperm(len(train_images), generator=seeded(options.seed + 1 + epoch))
        batch = shuffled[number * BATCH : (number + 1) * BATCH][rank::size].to(device)
        optimizer.zero_grad()
        loss = (
            nn.functional.cross_entropy(network(train_images[batch]), train_labels[batch], reduction="sum")
            / BATCH
        )
        loss.backward()
        loss, stop = add_up(network, loss.detach())
        optimizer.step()
        step += 1
        if rank == 0:
            throughput = BATCH / (time.perf_counter() - started)
            print(
                f"step={step} loss={loss:.4f} throughput={throughput:.1f} images/s generation={generation} nodes={nodes}"
            )
            if stop or step == options.steps or step % options.save_every == 0:
                save(network, optimizer, step=step)
        if stop:
            if rank == 0:
                print(f"generation={generation}: asked to stop, stopped after step {step}")
            distributed.destroy_process_group()
            return STOPPED

    network.eval()
    with torch.no_grad():
        accuracy = (network(images[test]).argmax(dim=1) == labels[test]).float().mean().item()
    if rank == 0:
        print(f"step={step} accuracy={accuracy:.4f}")
    print(f"weights of process {rank}: {checksum(network)}")
    if os.environ["LOCAL_RANK"] == "0":  # one on each node
        options.runs.mkdir(parents=True, exist_ok=True)
        torch.save(network.state_dict(), options.runs / "model.pt")
    distributed.destroy_process_group()
    return 0


def meet() -> torch.device:
    """Wait for the other processes; return where this one computes."""
    place, processes = place_on_machine()
    if torch.cuda.device_count() >= processes:
        torch.cuda.set_device(place)
        distributed.init_process_group("nccl", timeout=PATIENCE)
        return torch.device("cuda", place)
    distributed.init_process_group("gloo", timeout=PATIENCE)
    return torch.device("cpu")


def add_up(network: nn.Module, loss: torch.Tensor) -> tuple[float, bool]:
    """Put the sum over all processes into each gradient; return that of the losses, and whether any process was asked to stop.

    All in one message: then all learn of it at the same step.
    """
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    ours = loss.new_tensor([loss, asked_to_stop])
    message = torch.cat([*(each.flatten() for each in gradients), ours])
    distributed.all_reduce(message)
    *parts, sums = message.split([*(each.numel() for each in gradients), len(ours)])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    total, stop = sums.tolist()
    return total, stop > 0


def restore(network: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Go on from the checkpoint that was restored, if any; return its step. Each node has a copy: they must be the same."""
    step = 0
    if (state := saved_state(device)) is not None:
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    bounds = torch.tensor([step, -step], device=device)
    distributed.all_reduce(bounds, distributed.ReduceOp.MAX)
    last, first = bounds[0].item(), -bounds[1].item()
    if first != last:
        sys.exit(
            f"the nodes have different checkpoints: {checkpoint_file()} is of step {step} here, elsewhere of {first} to {last}"
        )
    return step


def seeded(seed: int) -> torch.Generator:
    """Return a generator that draws the same on all processes, whatever else each of them draws."""
    return torch.Generator().manual_seed(seed)


if __name__ == "__main__":
    sys.exit(main())
