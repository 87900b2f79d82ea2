"""Splits the digits: four of five are for training, every fifth is for the test. Pixels become numbers from 0 to 1."""

import csv
import gzip
import random
from pathlib import Path

DATA = Path("data/digits.csv.gz")
PREPARED = Path("prepared")
TEST_SHARE = 5


def main() -> None:
    with gzip.open(DATA, "rt", newline="") as file:
        rows = [[int(float(each)) for each in row] for row in csv.reader(file)]
    random.Random(0).shuffle(rows)
    PREPARED.mkdir(exist_ok=True)
    test = len(rows) // TEST_SHARE
    write(PREPARED / "test.csv", rows[:test])
    write(PREPARED / "train.csv", rows[test:])


def write(path: Path, rows: list[list[int]]) -> None:
    """Write the digit of each row, then its 64 pixels."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([row[64], *(pixel / 16 for pixel in row[:64])] for row in rows)
    print(f"wrote {len(rows)} images to {path}")


if __name__ == "__main__":
    main()
