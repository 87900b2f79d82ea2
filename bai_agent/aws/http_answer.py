"""Sends one HTTP request and reads its answer by a deadline."""

from __future__ import annotations

import http.client
import threading
from email.message import Message
from typing import Any, NamedTuple
from urllib.error import URLError

from bai_agent.aws.http_request import open_url


class Answer(NamedTuple):
    """An HTTP answer of any status."""

    status: int
    headers: Message
    body: bytes

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


def send(url: str, *, timeout_s: float, most_bytes: int = 1 << 20, **request: Any) -> Answer:
    """Return the answer, whatever its status, with the first `most_bytes` of its body. Raises URLError.

    `timeout_s` bounds the whole request, including the name look-up and a slow body. `request`: further
    arguments of open_url.
    """
    done: list[Answer | URLError] = []

    def work() -> None:
        try:
            with open_url(url, timeout_s=timeout_s, **request) as response:
                body = response.read(most_bytes)
                if response.length and len(body) < most_bytes:
                    raise http.client.IncompleteRead(body, response.length)
                done.append(Answer(response.code, response.headers, body))
        except (OSError, http.client.HTTPException, ValueError) as error:
            done.append(error if isinstance(error, URLError) else URLError(error))

    # The request runs in a thread, because neither the name look-up nor the read of the headers accepts a
    # deadline.
    thread = threading.Thread(target=work, name="http-request", daemon=True)
    thread.start()
    thread.join(timeout_s)
    outcome = done[0] if done else URLError("timed out")
    if isinstance(outcome, URLError):
        raise outcome
    return outcome
