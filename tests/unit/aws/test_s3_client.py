"""What obstore's own errors mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import obstore
import pytest
from obstore.exceptions import UnauthenticatedError
from obstore.store import S3Store

from bai_agent.aws.s3_client import classify_s3_error, is_refusal
from bai_agent.errors import MetadataError

if TYPE_CHECKING:
    from obstore.store import S3Credential


def test_an_unreachable_metadata_service_is_waited_for() -> None:
    def provide() -> S3Credential:
        raise MetadataError("the instance metadata service does not answer")

    store = S3Store("bucket", endpoint="https://127.0.0.1:9", region="us-east-1", credential_provider=provide)

    with pytest.raises(UnauthenticatedError) as caught:
        obstore.get(store, "key")

    assert not is_refusal(caught.value)
    assert (
        classify_s3_error(caught.value)
        == "there are no credentials: the instance metadata service does not answer"
    )
