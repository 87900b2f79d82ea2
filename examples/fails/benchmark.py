"""Parses numbers in two stages; the second stage's configuration is missing."""

import json
import sys
import time
import traceback
from pathlib import Path

ROWS = 200_000
EXIT_NO_CONFIGURATION = 7


def main() -> None:
    print(f"stage 1: rows_per_s={parse_rows(ROWS):.1f}")
    try:
        configuration = json.loads(Path("stage2.json").read_text())
    except FileNotFoundError:
        traceback.print_exc()
        sys.exit(EXIT_NO_CONFIGURATION)
    print(f"stage 2: rows_per_s={parse_rows(configuration['rows']):.1f}")


def parse_rows(count: int) -> float:
    """Return how many rows it parsed in a second."""
    rows = [f"{number},{number / 7:.6f}" for number in range(count)]
    started = time.perf_counter()
    total = 0.0
    for row in rows:
        total += float(row.partition(",")[2])
    return count / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
