"""`${NAME}` in a descriptor is expanded when a user calls `bai`, and only then."""

from __future__ import annotations

from local_cli import LocalCli

PRINTS = "import os, sys\nprint(sys.argv[1:], os.environ['PLACE'])\n"
TABLES = """
[env.vars]
PLACE = "${WHO} in $(BAI_JOB_ID)"
"""


def test_variables_are_expanded_at_submission_and_kept_by_like(cli: LocalCli) -> None:
    file = cli.descriptor(PRINTS, more=TABLES)
    file.write_text(
        file.read_text().replace("[ml]\n", "[ml]\nargs = '''--lr ${LR:-0.1} \"$${WHO}\" \"${WHO}\"'''\n")
    )

    unset = cli.bai("run", file)
    first = cli.bai("run", file, "--job-id", "first", env={"WHO": '$(HOME) "A"', "LR": "0.2"})
    again = cli.bai("run", "--like", "first", "--job-id", "again", env={"WHO": "other"})
    planned = cli.bai("plan", file, "--set", "env.vars.PLACE=here", env={"WHO": "${LR}"})

    assert unset.code == 2
    assert "env.vars.PLACE the environment variable WHO is not set" in " ".join(unset.stderr.split())
    assert (first.code, again.code) == (0, 0), first.stderr + again.stderr
    words = ["--lr", "0.2", "${WHO}", '$(HOME) "A"']
    assert cli.output("first") == f'{words} $(HOME) "A" in first\n'
    assert cli.output("again") == f'{words} $(HOME) "A" in again\n'
    for each in ("first", "again"):
        assert cli.record(each).job().set["env.vars.PLACE"] == '$$(HOME) "A" in $(BAI_JOB_ID)'
    assert '"$${LR}",' in planned.stdout
    assert 'PLACE = "here"' in planned.stdout
