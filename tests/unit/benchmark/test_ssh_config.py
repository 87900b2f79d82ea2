"""What sshd has a node's command run by, as a shell reads it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bai_agent.benchmark.openssh import server_files
from bai_agent.strategy.launch import SshFrom

PUBLIC = "ssh-ed25519 " + "A" * 68


@given(
    st.dictionaries(
        st.text(max_size=8), st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=30)
    )
)
def test_a_command_started_by_ssh_gets_the_nodes_environment_with_any_values(values: dict[str, str]) -> None:
    env = {f"V_{number}": value for number, value in enumerate(values.values())}
    server = SshFrom(address="10.0.0.1", port=4000, public_key=PUBLIC)
    odd = {name: "x" for name in values if not name.isidentifier()}
    files = server_files(
        Path("/ssh"),
        server,
        account="root",
        use_pam=False,
        env={**env, **odd},
        cwd=Path("/tmp"),
    )

    done = subprocess.run(
        ["/bin/sh", "-s"],
        input=files["enter"].encode(),
        env={"PATH": "/usr/bin:/bin", "SSH_ORIGINAL_COMMAND": "pwd; exec env -0"},
        capture_output=True,
        check=True,
        timeout=60,
    )

    cwd, _, told = done.stdout.partition(b"\n")
    found = dict(each.split(b"=", 1) for each in told.split(b"\0") if each)
    assert cwd == b"/tmp"
    assert {name: found[name.encode()].decode() for name in env} == env


def test_variables_with_names_that_bash_reserves_reach_the_command() -> None:
    env = {"UID": "7", "EUID": "8", "PPID": "9", "BASHOPTS": "dotglob", "WORD": "a b"}
    server = SshFrom(address="10.0.0.1", port=4000, public_key=PUBLIC)
    files = server_files(Path("/ssh"), server, account="root", use_pam=False, env=env, cwd=Path("/tmp"))

    # As bash runs it where it is the machine's sh
    done = subprocess.run(
        ["bash", "--posix", "-s"],
        input=files["enter"].replace('/bin/sh -c "$SSH_ORIGINAL_COMMAND"', "env -0").encode(),
        env={"PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )

    found = dict(each.split(b"=", 1) for each in done.stdout.split(b"\0") if each)
    assert {name: found[name.encode()].decode() for name in env} == env
