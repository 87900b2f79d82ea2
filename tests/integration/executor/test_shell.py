"""`bai shell` for jobs on this machine: a real shell, told what to do by its input."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from local_cli import LocalCli
from pseudo_terminal import Terminal

ASKS = """
pwd
echo "lr=$LR job=$BAI_JOB_ID token=${TOKEN-none} run=${BAI_RUN_DIR-none}"
tail -n 1 output.log
exit 7
"""


def run(cli: LocalCli) -> Path:
    file = cli.folder / "benchmark.toml"
    file.write_text(
        'spec_version = "0.1.0"\n[info]\ndescription = "d"\n[hardware]\ninstance_type = "local"\n[ml]\nbenchmark_code = "echo done"\n'
        '[env.vars]\nLR = "0.1"\n[env.secrets]\nTOKEN = "env:TOKEN"\n[host_metrics]\nenabled = false\n'
    )
    assert cli.bai("run", file, "--job-id", "job-1", env={"TOKEN": "very secret"}).code == 0
    return file


def test_a_shell_is_in_the_run_directory_with_the_benchmarks_environment(cli: LocalCli) -> None:
    run(cli)

    answer = cli.bai("shell", "last", stdin=ASKS, env={"SHELL": "/bin/sh", "TOKEN": "very secret"})

    folder, environment, printed = answer.stdout.splitlines()
    assert answer.code == 7
    assert folder.endswith("/job-1/attempts/0/nodes/0")
    assert environment == "lr=0.1 job=job-1 token=none run=none"
    assert printed == "done"
    assert "a shell in the run directory of job-1 (node 0)" in answer.stderr
    assert "with the environment of its benchmark without its secrets (TOKEN)" in answer.stderr


def test_a_node_without_a_run_directory_is_named(cli: LocalCli) -> None:
    run(cli)

    answer = cli.bai("shell", "job-1", "--node", "3")

    assert answer.code == 2
    assert "job-1 has no run directory of a node 3 on this machine" in answer.stderr


def test_ctrl_c_ends_a_program_of_the_shell_and_not_bai(cli: LocalCli) -> None:
    run(cli)

    with Terminal("shell", "last", cli=cli, environment={**cli.environment, "SHELL": "/bin/sh"}) as terminal:
        terminal.await_text("a shell in the run directory")
        # Its own handler is there when it has printed this; a shell's child may miss a signal before its exec.
        sleeps = "import time; print('sle' + 'eps', flush=True); time.sleep(1000)"
        os.write(terminal.master, f'{sys.executable} -c "{sleeps}"\n'.encode())
        terminal.await_text("sleeps")
        terminal.press_ctrl_c()
        os.write(terminal.master, b"echo lives-$((1 + 1)); exit 5\n")
        terminal.await_text("lives-2")
        assert terminal.wait() == 5
