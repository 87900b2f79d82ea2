"""Logs in to Amazon ECR with the instance's role or the caller's credentials, without AWS's library."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from bai_agent.aws.json_service import ask
from bai_agent.errors import ServiceError

_ECR = re.compile(r"\d{12}\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
"""https://docs.aws.amazon.com/AmazonECR/latest/userguide/Registries.html"""
_TARGET = "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"


def ecr_region(image: str) -> str | None:
    """Return the region of the private ECR registry that contains an image. Return None if the image is not
    in a private ECR registry."""
    found = _ECR.fullmatch(image.partition("/")[0])
    return found[1] if found else None


def ecr_login(image: str, *, environment: Mapping[str, str] = os.environ) -> str:
    """Return the content of containers-auth.json(5) for an image's ECR registry. Raises ServiceError."""
    answer = ask("ecr", _TARGET, {}, environment=environment, region=ecr_region(image))
    try:
        # The token is "AWS:password" in base64, which is also the form in containers-auth.json:
        # https://docs.aws.amazon.com/AmazonECR/latest/APIReference/API_AuthorizationData.html
        token = answer["authorizationData"][0]["authorizationToken"]
    except (KeyError, IndexError, TypeError):
        raise ServiceError("ecr gave no authorizationToken", passes=False) from None
    return json.dumps({"auths": {image.partition("/")[0]: {"auth": str(token)}}})
