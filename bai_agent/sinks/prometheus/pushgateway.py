"""The requests to a Pushgateway: https://github.com/prometheus/pushgateway#api."""

from __future__ import annotations

import base64
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Mapping

from bai_agent.aws.imds_request import NoRedirects
from bai_agent.aws.secrets import SecretError, resolve
from bai_agent.errors import BaiError
from bai_agent.job.descriptor import Prometheus
from bai_agent.job.redaction import Redactor
from bai_agent.sinks.prometheus.exposition import CONTENT_TYPE

_TIMEOUT_S = 10.0
_PASSES = (408, 429)
_MOST_QUOTED = 300


class PushError(BaiError):
    """The Pushgateway did not take it. `passes`: it may a little later."""

    def __init__(self, message: str, *, passes: bool) -> None:
        super().__init__(message)
        self.passes = passes


class Pushgateway:
    """The group of one node of a job."""

    def __init__(
        self,
        table: Prometheus,
        *,
        job_id: str,
        rank: int,
        redactor: Redactor,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._table = table
        self._redactor = redactor
        self._environment = environment
        self._authorization: str | None = None
        address = (table.pushgateway or "").rstrip("/")
        self._group = f"{address}/metrics/job/bai/job_id/{job_id}/rank/{rank}"

    def replace(self, text: bytes) -> None:
        """Put `text` in place of all that is in the group. Raises PushError."""
        self._ask("PUT", text)

    def delete(self) -> None:
        """Delete the group. Raises PushError."""
        self._ask("DELETE", None)

    def _ask(self, method: str, text: bytes | None) -> None:
        headers = {"Content-Type": CONTENT_TYPE} if text is not None else {}
        if self._table.username is not None:
            headers["Authorization"] = self._basic()
        request = urllib.request.Request(self._group, data=text, headers=headers, method=method)  # noqa: S310 - checked to be http or https
        try:
            with urllib.request.build_opener(NoRedirects).open(request, timeout=_TIMEOUT_S) as answer:
                answer.read(_MOST_QUOTED)
        except urllib.error.HTTPError as error:
            raise PushError(
                self._refusal(error), passes=error.code >= 500 or error.code in _PASSES
            ) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise PushError(f"{self._table.pushgateway} does not answer: {reason}", passes=True) from error

    def _basic(self) -> str:
        if self._authorization is None:
            try:
                password = resolve(self._table.password or "", environment=self._environment)
            except SecretError as error:
                raise PushError(f"[prometheus] password: {error}", passes=True) from error
            pair = base64.b64encode(f"{self._table.username}:{password}".encode()).decode()
            self._redactor.know([password, pair])
            self._authorization = f"Basic {pair}"
        return self._authorization

    def _refusal(self, error: urllib.error.HTTPError) -> str:
        with error:
            try:
                said = error.read(_MOST_QUOTED).decode(errors="replace").strip()
            except (OSError, http.client.HTTPException):
                said = ""
        advice = "; check [prometheus] username and password" if error.code in (401, 403) else ""
        return f"{self._table.pushgateway} answers {error.code}{f' ({said})' if said else ''}{advice}"
