"""An API request, read from its bytes: who calls which service with what."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote

from sandbox.fake_aws.iam.identities import ANONYMOUS, Identities

_CREDENTIAL = re.compile(r"Credential=([^/]+)/\d{8}/([^/]+)/([^/]+)/aws4_request")
_PRESIGNED = re.compile(r"([^/]+)/\d{8}/([^/]+)/([^/]+)/aws4_request")

_LAMBDA = re.compile(r"GET /[0-9-]+/(?:functions/([\w-]+)|account-settings)/?")
_DELETED = re.compile(r"<Key>([^<]*)</Key>")

_BUCKET_ACTIONS = {
    ("GET", "location"): "GetBucketLocation",
    ("GET", "versioning"): "GetBucketVersioning",
    ("GET", "uploads"): "ListMultipartUploads",
    ("GET", "versions"): "ListObjectVersions",
    ("GET", "list-type"): "ListObjectsV2",
    ("POST", "delete"): "DeleteObjects",
}
_OBJECT_ACTIONS = {
    ("POST", "uploads"): "CreateMultipartUpload",
    ("POST", "uploadId"): "CompleteMultipartUpload",
    ("PUT", "uploadId"): "UploadPart",
    ("DELETE", "uploadId"): "AbortMultipartUpload",
    ("GET", "uploadId"): "ListParts",
    ("GET", "tagging"): "GetObjectTagging",
    ("PUT", "tagging"): "PutObjectTagging",
    ("GET", "attributes"): "GetObjectAttributes",
}
_PLAIN = {"GET": "GetObject", "HEAD": "HeadObject", "PUT": "PutObject", "DELETE": "DeleteObject"}
_PLAIN_BUCKET = {"GET": "ListObjects", "HEAD": "HeadBucket", "PUT": "CreateBucket", "DELETE": "DeleteBucket"}


@dataclass(kw_only=True)
class Call:
    """One request. `status` and `error` are filled in when it has been answered."""

    time: float
    """Seconds since the epoch."""
    identity: str
    """`user`, `executor`, `instance`, `anonymous` …"""
    instance_id: str | None
    """Where an instance's role calls."""
    service: str
    """As in the signature: ec2, s3, ssm, sts, iam …"""
    action: str
    """The API's name of it: RunInstances, GetObject …"""
    resource: str
    """S3: `bucket/key`, or `bucket`, and of DeleteObjects all of them; SSM: the parameters' names; else the instance ids, or nothing."""
    parameters: dict[str, str] = field(default_factory=dict)
    """As they were sent; S3: the query."""
    headers: dict[str, str] = field(default_factory=dict)
    """Those that a policy's condition may ask for, in lower case; S3 alone has such."""
    agent: str = ""
    region: str = ""
    """The signature's."""
    status: int = 0
    error: str = ""
    """The service's error code; `dropped` where the connection was cut."""


def read_call(environ: dict[str, object], body: bytes, identities: Identities, now: float) -> Call:
    """Read a WSGI request."""
    query = {
        name: values[0]
        for name, values in parse_qs(str(environ.get("QUERY_STRING", "")), keep_blank_values=True).items()
    }
    found = _CREDENTIAL.search(str(environ.get("HTTP_AUTHORIZATION", ""))) or _PRESIGNED.match(
        unquote(query.get("X-Amz-Credential", ""))
    )
    key, service = (found[1], found[3]) if found else ("", "s3")
    caller = identities.find(key)
    call = Call(
        time=now,
        identity=caller.identity if caller else ANONYMOUS,
        instance_id=caller.instance_id if caller else None,
        service=service,
        action="",
        resource="",
        agent=str(environ.get("HTTP_USER_AGENT", "")),
        region=found[2] if found else "",
    )
    if service == "s3":
        _read_s3(call, environ, query, body)
    elif service == "lambda":
        _read_lambda(call, environ)
    elif "HTTP_X_AMZ_TARGET" in environ:
        _read_json(call, str(environ["HTTP_X_AMZ_TARGET"]), body)
    else:
        _read_query(call, {**query, **_form(body)})
    return call


def _read_s3(call: Call, environ: dict[str, object], query: dict[str, str], body: bytes) -> None:
    method = str(environ["REQUEST_METHOD"])
    if "HTTP_IF_NONE_MATCH" in environ:
        call.headers["if-none-match"] = str(environ["HTTP_IF_NONE_MATCH"])
    path = str(environ.get("PATH_INFO", "")).encode("latin-1").decode(errors="replace")
    bucket, _, key = path.lstrip("/").partition("/")
    call.parameters, call.resource = query, f"{bucket}/{key}" if key else bucket
    if not bucket:
        call.action = "ListBuckets"
        return
    special, plain = (_OBJECT_ACTIONS, _PLAIN) if key else (_BUCKET_ACTIONS, _PLAIN_BUCKET)
    for (of, parameter), action in special.items():
        if of == method and parameter in query:
            call.action = action
            if action == "DeleteObjects":
                keys = [html.unescape(each) for each in _DELETED.findall(body.decode(errors="replace"))]
                call.resource = ",".join(f"{bucket}/{each}" for each in keys)
            return
    call.action = plain.get(method, method)
    if call.action == "PutObject" and "HTTP_X_AMZ_COPY_SOURCE" in environ:
        call.action = "CopyObject"


def _read_lambda(call: Call, environ: dict[str, object]) -> None:
    """Read the calls that `bai` makes: https://docs.aws.amazon.com/lambda/latest/api/API_Operations.html"""
    found = _LAMBDA.fullmatch(f"{environ['REQUEST_METHOD']} {environ.get('PATH_INFO', '')}")
    if found and found[1]:
        call.action, call.parameters = "GetFunction", {"FunctionName": found[1]}
    elif found:
        call.action = "GetAccountSettings"


def _read_json(call: Call, target: str, body: bytes) -> None:
    call.action = target.rpartition(".")[2]
    content = json.loads(body or b"{}")
    call.parameters = {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in content.items()
    }
    names = content.get("Names") or [content.get("Name") or content.get("Path") or content.get("SecretId")]
    call.resource = ",".join(str(name) for name in names if name)


def _read_query(call: Call, parameters: dict[str, str]) -> None:
    call.action, call.parameters = parameters.get("Action", ""), parameters
    ids = [value for name, value in parameters.items() if re.fullmatch(r"InstanceId(\.\d+)?", name)]
    call.resource = ",".join(ids)


def _form(body: bytes) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(body.decode(), keep_blank_values=True).items()}
