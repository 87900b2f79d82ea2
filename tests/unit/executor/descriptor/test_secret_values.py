"""Values that look like secrets are found, others are not, and no finding repeats a secret."""

from __future__ import annotations

import pytest

from executor.descriptor import load_table, render_findings
from executor.descriptor.checks.secret_values import looks_secret

RANDOM_KEY = "wJalrXUtnFEMI7K7MDENG" + "bPxRfiCYz9Qk3LmTs2V"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ANY", "AKIAABCDEFGHIJKLMNOP"),
        ("ANY", "hf_abcdefghijklmnopqrstuvwxyz"),
        ("ANY", "ghp_abcdefghijklmnopqrstuvwxyz0123456789"),
        ("ANY", "-----BEGIN RSA PRIVATE KEY-----"),
        ("ANY", "postgresql://user:hunter2@host/db"),
        ("ANY", RANDOM_KEY),
        ("MY_PASSWORD", "hunter2"),
        ("WANDB_API_KEY", "local-abc"),
        ("HF_TOKEN", "xyz"),
        ("client_secret", "xyz"),
    ],
)
def test_a_value_that_looks_like_a_secret_is_a_finding(name: str, value: str) -> None:
    assert looks_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMP_NUM_THREADS", "36"),
        ("KMP_AFFINITY", "granularity=fine,verbose,compact,1,0"),
        ("MAX_TOKEN", "512"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("SSH_PRIVATE_KEY", "/root/.ssh/id_ed25519"),
        ("HF_TOKEN", "$(OTHER)"),
        ("COMMIT", "2b7f0c1d9e8a4f6b3c5d7e9f1a2b3c4d5e6f7a8b"),
        ("MODEL", "meta-llama/Meta-Llama-3.1-70B-Instruct-FP8-dynamic"),
        ("DATA", "/opt/ml/input/data/training/Imagenet2012/Validation/Images"),
        ("PYTHONPATH", "/home/ubuntu/anaconda3/envs/tensorflow2/lib/python3.10/site-packages"),
        ("URL", "https://example.com/some/long/path?with=query&and=more"),
        ("EMPTY_PASSWORD", ""),
    ],
)
def test_a_value_that_is_no_secret_has_no_finding(name: str, value: str) -> None:
    assert looks_secret(name, value) is None


def test_a_finding_never_holds_the_secret() -> None:
    secrets = ["hunter2-hunter2", "hf_abcdefghijklmnopqrstuvwxyz", "swordfish-swordfish"]
    table = {
        "ml": {"benchmark_code": f"train --token {secrets[1]}"},
        "env": {"vars": {"DB_PASSWORD": secrets[0], "TOKEN": secrets[1]}, "secrets": {"A": secrets[2]}},
        "kafka": {"brokers": ["b:1"], "sasl_password": secrets[2]},
    }

    _, findings = load_table(table, file="b.toml", folder=None)

    keys = {finding.key for finding in findings}
    assert {
        "ml.benchmark_code",
        "env.vars.DB_PASSWORD",
        "env.vars.TOKEN",
        "env.secrets.A",
        "kafka.sasl_password",
    } <= keys
    assert not [secret for secret in secrets if secret in render_findings(findings, width=10_000)]
