"""Resolves references to secrets on the machine that uses the secrets. This module never writes secrets to
disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from bai_agent.errors import SecretError

KINDS = ("env", "ssm", "secretsmanager")


def resolve(reference: str, *, environment: Mapping[str, str] = os.environ) -> str:
    """Return the secret that a reference ("env:NAME", "ssm:…", "secretsmanager:…") names. Raises SecretError."""
    kind, separator, name = reference.partition(":")
    if not separator or kind not in KINDS or not name:
        raise SecretError(
            f'"{reference}" is not a reference to a secret; write "env:NAME", "ssm:NAME" or "secretsmanager:NAME"'
        )
    if kind == "env":
        if name not in environment:
            raise SecretError(f'the environment variable {name} (of the reference "{reference}") is not set')
        return environment[name]
    # Imported here and below, because few jobs have secrets and an HTTP client loads 40 modules.
    from bai_agent.aws.credentials import takes_botocore

    is_parameter = kind == "ssm"
    question = {"Name": name, "WithDecryption": True} if is_parameter else {"SecretId": name}
    if takes_botocore(environment) and find_spec("boto3") is not None:
        answer = _ask_boto3(kind, question, reference)
    else:
        answer = _ask_aws(kind, question, reference, environment)
    try:
        return str(answer["Parameter"]["Value"] if is_parameter else answer["SecretString"])
    except (KeyError, TypeError) as error:
        raise SecretError(
            f'"{reference}" cannot be resolved: the secret contains no text; store the secret as a string'
        ) from error


def _ask_boto3(kind: str, question: Mapping[str, Any], reference: str) -> Mapping[str, Any]:
    """Query AWS with boto3, because boto3 supports a user's profiles and single sign-on. Raises
    SecretError."""
    # boto3 is installed together with `bai`, not with the agent.
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    config = Config(connect_timeout=10, read_timeout=20, retries={"max_attempts": 4, "mode": "standard"})
    make_client: Any = boto3.client
    method = {"ssm": "get_parameter", "secretsmanager": "get_secret_value"}[kind]
    try:
        answer: Mapping[str, Any] = getattr(make_client(kind, config=config), method)(**question)
    except (BotoCoreError, ClientError) as error:
        raise SecretError(f'"{reference}" cannot be resolved: {error}') from error
    return answer


def _ask_aws(
    kind: str, question: Mapping[str, Any], reference: str, environment: Mapping[str, str]
) -> Mapping[str, Any]:
    """Query AWS without boto3, with the instance's role or with keys from the environment. Raises
    SecretError."""
    from bai_agent.aws.json_service import ask
    from bai_agent.errors import ServiceError

    target = {"ssm": "AmazonSSM.GetParameter", "secretsmanager": "secretsmanager.GetSecretValue"}[kind]
    try:
        return ask(kind, target, question, environment=environment)
    except ServiceError as error:
        raise SecretError(f'"{reference}" cannot be resolved: {error}') from error
