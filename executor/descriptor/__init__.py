"""Reads benchmark descriptors, and finds all mistakes in them."""

from executor.descriptor.findings import Finding, Severity, has_errors, render_findings
from executor.descriptor.load import load, load_table
from executor.descriptor.model import Descriptor
from executor.descriptor.schema import json_schema
from executor.descriptor.template import TEMPLATE

__all__ = [
    "TEMPLATE",
    "Descriptor",
    "Finding",
    "Severity",
    "has_errors",
    "json_schema",
    "load",
    "load_table",
    "render_findings",
]
