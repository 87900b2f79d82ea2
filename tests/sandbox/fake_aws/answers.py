"""Errors in the words of each protocol that AWS speaks."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from xml.sax.saxutils import escape

_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def code(self) -> int:
        return int(self.status.split()[0])

    @property
    def error(self) -> str:
        """The service's error code, where this is an error."""
        if self.code < 400:
            return ""
        found = re.search(rb"<Code>([^<]+)</Code>", self.body)
        found = found or re.search(rb'"__type":\s*"(?:[^"#]*#)?([^"]+)"', self.body)
        return found[1].decode() if found else str(self.code)


def error(service: str, status: int, code: str, message: str, *, head: bool = False) -> Answer:
    """Return an error as `service` words it; the answer to a HEAD has no body."""
    request = str(uuid.uuid4())
    kind = "text/xml;charset=UTF-8"
    if service == "ec2":
        inner = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
        text = f"{_XML}<Response><Errors>{inner}</Errors><RequestID>{request}</RequestID></Response>"
    elif service == "s3":
        inner = f"<Code>{code}</Code><Message>{escape(message)}</Message><RequestId>{request}</RequestId>"
        text, kind = f"{_XML}<Error>{inner}</Error>", "application/xml"
    elif service in ("sts", "iam", "cloudformation"):
        inner = f"<Type>Sender</Type><Code>{code}</Code><Message>{escape(message)}</Message>"
        text = f"{_XML}<ErrorResponse><Error>{inner}</Error><RequestId>{request}</RequestId></ErrorResponse>"
    else:
        text, kind = json.dumps({"__type": code, "message": message}), "application/x-amz-json-1.1"
    body = b"" if head else text.encode()
    headers = [("Content-Type", kind), ("x-amz-request-id", request), ("Content-Length", str(len(body)))]
    return Answer(status=f"{status} Error", headers=headers, body=body)


def ec2(action: str, inner: str) -> Answer:
    """Return EC2's answer to `action`, with `inner` for its content."""
    space = "http://ec2.amazonaws.com/doc/2016-11-15/"
    text = f'{_XML}<{action}Response xmlns="{space}"><requestId>{uuid.uuid4()}</requestId>{inner}</{action}Response>'
    body = text.encode()
    headers = [("Content-Type", "text/xml;charset=UTF-8"), ("Content-Length", str(len(body)))]
    return Answer(status="200 OK", headers=headers, body=body)
