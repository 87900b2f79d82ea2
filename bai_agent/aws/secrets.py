"""Resolves references to secrets on the machine that uses them. Never writes them to disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec

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
    # Imported here and below: few jobs have secrets, and an HTTP client is 40 modules.
    from bai_agent.aws.credentials import takes_botocore

    if takes_botocore(environment) and find_spec("boto3") is not None:
        return _by_boto3(kind, name, reference)
    return _by_hand(kind, name, reference, environment)


def _by_boto3(kind: str, name: str, reference: str) -> str:
    """Ask boto3, which knows a person's profiles and single sign-on."""
    # Installed together with `bai`, not with the agent.
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    config = Config(connect_timeout=10, read_timeout=20, retries={"max_attempts": 4, "mode": "standard"})
    try:
        if kind == "ssm":
            answer = boto3.client("ssm", config=config).get_parameter(Name=name, WithDecryption=True)
            return str(answer["Parameter"]["Value"])
        answer = boto3.client("secretsmanager", config=config).get_secret_value(SecretId=name)
        return str(answer["SecretString"])
    except (BotoCoreError, ClientError) as error:
        raise SecretError(f'"{reference}" cannot be resolved: {error}') from error
    except (KeyError, TypeError) as error:
        raise SecretError(_NO_TEXT.format(reference)) from error


def _by_hand(kind: str, name: str, reference: str, environment: Mapping[str, str]) -> str:
    """Ask AWS directly, on an instance with any image or with keys in the environment."""
    from bai_agent.aws.json_service import ask
    from bai_agent.errors import ServiceError

    try:
        if kind == "ssm":
            question = {"Name": name, "WithDecryption": True}
            return str(
                ask("ssm", "AmazonSSM.GetParameter", question, environment=environment)["Parameter"]["Value"]
            )
        answer = ask(
            "secretsmanager", "secretsmanager.GetSecretValue", {"SecretId": name}, environment=environment
        )
        return str(answer["SecretString"])
    except ServiceError as error:
        raise SecretError(f'"{reference}" cannot be resolved: {error}') from error
    except (KeyError, TypeError) as error:
        raise SecretError(_NO_TEXT.format(reference)) from error


_NO_TEXT = '"{}" cannot be resolved: it holds no text; store the secret as a string'
