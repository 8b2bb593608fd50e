"""The blocks of docs/how-to/checkpoints.md run as they stand, one after another."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

DOCUMENT = Path("docs") / "how-to" / "checkpoints.md"


def test_the_blocks_of_the_document_run(project_root: Path) -> None:
    text = (project_root / DOCUMENT).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 9
    names: dict[str, Any] = {"__name__": "how_to"}
    try:
        for block in blocks:
            assert "assert " in block
            exec(compile(block, str(DOCUMENT), "exec"), names)  # noqa: S102 - our own document
    finally:
        shutil.rmtree(names["model_dir"])
