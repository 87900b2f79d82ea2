"""What S3 does and moto does not."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sandbox.fake_aws.answers import Answer, error
from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.iam.identities import SETUP


class S3Rules:
    """Missing keys are 403 for who may not list the bucket; conditional writes are atomic."""

    def __init__(self) -> None:
        self.may_list = {SETUP}
        """Identities with s3:ListBucket on the whole bucket. One that is narrowed to a prefix does not count:
        a GET has no prefix to compare (https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html)."""
        self._writing = threading.Lock()

    def __call__(self, call: Call, ask: Callable[[], Answer]) -> Answer:
        if call.service != "s3":
            return ask()
        if call.action in ("PutObject", "CompleteMultipartUpload", "CopyObject"):
            # moto looks first and writes then, so that two writers could both find nothing there.
            with self._writing:
                return ask()
        answer = ask()
        missing = answer.code == 404 and answer.error in ("NoSuchKey", "404")
        if missing and call.action in ("GetObject", "HeadObject") and call.identity not in self.may_list:
            return error("s3", 403, "AccessDenied", "Access Denied", head=call.action == "HeadObject")
        return answer
