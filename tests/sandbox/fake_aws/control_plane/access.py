"""The way to the control plane in somebody's name: for a test's own calls, and for programs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import boto3
from botocore.config import Config
from service_models import share_service_models

from sandbox.fake_aws.iam.identities import Credentials

share_service_models()
_SESSION = boto3.Session()


def client(service: Any, mine: Credentials, *, endpoint: str, region: str, **settings: Any) -> Any:
    """Return a boto3 client; `settings` are botocore's. One without any is the same at each call: to make one takes as long as a request."""
    made = _made if settings else _usual
    return made(service, mine.access_key, mine.secret_key, endpoint, region, **settings)


def _made(service: Any, key: str, secret: str, endpoint: str, region: str, **settings: Any) -> Any:
    return _SESSION.client(
        service,
        region_name=region,
        endpoint_url=endpoint,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(**{"connect_timeout": 10, "read_timeout": 30, **settings}),
    )


_usual = lru_cache(maxsize=8)(_made)


def environment(mine: Credentials, *, endpoint: str) -> dict[str, str]:
    """Return the variables with which a program calls so, and has no other credentials."""
    return {
        "AWS_ACCESS_KEY_ID": mine.access_key,
        "AWS_SECRET_ACCESS_KEY": mine.secret_key,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
