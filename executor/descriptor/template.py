"""The descriptor that `bai init` prints. The descriptor runs without changes, and shows the tables that most users
need."""

from __future__ import annotations

TEMPLATE = r'''#:schema ./benchmark.schema.json
# The line above lets editors (Even Better TOML, Taplo) complete and check this file:
#     bai schema > benchmark.schema.json
# Check it with `bai validate benchmark.toml`, see what would run with `bai plan benchmark.toml`,
# and run it with `bai run benchmark.toml`.

spec_version = "0.1.0"

[info]
description = "Hashes and sorts for a few seconds: replace it with your benchmark"
# "local" runs on this machine, "aws.ec2" on EC2 instances. `--on` overrides this key for one call.
execution_engine = "local"

# Labels of every metric; values contain only letters, digits and - _ .
[info.labels]
task_name = "my-benchmark"

[hardware]
# The EC2 instance type, which runs on this machine ignore.
instance_type = "local"
# single_node, each_node, torchrun, horovod, mpi, adaptdl, ray or inference
strategy = "single_node"
# The number of machines of the other strategies: 4, or "2:4" for a job that can run on 2 to 4 machines.
# [hardware.distributed]
# num_instances = 4

[ml]
# One line is a command: benchmark_code = "python3 train.py --epochs 8"
# Text of several lines, or with a first line #!, is a script.
benchmark_code = """
#!/usr/bin/env python3
import hashlib, os, time

block = os.urandom(1 << 20)
for step in range(1, 11):
    start = time.perf_counter()
    for _ in range(100):
        hashlib.sha256(block).digest()
    hashed = time.perf_counter()
    sorted(os.urandom(200_000))
    done = time.perf_counter()
    print(f"step {step}: sha256 {100 / (hashed - start):.1f} MiB/s, sort {(done - hashed) * 1000:.2f} ms")
"""

# Your own files: this folder is copied to where the benchmark runs, and becomes its working folder.
# .gitignore and .baiignore are honoured. In benchmark_code, $(BAI_SCRIPTS_PATH) is the folder's path.
# [ml.script]
# path = "."
# requirements = "requirements.txt"

# Each pattern is a regular expression, searched in every line that the benchmark prints; the number is its first group.
# Single quotes keep backslashes as they are. `bai validate` tries the pattern on the example.
[[output.metrics]]
name = "sha256_throughput"
units = "MiB/s"
pattern = 'sha256 (\d+\.\d+) MiB/s'
example = "step 3: sha256 401.7 MiB/s, sort 9.31 ms"
better = "higher"
required = true

[[output.metrics]]
name = "sort_time"
units = "ms"
# The group "step" becomes the axis of plots.
pattern = 'step (?P<step>\d+):.* sort (?P<value>\d+\.\d+) ms'
example = "step 3: sha256 401.7 MiB/s, sort 9.31 ms"
better = "lower"

# preset: the metrics of a program that `bai` knows; `bai presets` lists them. artifacts: files that are saved with the job,
# relative to the benchmark's folder:
# [output]
# preset = "fio"
# artifacts = ["runs/**"]

# Data that is pulled before the benchmark starts: s3://, https://, file:///, or a path relative to this file.
# [[data.sources]]
# src = "s3://bucket/train.npz"
# path = "/data/train.npz"
# sha256 = "…"

# Environment variables. Secrets are looked up where the benchmark runs, and never written to disk.
# [env.vars]
# OMP_NUM_THREADS = "4"
# [env.secrets]
# HF_TOKEN = "env:HF_TOKEN"

[limits]
# Maximum duration of the benchmark.
max_runtime = "10m"
# A benchmark that prints nothing for this time is ended.
# no_output = "5m"

# A benchmark that fails is started again. The benchmark finds its checkpoints in $BAI_CHECKPOINT_DIR:
# [restart]
# max_restarts = 3
# [checkpoint]
# path = "checkpoints"

# Kafka brokers to which the metrics are also sent:
# [kafka]
# brokers = ["broker-1:9092"]

# For execution_engine = "aws.ec2":
# [aws.ec2]
# image = "ami-0123456789abcdef0"
'''
