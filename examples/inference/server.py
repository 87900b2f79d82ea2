"""A server that recognises the handwritten digit in an image. The answer is the digit whose mean image is nearest."""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REPORT_EVERY = 200
"""Requests after which their number and mean time are printed."""
LARGEST = 64 * 1024
"""Largest request (bytes)."""


class Model:
    def __init__(self, path):
        self.centroids = json.loads(Path(path).read_text())["centroids"]
        self.lock = threading.Lock()
        self.requests, self.seconds = 0, 0.0

    def predict(self, pixels):
        begun = time.perf_counter()
        distances = [sum((a - b) ** 2 for a, b in zip(pixels, each, strict=True)) for each in self.centroids]
        digit = distances.index(min(distances))
        with self.lock:
            self.requests += 1
            self.seconds += time.perf_counter() - begun
            if self.requests % REPORT_EVERY == 0:
                mean_us = self.seconds / self.requests * 1e6
                print(f"served {self.requests} requests, compute {mean_us:.1f} us each", flush=True)
        return digit


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept
    disable_nagle_algorithm = True
    model: Model

    def do_GET(self):
        self.answer(200 if self.path == "/ping" else 404, b"pong\n")

    def do_POST(self):
        size = int(self.headers.get("Content-Length", 0))
        if size > LARGEST:
            self.close_connection = True
            self.answer(413, b"too large\n")
            return
        digit = self.model.predict(json.loads(self.rfile.read(size)))
        self.answer(200, json.dumps({"digit": digit}).encode())

    def answer(self, status, content):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        """Print nothing for each request: it would be measured."""


if __name__ == "__main__":
    path, port = sys.argv[1], int(sys.argv[2])
    Handler.model = Model(path)
    with ThreadingHTTPServer(("", port), Handler) as server:
        print(f"serves {path} at port {port}", flush=True)
        server.serve_forever()
