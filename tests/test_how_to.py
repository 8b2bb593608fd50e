"""The examples of the how-to pages run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import fsspec
import pytest

from monolith import collective

HOW_TO = Path(__file__).resolve().parent.parent / "docs" / "how-to"
PAGES = [
    "collective.md",
    "data-operators.md",
    "datasets.md",
    "files.md",
    "metrics-and-logs.md",
    "negative-sampling.md",
    "object-stores.md",
    "parquet.md",
    "summaries.md",
]


@pytest.mark.usefixtures("nothing_left_behind")
@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLITH_METRIC_PREFIX", "put back afterwards")
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (HOW_TO / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert blocks
    try:
        for block in blocks:
            exec(compile(block, page, "exec"), {"__name__": "how_to"})  # noqa: S102 - the reader's lines, as they stand
    finally:
        collective.shutdown()
        fsspec.filesystem("memory").store.clear()
