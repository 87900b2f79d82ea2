"""Proves on a real AWS account what tests can only emulate, and takes all away again.

60 to 90 minutes, and at most the money that is shown before anything is made. Needs credentials of an administrator, and `bai`'s
packages (scripts/setup executor). Exit code: 0 if all that was answered holds and nothing is left, 1 if not, 2 if nothing was begun,
130 or 143 if interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError, ClientError, NoRegionError

from executor.owned_folders import cache_folder
from on_aws.account import Account, locked
from on_aws.evidence import write_bundle
from on_aws.leftovers import clean, left, other_machines
from on_aws.proof import Answer, DiffersError, Finding, Step, UnansweredError, find, plan_text, table_text
from on_aws.steps import FIRST, LAST, STEPS

REMOVED = Step(
    name="removed",
    checks="the set-up is removed, and the account has nothing of it any more",
    assumption="executor/backends/ec2/setup/account_removal.py · remove",
    run=lambda account: "",
)
"""The last one; it is always tried."""


def main() -> int:
    """Run the command; return its exit code."""
    options = _options()
    steps = _chosen(options)
    print(plan_text([*FIRST, *steps, REMOVED]))
    if options.list:
        return 0
    try:
        account = _account(options)
        with locked(account.folder) as alone:
            if not alone:
                return _refused("another proof of this account and region runs on this machine")
            return _proved(account, steps, options)
    except (BotoCoreError, ClientError) as error:
        return _refused(str(error))
    except KeyboardInterrupt:
        # Signals are caught before anything is made.
        _refused("nothing was made")
        return 128 + signal.SIGINT


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="prove-on-aws", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", action="store_true", help="also a step on a g4dn.xlarge")
    parser.add_argument("--yes", action="store_true", help="do not ask before anything is made")
    parser.add_argument("--list", action="store_true", help="show the steps, and make nothing")
    parser.add_argument("--clean", action="store_true", help="only take away what an earlier start has left")
    parser.add_argument(
        "--only", metavar="STEPS", default="", help="only these, separated by commas, and what they need"
    )
    parser.add_argument(
        "--at-once", type=int, default=4, metavar="N", help="most machines at a time (%(default)s)"
    )
    parser.add_argument("--region", help="the AWS region [default: that of the environment or profile]")
    parser.add_argument("--profile", help="the AWS profile")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder of the bundle (the present one)"
    )
    options = parser.parse_args()
    if unknown := set(filter(None, options.only.split(","))) - {each.name for each in (*STEPS, *LAST)}:
        parser.error(f"--only: there is no step {', '.join(sorted(unknown))}")
    if not options.out.is_dir():
        parser.error(f"--out: {options.out} is not a folder")
    if options.at_once < 2:
        parser.error("--at-once: a step needs 2 machines at a time")
    return options


def _chosen(options: argparse.Namespace) -> list[Step]:
    names = set(filter(None, options.only.split(",")))
    return [
        each for each in (*STEPS, *LAST) if (each.name in names if names else options.gpu or not each.gpu)
    ]


def _account(options: argparse.Namespace) -> Account:
    stamp = f"{datetime.now(timezone.utc):%m%d%H%M%S}"
    region = (
        options.region
        or os.environ.get("AWS_REGION")
        or boto3.Session(profile_name=options.profile).region_name
    )
    if region is None:
        raise NoRegionError()
    asked = Account(
        region=region, profile=options.profile, folder=Path(), stamp=stamp, at_once=options.at_once
    )
    return replace(asked, folder=cache_folder(os.environ) / "proofs" / f"{asked.id}-{region}")


def _proved(account: Account, steps: Sequence[Step], options: argparse.Namespace) -> int:
    where = f"{account.region} of account {account.id}"
    there = left(account)
    if others := other_machines(account):
        return _refused(
            f"machines of other jobs live in {where} ({', '.join(others[:3])}); take another --region"
        )
    for each in there:
        print(f"left by an earlier start: {each}")
    verb = "Take away what is left in" if options.clean else "Make all this in"
    if not options.yes and not _agreed(f"{verb} {where}, and remove it afterwards?"):
        return _refused("nothing was made")
    caught = _catch_signals(account)
    if there:
        _say("taking away what an earlier start has left")
        if remains := clean(account, _say):
            return _refused(f"still there: {', '.join(remains)}")
    _forget(account)
    if options.clean:
        return 0
    (account.folder / "config.toml").write_text("")
    findings: list[Finding] = []
    try:
        findings += _try_all(account, steps)
    finally:
        findings.append(_removed(account))
    text = table_text(findings)
    print(text)
    bundle = _bundle(account, findings, text, options.out)
    _say(f"evidence, without account ids, user data and addresses: {bundle}")
    if caught:
        return 128 + caught[0]
    return int(any(each.answer is Answer.DIFFERS for each in findings))


def _try_all(account: Account, steps: Sequence[Step]) -> list[Finding]:
    findings: list[Finding] = []
    for each in FIRST:
        findings.append(_tried(each, account))
        if findings[-1].answer is not Answer.HOLDS:
            rest = [*FIRST[len(findings) :], *steps]
            return findings + [
                Finding(step=one, answer=Answer.UNANSWERED, seen=f"{each.name} did not hold") for one in rest
            ]
    last = [each for each in steps if each in LAST]
    others = [each for each in steps if each not in last]
    with ThreadPoolExecutor(len(others) or 1) as pool:
        futures = [pool.submit(_tried, each, account) for each in others]
        # A signal is handled between two waits of the main thread.
        while wait(futures, timeout=0.5).not_done:
            pass
    return findings + [each.result() for each in futures] + [_tried(each, account) for each in last]


def _tried(step: Step, account: Account) -> Finding:
    try:
        with account.slots.taken(step.machines, account.stop):
            _say(f"{step.name}: begins")
            found = find(step, account, time.monotonic)
            if found.answer is Answer.DIFFERS and step.machines:
                _keep_more(step, account)
    except UnansweredError as reason:
        found = Finding(step=step, answer=Answer.UNANSWERED, seen=str(reason))
    _say(f"{step.name}: {found.answer.value}: {found.seen}")
    return found


def _keep_more(step: Step, account: Account) -> None:
    """Keep what tells why a step does not hold, as far as it can be had."""
    job = account.job(step.name)
    for command in (("status", job, "-v"), ("logs", job), ("logs", job, "--boot")):
        with suppress(DiffersError, UnansweredError, OSError):
            account.bai(step.name, *command, minutes=2)


def _removed(account: Account) -> Finding:
    began = time.monotonic()
    try:
        remains = clean(account, _say)
        answer = Answer.DIFFERS if remains else Answer.HOLDS
        seen = f"still there: {', '.join(remains)}" if remains else "the account has nothing of it any more"
    except Exception as error:
        answer, seen = Answer.DIFFERS, f"{type(error).__name__}: {error}; run this again with --clean"
    return Finding(step=REMOVED, answer=answer, seen=seen, seconds=time.monotonic() - began)


def _bundle(account: Account, findings: Sequence[Finding], text: str, folder: Path) -> Path:
    account.keep(".", "table.txt", f"{text}\n")
    rows = [
        {"step": each.step.name, "answer": each.answer.value, "seen": each.seen, "checks": each.step.checks,
         "assumption": each.step.assumption, "seconds": round(each.seconds, 1)}
        for each in findings
    ]  # fmt: skip
    about = {"region": account.region, "emulated": account.emulated, "time": account.stamp, "steps": rows}
    account.keep(".", "table.json", json.dumps(about, indent=1))
    bundle = folder / f"prove-on-aws-{account.stamp}.tar.gz"
    write_bundle(account.evidence, bundle, account.redactor)
    _forget(account)
    return bundle


def _forget(account: Account) -> None:
    """Delete the proof's own files, except for its lock."""
    for each in (account.evidence, account.folder / "benchmarks"):
        shutil.rmtree(each, ignore_errors=True)
    (account.folder / "config.toml").unlink(missing_ok=True)


def _catch_signals(account: Account) -> list[int]:
    """Have the first SIGINT or SIGTERM end all steps, and later ones do nothing; return the list of those that came."""
    caught: list[int] = []

    def stop(number: int, _: object) -> None:
        caught.append(number)
        account.stop.set()
        _say(
            "interrupted: taking all away, which takes minutes; if this is killed too, start it again with --clean"
        )

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, stop)
    return caught


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        _say("there is no terminal to ask on; --yes does not ask")
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def _refused(sentence: str) -> int:
    _say(sentence)
    return 2


def _say(sentence: str) -> None:
    print(f"prove-on-aws: {datetime.now(timezone.utc):%H:%M:%S} {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
