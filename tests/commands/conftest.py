"""Tests of commands leave the register as they found it."""

import sys

import pytest

import hypersphere.training  # noqa: F401 - registers the parts of the library
from hypersphere import registry
from registered import restore


@pytest.fixture(autouse=True)
def forget():
    """Take what a test imports and registers away again."""
    before = {kind: dict(table) for kind, table in registry._ENTRIES.items()}
    modules = set(sys.modules)
    yield
    restore(before, modules)
