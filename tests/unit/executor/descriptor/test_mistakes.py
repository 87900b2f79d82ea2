"""Every mistake in a descriptor is found at once, and its text says how to correct it."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.descriptor import Finding, Severity, load, load_table, render_findings

GOOD = r"""
spec_version = "0.1.0"
[info]
description = "d"
[hardware]
instance_type = "local"
[ml]
benchmark_code = "python3 train.py"
"""

MANY_MISTAKES = r"""
spec_version = "0.1.0"
max_runtime = "2h"
[info]
descripton = "d"
[info.labels]
"task name" = "hello"
[hardware]
instance_type = "local"
strategy = "single-node"
[ml]
benchmark_code = "python3 'train.py"
[env.vars]
HF_TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"
[limits]
grace = 30
[[data.sources]]
src = "gs://bucket/x"
path = "/data/x"
md5 = "123"
[[output.metrics]]
name = "loss"
units = "ratio"
pattern = 'loss (\d+'
[[output.metrics]]
name = "accuracy"
units = "ratio"
pattern = 'acc (\d+)'
example = "accuracy 5"
"""


def findings_of(folder: Path, text: str | bytes) -> list[Finding]:
    path = folder / "benchmark.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    descriptor, findings = load(path)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    assert (descriptor is None) == bool(errors)
    return findings


def only(folder: Path, text: str | bytes) -> Finding:
    findings = findings_of(folder, text)
    assert len(findings) == 1, render_findings(findings)
    return findings[0]


def test_every_mistake_is_reported_in_one_call(tmp_path: Path) -> None:
    findings = findings_of(tmp_path, MANY_MISTAKES)

    assert {finding.key: finding.fix for finding in findings}.keys() == {
        "max_runtime",
        "info.descripton",
        'info.labels."task name"',
        "hardware.strategy",
        "ml.benchmark_code",
        "env.vars.HF_TOKEN",
        "limits.grace",
        "data.sources[0].src",
        "data.sources[0].md5",
        "output.metrics[0].pattern",
        "output.metrics[1].example",
    }
    assert all(finding.problem and finding.fix for finding in findings)


def test_findings_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    findings = findings_of(tmp_path, MANY_MISTAKES)

    lines = [
        MANY_MISTAKES.index(str(finding.path[-1])) for finding in findings if finding.path[0] != "output"
    ]
    assert lines == sorted(lines)


JSON_METRIC = "[[output.metrics]]\nname = 'm'\nunits = 's'\n"
GOOD_METRIC = "[[output.metrics]]\nname = 'm'\nunits = 's'\npattern = '(.)'\n"

RESULTS = "[[output.results]]\npath = 'out/*'\n"

OF_RUN = "[[output.metrics]]\nname = 'm'\nof_run = 'wall_time'\n"

MISTAKES = [
    ("of_run beside pattern", f"{OF_RUN}pattern = '(.)'", "output.metrics[0].pattern", "keep one of the two"),
    (
        "of_run beside context",
        f"{OF_RUN}context = ['== (?P<test>.) ==']",
        "output.metrics[0].context",
        "keep one of the two",
    ),
    ("least runs without a time", "[repeat]\nruns = 5\nmin_runs = 2", "repeat.min_runs", "add max_time"),
    (
        "more least runs than runs",
        "[repeat]\nruns = 5\nmin_runs = 6\nmax_time = '1s'",
        "repeat.min_runs",
        "lower min_runs",
    ),
    ("units of a time", f"{OF_RUN}units = 'ms'", "output.metrics[0].units", 'write units = "s"'),
    (
        "unknown figure of a run",
        OF_RUN.replace("wall_time", "walltime"),
        "output.metrics[0].of_run",
        "wall_time",
    ),
    ("unknown key", "[limits]\nmax_runtme = '2h'", "limits.max_runtme", 'did you mean "max_runtime"?'),
    ("key of another table", "[output]\ngrace = '2s'", "output.grace", "move it: grace belongs to [limits]"),
    ("unknown table", "[limit]\ngrace = '2s'", "limit", 'did you mean "limits"?'),
    ("unknown engine's table", "[aws.ec22]\nimage = 'ami-1'", "aws.ec22", 'did you mean "ec2"?'),
    ("duration without unit", "[limits]\ngrace = 30", "limits.grace", 'write "30s" for seconds'),
    ("duration in words", "[limits]\ngrace = '5 minutes'", "limits.grace", '"1h30m"'),
    ("no duration at all", "[limits]\nmax_runtime = '0s'", "limits.max_runtime", "leave the key out"),
    ("hasty nodes", "[limits]\npeer_silence = '5s'", "limits.peer_silence", "heartbeats every 5 s"),
    ("too many samples", "[host_metrics]\ninterval = '1ms'", "host_metrics.interval", '"100ms" or more'),
    ("number for a text", "[env]\nuser = 1000", "env.user", 'write user = "1000"'),
    ("text for a boolean", "[env]\nprivileged = 'true'", "env.privileged", "write privileged = true"),
    ("date for a text", "[env]\nuser = 2024-01-01", "env.user", 'write user = "2024-01-01"'),
    ("float variable", "[env.vars]\nLR = 1e-5", "env.vars.LR", 'write LR = "1e-05"'),
    ("variable's name", '[env.vars]\n"A B" = "x"', 'env.vars."A B"', "letters, digits and _"),
    (
        "NUL in a pattern",
        '[[output.metrics]]\nname = "a"\nunits = "b"\npattern = "\\u0000(.)"',
        "output.metrics[0].pattern",
        "remove \\u0000",
    ),
    (
        "NUL in units",
        '[[output.metrics]]\nname = "a"\nunits = "b\\u0000"\npattern = "(.)"',
        "output.metrics[0].units",
        "remove \\u0000",
    ),
    ("NUL in a variable", '[env.vars]\nA = "x\\u0000"', "env.vars.A", "remove \\u0000"),
    ("relative python", "[env]\npython = 'bin/python'", "env.python", "/opt/pytorch/bin/python"),
    ("secret itself", "[env.secrets]\nA = 'hunter2'", "env.secrets.A", '"env:NAME"'),
    ("variable twice", "[env]\nvars.A = 'x'\nsecrets.A = 'env:A'", "env.secrets.A", "keep one of the two"),
    (
        "no instances",
        "[hardware.distributed]\nnum_instances = 0",
        "hardware.distributed.num_instances",
        "num_instances = 2",
    ),
    (
        "more instances than one launch",
        "[hardware.distributed]\nnum_instances = 1001",
        "hardware.distributed.num_instances",
        "write at most 1000",
    ),
    *(
        (
            f"instances {machines}",
            f"[hardware.distributed]\nnum_instances = {machines}",
            "hardware.distributed.num_instances",
            fix,
        )
        for machines, fix in (
            ("'4:2'", 'write "2:4"'),
            ("'0:2'", 'num_instances = "2:4"'),
            ("'2:'", 'num_instances = "2:4"'),
            ("':2'", 'num_instances = "2:4"'),
            ("'a:b'", 'num_instances = "2:4"'),
            ("'2 : 4'", 'num_instances = "2:4"'),
            ("'2:4:6'", 'num_instances = "2:4"'),
            ("'-1:4'", 'num_instances = "2:4"'),
            ("'four'", 'num_instances = "2:4"'),
            ("2.5", 'num_instances = "2:4"'),
            ("true", 'num_instances = "2:4"'),
            ("[2, 4]", 'num_instances = "2:4"'),
            ("'2:1001'", "write at most 1000"),
            ("'1:2'", 'remove it, or write "1:1"'),  # the strategy is single_node
        )
    ),
    ("nothing elastic", "[elastic]\nnodes = 3", "elastic", 'write num_instances = "2:4"'),
    (
        "hints without AdaptDL",
        "[elastic]\nreplacements = 1\npolicy = 'goodput'",
        "elastic.policy",
        'write strategy = "adaptdl"',
    ),
    ("another policy", "[elastic]\nreplacements = 1\npolicy = 'best'", "elastic.policy", '"goodput"'),
    (
        "replaced machines of runs",
        "[elastic]\nreplacements = 1\n[repeat]\nruns = 3",
        "elastic.replacements",
        "remove one of them",
    ),
    (
        "several machines of one",
        "[elastic]\nreplacements = 1\nnodes = 2",
        "elastic.nodes",
        "remove it",
    ),
    ("minus one replacement", "[elastic]\nreplacements = -1", "elastic.replacements", "write 0 or more"),
    ("no machines wanted", "[elastic]\nnodes = 0", "elastic.nodes", "write 1 or more"),
    ("no pause", "[elastic]\npause = '0s'", "elastic.pause", "leave the key out"),
    ("no folder of checkpoints", "[checkpoint]\nevery = '5m'", "checkpoint.path", 'path = "checkpoints"'),
    *(
        (f"checkpoints in {path}", f"[checkpoint]\npath = '{path}'", "checkpoint.path", fix)
        for path, fix in (
            ("", "write a path"),
            (".", 'for example "checkpoints"'),
            ("./", 'for example "checkpoints"'),
            ("/", 'for example "checkpoints"'),
            ("../out", "without .."),
            ("a/../..", "without .."),
            ("~/out", "without ~"),
        )
    ),
    (
        "shared folder in each working folder",
        "[checkpoint]\npath = 'out'\nshared = true",
        "checkpoint.path",
        "absolute path of the shared folder",
    ),
    (
        "shared folder whose path separates",
        "[checkpoint]\npath = '/efs/run:1'\nshared = true",
        "checkpoint.path",
        "a path without a colon",
    ),
    ("checkpoints never", "[checkpoint]\npath = 'out'\nevery = 'never'", "checkpoint.every", 'or "off"'),
    ("hasty checkpoints", "[checkpoint]\npath = 'out'\nevery = '10ms'", "checkpoint.every", 'or "off"'),
    *(
        (f"scripts from {written}", f"[ml.script]\n{written}", f"ml.script.{key}", fix)
        for written, key, fix in (
            ("git = 'http://host/r'", "git", "https://host/group/repository"),
            ("git = 'git@host:group/r.git'", "git", "https://host/group/repository"),
            ("git = 'ssh://host/r'", "git", "https://host/group/repository"),
            ("git = 'https://TOKEN@host/r'", "git", "without them"),
            ("git = 'https://host/r?private_token=T'", "git", "without them"),
            ("git = 'https://host/'", "git", "https://host/group/repository"),
            ("git = 'https://host:port/r'", "git", "https://host/group/repository"),
            ("git = 'https://host/a b'", "git", "https://host/group/repository"),
            ("git = 'https://host/r'\nref = '--upload-pack=touch x'", "ref", 'for example "v1.2"'),
            ("git = 'https://host/r'\nref = '+main:main'", "ref", 'for example "v1.2"'),
            ("git = 'https://host/r'\nref = 'a..b'", "ref", 'for example "v1.2"'),
            ("git = 'https://host/r'\nref = ''", "ref", 'for example "v1.2"'),
            ("git = 'https://host/r'\nfolder = '../x'", "folder", ""),
            ("git = 'https://host/r'\nfolder = '/etc'", "folder", ""),
            ("git = 'https://host/r'\npath = '.'", "git", "keep one of the two"),
            ("script = 's3://bucket'", "script", "s3://bucket/key"),
            ("script = 's3://bucket/folder/'", "script", "name an archive"),
            ("ref = 'v1'", "ref", "add the repository's address as git"),
            ("folder = 'src'", "folder", "add the repository's address as git"),
        )
    ),
    *(
        (
            f"a checkpoint from {written}",
            f"[checkpoint]\npath = 'out'\nfrom = '{written}'",
            "checkpoint.from",
            fix,
        )
        for written, fix in (
            ("train-1", 'write "job:ID", or "job:last"'),
            ("job:", 'write "job:ID", or "job:last"'),
            ("job:label=stage", 'write "job:label=KEY=VALUE"'),
            ("job:last/model.pt", 'write "job:last"'),
            ("job:last:train/model.pt", 'write "job:last:train"'),
            ("job:label=stage=a/model.pt", 'write "job:label=stage=a"'),
            ("job:../../etc", 'write "job:ID", or "job:last"'),
            ("job:a b/model.pt", 'write "job:ID", or "job:last"'),
        )
    ),
    (
        "a checkpoint for a shared folder",
        "[checkpoint]\npath = '/fsx'\nshared = true\nfrom = 'job:last'",
        "checkpoint.from",
        "remove from or shared",
    ),
    (
        "checkpoints of runs",
        "[checkpoint]\npath = 'out'\n[repeat]\nruns = 3",
        "checkpoint",
        "remove one of them",
    ),
    (
        "processes",
        "[hardware.distributed]\nprocesses_per_instance = 'all'",
        "hardware.distributed.processes_per_instance",
        '"gpus"',
    ),
    ("table for a list", "[data.sources]\nsrc = 'x'", "data.sources", "[[data.sources]]"),
    ("list for a table", "[[limits]]\ngrace = '1s'", "limits", "[limits]"),
    ("text for a list", "[kafka]\nbrokers = 'b:9092'", "kafka.brokers", 'write brokers = ["b:9092"]'),
    ("no broker", "[kafka]\nbrokers = []", "kafka.brokers", "at least one"),
    ("broker with a port too large", "[kafka]\nbrokers = ['b:65536']", "kafka.brokers[0]", "host:port"),
    ("broker with port 0", "[kafka]\nbrokers = ['b:0']", "kafka.brokers[0]", "host:port"),
    ("broker without port", "[kafka]\nbrokers = ['b']", "kafka.brokers[0]", "host:port"),
    (
        "password in clear",
        "[kafka]\nbrokers = ['b:1']\nsasl_password = 'x'",
        "kafka.sasl_password",
        "never write",
    ),
    (
        "no mechanism",
        "[kafka]\nbrokers = ['b:1']\nsecurity_protocol = 'SASL_SSL'",
        "kafka.sasl_mechanism",
        "SCRAM",
    ),
    (
        "no password",
        "[kafka]\nbrokers = ['b:1']\nsecurity_protocol = 'SASL_SSL'\nsasl_mechanism = 'PLAIN'\nsasl_username = 'u'",
        "kafka.sasl_password",
        '"env:KAFKA_PASSWORD"',
    ),
    (
        "gateway without a scheme",
        "[prometheus]\npushgateway = 'gw:9091'",
        "prometheus.pushgateway",
        "http://",
    ),
    (
        "gateway with a password",
        "[prometheus]\npushgateway = 'http://u:p@gw:9091'",
        "prometheus.pushgateway",
        "keys",
    ),
    ("no address", "[prometheus]\nhost_metrics = true", "prometheus", "add pushgateway"),
    ("listening nowhere", "[prometheus]\nlisten = '9109'", "prometheus.listen", "host:port"),
    ("listening at no port", "[prometheus]\nlisten = 'h:65536'", "prometheus.listen", "host:port"),
    (
        "user without password",
        "[prometheus]\npushgateway = 'http://gw:9091'\nusername = 'u'",
        "prometheus.password",
        "ssm:/bai/",
    ),
    (
        "gateway's password in clear",
        "[prometheus]\npushgateway = 'http://gw:9091'\nusername = 'u'\npassword = 'x'",
        "prometheus.password",
        "never write",
    ),
    ("no log group", "[cloudwatch]\nlog_group = 'a b'", "cloudwatch.log_group", "/bai/metrics"),
    (
        "AWS's own namespace",
        "[cloudwatch]\nlog_group = 'g'\nnamespace = 'AWS/EC2'",
        "cloudwatch.namespace",
        "AWS/",
    ),
    (
        "too many dimensions",
        f"[cloudwatch]\nlog_group = 'g'\ndimensions = {[f'd{n}' for n in range(31)]}",
        "cloudwatch.dimensions",
        "at most 30",
    ),
    (
        "missing key",
        "[[output.metrics]]\nname = 'a'\nunits = ''",
        "output.metrics[0].pattern",
        "pattern = ",
    ),
    (
        "empty pattern",
        "[[output.metrics]]\nname = 'a'\nunits = ''\npattern = ''",
        "output.metrics[0].pattern",
        "\\d+",
    ),
    (
        "split unit",
        "[[output.metrics]]\nname = 'a'\nunits = 'msec onds'\npattern = '(.)'",
        "output.metrics[0].units",
        'units = "msec"',
    ),
    (
        "our prefix",
        "[[output.metrics]]\nname = 'bai_run_x'\nunits = ''\npattern = '(.)'",
        "output.metrics[0].name",
        "bai_run_",
    ),
    ("bucket only", "[[data.sources]]\nsrc = 's3://b'\npath = 'x'", "data.sources[0].src", "s3://bucket/key"),
    (
        "relative file url",
        "[[data.sources]]\nsrc = 'file://x'\npath = 'x'",
        "data.sources[0].src",
        "file:///",
    ),
    ("no host", "[[data.sources]]\nsrc = 'https://'\npath = 'x'", "data.sources[0].src", "https://host/file"),
    (
        "broken address",
        "[[data.sources]]\nsrc = 'https://[x'\npath = 'x'",
        "data.sources[0].src",
        "https://host/file",
    ),
    (
        "path that leaves",
        "[[data.sources]]\nsrc = 's3://b/k'\npath = '../x'",
        "data.sources[0].path",
        "without ..",
    ),
    (
        "unpack",
        "[[data.sources]]\nsrc = 's3://b/k'\npath = 'x'\nunpack = 'yes'",
        "data.sources[0].unpack",
        '"into"',
    ),
    ("mode", "[[data.sources]]\nsrc = 's3://b/k'\npath = 'x'\nmode = 644", "data.sources[0].mode", '"0644"'),
    (
        "sha256",
        "[[data.sources]]\nsrc = 's3://b/k'\npath = 'x'\nsha256 = 'ab'",
        "data.sources[0].sha256",
        "sha256sum",
    ),
    (
        "missing file",
        "[[data.sources]]\nsrc = 'nowhere.npz'\npath = 'x'",
        "data.sources[0].src",
        "this file's folder",
    ),
    ("missing folder", "[ml.script]\npath = 'nowhere'", "ml.script.path", "name the folder"),
    (
        "missing requirements",
        "[ml.script]\npath = '.'\nrequirements = 'r.txt'",
        "ml.script.requirements",
        "relative to",
    ),
    ("requirements alone", "[ml.script]\nrequirements = 'r.txt'", "ml.script.path", 'path = "."'),
    ("missing archive", "[ml.script]\nscript = 'nowhere.tar'", "ml.script.script", "name an archive"),
    (
        "our parameters",
        "[aws.ec2]\nimage = 'ami-1'\nrun_instances = { MinCount = 2 }",
        "aws.ec2.run_instances",
        "num_instances",
    ),
    (
        "volumes that are no list",
        "[aws.ec2.run_instances]\nBlockDeviceMappings = 3",
        "aws.ec2.run_instances",
        "[[aws.ec2.run_instances.BlockDeviceMappings]]",
    ),
    (
        "a volume without its name",
        "[aws.ec2.run_instances]\nBlockDeviceMappings = [{ Ebs = { VolumeSize = 9 } }]",
        "aws.ec2.run_instances",
        "DeviceName",
    ),
    (
        "tags of nothing",
        "[aws.ec2.run_instances]\nTagSpecifications = [{ Tags = [] }]",
        "aws.ec2.run_instances",
        "ResourceType",
    ),
    (
        "interfaces that are texts",
        "[aws.ec2.run_instances]\nNetworkInterfaces = ['eni-1']",
        "aws.ec2.run_instances",
        "[[aws.ec2.run_instances.NetworkInterfaces]]",
    ),
    (
        "a volume that stays",
        "[aws.ec2.run_instances]\nBlockDeviceMappings = [{ DeviceName = '/dev/sdf', Ebs = { DeleteOnTermination = false } }]",
        "aws.ec2.run_instances",
        "leave DeleteOnTermination out",
    ),
    (
        "a request that starts machines again",
        "[aws.ec2.run_instances]\nInstanceMarketOptions = { SpotOptions = { SpotInstanceType = 'persistent' } }",
        "aws.ec2.run_instances",
        "one-time",
    ),
    (
        "a capacity block without its reservation",
        "[aws.ec2.run_instances]\nInstanceMarketOptions = { MarketType = 'capacity-block' }",
        "aws.ec2.run_instances",
        "CapacityReservationId",
    ),
    (
        "a capacity block with any reservation that is open",
        "[aws.ec2.run_instances]\nInstanceMarketOptions = { MarketType = 'capacity-block' }\n"
        "CapacityReservationSpecification = { CapacityReservationPreference = 'open' }",
        "aws.ec2.run_instances",
        "CapacityReservationId",
    ),
    (
        "all EFAs and interfaces of its own",
        "[aws.ec2]\nefa = 'all'\nrun_instances = { NetworkInterfaces = [{ DeviceIndex = 0 }] }",
        "aws.ec2.efa",
        "remove one of them",
    ),
    (
        "some EFAs",
        "[aws.ec2]\nefa = 'some'",
        "aws.ec2.efa",
        "all",
    ),
    (
        "machines that nobody may terminate",
        "[aws.ec2.run_instances]\nDisableApiTermination = true",
        "aws.ec2.run_instances",
        "leave it out",
    ),
    (
        "on demand after what is on demand",
        "[aws.ec2]\non_demand_after_spot = true",
        "aws.ec2.on_demand_after_spot",
        "add spot = true",
    ),
    (
        "absolute artifact",
        "[output]\nartifacts = ['/etc/*']",
        "output.artifacts[0]",
        "relative to the folder",
    ),
    ("results of csv without columns", f"{RESULTS}format = 'csv'", "output.results[0].values", "the columns"),
    (
        "results above the folder",
        "[[output.results]]\npath = '../x'\nformat = 'bmf'",
        "output.results[0].path",
        "without ..",
    ),
    (
        "columns of a tool's file",
        f"{RESULTS}format = 'jmh'\nstep = 'n'",
        "output.results[0].step",
        "remove it",
    ),
    (
        "direction of unnamed results",
        f"{RESULTS}format = 'jmh'\nbetter = 'lower'",
        "output.results[0].metrics",
        "name",
    ),
    ("results of another tool", f"{RESULTS}format = 'gtest'", "output.results[0].format", "hyperfine"),
    ("two stars in a name", "[output]\nartifacts = ['runs**']", "output.artifacts[0]", "stand alone"),
    ("nothing to take", "[[output.metrics]]\nname = 'm'", "output.metrics[0].pattern", "json ="),
    ("pattern and json", f"{GOOD_METRIC}json = 'x'", "output.metrics[0].json", "keep one"),
    ("path that is none", f"{JSON_METRIC}json = 'a..b'", "output.metrics[0].json", '"train.loss"'),
    ("step without json", f"{GOOD_METRIC}json_step = 'x'", "output.metrics[0].json_step", "(?P<step>…)"),
    (
        "form of a JSON number",
        f"{JSON_METRIC}json = 'x'\nnumber = 'si'",
        "output.metrics[0].number",
        "remove number",
    ),
    (
        "JSON label that records have",
        f"{JSON_METRIC}json = 'x'\njson_labels = ['y', 'a.rank']",
        "output.metrics[0].json_labels[1]",
        "remove this label",
    ),
    (
        "JSON label that the job has",
        f"{JSON_METRIC}json = 'x'\njson_labels = ['team']\n[info.labels]\nteam = 'a'",
        "output.metrics[0].json_labels[0]",
        "remove this label",
    ),
    (
        "example that is no object",
        f"{JSON_METRIC}json = 'x'\nexample = 'x=3'",
        "output.metrics[0].example",
        "one JSON object",
    ),
    (
        "example with a text",
        f"{JSON_METRIC}json = 'x'\nexample = '{{\"x\": \"3\"}}'",
        "output.metrics[0].example",
        "a number without quotes",
    ),
    (
        "section at empty lines",
        f"{GOOD_METRIC}until = '^$'",
        "output.metrics[0].until",
        "some text of the line",
    ),
    (
        "section that never compiles",
        f"{GOOD_METRIC}after = '('",
        "output.metrics[0].after",
        "close every (",
    ),
    ("tolerance as a number", f"{GOOD_METRIC}tolerance = 0.02", "output.metrics[0].tolerance", '"2%"'),
    ("tolerance without its sign", f"{GOOD_METRIC}tolerance = '2'", "output.metrics[0].tolerance", '"2%"'),
    ("negative tolerance", f"{GOOD_METRIC}tolerance = '-2%'", "output.metrics[0].tolerance", '"2%"'),
    ("headline that is none", f"{GOOD_METRIC}headline = 'p95'", "output.metrics[0].headline", "median"),
    ("warmup without a unit", f"{GOOD_METRIC}warmup = '1.5'", "output.metrics[0].warmup", '"90s"'),
    ("negative warmup", "[output]\nwarmup = -1", "output.warmup", "100"),
    ("warmup that is a fraction", "[output]\nwarmup = 1.5", "output.warmup", "100"),
    ("strategy needs a server", "[server]", "server.hardware", "instance_type"),
]


@pytest.mark.parametrize(
    ("text", "key", "advice"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES]
)
def test_a_mistake_is_named_with_its_key_and_its_remedy(
    tmp_path: Path, text: str, key: str, advice: str
) -> None:
    findings = findings_of(tmp_path, f"{GOOD}\n{text}\n")

    found = {finding.key: finding.fix for finding in findings}
    assert key in found
    assert advice in found[key]


@pytest.mark.parametrize(
    ("tables", "key", "advice"),
    [
        ("[hardware.distributed]\nnum_instances = '1:4'", "hardware.distributed.num_instances", "remove it"),
        ("[hardware.distributed]\nnum_instances = 4", "hardware.distributed.num_instances", "remove it"),
        (
            "[hardware.distributed]\nprocesses_per_instance = 2",
            "hardware.distributed.processes_per_instance",
            "let the command start its own processes",
        ),
        ("[restart]\nmax_restarts = 1", "restart.max_restarts", "remove it"),
        ("[checkpoint]\npath = 'c'", "checkpoint", "remove it"),
        ("[elastic]\nnodes = 2", "elastic", "remove"),
        ("[info.labels]\nrole = 'x'", "info.labels.role", "another name"),
        (
            "[[output.metrics]]\nname = 'x'\nunits = 'ms'\npattern = '(1)'",
            "server.output.metrics[0].units",
            "same",
        ),
        (
            "[[output.metrics]]\nname = 'x'\nunits = 's'\npattern = '(1)'",
            "server.output.metrics[0].name",
            "rename one of the two metrics",
        ),
        (
            "[[server.models]]\nsrc = 'job:last/m'\npath = '/m'",
            "server.models[0].src",
            "write another address",
        ),
        ("[[server.models]]\nsrc = 'gone'\npath = '/m'", "server.models[0].src", "correct the path"),
    ],
)
def test_a_mistake_about_a_server_is_named_with_its_remedy(
    tmp_path: Path, tables: str, key: str, advice: str
) -> None:
    text = GOOD.replace('"local"', '"local"\nstrategy = "inference"')
    server = """
[server.hardware]
instance_type = "local"
[server.env]
start_command = "serve"
ports = [80]
[[server.output.metrics]]
name = "x"
units = "s"
pattern = '(1)'
"""
    found = {finding.key: finding.fix for finding in findings_of(tmp_path, f"{text}\n{tables}\n{server}\n")}
    assert key in found
    assert advice in found[key]


@pytest.mark.parametrize(
    ("keys", "key", "advice"),
    [
        ({"ports": "[80, 80]"}, "server.env.ports[1]", "remove one"),
        ({"ports": "[]"}, "server.env.ports", ""),
        ({"ports": "[70000]"}, "server.env.ports[0]", ""),
        ({"readiness_probe": '{path = "/bereit ü"}'}, "server.env.readiness_probe.path", '"/ping"'),
        ({"readiness_probe": '{path = "/a\\r\\nb"}'}, "server.env.readiness_probe.path", '"/ping"'),
        ({"start_command": '"serve \'x"'}, "server.env.start_command", "close it"),
        ({"start_command": '"serve > log"'}, "server.env.start_command", "several lines"),
        ({"start_command": '"A=1 serve"'}, "server.env.start_command", "[server.env.vars]"),
        (
            {"start_command": '"serve --token=hf_abcdefghijklmnopqrstuvwxyz"'},
            "server.env.start_command",
            "secrets",
        ),
    ],
)
def test_a_mistake_of_the_servers_command_or_ports_is_named(
    tmp_path: Path, keys: dict[str, str], key: str, advice: str
) -> None:
    text = GOOD.replace('"local"', '"local"\nstrategy = "inference"')
    env = {"start_command": '"serve"', "ports": "[80]", **keys}
    lines = "".join(f"{name} = {value}\n" for name, value in env.items())
    server = f'[server.hardware]\ninstance_type = "local"\n[server.env]\n{lines}'
    found = {finding.key: finding.fix for finding in findings_of(tmp_path, f"{text}\n{server}")}
    assert key in found
    assert advice in found[key]


def test_different_zones_for_a_server_and_its_client_are_refused(tmp_path: Path) -> None:
    text = GOOD.replace('"local"', '"local"\nstrategy = "inference"\navailability_zone = "us-east-1a"')
    server = """
[server.hardware]
instance_type = "local"
availability_zone = "us-east-1b"
[server.env]
start_command = "serve"
ports = [80]
"""
    found = {finding.key: finding.problem for finding in findings_of(tmp_path, f"{text}\n{server}")}
    assert "both machines share a subnet" in found["server.hardware.availability_zone"]


@pytest.mark.parametrize(
    ("tables", "key", "advice"),
    [
        ("", "hardware.distributed.num_instances", 'write num_instances = "1:4"'),
        (
            "[hardware.distributed]\nnum_instances = 3",
            "hardware.distributed.num_instances",
            'write num_instances = "1:3"',
        ),
        (
            "[hardware.distributed]\nnum_instances = '1:2'\n[checkpoint]\npath = '/fsx'\nshared = true",
            "checkpoint.shared",
            "the folder is copied to all machines",
        ),
        (
            "[hardware.distributed]\nnum_instances = '1:2'\n[repeat]\nruns = 3",
            "hardware.distributed.num_instances",
            "remove [repeat]",
        ),
        ("[repeat]\nruns = 3", "repeat", "remove it"),
    ],
)
def test_settings_that_adaptdl_does_not_support_are_named(
    tmp_path: Path, tables: str, key: str, advice: str
) -> None:
    text = GOOD.replace("[ml]", 'strategy = "adaptdl"\n[ml]')

    found = {each.key: each.fix for each in findings_of(tmp_path, f"{text}\n{tables}\n")}

    assert advice in (found[key] or "")


@pytest.mark.parametrize(
    ("tables", "keys"),
    [
        ("[hardware.distributed]\nnum_instances = 2\n[repeat]\nruns = 3", ["repeat"]),
        ("[hardware.distributed]\n[repeat]\nruns = 3", ["repeat"]),
        ("[hardware.distributed]\nnum_instances = 1\n[repeat]\nruns = 3", []),
        ("[repeat]\nruns = 3", []),
        (
            "[hardware.distributed]\nprocesses_per_instance = 2",
            ["hardware.distributed.processes_per_instance"],
        ),
        ("[hardware.distributed]\nnum_instances = '1:2'", []),
    ],
)
def test_settings_that_ray_does_not_support_are_named(tmp_path: Path, tables: str, keys: list[str]) -> None:
    text = GOOD.replace("[ml]", 'strategy = "ray"\n[ml]')

    assert [each.key for each in findings_of(tmp_path, f"{text}\n{tables}\n")] == keys


@pytest.mark.parametrize(
    ("old", "new", "key", "advice"),
    [
        ('"0.1.0"', '"0.2.0"', "spec_version", '"0.1.0"'),
        ('description = "d"', "", "info.description", "add description"),
        (
            'description = "d"',
            'description = "d"\nexecution_engine = "ec2"',
            "info.execution_engine",
            '"aws.ec2"',
        ),
        (
            'description = "d"',
            'description = "d"\nlabels = { client-id = "x" }',
            "info.labels.client-id",
            "another name",
        ),
        (
            'description = "d"',
            'description = "d"\nlabels = { process_rank = "x" }',
            "info.labels.process_rank",
            "another name",
        ),
        ('"python3 train.py"', '"   "', "ml.benchmark_code", "the command of the benchmark"),
        ('"python3 train.py"', '"python3 \'train.py"', "ml.benchmark_code", "close it"),
        ('"python3 train.py"', '"train --key AKIAABCDEFGHIJKLMNOP"', "ml.benchmark_code", "[env.secrets]"),
    ],
)
def test_common_mistakes_are_reported_with_specific_advice(
    tmp_path: Path, old: str, new: str, key: str, advice: str
) -> None:
    finding = only(tmp_path, GOOD.replace(old, new))

    assert finding.key == key
    assert advice in finding.fix


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ('a = "loss (\\d+)"', "single quotes"),
        ("a = local", "quotes around it"),
        ("a = 1\na = 2", "twice"),
        ("[a]\n[a]", "twice"),
        ("[a", "ends with ]"),
        ('a = "x', "closing quote"),
        ('a = "say "hi""', "'…'"),
        ("a = [", "a list ends with ]"),
        ("a = [1, 2", "a list ends with ]"),
        ("a = [\n1,  # one\n[b]\nc = 1", "a list ends with ]"),
        ("[ml]\na = [\nb = 1", "a list ends with ]"),
        ("a = [hello]", "quotes around it"),
        ("a = [\n1,\nhello]", "quotes around it"),
        ("a = ", "quotes around it"),
        ("a = { b = 1", "close the inline table"),
    ],
)
def test_broken_toml_is_one_finding_with_its_remedy(tmp_path: Path, text: str, advice: str) -> None:
    finding = only(tmp_path, text)

    assert "is not valid TOML" in finding.problem
    assert advice in finding.fix


def test_for_an_unknown_engine_only_supported_ones_are_suggested(tmp_path: Path) -> None:
    text = GOOD.replace('description = "d"', 'description = "d"\nexecution_engine = "aws.ec3"')

    assert only(tmp_path, text).fix == 'did you mean "aws.ec2"? Possible: "local", "aws.ec2"'
    assert findings_of(tmp_path, text.replace("aws.ec3", "aws.ecs")) == []


def test_broken_toml_is_shown_with_its_line(tmp_path: Path) -> None:
    finding = only(tmp_path, GOOD + '[[output.metrics]]\npattern = "loss (\\d+)"\n')

    assert "line 10, column" in finding.problem
    assert 'pattern = "loss (\\d+)"' in finding.problem


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"# nothing yet\n", "is empty"),
        (b"\x7fELF\0\0", "binary"),
        ("é".encode("latin-1"), "not UTF-8"),
        ("a = 1".encode("utf-16"), "UTF-16"),
        (b"a = 1\n" * 200_000, "larger than 1 MiB"),
        (b"a = " + b"[" * 100_000, "nested too deep"),
        (b"a = " + b"[" * 100 + b"]" * 100, "nested too deep"),
        (b"a = " + b"9" * 5000, "thousands of digits"),
        (b"a = 0x" + b"f" * 5000, "does not fit into 64 bits"),
        (b'version = 1\njob.id = "x"\n', "is a job descriptor"),
    ],
)
def test_a_file_that_is_not_toml_text_is_one_finding(tmp_path: Path, content: bytes, problem: str) -> None:
    assert problem in only(tmp_path, content).problem


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    assert findings_of(tmp_path, b"\xef\xbb\xbf" + GOOD.encode()) == []


def test_a_missing_file_is_one_finding_that_names_similar_ones(tmp_path: Path) -> None:
    (tmp_path / "benchmark.toml").write_text(GOOD)

    _, [finding] = load(tmp_path / "bencmark.toml")

    assert finding.problem == "does not exist"
    assert "benchmark.toml" in finding.fix


def test_a_folder_is_one_finding_that_names_the_file_in_it(tmp_path: Path) -> None:
    (tmp_path / "benchmark.toml").write_text(GOOD)

    _, [finding] = load(tmp_path)

    assert finding.problem == "is a folder"
    assert str(tmp_path / "benchmark.toml") in finding.fix


def test_a_device_given_as_a_descriptor_is_not_read() -> None:
    _, [finding] = load(Path("/dev/zero"))

    assert finding.problem == "is not a regular file"


def test_two_metrics_with_the_same_name_are_refused(tmp_path: Path) -> None:
    metric = "[[output.metrics]]\nname = 'loss'\nunits = ''\npattern = '(.)'\n"

    finding = only(tmp_path, GOOD + metric + metric)

    assert finding.key == "output.metrics[1].name"
    assert "output.metrics[0]" in finding.problem


def test_more_than_ten_labels_are_refused(tmp_path: Path) -> None:
    labels = "".join(f"label{number} = 'x'\n" for number in range(11))

    finding = only(tmp_path, f"{GOOD}[info.labels]\n{labels}")

    assert "at most 10" in finding.fix


def test_a_missing_table_is_reported_with_its_required_keys(tmp_path: Path) -> None:
    finding = only(tmp_path, GOOD.replace("[hardware]", "").replace('instance_type = "local"', ""))

    assert finding.fix == 'add the table [hardware] with instance_type = "t3.small"'


@pytest.mark.parametrize(("written", "meant"), [('"yes"', "true"), ('"No"', "false"), ('"often"', "true")])
def test_a_string_in_place_of_a_boolean_is_reported_with_the_boolean(
    tmp_path: Path, written: str, meant: str
) -> None:
    text = GOOD + f"[[output.metrics]]\nname = 'a'\nunits = 's'\npattern = 'a=(.)'\nrequired = {written}\n"

    assert only(tmp_path, text).fix.endswith(f"required = {meant}")


def test_a_key_that_is_misspelt_is_not_reported_as_missing_too(tmp_path: Path) -> None:
    assert only(tmp_path, GOOD.replace("instance_type", "instance_typ")).key == "hardware.instance_typ"


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("FOO=1 train", 'write FOO = "1" under [env.vars], or write `env` before the variable'),
        ("train $HOME/data", "write $(HOME) in its place"),
        ("train ${SEED}", "write $(SEED) in its place"),
        ("train --seed $(date)", "write a script of several lines between three quotes"),
        ("sleep 9 &", "remove the &, because bai waits for the benchmark"),
    ],
)
def test_shell_syntax_is_reported_with_an_alternative(tmp_path: Path, command: str, advice: str) -> None:
    text = GOOD.replace('benchmark_code = "python3 train.py"', f"benchmark_code = '{command}'")

    assert only(tmp_path, text).fix.startswith(advice)


@pytest.mark.parametrize(
    ("variables", "key"),
    [
        ("B = '$(A)'\nA = '1'", "env.vars.B"),
        ("A = '1'\nB = '$(A) $(PATH) $(BAI_JOB_ID) $$(C)'\nPATH = '/x:$(PATH)'", ""),
        ("A = '$(date)'", "env.vars.A"),
        ("LD_LIBRARY_PATH = '/x:$(LD_LIBRARY_PATH)'", ""),
    ],
)
def test_a_reference_to_a_variable_that_has_no_value_yet_is_reported(
    tmp_path: Path, variables: str, key: str
) -> None:
    found = findings_of(tmp_path, f"{GOOD}[env.vars]\n{variables}\n")

    assert [each.key for each in found] == ([key] if key else [])


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("benchmark_code = 'python3 train.py | tee log'", "ml.benchmark_code"),
        ("benchmark_code = 'train --seed $(date +%s)'", "ml.benchmark_code"),
        ("benchmark_code = 'train --seed $(SEED)'", "ml.benchmark_code"),
        ("benchmark_code = 'train; echo done'", "ml.benchmark_code"),
        ("benchmark_code = 'train > out.log'", "ml.benchmark_code"),
        ("benchmark_code = 'train 2>err.log'", "ml.benchmark_code"),
        ("benchmark_code = 'train &'", "ml.benchmark_code"),
        ("benchmark_code = 'train `hostname`'", "ml.benchmark_code"),
        ("benchmark_code = 'train --data ~/data'", "ml.benchmark_code"),
        ("benchmark_code = 'train'\nargs = '--data $HOME/data'", "ml.args"),
        ("benchmark_code = 'train'\n[env]\ndocker_image = 'python:3'", "env.docker_image"),
        (
            "benchmark_code = 'train'\n[hardware.distributed]\nnum_instances = 4",
            "hardware.distributed.num_instances",
        ),
        (
            "benchmark_code = 'train'\n[hardware.distributed]\nnum_instances = 1\nlaunch = 'user'",
            "hardware.distributed.launch",
        ),
        (
            "benchmark_code = 'train'\n[hardware.distributed]\nnum_instances = 1\nmax_restarts = 1",
            "hardware.distributed.max_restarts",
        ),
        (
            "benchmark_code = 'train'\n[hardware.distributed]\nnum_instances = 1\ncpus_per_process = 1",
            "hardware.distributed.cpus_per_process",
        ),
        (
            "benchmark_code = 'train'\n[hardware.distributed]\nnum_instances = 1\nmpirun_options = ['-v']",
            "hardware.distributed.mpirun_options",
        ),
        (
            "benchmark_code = 'train'\n[[aws.ec2.run_instances.BlockDeviceMappings]]\n"
            "DeviceName = '/dev/sdf'\nEbs = { VolumeType = 'gp2', VolumeSize = 10 }",
            "aws.ec2.run_instances.BlockDeviceMappings[0].Ebs.VolumeType",
        ),
    ],
)
def test_an_ambiguous_value_is_a_warning(tmp_path: Path, text: str, key: str) -> None:
    finding = only(tmp_path, GOOD.replace('benchmark_code = "python3 train.py"', text))

    assert (finding.key, finding.severity) == (key, Severity.WARNING)


@pytest.mark.parametrize(
    ("tables", "key", "advice"),
    [
        (
            "[env]\ncontainer = '--privileged'",
            "env.container",
            'write for example "registry.example/train:1"',
        ),
        (
            "[env]\ncontainer = 'docker-archive:/x'",
            "env.container",
            'write for example "registry.example/train:1"',
        ),
        ("[env]\ncontainer = 'r/t:1'\npython = '/opt/python'", "env.python", "name the Python of the image"),
        (
            "[env]\ncontainer = 'r/t:1'\n[ml.script]\npath = '.'\nrequirements = 'r.txt'",
            "ml.script.requirements",
            "install the packages in the image",
        ),
        (
            "[env]\ncontainer = 'r/t:1'\n[hardware.distributed]\nnum_instances = 2",
            "env.container",
            "use one of these strategies",
        ),
    ],
)
def test_a_container_that_cannot_be_started_is_named(
    tmp_path: Path, tables: str, key: str, advice: str
) -> None:
    for name in ("r.txt", "train.py") if "ml.script" in tables else ():
        (tmp_path / name).touch()
    text = GOOD.replace('"local"', '"local"\nstrategy = "mpi"') if "num_instances" in tables else GOOD

    finding = only(tmp_path, f"{text}{tables}\n")

    assert (finding.key, finding.severity) == (key, Severity.ERROR)
    assert advice in finding.fix


def test_a_container_needs_neither_an_ami_nor_a_program_of_this_machine(tmp_path: Path) -> None:
    engine = GOOD.replace('"d"', '"d"\nexecution_engine = "local"')

    assert findings_of(tmp_path, f"{engine}[env]\ncontainer = 'r/t:1'\ndocker_image = 'r/t:1'\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "benchmark_code = 'train --seed $(SEED)'\n[env.vars]\nSEED = 7",
        "benchmark_code = 'train $(HF_TOKEN)'\n[env.secrets]\nHF_TOKEN = 'env:HF_TOKEN'",
        "benchmark_code = 'train $(HOME) $(BENCHMARK_AI_FIFO_FILEPATH) $$(KEPT)'",
        "benchmark_code = 'python3 -c \"print(1 | 2)\"'",
        "benchmark_code = 'train --url http://host/?a=1&b=2 --set a;b --mail me@~host'",
        "benchmark_code = 'sh -c \"echo $HOME; date &\"'",
        "benchmark_code = 'find . -exec ls {} \\;'",
        "benchmark_code = '''\n#!/bin/sh\necho $(date) | cat\n'''",
    ],
)
def test_a_correct_descriptor_has_no_findings(tmp_path: Path, text: str) -> None:
    assert findings_of(tmp_path, GOOD.replace('benchmark_code = "python3 train.py"', text)) == []


def test_a_descriptor_from_a_message_reads_no_local_files() -> None:
    table = {
        "spec_version": "0.1.0",
        "info": {"description": "d"},
        "hardware": {"instance_type": "t3.small"},
        "ml": {"benchmark_code": "train", "script": {"script": "scripts.tar"}},
        "data": {"sources": [{"src": "file:///nowhere/at/all", "path": "/data/x"}]},
    }

    descriptor, findings = load_table(table, file="submission", folder=None)

    assert descriptor is not None
    assert findings == []


def test_findings_are_formatted_with_key_problem_and_fix(tmp_path: Path) -> None:
    finding = Finding(
        file="b.toml",
        path=("output", "metrics", 1, "units"),
        problem="is missing",
        fix="add units",
        item="acc",
    )
    warning = Finding(file="b.toml", path=("ml",), problem="p", fix="f", severity=Severity.WARNING)

    assert render_findings([warning, finding]) == (
        'error: b.toml: output.metrics[1].units (of "acc")\n'
        "    is missing\n"
        "    → add units\n"
        "\n"
        "warning: b.toml: ml\n"
        "    p\n"
        "    → f\n"
        "\n"
        "1 error, 1 warning\n"
    )
    assert render_findings([]) == ""


@pytest.mark.parametrize("pattern", ["(?a)(?u)x", "(?L)x", "x{%s}" % ("9" * 5000)])
def test_a_pattern_that_python_refuses_is_a_finding(tmp_path: Path, pattern: str) -> None:
    file = tmp_path / "x.toml"
    file.write_text(f"[[output.metrics]]\nname = 'x'\npattern = '{pattern}'\nexample = 'x'\n")

    _, findings = load(file)

    assert any(each.key == "output.metrics[0].pattern" for each in findings)


@pytest.mark.parametrize("key", ["path", "script", "requirements"])
def test_a_path_that_is_too_long_is_a_finding(tmp_path: Path, key: str) -> None:
    file = tmp_path / "x.toml"
    file.write_text(f"[ml.script]\npath = '.'\n{key} = '{'x' * 5000}'\n".replace("path = '.'\npath", "path"))

    _, findings = load(file)

    assert any(each.key.startswith("ml.script") for each in findings)


METRIC = "[[output.metrics]]\nname = 'm'\n"


@pytest.mark.parametrize(
    ("keys", "key", "problem"),
    [
        (r"units = ''; pattern = 'loss=\d+'", "pattern", "whole match"),
        (r"units = ''; pattern = 'step (?P<step>\d+)'", "pattern", "whole match"),
        (r"units = ''; pattern = 'is ([a-df-z]+)'", "pattern", "can never be a number"),
        (r"units = ''; pattern = 'is (loss|acc)'", "pattern", "can never be a number"),
        (r"units = ''; pattern = 't=(\d+,\d+)'", "pattern", "can never be a number"),
        (r"units = ''; pattern = '(?P<rank>\d+): (\d+)'", "pattern", '"rank"'),
        (r"units = ''; pattern = '(?P<task_name>\d+): (\d+)'", "pattern", "[info.labels]"),
        (r"units = ''; pattern = 't=(\d+)(?P<unit>m?s)'", "pattern", "target unit"),
    ],
)
def test_a_metric_with_a_useless_or_contradictory_pattern_is_refused(
    tmp_path: Path, keys: str, key: str, problem: str
) -> None:
    labels = "[info.labels]\ntask_name = 't'\n"
    finding = only(tmp_path, GOOD + METRIC + keys.replace("; ", "\n") + "\n" + labels)
    assert finding.severity is Severity.ERROR
    assert finding.key == f"output.metrics[0].{key}"
    assert problem in finding.problem


@pytest.mark.parametrize(
    ("keys", "key", "problem"),
    [
        (r"pattern = 'loss=(\d+)'", "units", "missing"),
        (r"units = ''; pattern = '(?P<Value>\d+) (?P<x>\d+) (\d+)'", "pattern", 'did you mean "value"?'),
        (r"units = ''; pattern = '(?P<val>\d+)'", "pattern", 'did you mean "value"?'),
        (r"units = ''; pattern = '(?P<stp>\d+) (\d+)'", "pattern", 'did you mean "step"?'),
        (r"units = 's'; pattern = '(\d+)(?P<Unit>\w+)'", "pattern", 'did you mean "unit"?'),
        (r"units = ''; pattern = '=([\d.]+)'; example = 'r=60,911.3'", "example", '"60,911.3"'),
        (r"units = 'ms'; pattern = '=([\d.]+)'; example = 'max=1.14s'", "example", '"1.14s"'),
    ],
)
def test_a_probably_unintended_value_is_a_warning(tmp_path: Path, keys: str, key: str, problem: str) -> None:
    finding = only(tmp_path, GOOD + METRIC + keys.replace("; ", "\n") + "\n")
    assert finding.severity is Severity.WARNING
    assert finding.key == f"output.metrics[0].{key}"
    assert problem in finding.problem


@pytest.mark.parametrize(
    "keys",
    [
        r"units = ''; pattern = '(?<=loss=)\d+'",
        r"units = ''; pattern = '(?i)e\d|\d'",
        r"units = ''; pattern = 'x: (?P<value>\S+) (?P<threads>\d+)'",
        r"units = 's'; pattern = 't=(\d+:\d+)'",
        r"units = ''; number = 'thousands'; pattern = 't=(\d+,\d+)'",
        r"units = 'ms'; pattern = 'max=(?P<value>[\d.]+)(?P<unit>\w+)'; example = 'max=1.14s'",
        r"units = ''; number = 'auto'; pattern = 'n=(\d+)'; example = 'n=60,911'",
    ],
)
def test_a_pattern_that_may_match_a_number_is_accepted(tmp_path: Path, keys: str) -> None:
    assert findings_of(tmp_path, GOOD + METRIC + keys.replace("; ", "\n") + "\n") == []


@pytest.mark.parametrize("processes", ["2", "'2'", "'gpus'"])
def test_each_node_refuses_more_than_one_process_per_machine(tmp_path: Path, processes: str) -> None:
    text = GOOD.replace("[ml]", 'strategy = "each_node"\n[ml]')
    table = "[hardware.distributed]\nprocesses_per_instance = "

    finding = only(tmp_path, f"{text}{table}{processes}\n")

    assert (finding.key, finding.severity) == (
        "hardware.distributed.processes_per_instance",
        Severity.ERROR,
    )
    assert "starts the command once on each machine" in finding.problem
    assert findings_of(tmp_path, f"{text}{table}1\n") == []


MOUNT = """
[[mounts]]
type = "{type}"
src = "{src}"
target = "{target}"
"""


@pytest.mark.parametrize(
    ("mount", "key", "problem"),
    [
        ({"target": "/"}, "target", "is not the path of a folder to mount at"),
        ({"target": "efs"}, "target", "is not the path of a folder to mount at"),
        ({"target": "/a b"}, "target", "is not the path of a folder to mount at"),
        ({"target": "/efs/"}, "target", "is not the path of a folder to mount at"),
        ({"target": "/efs/../etc"}, "target", 'has a "." or ".." part'),
        ({"target": "/usr/local/efs"}, "target", "is a folder of the system"),
        ({"target": "/var/lib"}, "target", "is a folder of the system"),
        ({"target": "/tmp"}, "target", "is a folder of the system"),
        ({"src": "server"}, "src", "does not name an NFS server and an export"),
        ({"src": "-o:/x"}, "src", "does not name an NFS server and an export"),
        ({"src": "a..example:/x"}, "src", "does not name an NFS server and an export"),
        ({"src": f"{'a' * 64}.example:/x"}, "src", "does not name an NFS server and an export"),
        ({"src": "fs-0123456789abcdef0:/"}, "src", "names an EFS file system, not an NFS server"),
        ({"type": "efs"}, "src", "does not name an EFS file system and a folder in it"),
        ({"type": "smb"}, "type", '"smb" is not one of the choices'),
    ],
)
def test_a_mount_with_an_invalid_server_or_target_is_refused(
    tmp_path: Path, mount: dict[str, str], key: str, problem: str
) -> None:
    found = only(
        tmp_path, GOOD + MOUNT.format(**{"type": "nfs", "src": "server:/x", "target": "/x", **mount})
    )

    assert found.key == f"mounts[0].{key}"
    assert problem in found.problem


@pytest.mark.parametrize(
    ("src", "target"),
    [("10.0.0.5:/x", "/data/efs-1"), ("[fd00::1]:/", "/mnt"), ("a.b.example:/x,ro", "/tmp/x")],
)
def test_a_mount_may_have_any_server_and_a_folder_below_that_of_others(
    tmp_path: Path, src: str, target: str
) -> None:
    assert findings_of(tmp_path, GOOD + MOUNT.format(type="nfs", src=src, target=target)) == []


@pytest.mark.parametrize("targets", [("/a", "/a"), ("/a/b", "/a"), ("/a", "/a/b/c")])
def test_overlapping_mounts_are_refused(tmp_path: Path, targets: tuple[str, str]) -> None:
    mounts = "".join(MOUNT.format(type="nfs", src="server:/x", target=each) for each in targets)

    found = only(tmp_path, GOOD + mounts)

    assert found.key == "mounts[1].target"
    assert found.problem == f'"{targets[1]}" overlaps with "{targets[0]}"'


@pytest.mark.parametrize(
    ("strategy", "machines", "checkpoint", "fix"),
    [
        (
            "each_node",
            "2",
            "path = '/efs/run'",
            "add shared = true, or name a folder on each node's own disk",
        ),
        (
            "each_node",
            "'1:2'",
            "path = '/efs'",
            "add shared = true, or name a folder on each node's own disk",
        ),
        ("adaptdl", "'1:2'", "path = '/efs/run'", "name a folder on each node's own disk"),
        ("each_node", "2", "path = '/efs/run'\nshared = true", None),
        ("each_node", "2", "path = '/efs-2'", None),
        ("each_node", "2", "path = 'efs'", None),
        ("each_node", "1", "path = '/efs/run'", None),
    ],
)
def test_a_checkpoint_folder_shared_by_all_nodes_causes_a_warning(
    tmp_path: Path, strategy: str, machines: str, checkpoint: str, fix: str | None
) -> None:
    text = GOOD.replace(
        "[ml]", f'strategy = "{strategy}"\n[hardware.distributed]\nnum_instances = {machines}\n[ml]'
    )
    mount = MOUNT.format(type="nfs", src="server:/x", target="/efs")

    found = findings_of(tmp_path, f"{text}[checkpoint]\n{checkpoint}\n{mount}")

    wanted = [("checkpoint.path", Severity.WARNING, fix)] if fix is not None else []
    assert [(each.key, each.severity, each.fix) for each in found] == wanted


def test_iam_authorization_is_refused_for_a_mount_that_is_not_efs(tmp_path: Path) -> None:
    nfs = MOUNT.format(type="nfs", src="server:/x", target="/x") + "iam = true\n"

    assert only(tmp_path, GOOD + nfs).key == "mounts[0].iam"
