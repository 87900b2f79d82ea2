"""From a fetcher event to what is submitted: whether it is ours, which job it is, and all that is wrong with it. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bai_agent.errors import BaiError
from bai_agent.job.descriptor import is_job_id
from executor.descriptor import Descriptor, Finding
from executor.descriptor.findings import Severity
from executor.descriptor.load import load_table
from executor.descriptor.raw_table import at, text_of
from executor.planning.request import LAST, JobRequest
from executor.planning.service_request import ServiceRequest
from executor.service.event import Event, UnreadableEventError, is_utf8
from executor.service.messages import SERVICE
from executor.service.pulls import Pulls, read_pulls
from executor.service.trust import check_trust
from executor.service_config import Bounds

_FILE = "the descriptor"
_MOST_SAID = 10
_LONGEST_SENTENCE = 4000
_SINGLE_RUN = "single_run"
_HASH = 12
_LONGEST_ID = 100


class RefusedError(BaiError):
    """A request that cannot run as it is; the text is for the person who made it."""


@dataclass(frozen=True)
class ServiceJob:
    """A request that can be submitted."""

    job_request: JobRequest
    descriptor: Descriptor


def is_ours(event: Event, engine_ids: Sequence[str]) -> bool:
    """Return whether a fetcher event is for us, and to be run now. Raises UnreadableEventError where it does not say."""
    contents = _contents(event)
    info = contents.get("info")
    if not isinstance(info, Mapping):
        raise UnreadableEventError(
            "payload.toml.contents has no table info, which says for which engine it is"
        )
    engine, scheduling = (_said(info, "execution_engine", "default"), _said(info, "scheduling", _SINGLE_RUN))
    return engine in engine_ids and scheduling == _SINGLE_RUN


def job_id_of(action_id: str) -> str:
    """Return the id of the job that the request `action_id` makes: the action id itself where a job can have it."""
    if is_job_id(action_id) and len(action_id) <= _LONGEST_ID and action_id != LAST:
        return action_id
    digest = hashlib.sha256(action_id.encode()).hexdigest()[:_HASH]
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", action_id).strip("._-")[:40].rstrip("._-")
    return f"{slug}-{digest}" if slug else f"action-{digest}"


def read_request(event: Event, bounds: Bounds, *, region: str | None) -> ServiceJob:
    """Return what the event asks for. Raises RefusedError, which names each key that is in its way.

    region: the configured one.
    """
    contents = _without_nulls(_contents(event))
    if halves := list(_half_characters(event.payload, "payload")):
        # Neither a descriptor nor an answer could be written with them.
        raise RefusedError(_sentence(halves))
    if large := list(_large_integers(contents, "")):
        # Before anything reckons with them.
        raise RefusedError(_sentence(large))
    pulls = read_pulls(event.payload, contents)
    problems = [
        *_unwritable_names(event),
        *pulls.problems,
        *_scripts_problems(contents, pulls),
        *_too_much_data(pulls, bounds),
    ]
    findings = check_trust(contents, bounds, file=_FILE, region=region)
    told = {finding.path for finding in findings}
    descriptor, others = load_table(_resolved(contents, pulls), file=_FILE, folder=None)
    # What lies below a refused table need not be right.
    findings += [
        each
        for each in others
        if each.severity is Severity.ERROR and not any(each.path[: len(path)] == path for path in told)
    ]
    if problems or findings or descriptor is None:
        raise RefusedError(_sentence([*map(_said_of, findings), *problems]))
    service = ServiceRequest(
        action_id=event.action_id,
        client_id=event.client_id,
        parent_action_id=event.parent_action_id,
        username=event.username,
        created_by=SERVICE,
        scripts=pulls.scripts,
        sizes=pulls.sizes,
    )
    name = at(event.payload, "toml").get("descriptor_filename")
    file = Path(name) if isinstance(name, str) and name.isprintable() and name else Path("descriptor.toml")
    return ServiceJob(JobRequest(file=file, on="ec2", service=service), descriptor)


def _contents(event: Event) -> Mapping[str, Any]:
    contents = at(event.payload, "toml").get("contents")
    if not isinstance(contents, Mapping):
        raise UnreadableEventError("payload.toml.contents is missing or not a table")
    return contents


def _said(info: Mapping[str, Any], name: str, default: str) -> Any:
    value = info.get(name)
    return default if value is None else value


def _resolved(contents: Mapping[str, Any], pulls: Pulls) -> dict[str, Any]:
    """Return the descriptor as we run it: on EC2, with what was fetched in the place of what it names."""
    table = dict(contents)
    table["info"] = {**at(table, "info"), "execution_engine": "aws.ec2"}
    if pulls.sources or "data" in table:
        data = table.get("data")
        if data is None or isinstance(data, Mapping):
            table["data"] = {**(data or {}), "sources": list(pulls.sources)}
    ml = table.get("ml")
    if isinstance(ml, Mapping) and isinstance(ml.get("script"), Mapping):
        # They came along with the event: its name here is the one on the machine of whoever submitted.
        kept = {key: value for key, value in ml["script"].items() if key != "script"}
        table["ml"] = {**ml, "script": kept}
    return table


def _unwritable_names(event: Event) -> list[str]:
    """Return what is wrong with the names that become part of the job: no job descriptor is read that holds a NUL character."""
    names = {
        "action_id": event.action_id,
        "parent_action_id": event.parent_action_id,
        "client_id": event.client_id,
        "client_username": event.username,
    }
    return [f"{key}: holds a NUL character; remove it" for key, name in names.items() if "\0" in (name or "")]


def _scripts_problems(contents: Mapping[str, Any], pulls: Pulls) -> list[str]:
    ml = at(contents, "ml")
    if pulls.scripts:
        return []
    if at(ml, "script").get("script") is not None:
        return ["ml.script.script: no scripts came with the request; submit them along with --script"]
    return [
        f"ml.{key}: $(BAI_SCRIPTS_PATH) is used, and no scripts came with the request; submit them along with --script"
        for key in ("benchmark_code", "args")
        if "$(BAI_SCRIPTS_PATH)" in text_of(ml, key)
    ]


def _too_much_data(pulls: Pulls, bounds: Bounds) -> list[str]:
    sizes = [*pulls.sizes.values(), *(each.size or 0 for each in pulls.scripts)]
    gib = sum(sizes) / 2**30
    if gib <= bounds.volume_gib:
        return []
    return [
        f"data.sources: {gib:,.0f} GiB of data are more than the {bounds.volume_gib} GiB that are allowed here"
    ]


def _without_nulls(node: Any) -> Any:
    """Return `node` without nulls in its tables: TOML has none, and whoever wrote them means that the key is not there."""
    if isinstance(node, Mapping):
        return {key: _without_nulls(value) for key, value in node.items() if value is not None}
    return [_without_nulls(each) for each in node] if isinstance(node, list) else node


def _half_characters(node: Any, where: str) -> Iterator[str]:
    """Yield where texts, keys included, hold halves of characters, which JSON can write and UTF-8 cannot."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            if not is_utf8(str(key)):
                yield f"{where}: a key holds half a character; write it as UTF-8"
            yield from _half_characters(value, f"{where}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _half_characters(value, f"{where}[{index}]")
    elif isinstance(node, str) and not is_utf8(node):
        yield f"{where} holds half a character; write it as UTF-8"


def _large_integers(node: Any, where: str) -> Iterator[str]:
    """Yield what is wrong with the integers of a descriptor: TOML, from which it came, has 64 bits for them."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _large_integers(value, f"{where}.{key}" if where else str(key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _large_integers(value, f"{where}[{index}]")
    elif type(node) is int and not -(2**63) <= node < 2**63:
        yield f"{where}: an integer must fit into 64 bits"


def _said_of(finding: Finding) -> str:
    where = finding.key or finding.file
    return f"{where}: {finding.problem}{f'; {finding.fix}' if finding.fix else ''}"


def _sentence(problems: Sequence[str]) -> str:
    shown = [each.strip().rstrip(".") for each in problems[:_MOST_SAID]]
    more = len(problems) - len(shown)
    return answerable(". ".join(shown) + (f". And {more} more" if more else ""))


def answerable(text: str) -> str:
    """Return a sentence as an answer may hold it, whatever it repeats of a request."""
    text = text if len(text) < _LONGEST_SENTENCE else f"{text[: _LONGEST_SENTENCE - 1]}…"
    # A mistake may quote what halves of characters are in.
    return text.encode(errors="replace").decode()
