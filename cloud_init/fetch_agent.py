"""Fetches the files that a fresh instance needs, with the instance role's credentials.

    fetch_agent.py bundle s3://BUCKET/KEY SHA256 FOLDER     download, check, unpack; FOLDER is complete or absent
    fetch_agent.py file   s3://BUCKET/KEY SHA256 PATH       download, check
    fetch_agent.py facts                                    print the instance's id and its launch index
    fetch_agent.py listed s3://BUCKET/KEY                   exit with 0 if the object exists, else with 1
    fetch_agent.py clock  s3://BUCKET                       wait until our clock agrees with S3's clock

The program needs only the standard library of Python 3.6 or later. Environment: AWS_REGION; S3_ENDPOINT;
AWS_EC2_METADATA_SERVICE_ENDPOINT; BAI_FETCH_SECONDS (limit of all steps, by default 600). A failure prints a
sentence, and exits with 3 unreachable, 4 denied, 5 missing, 6 corrupt, 7 disk, 8 clock wrong, or 9 clock
slightly wrong.
"""

import calendar
import email.utils
import errno
import hashlib
import http.client
import json
import os
import re
import shutil
import sys
import tarfile
import time
import urllib.parse
import zlib
from email.message import Message
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple
from xml.sax.saxutils import escape

from bai_agent.aws.http_request import imds_request, open_url, signed_headers

UNREACHABLE, DENIED, MISSING, CORRUPT, DISK, CLOCK, CLOCK_OFF = 3, 4, 5, 6, 7, 8, 9
TIMEOUT = 10
"""Time limit for a connection, and for each read from it (seconds)."""
PATIENCE = {UNREACHABLE: 1e9, DENIED: 60, MISSING: 60, CORRUPT: 5, DISK: 0, CLOCK: 300, CLOCK_OFF: 300}
"""Seconds for which each failure is retried. AWS needs time to publish a new role, so DENIED is retried."""
RIGHT, SIGNS = 60, 900
"""Largest differences between our clock and S3's clock (seconds): for a clock that counts as right, and for
signatures that S3 accepts. S3 refuses other signatures with RequestTimeTooSkewed."""
CERTIFICATE_TIME = (9, 10)
"""OpenSSL's error codes X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""


_learned: Dict[str, Any] = {"skew": 0.0, "region": None}
"""Facts from S3's answers. skew: seconds by which S3's clock is ahead of our clock, which may not be set yet.
region: the bucket's region."""


class FetchError(Exception):
    """A file could not be fetched. final: whether a retry is useless."""

    def __init__(self, code: int, sentence: str, final: bool = False) -> None:
        Exception.__init__(self, sentence)
        self.code, self.final = code, final


def main(arguments: List[str]) -> int:
    command, rest = arguments[0], arguments[1:]
    limit = float(os.environ.get("BAI_FETCH_SECONDS", "600"))
    commands: Dict[str, Callable[..., int]] = {
        "bundle": bundle,
        "file": file,
        "facts": facts,
        "listed": listed,
        "clock": clock,
    }
    try:
        return persist(lambda: commands[command](*rest), limit)
    except FetchError as failure:
        print(failure)
        return failure.code


def persist(work: Callable[[], int], limit: float) -> int:
    """Repeat `work` until `work` succeeds. Raise a permanent failure at once, and the last failure after
    `limit` seconds."""
    begun, pause = time.monotonic(), 0.5
    while True:
        try:
            return work()
        except FetchError as failure:
            allowed = min(limit, PATIENCE[failure.code])
            if failure.final or time.monotonic() - begun + pause > allowed:
                raise
        time.sleep(pause)
        pause = min(pause * 1.5, 10)


def bundle(url: str, sha256: str, folder: str) -> int:
    if os.path.isdir(folder):
        return 0
    partial = folder + ".partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        file(url, sha256, partial + ".tar.gz")
        unpack(partial + ".tar.gz", partial)
        os.rename(partial, folder)
    except OSError as error:
        raise on_disk(error, folder) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if os.path.exists(partial + ".tar.gz"):
            os.unlink(partial + ".tar.gz")
    return 0


def unpack(archive: str, folder: str) -> None:
    """Unpack one of our archives, whose checksum was checked before."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            # Newer Pythons require a filter, but older Pythons do not have the parameter.
            trust: Dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(folder, **trust)
    except (tarfile.TarError, EOFError, ValueError, zlib.error) as error:
        raise FetchError(CORRUPT, f"{archive} cannot be unpacked: {error}", final=True) from error


def file(url: str, sha256: str, path: str) -> int:
    partial, digest = path + ".part", hashlib.sha256()
    try:
        with open(partial, "wb") as out:
            for piece in get(url):
                digest.update(piece)
                out.write(piece)
        if digest.hexdigest() != sha256.lower():
            raise FetchError(CORRUPT, f"{url} has the sha256 {digest.hexdigest()}, not {sha256}")
        os.rename(partial, path)
    except OSError as error:
        raise on_disk(error, path) from error
    finally:
        if os.path.exists(partial):
            os.unlink(partial)
    return 0


def facts() -> int:
    token = metadata_token()
    print(metadata("meta-data/instance-id", token), metadata("meta-data/ami-launch-index", token))
    return 0


def listed(url: str) -> int:
    """Return 0 if the object is listed, else 1. A GET of the object is not enough: without the right to list,
    S3 answers the GET of a missing object with 403 instead of 404."""
    bucket, key = split(url)
    answer = b"".join(get(f"s3://{bucket}", {"list-type": "2", "max-keys": "1", "prefix": key}))
    return 0 if f"<Key>{escape(key)}</Key>".encode() in answer else 1


def clock(url: str) -> int:
    """Compare our clock with S3's clock. The request is not signed, because a wrong clock would make the
    signature invalid. Even a refusal contains S3's time."""
    base, path = place(split(url)[0], "")
    try:
        with open_url(base + path, method="HEAD", timeout_s=TIMEOUT) as answer:
            date_header = answer.headers.get("Date")
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(error, url) from error
    date = email.utils.parsedate(date_header or "")
    if not date:
        raise FetchError(UNREACHABLE, f"{base} sends no Date header", final=True)
    off = abs(calendar.timegm(date) - time.time())
    if off > RIGHT:
        raise clock_is_wrong(f"S3's says {date_header}", CLOCK if off > SIGNS else CLOCK_OFF)
    return 0


def clock_is_wrong(sign: str, code: int = CLOCK) -> FetchError:
    ours = email.utils.formatdate(usegmt=True)
    sentence = f"this machine's clock says {ours}, but {sign}; does a time service (chronyd, systemd-timesyncd) run on the image?"
    return FetchError(code, sentence)


def on_disk(error: OSError, path: str) -> FetchError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FetchError(DISK, f"no space is left for {path}", final=True)
    return FetchError(DISK, f"{path} cannot be written: {error.strerror or error}", final=True)


def get(url: str, query: Optional[Dict[str, str]] = None) -> Iterator[bytes]:
    """Yield the object's bytes or, with a query, the bytes of the answer to the query."""
    bucket, key = split(url)
    base, path = place(bucket, key)
    _, _, host = base.partition("://")
    wanted = sorted((query or {}).items())
    text = "&".join(f"{name}={urllib.parse.quote(value, safe='~')}" for name, value in wanted)
    keys = credentials()
    # The time is read after the credentials, whose answers may take long. A signature is valid for some
    # minutes.
    at = time.time() + _learned["skew"]
    headers = signed_headers(
        "GET", host, path, text, b"", {}, at=at, service="s3", region=region(), keys=keys
    )
    try:
        with open_url(
            f"{base}{path}{'?' if text else ''}{text}", headers=headers, timeout_s=TIMEOUT
        ) as answer:
            if answer.code != 200:
                raise refused(answer.code, answer.headers, answer.read(65536), url)
            piece = answer.read(1 << 20)
            while piece:
                yield piece
                piece = answer.read(1 << 20)
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(error, url) from error


def place(bucket: str, key: str) -> Tuple[str, str]:
    """Return the address of an object, or of the bucket if `key` is empty: scheme and host, and path."""
    custom = os.environ.get("S3_ENDPOINT")
    domain = "amazonaws.com.cn" if region().startswith("cn-") else "amazonaws.com"
    base = (custom or f"https://s3.{region()}.{domain}").rstrip("/")
    path = "/" + urllib.parse.quote(key, safe="/~")
    if custom or "." in bucket:  # a bucket with dots does not fit S3's certificate
        return base, f"/{bucket}{path if key else ''}"
    return base.replace("://", f"://{bucket}."), path


def region() -> str:
    found: str = _learned["region"] or os.environ["AWS_REGION"]
    return found


def unreachable(error: Exception, url: str) -> FetchError:
    reason = getattr(error, "reason", error)
    if getattr(reason, "verify_code", 0) in CERTIFICATE_TIME:
        return clock_is_wrong(f"S3's certificate disagrees ({reason})")
    return FetchError(UNREACHABLE, f"{url} cannot be read: {reason}")


def refused(status: int, headers: Message, body: bytes, url: str) -> FetchError:
    found = re.search(rb"<Code>(\w+)</Code>", body)
    code = found.group(1).decode() if found else ""
    sentence = f"S3 answered {status} {code} for {url}"
    date = email.utils.parsedate(headers.get("Date") or "")
    if code == "RequestTimeTooSkewed" and date:
        _learned["skew"] = calendar.timegm(date) - time.time()
        return FetchError(UNREACHABLE, sentence)
    elsewhere = headers.get("x-amz-bucket-region")
    if elsewhere and elsewhere != _learned["region"]:
        _learned["region"] = elsewhere
        return FetchError(UNREACHABLE if status <= 400 else DENIED, sentence)
    if status == 403:
        return FetchError(DENIED, f"{sentence}; may the instance's role read it?")
    if status == 404:
        return FetchError(MISSING, sentence)
    return FetchError(UNREACHABLE, sentence)


def credentials() -> Tuple[str, str, str]:
    token = metadata_token()
    role = metadata("meta-data/iam/security-credentials/", token).split("\n")[0]
    try:
        found = json.loads(metadata(f"meta-data/iam/security-credentials/{role}", token))
        return found["AccessKeyId"], found["SecretAccessKey"], found["Token"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FetchError(DENIED, f"the role {role} has no credentials yet") from None


def metadata_token() -> str:
    return metadata("api/token", None)


def metadata(path: str, token: Optional[str]) -> str:
    try:
        with open_url(timeout_s=TIMEOUT, **imds_request(path, token, os.environ)) as answer:
            if answer.code == 200:
                text: str = answer.read(1 << 20).decode()
                return text
    except (OSError, http.client.HTTPException, ValueError) as error:
        sentence = f"the metadata service cannot be reached: {getattr(error, 'reason', error)}"
        raise FetchError(UNREACHABLE, sentence) from error
    if answer.code == 404 and "security-credentials" in path:
        sentence = "the instance has no role; was it launched with an instance profile?"
        raise FetchError(DENIED, sentence)
    raise FetchError(UNREACHABLE, f"the metadata service answered {answer.code} for {path}")


def split(url: str) -> Tuple[str, str]:
    bucket, _, key = url[len("s3://") :].partition("/")
    return bucket, key


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
