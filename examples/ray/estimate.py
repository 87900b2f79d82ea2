"""Estimates pi with tasks on all nodes of a Ray cluster: https://docs.ray.io

The script is independent of `bai`. `ray.init()` finds the running cluster by RAY_ADDRESS. If a node is lost, Ray repeats its tasks.
"""

from __future__ import annotations

import argparse
import random
import time

import ray

TASKS = 8
SAMPLES = 250_000


@ray.remote(scheduling_strategy="SPREAD", max_retries=-1)
def sample(seed: int) -> tuple[int, str]:
    """Return how many of the random points lie in the circle, and the node that has drawn them."""
    draw = random.Random(seed)
    inside = sum(draw.random() ** 2 + draw.random() ** 2 <= 1 for _ in range(SAMPLES))
    return inside, ray.get_runtime_context().get_node_id()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=20)
    rounds = options.parse_args().rounds

    ray.init(log_to_driver=False)
    inside = drawn = 0
    for number in range(rounds):
        begun = time.perf_counter()
        found = ray.get([sample.remote(number * TASKS + each) for each in range(TASKS)])
        seconds = time.perf_counter() - begun
        inside += sum(each for each, _ in found)
        drawn += TASKS * SAMPLES
        nodes = len({node for _, node in found})
        rate = TASKS * SAMPLES / seconds
        print(
            f"round={number} nodes={nodes} samples_per_second={rate:.0f} pi={4 * inside / drawn:.5f}",
            flush=True,
        )
    print(f"finished pi={4 * inside / drawn:.5f}")


if __name__ == "__main__":
    main()
