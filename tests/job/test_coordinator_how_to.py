"""docs/how-to/coordinator.md: its blocks run as they stand, one after another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = "coordinator.md"


def test_the_page_runs(project_root: Path) -> None:
    text = (project_root / "docs" / "how-to" / PAGE).read_text(encoding="utf-8")
    scope: dict[str, Any] = {"__name__": "how_to"}
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        exec(compile(block, PAGE, "exec"), scope)  # noqa: S102 - the reader's lines, as they stand
    assert list(scope["saved"]["queues"]) == ["files"]
