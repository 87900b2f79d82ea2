"""Compresses blocks of words, and prints the throughput and the ratio of the sizes, three times."""

import os
import random
import time
import zlib

LEVEL, KIB = int(os.environ["LEVEL"]), int(os.environ["KIB"])
TOTAL = 2 << 20

draw = random.Random(1)
words = [bytes(draw.randrange(97, 123) for _ in range(draw.randrange(2, 9))) for _ in range(2000)]
text = b" ".join(draw.choices(words, k=TOTAL // 4))[:TOTAL]
blocks = [text[start : start + KIB * 1024] for start in range(0, len(text), KIB * 1024)]
for _ in range(3):
    begin = time.perf_counter()
    size = sum(len(zlib.compress(block, LEVEL)) for block in blocks)
    seconds = time.perf_counter() - begin
    print(f"throughput={len(text) / 2**20 / seconds:.2f} ratio={len(text) / size:.2f}")
