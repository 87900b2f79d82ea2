"""Reads the digits of data/test.csv with the model that learn.py has trained, and prints the share of correct answers."""

from __future__ import annotations

import csv
import json
from operator import mul
from pathlib import Path

DIGITS = range(10)


def main() -> None:
    weights: list[list[float]] = json.loads(Path("data/model.json").read_text())
    right, seen = [0] * len(DIGITS), [0] * len(DIGITS)
    with Path("data/test.csv").open(newline="") as file:
        for label, *pixels in csv.reader(file):
            digit = int(label)
            image = [*map(float, pixels), 1.0]
            scores = [sum(map(mul, row, image)) for row in weights]
            seen[digit] += 1
            right[digit] += scores.index(max(scores)) == digit
    for digit in DIGITS:
        if seen[digit]:
            print(f"digit {digit}: accuracy={right[digit] / seen[digit]:.4f} on {seen[digit]} images")
    print(f"accuracy={sum(right) / sum(seen):.4f} on {sum(seen)} images")


if __name__ == "__main__":
    main()
