"""Learns to read handwritten digits on all nodes of a job together: a softmax regression, in pure Python.

Each node takes its share of each batch, and the nodes add up their gradients. Therefore the weights are the same on all nodes, and
the training has the same result on any number of nodes.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import time
from array import array
from multiprocessing.connection import Client, Connection, Listener
from operator import add, mul
from pathlib import Path

PORT = 47012
SECONDS = 60.0
"""How long a node waits for the first one to listen."""
BATCH = 128
RATE = 0.5
INPUTS = 65
"""The pixels of an image, and 1."""
DIGITS = range(10)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10, help="passes over the images (%(default)s)")
    options = parser.parse_args()
    images = load(Path("data/train.csv"))
    nodes = Nodes()
    weights = [[0.0] * INPUTS for _ in DIGITS]
    for epoch in range(1, options.epochs + 1):
        started = time.perf_counter()
        # The same order on all nodes.
        random.Random(epoch).shuffle(images)
        total, own, own_images = 0.0, 0.0, 0
        for first in range(0, len(images), BATCH):
            batch = images[first : first + BATCH]
            share = batch[nodes.rank :: nodes.size]
            gradient, loss = learn(weights, share)
            *summed, batch_loss = nodes.add_up(array("d", [*gradient, loss]))
            step = RATE / len(batch)
            for digit in DIGITS:
                row = summed[digit * INPUTS : (digit + 1) * INPUTS]
                weights[digit] = [
                    weight - step * each for weight, each in zip(weights[digit], row, strict=True)
                ]
            total, own, own_images = total + batch_loss, own + loss, own_images + len(share)
        throughput = len(images) / (time.perf_counter() - started)
        if nodes.size > 1:
            shown = f"loss {own / own_images:.4f} on {own_images} images"
            print(f"epoch {epoch}, node {nodes.rank} of {nodes.size}: {shown}")
        if nodes.rank == 0:
            print(f"epoch={epoch} loss={total / len(images):.4f} throughput={throughput:.1f} images/s")
    Path("model.json").write_text(json.dumps(weights))


class Nodes:
    """The nodes of the job, which add up numbers through the first one."""

    def __init__(self) -> None:
        addresses = os.environ["BAI_NODE_ADDRS"].split(",")
        self.rank, self.size = int(os.environ["BAI_NODE_RANK"]), len(addresses)
        # It excludes connections of other programs.
        key = os.environ["BAI_JOB_ID"].encode()
        self._others: list[Connection] = []
        if self.rank > 0:
            self._others = [connect((addresses[0], PORT), key)]
        elif self.size > 1:
            with Listener((addresses[0], PORT), backlog=self.size, authkey=key) as listener:
                self._others = [listener.accept() for _ in addresses[1:]]

    def add_up(self, own: array[float]) -> array[float]:
        """Return the sums of all nodes' numbers. Raises EOFError if another node leaves."""
        if self.rank > 0:
            self._others[0].send_bytes(own.tobytes())
            return received(self._others[0])
        for other in self._others:
            own = array("d", map(add, own, received(other)))
        for other in self._others:
            other.send_bytes(own.tobytes())
        return own


def connect(address: tuple[str, int], key: bytes) -> Connection:
    """Return a connection to the first node, which may not listen yet. Raises OSError if it does not in time."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return Client(address, authkey=key)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def received(other: Connection) -> array[float]:
    numbers = array("d")
    numbers.frombytes(other.recv_bytes())
    return numbers


def load(path: Path) -> list[tuple[int, list[float]]]:
    """Return each digit with its pixels, from 0 to 1, and a 1."""
    with path.open(newline="") as file:
        return [(int(row[0]), [*map(float, row[1:]), 1.0]) for row in csv.reader(file)]


def learn(weights: list[list[float]], images: list[tuple[int, list[float]]]) -> tuple[list[float], float]:
    """Return the sums of the images' gradients, digit by digit, and of their losses."""
    gradient = [[0.0] * INPUTS for _ in DIGITS]
    loss = 0.0
    for label, image in images:
        scores = [sum(map(mul, row, image)) for row in weights]
        highest = max(scores)
        powers = [math.exp(score - highest) for score in scores]
        whole = sum(powers)
        loss -= math.log(powers[label] / whole)
        for digit in DIGITS:
            error = powers[digit] / whole - (digit == label)
            gradient[digit] = [
                each + error * pixel for each, pixel in zip(gradient[digit], image, strict=True)
            ]
    return [each for row in gradient for each in row], loss


if __name__ == "__main__":
    main()
