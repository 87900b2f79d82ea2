"""IAM authentication of Amazon MSK with the credentials of the environment or the instance's role, without botocore."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kafka.errors import KafkaConnectionError
from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.msk import AwsMskIamClient, SaslMechanismAwsMskIam

from bai_agent.aws.credentials import InstanceRole, find_keys
from bai_agent.aws.imds import Keys, MetadataError

MECHANISM = "AWS_MSK_IAM"


def use_own_credentials(environment: Mapping[str, str] = os.environ) -> None:
    """Let kafka-python authenticate with what `environment` holds, else with the instance's role. Raises MetadataError."""
    role = InstanceRole(environment)
    region = region_of(environment)

    def keys() -> Keys:
        return find_keys(environment, role.keys)

    class OwnCredentials(SaslMechanismAwsMskIam):  # type: ignore[misc] # kafka-python has no types
        def __init__(self, **config: Any) -> None:
            # The parent's asks for botocore.
            self.host = config["host"]
            self._auth = None
            self._is_done = self._is_authenticated = False

        def _build_client(self) -> AwsMskIamClient:
            try:
                found = keys()
            except MetadataError as error:
                raise KafkaConnectionError(f"no AWS credentials: {error}") from error
            return AwsMskIamClient(
                host=self.host,
                access_key=found.access,
                secret_key=found.secret,
                region=region,
                token=found.token,
            )

    keys()
    register_sasl_mechanism(MECHANISM, OwnCredentials, overwrite=True)


def region_of(environment: Mapping[str, str]) -> str | None:
    """Return the cluster's region."""
    return environment.get("AWS_DEFAULT_REGION") or environment.get("AWS_REGION") or None
