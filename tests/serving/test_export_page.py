"""docs/how-to/export.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "how-to" / "export.md"


def test_the_blocks_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"__name__": "how_to"}
    for block in blocks:
        exec(compile(block, "export.md", "exec"), names)  # noqa: S102 - the reader's lines, as they stand
    assert len(blocks) == 4
