"""The blocks of docs/how-to/prefetch.md run as they stand, one after another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def test_the_blocks_of_the_document_run(project_root: Path) -> None:
    text = (project_root / "docs" / "how-to" / "prefetch.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, Any] = {"__name__": "how_to"}
    for block in blocks:
        assert "assert " in block
        exec(compile(block, "docs/how-to/prefetch.md", "exec"), names)  # noqa: S102 - our own document
