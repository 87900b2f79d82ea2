"""Looks for primes until it gets SIGTERM. Then it prints the largest prime found so far."""

import signal
import sys
from types import FrameType

PRIMES_PER_LINE = 10_000

primes = [2]


def main() -> None:
    signal.signal(signal.SIGTERM, leave)
    try:
        search()
    finally:
        print(f"stopped: the largest prime so far is {primes[-1]}")


def search() -> None:
    candidate = 3
    while True:
        if is_prime(candidate):
            primes.append(candidate)
            if len(primes) % PRIMES_PER_LINE == 0:
                print(f"found {len(primes)} primes, the largest is {primes[-1]}")
        candidate += 2


def is_prime(candidate: int) -> bool:
    """Try the primes that are known, up to the candidate's square root."""
    for prime in primes:
        if prime * prime > candidate:
            return True
        if candidate % prime == 0:
            return False
    return True


def leave(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    main()
