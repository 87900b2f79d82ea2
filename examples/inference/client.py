"""Sends images of digits to the server, one after the other, and prints how long the answers took."""

import gzip
import http.client
import json
import os
import statistics
import sys
import time

BATCH = 100
DATA = "data/digits.csv.gz"


def main(requests):
    host, port = os.environ["INFERENCE_SERVER_HOST"], int(os.environ["INFERENCE_SERVER_PORT"])
    with gzip.open(DATA, "rt") as file:
        rows = [[int(value) for value in line.split(",")] for line in file]
    connection = http.client.HTTPConnection(host, port, timeout=30)
    times, right = [], 0
    begun = time.perf_counter()
    for number in range(1, requests + 1):
        *pixels, digit = rows[number % len(rows)]
        sent = time.perf_counter()
        connection.request("POST", "/predict", json.dumps(pixels))
        answer = json.loads(connection.getresponse().read())
        times.append((time.perf_counter() - sent) * 1000)
        right += answer["digit"] == digit
        if number % BATCH == 0:
            print(f"request {number}: latency {statistics.median(times[-BATCH:]):.3f} ms", flush=True)
    seconds = time.perf_counter() - begun
    times.sort()
    print(f"p50 {times[len(times) // 2]:.3f} ms, p99 {times[len(times) * 99 // 100]:.3f} ms")
    print(f"throughput {requests / seconds:.1f} requests/s, accuracy {right / requests:.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
