"""Services that an instance reaches while it boots: its metadata service, and S3 that checks signatures."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from urllib.parse import parse_qs, unquote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

ACCESS_KEY, SECRET_KEY, SESSION_TOKEN = "ASIAPLANTED", "planted-secret-key", "planted-session-token"


@dataclass
class Services:
    """Both services on one port, distinguished by the paths. A test may change the answers at any time."""

    objects: dict[str, bytes] = field(default_factory=dict)
    """Content of each object, by bucket/key."""
    region: str = "us-east-1"
    instance_id: str = "i-0123456789abcdef0"
    launch_index: int = 0
    role: str | None = "worker"
    metadata: dict[str, str] = field(default_factory=dict)
    """Further content of the metadata tree, by the path below `meta-data/`."""
    clock: timedelta = timedelta()
    """Time by which the servers' clock is ahead of this machine's clock."""
    refuse: Callable[[str], tuple[int, str] | None] = lambda _path: None
    """Function from a path to the status and error code of a refusal, or None."""
    requests: list[tuple[str, int]] = field(default_factory=list)
    """Path with query, and status, of each request."""
    url: str = ""

    def put(self, key: str, content: bytes) -> str:
        """Store an object as `bucket/key`; return its sha256."""
        self.objects[key] = content
        return hashlib.sha256(content).hexdigest()

    def serve(self, listener: socket | None = None) -> ThreadingHTTPServer:
        """Answer on `listener`, or on a free port of this machine, until the returned server is shut down."""
        address = listener.getsockname() if listener else ("127.0.0.1", 0)
        server = ThreadingHTTPServer(address, _handler(self), bind_and_activate=listener is None)
        if listener is not None:
            server.socket.close()
            server.socket = listener
        host, port = server.socket.getsockname()
        self.url = f"http://{host}" if port == 80 else f"http://{host}:{port}"
        threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
        return server


def _handler(services: Services) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "EC2ws", ""

        def do_PUT(self) -> None:
            lives = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            self._answer(200 if self.path == "/latest/api/token" and lives.isdigit() else 400, b"the-token")

        def do_HEAD(self) -> None:
            """Answer as S3 does to an unsigned request: only with the time."""
            services.refuse(self.path)
            self._answer(403)

        def do_GET(self) -> None:
            refusal = services.refuse(self.path)
            if refusal is not None:
                return self._error(*refusal)
            if self.path.startswith("/latest/"):
                return self._metadata(self.path.removeprefix("/latest/"))
            return self._s3()

        def _metadata(self, path: str) -> None:
            if self.headers.get("X-aws-ec2-metadata-token") != "the-token":
                return self._answer(401)
            credentials = {
                "Code": "Success",
                "AccessKeyId": ACCESS_KEY,
                "SecretAccessKey": SECRET_KEY,
                "Token": SESSION_TOKEN,
            }
            tree = {
                "meta-data/instance-id": services.instance_id,
                "meta-data/ami-launch-index": str(services.launch_index),
            }
            tree |= {f"meta-data/{name}": content for name, content in services.metadata.items()}
            if services.role:
                tree["meta-data/iam/security-credentials/"] = services.role
                tree[f"meta-data/iam/security-credentials/{services.role}"] = json.dumps(credentials)
            return self._answer(200, tree[path].encode()) if path in tree else self._answer(404)

        def _s3(self) -> None:
            if (refusal := self._badly_signed()) is not None:
                return self._error(403, refusal)
            parts = urlsplit(self.path)
            bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
            if not key:
                prefix = f"{bucket}/{parse_qs(parts.query)['prefix'][0]}"
                keys = [
                    name.partition("/")[2] for name in sorted(services.objects) if name.startswith(prefix)
                ]
                listing = "".join(f"<Contents><Key>{name}</Key></Contents>" for name in keys)
                return self._answer(200, f"<ListBucketResult>{listing}</ListBucketResult>".encode())
            content = services.objects.get(f"{bucket}/{key}")
            return self._error(404, "NoSuchKey") if content is None else self._answer(200, content)

        def _badly_signed(self) -> str | None:
            stamp = self.headers.get("X-Amz-Date", "")
            now = datetime.now(timezone.utc) + services.clock
            try:
                signed_at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
            except ValueError:
                return "AccessDenied"
            if abs(now - signed_at) > timedelta(minutes=15):
                return "RequestTimeTooSkewed"
            request = AWSRequest("GET", f"http://{self.headers['Host']}{self.path}")
            for name in ("X-Amz-Date", "X-Amz-Security-Token", "X-Amz-Content-SHA256"):
                request.headers[name] = self.headers.get(name, "")
            request.context["timestamp"] = stamp
            # botocore's own signer computes the expected signature.
            signer = S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY, SESSION_TOKEN), "s3", services.region)
            canonical = signer.canonical_request(request)
            expected = signer.signature(signer.string_to_sign(request, canonical), request)
            given = self.headers.get("Authorization", "").rpartition("Signature=")[2]
            return None if given == expected else "SignatureDoesNotMatch"

        def _error(self, status: int, code: str) -> None:
            self._answer(status, f"<Error><Code>{code}</Code></Error>".encode())

        def _answer(self, status: int, body: bytes = b"") -> None:
            services.requests.append((self.path, status))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def date_time_string(self, timestamp: float | None = None) -> str:
            now = datetime.fromtimestamp(timestamp or time.time(), timezone.utc) + services.clock
            return format_datetime(now, usegmt=True)

        def log_message(self, *arguments: object) -> None:
            """Log nothing, because `requests` has all requests."""

    return Handler
