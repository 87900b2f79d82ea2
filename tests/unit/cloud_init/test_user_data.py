"""User data: its content as EC2 gets it, and as cloud-init reads it."""

from __future__ import annotations

import ast
import email
import gzip
import random
import subprocess
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_init.user_data import (
    LIMIT,
    Boot,
    Bundle,
    Pointer,
    UserDataTooLargeError,
    guardian,
    guardian_settings,
    piece,
    readable,
    text,
    user_data,
)

BOOT = Boot(
    job_id="job-1",
    job_toml='version = 1\n[job]\nid = "job-1"\n',
    bundle=Bundle(url="s3://bucket/agent/abc.tar.gz", sha256="abc", size=4_000_000),
    region="eu-west-1",
    deadman=timedelta(hours=25, minutes=45),
)


def parts(boot: Boot) -> dict[str, str]:
    """Return the parts by type, as cloud-init sees them."""
    message = email.message_from_bytes(gzip.decompress(user_data(boot)))
    assert message.is_multipart()
    found = {}
    for part in message.walk():
        if not part.is_multipart():
            payload = part.get_payload(decode=True)
            assert isinstance(payload, bytes)
            found[part.get_content_type()] = payload.decode("ascii")
    return found


def files(boot: Boot) -> dict[str, str]:
    config = yaml.safe_load(parts(boot)["text/cloud-config"])
    return {file["path"]: file["content"] for file in config["write_files"]}


def told(boot: Boot) -> dict[str, str]:
    """Return the guardian's settings as a shell reads them."""
    script = files(boot)["/var/lib/bai/boot/settings"]
    names = list(guardian_settings(boot))
    show = "".join(f'printf "%s\\0" "${name}"\n' for name in names)
    done = subprocess.run(["sh", "-uec", script + show], capture_output=True, check=True, timeout=60)
    return dict(zip(names, done.stdout.decode().split("\0"), strict=False))


def test_user_data_of_the_same_job_has_the_same_bytes() -> None:
    assert user_data(BOOT) == user_data(replace(BOOT))
    assert gzip.decompress(user_data(BOOT)).decode() == readable(BOOT)


def test_user_data_consists_of_boothook_and_cloud_config_in_this_order() -> None:
    assert list(parts(BOOT)) == ["text/cloud-boothook", "text/cloud-config"]
    assert parts(BOOT)["text/cloud-boothook"].startswith("#!/bin/sh\n")
    assert parts(BOOT)["text/cloud-config"].startswith("#cloud-config\n")


def test_no_package_is_upgraded_during_a_benchmark() -> None:
    config: dict[str, Any] = yaml.safe_load(parts(BOOT)["text/cloud-config"])
    assert config["package_upgrade"] is False
    assert config["package_update"] is False


def test_the_guardian_is_written_and_started() -> None:
    config: dict[str, Any] = yaml.safe_load(parts(BOOT)["text/cloud-config"])
    assert files(BOOT)["/var/lib/bai/boot/guardian.sh"] == guardian()
    assert [command[:2] for command in config["runcmd"]] == [["sh", "-c"]]
    assert "/var/lib/bai/boot/guardian.sh" in config["runcmd"][0][2]


def test_the_boothook_contains_the_deadmans_limits() -> None:
    boothook = parts(replace(BOOT, deadman=timedelta(seconds=90), max_boots=2))["text/cloud-boothook"]
    assert "\ndeadman_seconds=90\nmax_boots=2\n" in boothook


def test_the_guardian_gets_all_settings() -> None:
    boot = replace(
        BOOT,
        store_url="s3://bucket/jobs",
        s3_endpoint="http://10.0.0.1:8080",
        keep_after_failure=timedelta(minutes=30),
        keep_after_success=timedelta(minutes=10),
        power_off=False,
        nodes=4,
        launch=2,
        first_node=5,
    )
    assert told(boot) == {
        "job_id": "job-1",
        "job_url": "",
        "job_sha256": "",
        "bundle_url": "s3://bucket/agent/abc.tar.gz",
        "bundle_sha256": "abc",
        "region": "eu-west-1",
        "store_url": "s3://bucket/jobs",
        "s3_endpoint": "http://10.0.0.1:8080",
        "keep_failure_seconds": "1800",
        "keep_success_seconds": "600",
        "nodes": "4",
        "launch": "2",
        "first_node": "5",
        "power": "stay",
    }


def test_a_descriptor_in_the_store_is_replaced_by_a_pointer() -> None:
    boot = replace(BOOT, job_toml=None, job_pointer=Pointer(url="s3://bucket/job.toml", sha256="def"))
    assert "/var/lib/bai/job.toml" not in files(boot)
    assert (told(boot)["job_url"], told(boot)["job_sha256"]) == ("s3://bucket/job.toml", "def")


@pytest.mark.parametrize("pointer", [None, Pointer(url="s3://b/k", sha256="a")])
def test_user_data_requires_either_a_descriptor_or_a_pointer(pointer: Pointer | None) -> None:
    job_toml = None if pointer is None else "version = 1\n"
    with pytest.raises(ValueError, match="either"):
        replace(BOOT, job_toml=job_toml, job_pointer=pointer)


def test_user_data_above_ec2s_limit_is_refused_with_advice() -> None:
    noise = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=30_000))
    with pytest.raises(
        UserDataTooLargeError, match=r"EC2 accepts only 16,384; keep the job descriptor in the job store"
    ):
        user_data(replace(BOOT, job_toml=f'x = "{noise}"\n'))


def test_an_ordinary_job_leaves_6_kb_of_user_data_free() -> None:
    assert len(user_data(BOOT)) < LIMIT - 6_000


odd_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
lines = st.lists(
    st.sampled_from(
        ["", " ", "  a", "#x", "--==bai==", "--==bai==--", "---", "\t", "- a: b", "é", "😀", "\r"]
    )
)


@settings(deadline=None)
@given(odd_text | lines.map("\n".join))
def test_any_job_descriptor_arrives_unchanged(job_toml: str) -> None:
    assert files(replace(BOOT, job_toml=job_toml))["/var/lib/bai/job.toml"] == job_toml


@settings(deadline=None)
@given(st.lists(odd_text | lines.map("\n".join), min_size=1, max_size=3))
def test_any_command_arrives_unchanged(commands: list[str]) -> None:
    found = files(replace(BOOT, init_commands=tuple(commands)))
    assert [found[f"/var/lib/bai/boot/init/{n}"] for n in range(len(commands))] == [
        f"{c}\n" for c in commands
    ]


@settings(deadline=None)
@given(odd_text)
def test_any_setting_reaches_the_guardian_unchanged(name: str) -> None:
    name = name.replace("\0", "")
    assert told(replace(BOOT, store_url=f"s3://bucket/{name}"))["store_url"] == f"s3://bucket/{name}"


def test_a_multiline_text_stays_readable_in_yaml() -> None:
    assert text("a = 1\nb = 2\n", indent=4) == "|2+\n    a = 1\n    b = 2"


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_scripts_are_valid_for_any_shell(shell: str) -> None:
    for script in (guardian(), parts(BOOT)["text/cloud-boothook"]):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=60)


def test_the_deadman_is_valid_for_python_3_6() -> None:
    ast.parse(piece("deadman.py"), feature_version=(3, 6))


def test_the_deadman_reaches_python_unchanged() -> None:
    boothook = parts(BOOT)["text/cloud-boothook"]
    assignment = boothook[boothook.index("deadman='") : boothook.index("read -r owner")]
    done = subprocess.run(
        ["sh", "-c", f'{assignment}printf %s "$deadman"'], capture_output=True, text=True, check=True
    )
    assert ast.dump(ast.parse(done.stdout)) == ast.dump(_undocumented(ast.parse(piece("deadman.py"))))


def _undocumented(tree: ast.Module) -> ast.Module:
    """Return the same program without its docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef):
            node.body = [
                each
                for each in node.body
                if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ]
    return tree
