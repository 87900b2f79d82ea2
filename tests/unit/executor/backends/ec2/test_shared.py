"""Shared objects are created once, and only within `sharing`."""

from __future__ import annotations

import threading

import pytest

from executor.backends.ec2.session import AwsSession
from executor.backends.ec2.shared import Shared, once, sharing


def test_without_sharing_each_object_is_created_anew() -> None:
    assert once("key", object) is not once("key", object)


def test_a_shared_object_is_created_once_for_all_threads() -> None:
    shared, made, found = Shared(), [], []

    def make() -> object:
        made.append(1)
        return object()

    def take() -> None:
        with sharing(shared):
            found.append(once("key", make))

    threads = [threading.Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert (len(made), len(set(map(id, found)))) == (1, 1)


def test_a_failed_creation_is_retried() -> None:
    tries: list[int] = []

    def make() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not now")
        return "made"

    with sharing(Shared()):
        with pytest.raises(ValueError, match="not now"):
            once("key", make)
        assert once("key", make) == "made"


def test_clients_of_one_region_and_profile_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with sharing(Shared()):
        one, other, elsewhere = (AwsSession(region) for region in ("eu-west-1", "eu-west-1", "us-east-1"))

        assert one.ec2() is other.ec2()
        assert one.no_retry_client() is not one.ec2()
        assert elsewhere.ec2().meta.region_name == "us-east-1"
    assert AwsSession("eu-west-1").ec2() is not AwsSession("eu-west-1").ec2()


def test_the_least_recently_used_object_is_dropped() -> None:
    shared = Shared(at_most=2)
    kept = shared.once("kept", object)
    other = shared.once("other", object)

    assert shared.once("kept", object) is kept
    shared.once("new", object)
    assert shared.once("kept", object) is kept
    assert shared.once("other", object) is not other
