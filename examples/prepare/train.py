"""Learns the mean image of each digit from data/train.csv, and recognises the digits of data/test.csv by the nearest mean image."""

import csv
import json
from pathlib import Path

Image = list[float]


def main() -> None:
    means = learned(load(Path("data/train.csv")))
    test = load(Path("data/test.csv"))
    right = sum(nearest(means, image) == digit for digit, image in test)
    print(f"accuracy={right / len(test):.4f} on {len(test)} images")
    Path("model.json").write_text(json.dumps(means))


def load(path: Path) -> list[tuple[str, Image]]:
    """Return each digit with its 64 pixels, from 0 to 1."""
    with path.open(newline="") as file:
        return [(row[0], [float(pixel) for pixel in row[1:]]) for row in csv.reader(file)]


def learned(images: list[tuple[str, Image]]) -> dict[str, Image]:
    """Return the mean image of each digit."""
    found: dict[str, list[Image]] = {}
    for digit, image in images:
        found.setdefault(digit, []).append(image)
    return {
        digit: [sum(pixels) / len(some) for pixels in zip(*some, strict=True)]
        for digit, some in sorted(found.items())
    }


def nearest(means: dict[str, Image], image: Image) -> str:
    def distance(digit: str) -> float:
        return sum((mean - pixel) ** 2 for mean, pixel in zip(means[digit], image, strict=True))

    return min(means, key=distance)


if __name__ == "__main__":
    main()
