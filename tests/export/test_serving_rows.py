"""Into how many files the rows of an export go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monolith.export.serving_rows import _num_files
from monolith.tables import Schema, Segment, TableConfig, TableGroup


@pytest.mark.parametrize(("megabytes", "files"), [(0, 1), (127, 1), (128, 2), (128 * 7, 8)])
def test_a_file_has_at_most_128_megabytes(megabytes: int, files: int) -> None:
    schema: Schema = TableGroup({"a": TableConfig([Segment(1)])}).schema  # 16 bytes for each row
    parts: Any = [SimpleNamespace(rows={"a": megabytes << 15}), SimpleNamespace(rows={"a": megabytes << 15})]
    assert schema.num_bytes({"a": 1}, state=False) == 16
    assert _num_files(parts, schema) == files
