"""Files of a commit from a real server, over https: what is fetched, what never is, and what is refused."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from git_server import GitServer, Repository, git_server

import executor.planning.git_fetch
from bai_agent.job.descriptor.benchmark_tables import Git
from bai_agent.shim.proc import read_process
from executor.descriptor import load
from executor.descriptor.model import Script
from executor.errors import ScriptsError, UsageError
from executor.jobs.resolved_request import FetchedScripts, resolved_request
from executor.jobs.scope import JobScope
from executor.planning.git_fetch import GitFiles, fetch_files
from executor.planning.request import JobRequest
from executor.planning.scripts_folder import survey_scripts


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitServer]:
    with git_server(tmp_path_factory.mktemp("git") / "repositories") as server:
        yield server


@pytest.fixture
def repository(server: GitServer, request: pytest.FixtureRequest) -> Repository:
    return Repository(server.folder / request.node.name / "bench")


def _fetch(
    server: GitServer,
    repository: Repository,
    place: Path,
    ref: str | None = None,
    folder: str | None = None,
    **environment: str,
) -> GitFiles:
    address = f"{server.url}/{repository.folder.relative_to(server.folder)}"
    place.mkdir()
    return fetch_files(
        address,
        ref,
        folder,
        place,
        environment={"PATH": os.environ["PATH"], **server.environment, **environment},
    )


def _read(found: GitFiles) -> dict[str, str]:
    files = survey_scripts(found.folder).files
    return {str(each.path): (found.folder / each.path).read_text() for each in files}


def test_a_branch_tag_commit_or_default_resolves_to_one_commit(
    server: GitServer, repository: Repository, tmp_path: Path
) -> None:
    first = repository.commit({"train.py": "1", "lib/a.py": "a"})
    repository.git("tag", "--annotate", "--message=m", "v1")
    second = repository.commit({"train.py": "2"})
    repository.git("branch", "feature/x", first)

    found = {
        ref: _fetch(server, repository, tmp_path / str(number), ref)
        for number, ref in enumerate([None, "main", "v1", "feature/x", first, second])
    }

    assert {ref: each.commit for ref, each in found.items()} == {
        None: second,
        "main": second,
        "v1": first,
        "feature/x": first,
        first: first,
        second: second,
    }
    assert _read(found[None]) == {"train.py": "2", "lib/a.py": "a"}
    assert _read(found["v1"]) == {"train.py": "1", "lib/a.py": "a"}


def test_only_the_requested_folder_of_a_repository_is_checked_out(
    server: GitServer, repository: Repository, tmp_path: Path
) -> None:
    repository.commit({"other.py": "o", ".gitignore": "*", "bench/resnet/train.py": "t"})

    found = _fetch(server, repository, tmp_path / "place", folder="bench/resnet")

    whole = _fetch(server, repository, tmp_path / "whole", folder="./")

    assert _read(found) == {"train.py": "t"}
    assert not (found.folder.parents[1] / "other.py").exists()
    assert (whole.folder / "other.py").read_text() == "o"


@pytest.mark.parametrize(
    ("ref", "folder", "says"),
    [
        ("v9", None, 'the repository has no branch, tag or full commit "v9"'),
        ("0" * 40, None, 'the repository has no branch, tag or full commit "' + "0" * 40),
        (None, "gone", "has no folder gone"),
        (None, "train.py", "has no folder train.py"),
        (None, "link", "has no folder link"),
    ],
)
def test_a_missing_ref_or_folder_of_the_repository_is_named(
    server: GitServer, repository: Repository, tmp_path: Path, ref: str | None, folder: str | None, says: str
) -> None:
    (repository.folder / "link").symlink_to("/etc")
    repository.commit({"train.py": "1"})

    with pytest.raises(UsageError) as error:
        _fetch(server, repository, tmp_path / "place", ref, folder)
    assert says in str(error.value)


def test_a_missing_repository_is_named(server: GitServer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^there is no repository; correct the address$"):
        fetch_files(
            f"{server.url}/gone", None, None, tmp_path, environment={**os.environ, **server.environment}
        )


def test_a_private_repository_is_refused_without_using_stored_credentials(
    server: GitServer, tmp_path: Path
) -> None:
    private = Repository(server.folder / "private" / "bench")
    private.commit({"train.py": "1"})
    home = tmp_path / "home"
    home.mkdir()
    helper = home / "helper"
    helper.write_text("#!/bin/sh\ntouch $0.used\nprintf 'username=user\\npassword=password\\n'\n")
    helper.chmod(0o755)
    (home / ".gitconfig").write_text(f"[credential]\nhelper = {helper}\n")
    (home / ".netrc").write_text("machine 127.0.0.1 login user password password\n")

    with pytest.raises(UsageError, match="does not exist or needs a login, and bai has no login"):
        _fetch(
            server,
            private,
            tmp_path / "place",
            HOME=str(home),
            XDG_CONFIG_HOME=str(home),
            GIT_ASKPASS=str(helper),
            GIT_CONFIG_COUNT="1",
            GIT_CONFIG_KEY_0="credential.helper",
            GIT_CONFIG_VALUE_0=str(helper),
        )
    assert not (home / "helper.used").exists()


def test_hooks_filters_submodules_and_url_rewrites_of_the_user_are_ignored(
    server: GitServer, repository: Repository, tmp_path: Path
) -> None:
    inner = Repository(server.folder / "inner")
    inner.commit({"inner.py": "i"})
    repository.commit({"train.py": "1", ".gitattributes": "*.bin filter=lfs\n", "model.bin": "pointer"})
    module = f'[submodule "inner"]\npath = inner\nurl = {server.url}/inner\n'
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{inner.git('rev-parse', 'HEAD')},inner")
    (repository.folder / ".gitmodules").write_text(module)
    (repository.folder / "inner").mkdir()
    repository.git("add", ".gitmodules")
    repository.git("commit", "--quiet", "--message=m")
    home = tmp_path / "home"
    templates = home / "templates/hooks"
    templates.mkdir(parents=True)
    hook = templates / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {home}/hooked\n")
    hook.chmod(0o755)
    (home / ".gitconfig").write_text(
        f"[init]\ntemplateDir = {home}/templates\n[core]\nhooksPath = {templates}\n"
        f'[filter "lfs"]\nsmudge = touch {home}/smudged\nrequired = true\n'
        '[url "https://example.invalid/"]\ninsteadOf = https://127.0.0.1\n[submodule]\nrecurse = true\n'
    )

    found = _fetch(
        server, repository, tmp_path / "place", HOME=str(home), GIT_TEMPLATE_DIR=str(home / "templates")
    )

    files = _read(found)
    assert (files["train.py"], files["model.bin"]) == ("1", "pointer")
    assert not any(name.startswith("inner/") for name in files)
    assert not (home / "hooked").exists()
    assert not (home / "smudged").exists()


def test_a_link_out_of_the_folder_is_refused_as_in_a_folder_of_this_machine(
    server: GitServer, repository: Repository, tmp_path: Path
) -> None:
    (repository.folder / "key").symlink_to("/etc/passwd")
    repository.commit({"train.py": "1"})

    found = _fetch(server, repository, tmp_path / "place")

    with pytest.raises(ScriptsError, match="a link out of the folder, to /etc/passwd"):
        survey_scripts(found.folder)


def test_a_commit_without_files_is_named(server: GitServer, repository: Repository, tmp_path: Path) -> None:
    repository.git("commit", "--quiet", "--allow-empty", "--message=c")

    with pytest.raises(UsageError, match=r"^the commit [0-9a-f]{40} has no files$"):
        _fetch(server, repository, tmp_path / "place")


def test_a_repository_that_is_too_large_is_refused(
    server: GitServer, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit({"zeros": "0" * 3_000_000})  # a small object, a large file
    monkeypatch.setattr(executor.planning.git_fetch, "MOST_BYTES", 1 << 20)

    with pytest.raises(UsageError, match=r"^the repository has more than .* GiB; clone the repository"):
        _fetch(server, repository, tmp_path / "place")


def test_a_git_with_endless_output_is_abandoned(
    server: GitServer, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor.planning.git_fetch, "MOST_BYTES", 1 << 20)
    (tmp_path / "git").write_text("#!/bin/sh\nexec yes error >&2\n")
    (tmp_path / "git").chmod(0o755)

    with pytest.raises(UsageError, match="the repository has more than"):
        _fetch(server, repository, tmp_path / "place", PATH=f"{tmp_path}:{os.environ['PATH']}")


def test_a_repository_address_other_than_https_is_refused(tmp_path: Path) -> None:
    local = Repository(tmp_path / "local")
    local.commit({"train.py": "1"})
    place = tmp_path / "place"
    place.mkdir()

    with pytest.raises(UsageError, match="transport 'file' not allowed"):
        fetch_files(local.folder.as_uri(), None, None, place, environment=os.environ)


def test_a_server_that_is_not_trusted_is_refused(
    server: GitServer, repository: Repository, tmp_path: Path
) -> None:
    repository.commit({"train.py": "1"})
    environment = {"PATH": os.environ["PATH"], "GIT_SSL_NO_VERIFY": "1"}

    with pytest.raises(UsageError, match=r"cannot be fetched: fatal: unable to access .*certificate"):
        fetch_files(
            f"{server.url}/{repository.folder.relative_to(server.folder)}",
            None,
            None,
            tmp_path,
            environment=environment,
        )


def test_a_git_server_that_hangs_is_abandoned(
    server: GitServer, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor.planning.git_fetch, "FETCH_SECONDS", 1.0)
    server.hangs = True
    try:
        with pytest.raises(UsageError, match="did not arrive within 1 s"):
            _fetch(server, repository, tmp_path / "place")
    finally:
        server.hangs = False


def test_processes_that_git_leaves_are_ended_with_it(
    server: GitServer, repository: Repository, tmp_path: Path
) -> None:
    commit = repository.commit({"train.py": "1"})
    left = tmp_path / "left"
    program = tmp_path / "git"
    program.write_text(f'#!/bin/sh\nsleep 600 &\necho $! >>{left}\nexec {shutil.which("git")} "$@"\n')
    program.chmod(0o755)

    found = _fetch(server, repository, tmp_path / "place", PATH=f"{tmp_path}:{os.environ['PATH']}")

    assert found.commit == commit
    pids = [int(line) for line in left.read_text().split()]
    deadline = time.monotonic() + 60
    while any(map(_lives, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if _lives(pid)]


def _lives(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.state not in "ZX"


def test_a_missing_git_is_reported_in_a_sentence(
    server: GitServer, repository: Repository, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"^the program git is not installed; install it"):
        _fetch(server, repository, tmp_path / "place", PATH=str(tmp_path))


def test_fetched_files_are_removed_after_the_submission(
    server: GitServer, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repository.commit({"train.py": "1"})
    address = f"{server.url}/{repository.folder.relative_to(server.folder)}"
    text = (
        'spec_version = "0.1.0"\n[info]\ndescription = "d"\n[hardware]\ninstance_type = "local"\n'
        f'[ml]\nbenchmark_code = "true"\n[ml.script]\ngit = "{address}"\n'
    )
    descriptor, findings = load(tmp_path / "b.toml", content=text.encode())
    assert descriptor is not None, findings
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    scope = JobScope(store=str(tmp_path / "store"))

    with resolved_request(JobRequest(file=tmp_path / "b.toml"), descriptor, scope, job_id=None) as resolved:
        request, _ = resolved
        assert request.scripts is not None
        assert (request.scripts / "train.py").read_text() == "1"
        assert request.git == Git(commit=commit)
        assert [each for each in tmp_path.glob(".bai-*") if each in request.scripts.parents]

    assert not list(tmp_path.glob(".bai-*"))


def test_a_fetch_that_fails_leaves_no_files_while_a_group_runs(
    server: GitServer, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit({"train.py": "1"})
    address = f"{server.url}/{repository.folder.relative_to(server.folder)}"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)

    with FetchedScripts() as fetched:
        with pytest.raises(UsageError, match="has no folder none"):
            fetched.of_commit(Script(git=address, folder="none"), None)
        assert not list(tmp_path.glob(".bai-*"))
        files = fetched.of_commit(Script(git=address), None)
        assert (files.folder / "train.py").read_text() == "1"

    assert not list(tmp_path.glob(".bai-*"))


def test_a_group_over_many_commits_keeps_few_copies_and_each_ref_stays_its_commit(
    server: GitServer, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = [repository.commit({"train.py": str(number)}) for number in range(6)]
    address = f"{server.url}/{repository.folder.relative_to(server.folder)}"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)

    with FetchedScripts() as fetched:
        # One call of the group fetches them for checksums, and later ones for jobs.
        for call in range(2):
            for number, ref in enumerate([*commits, "main"]):
                files = fetched.of_commit(Script(git=address), ref)
                wanted = min(number, 5)
                assert files.commit == commits[wanted]
                assert (files.folder / "train.py").read_text() == str(wanted)
                assert len(list(tmp_path.glob(".bai-*"))) <= 4
            repository.commit({"train.py": f"the branch has moved {call}"})

    assert not list(tmp_path.glob(".bai-*"))


def test_no_repository_is_fetched_for_a_matrix_over_local_script_folders(tmp_path: Path) -> None:
    text = (
        'spec_version = "0.1.0"\n[info]\ndescription = "d"\n[hardware]\ninstance_type = "local"\n'
        '[ml]\nbenchmark_code = "true"\n[ml.script]\ngit = "https://127.0.0.1:1/none"\n'
        "[matrix]\n'ml.script.path' = ['one', 'two']\n"
    )
    descriptor, findings = load(tmp_path / "b.toml", content=text.encode())
    assert descriptor is not None, findings
    request, scope = JobRequest(file=tmp_path / "b.toml"), JobScope(store=str(tmp_path / "store"))

    with resolved_request(request, descriptor, scope, job_id=None) as resolved:
        assert resolved == (request, descriptor)
