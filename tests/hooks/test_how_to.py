"""The blocks of docs/how-to/hooks.md run as they stand, one after another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from monolith import collective, hooks


def test_the_blocks_of_the_document_run(project_root: Path) -> None:
    text = (project_root / "docs" / "how-to" / "hooks.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    names: dict[str, Any] = {"__name__": "how_to"}
    try:
        for block in blocks:
            assert "assert " in block
            exec(compile(block, "docs/how-to/hooks.md", "exec"), names)  # noqa: S102 - our own document
    finally:
        collective.shutdown()


def test_every_hook_of_this_room_is_named_in_a_document(project_root: Path) -> None:
    pages = "".join(
        path.read_text(encoding="utf-8") for path in sorted((project_root / "docs" / "how-to").glob("*.md"))
    )
    elsewhere = {"CheckpointRestorerHook", "NoFirstSaveCheckpointSaverHook"}
    made = {name for name in dir(hooks) if name.endswith("Hook")}
    assert [name for name in sorted(made - elsewhere) if name not in pages] == []
