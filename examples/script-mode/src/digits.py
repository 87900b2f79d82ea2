"""The handwritten digits, as two sets: one to learn from, one to be tested with."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Digits:
    pixels: np.ndarray
    """One row of 64 pixels an image, from 0 to 1."""
    labels: np.ndarray


def load(path: Path) -> tuple[Digits, Digits]:
    """Return four fifths of the digits to train with, and one fifth to test with."""
    table = np.loadtxt(path, delimiter=",")
    np.random.default_rng(0).shuffle(table)
    digits = Digits(table[:, :64] / 16, table[:, 64].astype(int))
    cut = len(table) // 5
    return Digits(digits.pixels[cut:], digits.labels[cut:]), Digits(digits.pixels[:cut], digits.labels[:cut])
