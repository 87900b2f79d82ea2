"""A table written as TOML reads back as the same table."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job.toml import read_toml_text
from executor.descriptor.toml_text import toml_document

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [r"loss=(\S+)", "it's \\d", "a\n\\b", "\x7f", '"', "\\"]
)
SCALARS = (
    TEXTS
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.dates()
    | st.times()
)
TABLES = st.recursive(
    st.dictionaries(TEXTS, SCALARS, max_size=3),
    lambda inner: st.dictionaries(
        TEXTS, SCALARS | st.lists(SCALARS, max_size=2) | inner | st.lists(inner, max_size=2), max_size=4
    ),
    max_leaves=12,
)


@given(TABLES)
def test_a_document_reads_back_as_its_table(table: dict[str, Any]) -> None:
    assert read_toml_text(toml_document(table)) == table


def test_a_pattern_keeps_its_backslashes_and_tables_have_headers() -> None:
    table = {"output": {"metrics": [{"name": "loss", "pattern": r"loss: (\S+)"}]}, "spec_version": "0.1.0"}

    assert toml_document(table) == (
        'spec_version = "0.1.0"\n\n[output]\n\n[[output.metrics]]\nname = "loss"\npattern = \'loss: (\\S+)\'\n'
    )
