"""Fits a softmax regression to the handwritten digits by gradient descent."""

import argparse
from pathlib import Path

import digits
import numpy as np

RATE = 1.0
ITERATIONS_PER_LINE = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    options = parser.parse_args()

    train, test = digits.load(options.data)
    weights = np.zeros((64, 10))
    wanted = np.eye(10)[train.labels]
    for iteration in range(1, options.iterations + 1):
        scores = train.pixels @ weights
        probabilities = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        if iteration % ITERATIONS_PER_LINE == 0:
            loss = -np.log((probabilities * wanted).sum(axis=1)).mean()
            print(f"iteration {iteration}: train loss {loss:.4f}")
            print(f"accuracy={np.mean((test.pixels @ weights).argmax(axis=1) == test.labels):.4f}")
        weights -= RATE * train.pixels.T @ (probabilities - wanted) / len(train.labels)


if __name__ == "__main__":
    main()
