"""Evidence that a person attaches to an issue."""

from __future__ import annotations

import ipaddress
import json
import tarfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from on_aws.evidence import Redactor, write_bundle

ACCOUNT = "123456789012"
_SEPARATORS = st.sampled_from(
    [" ", "\n", '"', "'", ",", "=", "/", "[", "]", "(", ")", "<", ">", "|", ";", "\x1b[0m "]
)
_ACCOUNTS = st.from_regex(r"[0-9]{12}", fullmatch=True)
_ADDRESSES = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.ip_addresses(v=6).map(lambda each: ipaddress.IPv6Address(each).exploded.upper()),
    st.ip_addresses(v=4).map(lambda each: f"ip-{str(each).replace('.', '-')}"),
    st.ip_addresses(v=4).map(lambda each: f"ec2-{str(each).replace('.', '-')}"),
    st.binary(min_size=6, max_size=6).map(lambda each: each.hex(":")),
).filter(lambda each: len(each) > 3)
_KEYS = st.from_regex(r"(AKIA|ASIA)[A-Z0-9]{16}", fullmatch=True)
_USER_DATA = st.from_regex(r"[A-Za-z0-9+/]{160,400}={0,2}", fullmatch=True)
_SECRETS = st.one_of(_ACCOUNTS, _ADDRESSES, _KEYS, _USER_DATA)


@given(st.lists(st.tuples(st.text(max_size=20), _SEPARATORS, _SECRETS, _SEPARATORS), min_size=1, max_size=6))
def test_text_that_looks_secret_is_not_in_the_evidence(pieces: list[tuple[str, str, str, str]]) -> None:
    text = "".join(f"{before}{left}{secret}{right}" for before, left, secret, right in pieces)

    redacted = Redactor().redact(text)

    assert [secret for _, _, secret, _ in pieces if secret in redacted] == []


@given(
    st.text(),
    st.lists(st.text("bf0123456789.:-_/", min_size=3, max_size=30), min_size=1, max_size=5),
    st.text(),
)
def test_known_account_names_are_redacted_everywhere(before: str, secrets: list[str], after: str) -> None:
    redactor = Redactor()
    for each in secrets:
        redactor.learn(each, "§")

    redacted = redactor.redact(before.join([*secrets, ""]) + after)

    # The text around them may hold one by chance, and is redacted too.
    assert [each for each in secrets if each in redacted] == []


@given(st.text())
def test_redacting_twice_changes_nothing(text: str) -> None:
    redactor = Redactor()
    redactor.learn(ACCOUNT, "account")

    once = redactor.redact(text)

    assert redactor.redact(once) == once


def test_ordinary_text_in_the_evidence_is_not_redacted() -> None:
    said = (
        "12:34:56 i-0123456789abcdef0 ended by Client.InstanceInitiatedShutdown; cloud-init 25.1.4, std::string, 1.5 s\n"
        "jobs/prove-digits-1125214755/attempts/0/nodes/0/metrics/00000000000000000000.jsonl at 1764107275123\n"
    )

    assert Redactor().redact(said) == said


def test_addresses_and_user_data_in_aws_responses_are_redacted() -> None:
    redactor = Redactor()
    answer = {
        "Instances": [
            {
                "InstanceId": "i-0123456789abcdef0",
                "PrivateIpAddress": "10.1.2.3",
                "PublicDnsName": "ec2.internal.example",
                "NetworkInterfaces": [{"MacAddress": "0a:1b:2c:3d:4e:5f", "OwnerId": ACCOUNT}],
            }
        ],
        "UserData": {"Value": "short"},
    }

    text = redactor.redact(redactor.answer_text(answer))

    assert "i-0123456789abcdef0" in text
    for secret in ("10.1.2.3", "ec2.internal.example", "0a:1b", ACCOUNT, "short"):
        assert secret not in text
    # Known from then on, also where nothing else tells.
    assert "internal" not in redactor.redact("xec2.internal.examplex")
    json.loads(text)


def test_contents_and_file_names_in_the_evidence_archive_are_redacted(tmp_path: Path) -> None:
    redactor = Redactor()
    redactor.learn(ACCOUNT, "account")
    folder = tmp_path / "evidence"
    (folder / "setup").mkdir(parents=True)
    (folder / "setup" / f"of-{ACCOUNT}x.txt").write_bytes(f"bai-prove-{ACCOUNT}-eu \xff".encode("latin-1"))

    write_bundle(folder, tmp_path / "proof.tar.gz", redactor)

    with tarfile.open(tmp_path / "proof.tar.gz") as archive:
        [member] = archive.getmembers()
        content = archive.extractfile(member)
        assert content is not None
        assert member.name == "proof/setup/of-<account>x.txt"
        assert content.read().decode() == "bai-prove-<account>-eu \ufffd"
