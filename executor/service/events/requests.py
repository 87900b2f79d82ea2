"""Reads fetcher events: whether an event is for this service, which job it requests, and which mistakes it
contains. The module does no I/O."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bai_agent.job.descriptor.source_tables import Source, SourceKind, Unpack
from bai_agent.job.schema.field_types import is_job_id
from bai_agent.job.schema.source_schemes import SCHEMES, grants_access, scheme_of, source_name
from bai_agent.light_dataclass import dataclass
from executor.configuration.service_config import Bounds
from executor.descriptor import Descriptor, Finding
from executor.descriptor.findings import Severity
from executor.descriptor.load import load_table
from executor.descriptor.raw_table import Raw, at, items, text_at
from executor.documents.text import as_utf8
from executor.errors import RefusedError, UnreadableEventError
from executor.planning.request import LAST, JobRequest, ServiceRequest
from executor.service.events.event import Event, is_utf8
from executor.service.events.messages import SERVICE
from executor.service.events.policy import REMOTE_SCHEMES, check_trust

_FILE = "the descriptor"
_MOST_SAID = 10
_LONGEST_SENTENCE = 4000
_SINGLE_RUN = "single_run"
_HASH = 12
_LONGEST_ID = 100


@dataclass(frozen=True)
class ServiceJob:
    """A job that an event requests and that can be submitted."""

    job_request: JobRequest
    descriptor: Descriptor


def is_ours(event: Event, engine_ids: Sequence[str]) -> bool:
    """Return whether a fetcher event is for this service and its job must run now. Raises
    UnreadableEventError if the event does not name its engine."""
    contents = _contents(event)
    info = contents.get("info")
    if not isinstance(info, Mapping):
        raise UnreadableEventError("payload.toml.contents has no table info, which names its engine")
    engine, scheduling = (
        _value(info, "execution_engine", "default"),
        _value(info, "scheduling", _SINGLE_RUN),
    )
    return engine in engine_ids and scheduling == _SINGLE_RUN


def action_job_id(action_id: str) -> str:
    """Return the job id of the request `action_id`: the action id itself if it is a valid job id."""
    if is_job_id(action_id) and len(action_id) <= _LONGEST_ID and action_id != LAST:
        return action_id
    digest = hashlib.sha256(action_id.encode()).hexdigest()[:_HASH]
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", action_id).strip("._-")[:40].rstrip("._-")
    return f"{slug}-{digest}" if slug else f"action-{digest}"


def read_request(event: Event, bounds: Bounds, *, region: str | None) -> ServiceJob:
    """Return the job that the event requests. Raises RefusedError, which names each wrong key. region: the
    configured region.
    """
    contents = _without_nulls(_contents(event))
    # Descriptors and answers cannot contain lone surrogates, and integers beyond 64 bits would break
    # calculations.
    for problems in (_half_characters(event.payload), _large_integers(contents)):
        if problems:
            raise RefusedError(_sentence(problems))
    pulls = read_pulls(event.payload, contents)
    problems = [
        *_unwritable_names(event),
        *pulls.problems,
        *_scripts_problems(contents, pulls),
        *_too_much_data(pulls, bounds),
    ]
    refused = check_trust(contents, bounds, file=_FILE, region=region)
    descriptor, findings = load_table(_resolved(contents, pulls), file=_FILE, folder=None)
    mistakes = [*refused, *_other_mistakes(findings, refused)]
    if problems or mistakes or descriptor is None:
        raise RefusedError(_sentence([*map(_finding_text, mistakes), *problems]))
    service = ServiceRequest(
        action_id=event.action_id,
        client_id=event.client_id,
        parent_action_id=event.parent_action_id,
        username=event.username,
        created_by=SERVICE,
        scripts=pulls.scripts,
        sizes=pulls.sizes,
    )
    return ServiceJob(JobRequest(file=_file(event), on="ec2", service=service), descriptor)


def _other_mistakes(findings: Sequence[Finding], refused: Sequence[Finding]) -> list[Finding]:
    """Return the errors in `findings`, except errors about a refused key or a key below it."""
    paths = {each.path for each in refused}
    return [
        each
        for each in findings
        if each.severity is Severity.ERROR and not any(each.path[: len(path)] == path for path in paths)
    ]


def _file(event: Event) -> Path:
    name = at(event.payload, "toml").get("descriptor_filename")
    return Path(name) if isinstance(name, str) and name.isprintable() and name else Path("descriptor.toml")


def _contents(event: Event) -> Mapping[str, Any]:
    contents = at(event.payload, "toml").get("contents")
    if not isinstance(contents, Mapping):
        raise UnreadableEventError("payload.toml.contents is missing or not a table")
    return contents


def _value(info: Mapping[str, Any], name: str, default: str) -> Any:
    value = info.get(name)
    return default if value is None else value


def _resolved(contents: Mapping[str, Any], pulls: Pulls) -> dict[str, Any]:
    """Return the descriptor for a run on EC2, with the fetched sources in place of the descriptor's own
    sources."""
    table = dict(contents)
    table["info"] = {**at(table, "info"), "execution_engine": "aws.ec2"}
    data = table.get("data", {} if pulls.sources else "")
    if data is None or isinstance(data, Mapping):
        table["data"] = {**(data or {}), "sources": list(pulls.sources)}
    if _has_server(contents):
        table["server"] = {**at(contents, "server"), "models": list(pulls.models)}
    ml = table.get("ml")
    if isinstance(ml, Mapping) and isinstance(ml.get("script"), Mapping):
        # The scripts come from the event. The path of the scripts in the descriptor is valid only on the
        # machine of the user who submitted the request.
        kept = {key: value for key, value in ml["script"].items() if key != "script"}
        table["ml"] = {**ml, "script": kept}
    return table


def _unwritable_names(event: Event) -> list[str]:
    """Return the mistakes in names that become part of the job descriptor, which cannot contain NUL
    characters."""
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
        f"ml.{key}: $(BAI_SCRIPTS_PATH) is used, but no scripts came with the request; submit them along with --script"
        for key in ("benchmark_code", "args")
        if "$(BAI_SCRIPTS_PATH)" in text_at(ml, key)
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
    """Return `node` without nulls in its tables. TOML has no nulls; a null in an event means an absent
    key."""
    if isinstance(node, Mapping):
        return {key: _without_nulls(value) for key, value in node.items() if value is not None}
    return [_without_nulls(each) for each in node] if isinstance(node, list) else node


def _half_characters(payload: Mapping[str, Any]) -> list[str]:
    """Return a mistake for each text or key with lone surrogates, which JSON can contain but UTF-8 cannot."""
    texts = ((place, text) for place, text in _leaves(payload, "payload") if isinstance(text, str))
    return [
        f"{place} holds half a character (a lone surrogate); write the text as UTF-8"
        for place, text in texts
        if not is_utf8(text)
    ]


def _large_integers(contents: Mapping[str, Any]) -> list[str]:
    """Return a mistake for each integer in a descriptor that does not fit into 64 bits."""
    numbers = ((place, number) for place, number in _leaves(contents) if type(number) is int)
    return [
        f"{place}: an integer must fit into 64 bits"
        for place, number in numbers
        if not -(2**63) <= number < 2**63
    ]


def _leaves(node: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys and the single values of a tree of tables and lists, each with its place in the tree."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield f"{where}: a key", key
            yield from _leaves(value, f"{where}.{key}" if where else str(key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _leaves(value, f"{where}[{index}]")
    else:
        yield where, node


def _finding_text(finding: Finding) -> str:
    where = finding.key or finding.file
    return f"{where}: {finding.problem}{f'; {finding.fix}' if finding.fix else ''}"


def _sentence(problems: Sequence[str]) -> str:
    shown = [each.strip().rstrip(".") for each in problems[:_MOST_SAID]]
    more = len(problems) - len(shown)
    return answerable(". ".join(shown) + (f". And {more} more" if more else ""))


def answerable(text: str) -> str:
    """Return `text`, which may repeat parts of a request, in a form that an answer may contain."""
    text = text if len(text) < _LONGEST_SENTENCE else f"{text[: _LONGEST_SENTENCE - 1]}…"
    # A message may quote a text with lone surrogates.
    return as_utf8(text)


_MD5 = re.compile(r"[0-9a-fA-F]{32}")
_KEPT = ("id", "md5", "sha256", "unpack", "mode")
"""Keys of a source in the descriptor that also apply to the fetched copy of the source."""


@dataclass(frozen=True, kw_only=True)
class Pulls:
    """The sources of a job."""

    sources: tuple[dict[str, Any], ...]
    """Datasets as items of `data.sources`; for a job without a server, also the models."""
    models: tuple[dict[str, Any], ...] = ()
    """Models as items of `server.models`."""
    sizes: Mapping[str, int]
    """Known sizes (bytes) by address."""
    scripts: tuple[Source, ...]
    problems: tuple[str, ...]
    """Reasons why the job cannot run, one sentence each."""


def read_pulls(payload: Mapping[str, Any], contents: Raw) -> Pulls:
    """Return the sources in the `payload` of a fetcher event with the descriptor `contents`.

    If a source of the descriptor was not fetched, the job pulls it from the address in the descriptor.
    """
    problems: list[str] = []
    sizes: dict[str, int] = {}

    def pulled(name: str, *keys: str) -> list[dict[str, Any]]:
        written = [each for _, each in items(contents, *keys)]
        found, fetched = [], set()
        for where, item in _items(payload, name, problems):
            src = text_at(item, "src")
            fetched.add(src)
            read = _fetched(where, item, _written(written, src, item.get("path")), problems)
            if read is not None:
                found.append(read)
                if (size := _size(item)) is not None:
                    sizes[read["src"]] = size
        return [*found, *(dict(each) for each in written if text_at(each, "src") not in fetched)]

    data, models = pulled("datasets", "data", "sources"), pulled("models", "server", "models")
    return Pulls(
        sources=tuple(data if _has_server(contents) else [*data, *models]),
        models=tuple(models),
        sizes=sizes,
        scripts=tuple(_scripts(payload, problems)),
        problems=tuple(problems),
    )


def _has_server(contents: Raw) -> bool:
    return text_at(at(contents, "hardware"), "strategy") == "inference" and bool(at(contents, "server"))


def _items(
    payload: Mapping[str, Any], name: str, problems: list[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tables of a list, each with its place in the event. For each item that is not a table, add a
    problem to `problems`."""
    value = payload.get(name)
    if value is None:
        return
    if not isinstance(value, list):
        problems.append(f"payload.{name} must be a list")
        return
    for index, item in enumerate(value):
        where = f"payload.{name}[{index}]"
        if isinstance(item, Mapping):
            yield where, item
        else:
            problems.append(f"{where} must be a table")


def _written(sources: list[Raw], src: str, path: Any) -> Raw:
    """Return the descriptor's table for a source of the event, preferably the one with the same `path`."""
    same = [each for each in sources if text_at(each, "src") == src]
    return next((each for each in same if each.get("path") == path), same[0] if same else {})


def _fetched(where: str, item: Mapping[str, Any], written: Raw, problems: list[str]) -> dict[str, Any] | None:
    """Return a dataset or model as a source of a descriptor; if the source cannot be used, add a problem and
    return None."""
    src, dst, md5 = text_at(item, "src"), item.get("dst"), item.get("md5")
    problem = _fetch_problem(item) or _address_problem(dst) or _kind_problem(item)
    if problem is not None:
        problems.append(f'{where} ("{source_name(src)}"){problem}' if src else f"{where}{problem}")
        return None
    source: dict[str, Any] = {key: written[key] for key in _KEPT if written.get(key) is not None}
    source |= {"path": item.get("path"), "src": dst}
    if _is_folder(item):
        source["src"] = f"{str(dst).rstrip('/')}/"
        source.pop("md5", None)
        source.pop("sha256", None)
    elif md5 is not None:
        source["md5"] = md5
    return source


def _is_folder(item: Mapping[str, Any]) -> bool:
    return item.get("type") == "DIRECTORY"


def _fetch_problem(item: Mapping[str, Any]) -> str | None:
    if item.get("dst") is not None and item.get("status") != "FAILED":
        return None
    why = item.get("message")
    said = f": {why}" if isinstance(why, str) and why else ""
    return f" was not fetched{said}; check that its address can be read"


def _kind_problem(item: Mapping[str, Any]) -> str | None:
    md5 = item.get("md5")
    if item.get("type") not in (None, "FILE", "DIRECTORY"):
        return ": type must be FILE or DIRECTORY"
    if md5 is not None and not _is_folder(item) and not (isinstance(md5, str) and _MD5.fullmatch(md5)):
        return ": md5 must be 32 hexadecimal digits"
    return None


def _scripts(payload: Mapping[str, Any], problems: list[str]) -> Iterator[Source]:
    for where, item in _items(payload, "scripts", problems):
        dst = item.get("dst")
        if dst is None:
            problems.append(f"{where} has no dst: the scripts did not arrive; submit them again")
        elif (problem := _address_problem(dst)) is not None:
            problems.append(f"{where}{problem}")
        else:
            yield Source(src=dst, path=".", kind=SourceKind.SCRIPTS, unpack=Unpack.INTO, size=_size(item))


def _address_problem(dst: Any) -> str | None:
    """Return the reason why an instance cannot pull a source from the address `dst`; None if the address is
    usable."""
    if not isinstance(dst, str) or scheme_of(dst) not in REMOTE_SCHEMES or "\0" in dst:
        return ": dst must be an address such as s3://bucket/key"
    scheme = SCHEMES.get(dst.partition("://")[0])
    mistake = scheme.mistake(dst) if scheme is not None else ("is not written in lower case", "")
    if mistake is not None:
        return f": dst {mistake[0]}"
    if grants_access(dst):
        return ": dst holds a password or a signature, which must not get into user data"
    return None


def _size(item: Mapping[str, Any]) -> int | None:
    info = item.get("size_info")
    size = info.get("total_size") if isinstance(info, Mapping) else None
    return size if type(size) is int and 0 <= size < 2**53 else None
