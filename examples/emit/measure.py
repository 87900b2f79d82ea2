"""Measures how fast one core of this machine copies, hashes, compresses and sorts, with only the standard library."""

import argparse
import hashlib
import random
import time
import zlib
from collections.abc import Callable

from benchmarkai import emit

MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="how often each is measured (%(default)s)")
    options = parser.parse_args()

    generator = random.Random(0)
    block = generator.randbytes(64 * MIB)
    target = memoryview(bytearray(block))
    words = b" ".join(generator.choice((b"loss", b"step", b"epoch", b"accuracy")) for _ in range(2 * MIB))
    numbers = [generator.random() for _ in range(500_000)]

    for number in range(1, options.rounds + 1):
        emit(
            {
                "copy_mib_per_s": len(block) / MIB / seconds(lambda: copy(block, target)),
                "sha256_mib_per_s": len(block) / MIB / seconds(lambda: hashlib.sha256(block)),
                "zlib_mib_per_s": len(words) / MIB / seconds(lambda: zlib.compress(words, level=1)),
                "sort_numbers_per_s": len(numbers) / seconds(lambda: sorted(numbers)),
            }
        )
        print(f"round {number} of {options.rounds}")


def copy(block: bytes, target: memoryview) -> None:
    """Copy into memory that is there already: new memory would measure the kernel's page faults."""
    target[:] = block


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
